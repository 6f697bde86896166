"""How a sequence is cut: as many chunks as the device runs at once, and few steps or none that fill no chunk."""

from __future__ import annotations

import pytest

from lipschitz_rnn.ops.lipschitz.cuda.plan import CudaPlan, Kernel, find_plan
from lipschitz_rnn.ops.lipschitz.parallel.plan import _dividing

H200 = {"capability": (9, 0), "processors": 132, "room": 227 * 1024}


@pytest.mark.parametrize(
    ("units", "precision", "rows"),
    [(128, "bf16x6", 8 * 132), (128, "bf16", 16 * 132), (64, "bf16x6", 16 * 132), (256, "bf16x6", 8 * 30)],
)
def test_one_round_of_blocks_fills_the_gpu(units: int, precision: str, rows: int) -> None:
    pytest.importorskip("triton")
    from lipschitz_rnn.ops.lipschitz.parallel.occupancy import rows_of_cuda

    plan = find_plan((1, 8 * 132, units), precision, Kernel(1, 4), **H200)
    assert isinstance(plan, CudaPlan)
    assert rows_of_cuda(plan, 132) == rows


@pytest.mark.parametrize(
    ("wanted", "steps", "chunks"),
    [(132, 131_072, 128), (1056, 1_048_576, 1024), (1056, 10_000_000, 1000), (32, 1_000_000, 32), (1, 17, 1)],
)
def test_steps_are_not_left_over_where_a_number_nearby_divides(wanted: int, steps: int, chunks: int) -> None:
    assert _dividing(wanted, steps) == chunks


def test_some_steps_are_left_over_where_none_divides() -> None:
    assert 24 <= _dividing(32, 1_000_003) <= 32
