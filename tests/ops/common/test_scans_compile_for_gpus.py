"""The kernels of complex modReLU, FastGRNN and linear scans compile for GPUs that are not here, and fit on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from without_gpu import GPUS, compile_for

SCRIPT = Path(__file__).with_name("compile_scans.py")


def count(compiled: list[dict[str, Any]], name: str) -> int:
    return len([row for row in compiled if row["kernel"].startswith(name)])


def test_kernels_compile_and_fit(tmp_path: Path) -> None:
    """128 complex units in two bfloat16 parts, a complex linear scan, and FastGRNN: its first and its second step."""
    compiled = compile_for(90, SCRIPT, [1], tmp_path)
    assert count(compiled, "resident.") == count(compiled, "kernels._kernel") == 2
    assert count(compiled, "kernels._forward_kernel") == count(compiled, "kernels._backward_kernel") == 2
    assert len(compiled) == 8


@pytest.mark.full
@pytest.mark.parametrize("capability", GPUS)
def test_kernels_compile_and_fit_on_every_gpu(capability: int, tmp_path: Path) -> None:
    compiled = compile_for(capability, SCRIPT, [6], tmp_path)
    assert count(compiled, "kernels._kernel") == 8
    # Half-precision operands and few units fit everywhere; 128 units in two and three parts where there is most room.
    room, _ = GPUS[capability]
    assert count(compiled, "resident.") == (10 if room >= 200 else 8 if room >= 160 else 6)
    assert count(compiled, "pairs.") >= 4
