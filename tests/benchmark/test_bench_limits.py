"""The limit of `bench`: right results pass at every size and precision, errors that rounding cannot explain do not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lipschitz_rnn.benchmark import Workload, contestants_for, jobs
from lipschitz_rnn.benchmark.accuracy import SHIFT, Judge, perturbed
from lipschitz_rnn.benchmark.contestants import Contestant
from lipschitz_rnn.benchmark.jobs import layer_with, scan_with
from lipschitz_rnn.benchmark.precision import BFLOAT16, FLOAT32, MEDIUM, TF32
from lipschitz_rnn.benchmark.workload import Data
from lipschitz_rnn.ops.common.triton.support import interpreting, triton_installed
from lipschitz_rnn.ops.lipschitz.scan import lipschitz_scan

CPU = torch.device("cpu")
SCAN, LAYER = scan_with("reference"), layer_with("reference")
ON_CPU = [
    Contestant("cpu", FLOAT32, scan_with("cpu"), SCAN),
    Contestant("cpu", BFLOAT16, scan_with("cpu"), SCAN),
    Contestant("reference", FLOAT32, SCAN, SCAN),
    Contestant("layer", FLOAT32, layer_with("auto"), LAYER),
    Contestant("layer", BFLOAT16, layer_with("auto"), LAYER),
]
INTERPRETED = [Contestant("triton", each, scan_with("triton"), SCAN) for each in (FLOAT32, TF32, MEDIUM, BFLOAT16)]
INTERPRETED.append(Contestant("triton layer", BFLOAT16, layer_with("triton"), LAYER))


def shares(work: Workload, rows: list[Contestant], *, backward: bool = True) -> dict[str, float]:
    """The error of each contestant as a share of what it is allowed."""
    data = Data(work, CPU)
    judge = Judge(data, backward=backward)
    found = {}
    for row in rows:
        errors, limit = judge.errors(row, row.job(data)), judge.limit(row)
        pairs = [(errors.states, limit.states), (errors.gradients or 0.0, limit.gradients or 1.0)]
        found[row.key] = max(error / allowed for error, allowed in pairs)
        assert errors.within(limit) == (found[row.key] <= 1.0)
    return found


def workloads(sizes: list[tuple[int, int, int]]) -> list[Workload]:
    """Each size with another integrator, readout, number of features and of networks."""
    turns = itertools.cycle(itertools.product(("euler", "midpoint", "heun", "rk4"), ("last", "all"), (1, 3), (1, 2)))
    made = []
    for seed, (hidden, length, batch) in enumerate(sizes):
        integrator, readout, features, networks = next(itertools.islice(turns, 4, None))
        made.append(Workload(batch, length, features, hidden, networks, integrator, readout, seed=seed))  # type: ignore[arg-type]
    return made


SIZES = [(1, 1, 1), (1, 2, 17), (1, 20, 3), (2, 1, 17), (5, 2, 1), (16, 20, 3), (16, 1, 1), (2, 20, 1), (5, 20, 17)]
SIZES += [(64, 30, 64), (256, 4, 2), (3, 200, 1), (1, 200, 8), (100, 1, 1), (33, 30, 5)]
MANY = [(n, t, b) for n in (1, 2, 3, 7, 32, 64, 128, 256) for t in (1, 2, 9, 100, 500) for b in (1, 2, 16, 64)]


@pytest.mark.full
def test_right_results_pass_at_every_size() -> None:
    for work in workloads(SIZES):
        found = shares(work, ON_CPU)
        assert max(found.values()) < 0.7, (work, found)


@pytest.mark.full
@pytest.mark.parametrize("repeat", range(2))
def test_right_results_pass_at_many_more_sizes(repeat: int) -> None:
    for work in workloads(MANY[repeat::2]):
        if work.hidden * work.length * work.batch * work.networks <= 2**20:
            found = shares(work, ON_CPU)
            assert max(found.values()) < 0.7, (work, found)


@pytest.mark.skipif(not (triton_installed() and interpreting()), reason="needs Triton and its interpreter")
@pytest.mark.parametrize(
    "sizes",
    [
        [(1, 2, 2), (5, 4, 3)],
        pytest.param([(1, 60, 2), (5, 20, 3), (16, 8, 1), (33, 2, 5), (2, 40, 4)], marks=pytest.mark.full),
    ],
    ids=["short", "long"],
)
def test_right_results_of_the_kernels_pass_in_every_precision(sizes: list[tuple[int, int, int]]) -> None:
    """The interpreter truncates to bfloat16 where a GPU rounds: its unit roundoff is twice what the limit is for."""
    for work in workloads(sizes):
        found = shares(work, INTERPRETED)
        assert max(found.values()) < 2 * 0.7, (work, found)
        assert found["triton [float32 highest]"] < 0.7, (work, found)


def scaled(name: str, factor: float) -> Callable[..., Any]:
    """A scan in which one coefficient is off."""

    def scan(x: Tensor, A: Tensor, W: Tensor, **options: Any) -> Any:
        changed = {"A": A, "W": W, **options}
        changed[name] = changed[name] * factor
        return lipschitz_scan(x, **changed)

    return scan


def swapped(x: Tensor, A: Tensor, W: Tensor, **options: Any) -> Any:
    return lipschitz_scan(x, W, A, **options)


def one_state_off(x: Tensor, A: Tensor, W: Tensor, **options: Any) -> Any:
    kept, last = lipschitz_scan(x, A, W, **options)
    if kept is None:
        mask = torch.ones_like(last)
        mask[0, -1] = 1.05
        return kept, last * mask
    mask = torch.ones_like(kept)
    mask[0, kept.shape[1] // 2, -1] = 1.05
    return kept * mask, last


WRONG = {
    "step size": scaled("step_size", 1.01),
    "A": scaled("A", 1.01),
    "W": scaled("W", 1.01),
    "U": scaled("input_weight", 1.01),
    "no bias": scaled("bias", 0.0),
    "swapped": swapped,
    "one state": one_state_off,
}


@pytest.mark.parametrize("readout", ["last", "all"])
@pytest.mark.parametrize("fault", WRONG)
def test_a_planted_error_is_found_at_every_size(fault: str, readout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, forward and backward and forward alone. From zero, one Euler step does not see A and W at all."""
    for hidden, length, batch in [(1, 3, 1), (2, 50, 4), (16, 10, 3), (128, 8, 2)]:
        for integrator in ("euler", "rk4"):
            work = Workload(batch, length, 2, hidden, 1, integrator, readout)
            row = Contestant("cpu", FLOAT32, scan_with("cpu"), SCAN)
            data = Data(work, CPU)
            for backward in (True, False):
                judge = Judge(data, backward=backward)
                limit = judge.limit(row)
                with monkeypatch.context() as patch:
                    patch.setattr(jobs, "lipschitz_scan", WRONG[fault])
                    errors = judge.errors(row, row.job(data))
                assert not errors.within(limit), (work, errors, limit)


@pytest.mark.parametrize("fault", ["no bias", "swapped", "one state"])
def test_coarse_precisions_still_find_coarse_errors(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 resolves 0.4 %: an error of 1 % cannot be told from rounding, one of 5 % can."""
    row = Contestant("cpu", BFLOAT16, scan_with("cpu"), SCAN)
    data = Data(Workload(4, 50, 1, 32, readout="all"), CPU)
    judge = Judge(data, backward=True)
    limit = judge.limit(row)
    monkeypatch.setattr(jobs, "lipschitz_scan", WRONG[fault])
    assert not judge.errors(row, row.job(data)).within(limit)


def test_shaken_data_are_the_same_data_moved_a_little() -> None:
    data = Data(Workload(2, 3, 2, 4), CPU)
    moved = perturbed(data, 0)
    for name in ("x", "U", "b", "M_A", "M_W"):
        before, after = getattr(data, name), getattr(moved, name)
        assert not torch.equal(before, after)
        torch.testing.assert_close(before, after, rtol=SHIFT, atol=0.0)
    for before, after in zip(data.matrices, moved.matrices, strict=True):
        torch.testing.assert_close(before, after, rtol=SHIFT, atol=0.0)
    assert torch.equal(data.x, Data(data.workload, CPU).x)  # the data themselves stay


def test_the_command_of_ordinary_sizes_times_everything() -> None:
    work = Workload(64, 100, 1, 64)
    found = shares(work, contestants_for(CPU, compile_loop=False)[:3])
    assert max(found.values()) < 0.7, found
