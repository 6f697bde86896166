"""The kernels compile for GPUs that are not here, within the shared memory of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from without_gpu import GPUS, compile_for

SCRIPT = Path(__file__).with_name("compile_kernels.py")
SIZES = (16, 64, 100, 128, 256, 512, 1024)
EVERY = [(capability, precision, "euler") for capability in GPUS for precision in ("bf16", "bf16x6")]
OTHERS = [(90, "fp16", "euler"), (90, "tf32", "midpoint"), (89, "bf16", "rk4")]


def check(capability: int, precision: str, integrator: str, sizes: Sequence[int], cache: Path) -> None:
    compiled = compile_for(capability, SCRIPT, [precision, integrator, *sizes], cache)
    for N in sizes:
        kernels = {str(row["kernel"]).partition(".")[2] for row in compiled if row["N"] == N}
        assert {"forward_kernel", "backward_kernel"} <= kernels


def test_kernels_compile_and_fit(tmp_path: Path) -> None:
    """One program for each tile of the batch at 64 units, several at 256."""
    check(86, "bf16", "euler", (64, 256), tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(("capability", "precision", "integrator"), EVERY + OTHERS)
def test_kernels_compile_and_fit_on_every_gpu(capability: int, precision: str, integrator: str, tmp_path: Path) -> None:
    check(capability, precision, integrator, SIZES, tmp_path)
