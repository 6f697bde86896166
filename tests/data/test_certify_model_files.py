"""`lipschitz-rnn certify` on model files: the networks inside, over the times that they can meet."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_models import make_model
from typer.testing import CliRunner

from lipschitz_rnn import data
from lipschitz_rnn.cli import app

CONTRACTING = {"step_size": 0.1, "max_step": 0.1, "stability": "contracting"}


def certify(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["certify", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    models = [make_model(options=CONTRACTING, seed=seed) for seed in range(2)]
    return data.save_model(tmp_path / "model.safetensors", models, {"seeds": [3, 5]})


@pytest.mark.needs("cvxpy", "scipy")
def test_every_network_of_a_model_file_is_certified_for_its_times(model_file: Path) -> None:
    code, words = certify(model_file, "--rate", "0.001")
    assert code == 0
    assert words.count("certified") == 2
    assert "seed 3: certified" in words
    assert "every step from 0.0001 to 0.1" in words
    assert "seed 3" not in certify(model_file, "--seed", "5", "--rate", "0.001")[1]


@pytest.mark.needs("cvxpy", "scipy")
def test_a_bound_on_rounding_says_for_which_inputs_and_steps(model_file: Path) -> None:
    """The layer's own, after scaling; and rounding of far shorter steps adds up to more."""
    code, words = certify(model_file, "--seed", "5", "--rate", "0.001", "--rounding", "3")
    assert code == 0
    assert "For inputs of the layer, after any scaling, of at most 3 and computation in float32" in words
    assert "however long the sequence with steps from 0.0001 to 0.1;" in words


def test_a_radius_needs_data_and_says_so(model_file: Path) -> None:
    code, words = certify(model_file, "--radius", "0.1")
    assert code == 2
    assert "add --file FILE with series and their classes" in words


def test_a_map_of_one_length_is_refused_by_what_it_does_with_times(tmp_path: Path) -> None:
    """Not by a step size that nobody gave."""
    path = data.save_model(tmp_path / "model.safetensors", [make_model("cornn")])
    code, words = certify(path)
    assert code == 2
    assert "stated for steps of one length only" in words
