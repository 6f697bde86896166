"""Dropout on embedded tokens: how many, how they are scaled, in training only, and refused without tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_tasks import Letters, SignTask, tiny_settings

from lipschitz_rnn.training import fit
from lipschitz_rnn.training.model import build_model
from lipschitz_rnn.training.parallel import Shard
from lipschitz_rnn.training.streams import Stream

SETTINGS = tiny_settings(task="letters", unit="lipschitz", hidden_size=7, embedding_dropout=0.25, epochs=1)


@pytest.mark.parametrize("of_head", [0.0, 0.5])
def test_a_quarter_of_the_embedded_values_is_dropped_and_the_rest_is_scaled(of_head: float) -> None:
    task = Letters()
    settings = replace(SETTINGS, dropout=of_head)
    model = build_model(settings, task, seed=0)
    seen: list[torch.Tensor] = []
    model.unit.register_forward_pre_hook(lambda module, given: seen.append(given[0].detach()))
    stream = Stream(settings, task, torch.device("cpu"), Shard())
    stream.begin_epoch()
    batch, keep = stream.draw(0)
    assert keep is not None
    model(batch.inputs[0], keep=keep[0])
    plain = model.embedding(batch.inputs[0]).detach()
    kept = seen[0] != 0
    torch.testing.assert_close(seen[0][kept], plain[kept] / 0.75)
    count = kept.numel()
    assert abs(kept.float().mean().item() - 0.75) < 4 * (0.75 * 0.25 / count) ** 0.5
    assert bool((keep[0, ..., :7] == 1).all()) == (of_head == 0)  # the head has its own rate


def test_it_is_off_by_default_and_changes_training_when_on() -> None:
    without = fit(replace(SETTINGS, embedding_dropout=0.0), Letters()).seeds[0]
    with_it = fit(SETTINGS, Letters()).seeds[0]
    assert without.validation != with_it.validation


def test_it_is_refused_where_there_are_no_tokens() -> None:
    with pytest.raises(ValueError, match=r"embedding_dropout is 0\.25.*not tokens"):
        fit(replace(SETTINGS, task="sign"), SignTask())


def test_it_is_refused_for_a_model_that_does_not_take_it() -> None:
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(40, 3)

        def forward(self, inputs: torch.Tensor, *rest: object) -> tuple[torch.Tensor, None]:
            return self.table(inputs), None

    with pytest.raises(ValueError, match=r"embedding_dropout.*Own"):
        fit(SETTINGS, Letters(), build=lambda settings, task, seed: Own())
