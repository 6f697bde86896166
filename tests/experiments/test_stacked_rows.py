"""Rows that the paper does not have: their size, their place on the page, and the commands that repeat them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from invented_records import invented

from lipschitz_rnn.documents.blocks import to_markdown
from lipschitz_rnn.experiments.pages.sections import cells, name_unit
from lipschitz_rnn.experiments.paper import find_cell
from lipschitz_rnn.experiments.studies import STUDIES
from lipschitz_rnn.training.model import build_model


@pytest.mark.parametrize(("study", "layers"), [("cifar", {2, 3}), ("mnist", {2, 3})])
def test_stacked_rows_have_few_parameters_and_no_cell_of_the_paper(study: str, layers: set[int]) -> None:
    plans = STUDIES[study].plans(["stacked"])
    assert {plan.settings.num_layers for plan in plans} == layers
    for plan in plans:
        values = {"input_size": 3 if study == "cifar" else 1, "output_size": 10, "vocabulary": None, "readout": "last"}
        shapes = SimpleNamespace(**values)
        assert sum(p.numel() for p in build_model(plan.settings, shapes, 0).parameters()) <= 150_000
        assert plan.settings.clip == 1.0
        assert find_cell(plan.settings) is None
        shown = invented(plan, [0.61])
        layers_and_rate = f"{plan.settings.num_layers} layers, rate {plan.settings.learning_rate:g}"
        assert name_unit(shown) == f"Lipschitz RNN, {layers_and_rate}, Euler"
        assert "| – |" in to_markdown(cells(STUDIES[study], [shown]))


@pytest.mark.parametrize("study", ["cifar", "mnist", "ptb", "speech"])
def test_the_command_of_a_row_selects_that_row_alone(study: str) -> None:
    """Also that of another unit whose row has a label of its own, such as lru-2 or irnn-warm."""
    for plan in STUDIES[study].plans(groups=list(STUDIES[study].groups)):
        _, _, name = plan.command.partition("--only ")
        if name:
            assert [found.name for found in STUDIES[study].plans([name.split()[0]])] == [plan.name]
