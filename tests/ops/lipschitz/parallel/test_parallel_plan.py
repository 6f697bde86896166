"""How a sequence is cut: as many chunks as the device runs at once, and few steps or none that fill no chunk."""

from __future__ import annotations

import math

import pytest
import torch
from gpu_clusters import h200_clusters

from lipschitz_rnn.ops.lipschitz.cuda.plan import CudaPlan, Kernel, find_plan
from lipschitz_rnn.ops.lipschitz.parallel.plan import Parallel, Plan, _dividing, make_plan, usual_warm_up
from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme

H200 = {"capability": (9, 0), "beside": h200_clusters, "room": 227 * 1024}


@pytest.mark.parametrize(
    ("units", "precision", "rows"),
    [(128, "bf16x6", 8 * 132), (128, "bf16", 16 * 132), (64, "bf16x6", 16 * 132), (256, "bf16x6", 8 * 30)],
)
def test_one_round_of_blocks_fills_the_gpu(units: int, precision: str, rows: int) -> None:
    pytest.importorskip("triton")
    from lipschitz_rnn.ops.lipschitz.parallel.occupancy import rows_of_cuda

    plan = find_plan((1, 8 * 132, units), precision, Kernel(1, 4), **H200)
    assert isinstance(plan, CudaPlan)
    assert rows_of_cuda(plan, 132 if plan.cluster == 1 else h200_clusters(plan.cluster)) == rows


@pytest.mark.parametrize(
    ("wanted", "steps", "chunks"),
    [(132, 131_072, 128), (1056, 1_048_576, 1024), (1056, 10_000_000, 1000), (32, 1_000_000, 32), (1, 17, 1)],
)
def test_steps_are_not_left_over_where_a_number_nearby_divides(wanted: int, steps: int, chunks: int) -> None:
    assert _dividing(wanted, steps) == chunks


def test_some_steps_are_left_over_where_none_divides() -> None:
    assert 24 <= _dividing(32, 1_000_003) <= 32


@pytest.mark.parametrize(
    ("steps", "threads", "chunks"), [(32_767, 2, 1), (64_000, 2, 15), (200_000, 2, 16), (10**6, 4, 64)]
)
def test_cores_get_a_few_long_chunks_each(
    steps: int, threads: int, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    A = torch.zeros(1, 2, 2)
    scheme = Scheme(0.1, 1.0, "euler", "tanh", True)
    problem = Problem(torch.zeros(1, steps, 1, 2), A, A, None, None, None, None, scheme)
    assert make_plan(Parallel(), problem, "cpu").chunks == chunks


def test_a_short_proved_warm_up_is_taken_at_once() -> None:
    factor, tolerance = math.exp(-0.03), 1e-6
    steps = usual_warm_up(factor, tolerance)
    assert factor**steps <= tolerance < factor ** (steps - 16)
    assert [usual_warm_up(slow, tolerance) for slow in (0.999, 1.0)] == [256, 256]
    assert usual_warm_up(0.5, 2.0) == 16


def test_passes_are_compared_next_where_they_are_expected_to_be_close() -> None:
    """A distance e^{−t/100}, seen after 256 steps, is below 1e-6 after 1,382."""
    plan = Plan(4, 10_000, 0, 256)
    assert plan.first_stop(None) == 256
    assert plan.first_stop(100) == 300
    assert 5_000 < plan.first_stop_again(None, 1.0, 1e-4, 1e-6) < 8_000  # a whole pass of 10,000 was worth 1e-4
    assert plan.first_stop_again(None, 1.0, 1e-3, 1e-6) == plan.first_stop_again(None, 1e-3, 1e-3, 1e-6) == 10_000
    assert plan.first_stop_again(100, 1.0, 1e-4, 1e-6) % 100 == 0
    seen = (0, 1.0), (256, math.exp(-2.56))
    assert 1_382 < plan.next_stop(None, *seen, 1e-6) < 1_750
    assert plan.next_stop(100, *seen, 1e-6) % 100 == 0
    for distance in (1.0, 2.0, math.inf, math.nan):  # to the end
        assert plan.next_stop(None, (0, 1.0), (256, distance), 1e-6) == 10_000
    assert plan.next_stop(None, (0, 1.0), (256, 1e-7), 1e-6) == 256 + 64  # the errors of all chunks together were not
