"""Times between samples reach the network wherever a batch goes, and a model that cannot take them is refused."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from test_training_nothing_lost import SignalAt, assert_same_run
from tiny_tasks import CLOSE, NextValue, SignTask, Uneven, tiny_settings
from torch import Tensor, nn

from lipschitz_rnn import load_run, tasks, units
from lipschitz_rnn.tasks import Batch
from lipschitz_rnn.training import Interrupted, SequenceModel, Settings, build_model, evaluate, fit
from lipschitz_rnn.training.preparation import check_start
from lipschitz_rnn.training.streams import Shard, Stream, for_members

TAKERS = [name for name in units.available() if units.info(name).timespans]


def settings(**changes: Any) -> Settings:
    return tiny_settings(**({"task": "uneven", "unit": "lipschitz", "unit_options": {"step_size": 0.5}} | changes))


def by_hand(model: SequenceModel, batch: Batch) -> Tensor:
    """One series after another, cut to its length, one step at a time through the unit's stream."""
    assert batch.lengths is not None
    assert batch.timespans is not None
    rows = []
    for b, length in enumerate(batch.lengths.tolist()):
        stream = model.unit.stream()
        for t in range(length):
            output = stream(batch.inputs[t, b], float(batch.timespans[t, b]))
        rows.append(model.head(output))
    return torch.stack(rows)


def test_a_batch_moves_and_maps_with_all_that_it_has() -> None:
    whole = Uneven().batch("train", torch.arange(4))
    assert [tuple(part.shape) for part in whole.tensors] == [(7, 4, 1), (4,), (4,), (7, 4)]
    assert all(part.is_meta for part in whole.to("meta").tensors)
    plain = SignTask().batch("train", torch.arange(4)).to("meta")
    assert (plain.lengths, plain.timespans, len(plain.tensors)) == (None, None, 2)


def test_how_a_network_sees_the_times() -> None:
    batch = Uneven().batch("train", torch.arange(4))
    assert batch.timespans is not None
    assert tasks.with_times(batch, "ignored").timespans is None
    seen = tasks.with_times(batch, "input")
    assert seen.timespans is None
    torch.testing.assert_close(seen.inputs[..., 0], batch.inputs[..., 0], equal_nan=True)
    assert torch.equal(seen.inputs[..., 1], batch.timespans)
    with pytest.raises(ValueError, match="times is 'steps'"):
        tasks.with_times(batch, "steps")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no timespans"):
        tasks.with_times(SignTask().batch("train", torch.arange(4)), "step")
    tokens = Batch(torch.zeros(3, 2, dtype=torch.int64), torch.zeros(2), None, torch.ones(3, 2))
    with pytest.raises(ValueError, match="tokens"):
        tasks.with_times(tokens, "input")


@pytest.mark.parametrize("unit", TAKERS)
def test_the_model_reads_the_last_valid_step_of_every_series_with_its_own_times(unit: str) -> None:
    task = Uneven()
    model = build_model(settings(unit=unit, unit_options={}, num_layers=2), task, 0).eval()
    batch = task.batch("train", torch.arange(6))
    outputs, _ = model(batch.inputs, batch.lengths, timespans=batch.timespans)
    torch.testing.assert_close(outputs, by_hand(model, batch), rtol=1e-4, atol=1e-6)
    outputs.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(("unit", "mode"), [("lipschitz", "vmap"), ("lem", "vmap"), ("cornn", "sequential")])
@pytest.mark.parametrize(
    ("optimiser", "precision", "close"),  # in float32 Adam's steps depend on rounding too much
    [
        pytest.param("sgd", "highest", {"rtol": 1e-4, "atol": 2e-6}, id="highest"),
        pytest.param("adam", "float64", CLOSE, id="float64"),
    ],
)
def test_members_see_their_own_times_and_equal_their_lone_runs(
    unit: str, mode: str, optimiser: str, precision: str, close: dict[str, float]
) -> None:
    common: dict[str, Any] = {"unit": unit, "unit_options": {}, "precision": precision, "optimiser": optimiser}
    together = fit(settings(**common, seeds=(0, 3), ensemble=mode), Uneven())
    alone = fit(settings(**common, seeds=(3,)), Uneven())
    assert together.ensemble == mode
    for name, value in alone.models[0].named_parameters():
        found = dict(together.models[1].named_parameters())[name]
        torch.testing.assert_close(found, value, **close)
    task = Uneven()
    batch = task.batch("test", torch.arange(16))
    floats = batch.map(lambda part: part.to(value.dtype) if part.is_floating_point() else part)
    right = by_hand(alone.models[0], floats).argmax(-1) == batch.targets
    assert alone.seeds[0].test == pytest.approx(float(right.float().mean()))
    if precision == "highest":
        assert evaluate(alone.models[0], task) == pytest.approx(float(right.float().mean()))


def test_the_times_change_what_is_learned() -> None:
    results = {times: fit(settings(), Uneven(times=times)).models[0] for times in ("step", "ignored")}
    assert not torch.equal(results["step"].head.weight, results["ignored"].head.weight)


@pytest.mark.parametrize("unit", [name for name in units.available() if name not in TAKERS])
def test_a_unit_without_time_is_refused_before_the_run_and_the_message_helps(unit: str, tmp_path: Path) -> None:
    asked = settings(unit=unit, unit_options={}, hidden_size=4)
    with pytest.raises(ValueError, match=rf"'uneven'.*'{unit}'.*neural-ode.*lipschitz.*lem.*times='input'"):
        fit(asked, Uneven(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_dry_run_refuses_it_too_without_reading_data() -> None:
    asked = settings(task="irregular-digits", unit="gru", unit_options={})
    with pytest.raises(ValueError, match=r"'irregular-digits'.*'gru'"):
        check_start(asked, tasks.check("irregular-digits"))
    for times in ("input", "ignored"):
        check_start(asked, tasks.check("irregular-digits", times=times))


@pytest.mark.parametrize("times", ["input", "ignored"])
def test_every_unit_can_be_compared_without_timespans(times: Any) -> None:
    result = fit(settings(unit="gru", unit_options={}), Uneven(times=times))
    assert result.models[0].unit.input_size == (2 if times == "input" else 1)


class Own(nn.Module):
    """A model of somebody's own: the mean of its states, or their integral over time."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.head = nn.Linear(1, 5), nn.Linear(5, 2)

    def states(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.inward(inputs.nan_to_num()))


class Untimed(Own):
    def forward(self, inputs: Tensor, lengths: Any = None, state: Any = None, keep: Any = None) -> Any:
        return self.head(self.states(inputs).mean(0)), None


class Timed(Own):
    def forward(
        self, inputs: Tensor, lengths: Any = None, state: Any = None, keep: Any = None, timespans: Any = None
    ) -> Any:
        total = (self.states(inputs) * timespans.clamp(min=0.0).unsqueeze(-1)).sum(0)
        return self.head(total), total


def test_a_model_of_ones_own_gets_the_times_by_name_or_is_refused() -> None:
    for seeds in ((0,), (0, 1)):
        result = fit(settings(seeds=seeds), Uneven(), build=lambda *_: Timed())
        assert result.ensemble == ("vmap" if len(seeds) > 1 else "sequential")
    with pytest.raises(ValueError, match="Untimed does not take them"):
        fit(settings(), Uneven(), build=lambda *_: Untimed())
    with pytest.raises(ValueError, match="Untimed does not take them"):
        evaluate(Untimed(), Uneven())
    fit(settings(task="next-value", epochs=1), NextValue(), build=lambda *_: nn_everywhere())


def nn_everywhere() -> nn.Module:
    """Without timespans an own model needs no argument for them."""

    class Everywhere(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(1, 1)

        def forward(self, inputs: Tensor, lengths: Any = None, state: Any = None, keep: Any = None) -> Any:
            return self.head(inputs), None

    return Everywhere()


def test_a_unit_of_ones_own_without_the_attribute_is_refused_by_its_class() -> None:
    model = SequenceModel(nn.GRU(1, 4), nn.Linear(4, 2), "last")
    with pytest.raises(ValueError, match="'GRU'"):
        model(torch.zeros(3, 2, 1), timespans=torch.ones(3, 2))


def test_shards_and_members_keep_the_times_of_their_samples() -> None:
    task = Uneven()
    stream = Stream(settings(seeds=(0, 1), batch_size=9).per_member(), task, torch.device("cpu"), Shard())
    stream.begin_epoch()
    whole, _ = stream.draw(1)
    assert whole.timespans is not None
    shards = [Stream(settings(batch_size=9), task, torch.device("cpu"), Shard(k, 2)).cut(whole) for k in (0, 1)]
    assert torch.equal(torch.cat([shard.timespans for shard in shards], 2), whole.timespans)  # type: ignore[misc]
    one = task.batch("test", torch.arange(5))
    several = for_members(one, 3)
    assert several.timespans is not None
    assert several.timespans.shape == (3, 7, 5)
    assert torch.equal(several.timespans[2], one.timespans)  # type: ignore[arg-type]


def test_an_interrupted_run_with_times_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    asked = settings(seeds=(0, 1))
    with pytest.raises(Interrupted):
        fit(asked, Uneven(), tmp_path / "run", watcher=SignalAt(5, signal.SIGTERM))
    fit(asked, Uneven(), tmp_path / "run", resume=True)
    fit(asked, Uneven(), tmp_path / "whole")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("unit", ["lipschitz", "gru-d"])
def test_a_trained_network_is_exported_with_times_and_lengths_as_inputs(unit: str, tmp_path: Path) -> None:
    fit(settings(unit=unit, unit_options={}, epochs=1), Uneven(), tmp_path / "run")
    network = load_run(tmp_path / "run", task=Uneven()).networks[0]
    batch = Uneven().batch("test", torch.arange(5))
    given = {"lengths": batch.lengths, "timespans": batch.timespans.clamp(min=0.0)}  # type: ignore[union-attr]
    size = torch.export.Dim("batch", min=2, max=64)
    sizes = {"inputs": {1: size}, "lengths": {0: size}, "timespans": {1: size}}
    program = torch.export.export(network, (batch.inputs,), given, dynamic_shapes=sizes)
    again = Uneven().batch("test", torch.arange(4, 16))
    given = {"lengths": again.lengths, "timespans": again.timespans.clamp(min=0.0)}  # type: ignore[union-attr]
    torch.testing.assert_close(program.module()(again.inputs, **given)[0], network(again.inputs, **given)[0])
