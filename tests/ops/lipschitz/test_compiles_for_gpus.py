"""The kernels compile for GPUs that are not here, within the shared memory of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

# Kilobytes of shared memory for one program, and multiprocessors: A100, RTX 3090, RTX 4090, H100, B200, RTX 5090.
GPUS = {80: (163, 108), 86: (99, 82), 89: (99, 128), 90: (227, 132), 100: (227, 148), 120: (99, 170)}
SIZES = (16, 64, 100, 128, 256, 512, 1024)
EVERY = [(capability, precision, "euler") for capability in GPUS for precision in ("bf16", "bf16x6")]
OTHERS = [(90, "fp16", "euler"), (90, "tf32", "midpoint"), (89, "bf16", "rk4")]


def compile_for(
    capability: int, precision: str, integrator: str, sizes: Sequence[int], cache: Path
) -> list[dict[str, object]]:
    pytest.importorskip("triton", reason="Triton is not installed (it exists for Linux only)")
    room, processors = GPUS[capability]
    script = Path(__file__).with_name("compile_kernels.py")
    arguments = [capability, room, processors, precision, integrator, *sizes]
    settings = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache), "TRITON_DEFAULT_FP_FUSION": "1"}
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        env=os.environ | settings, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(capability: int, precision: str, integrator: str, sizes: Sequence[int], cache: Path) -> None:
    compiled = compile_for(capability, precision, integrator, sizes, cache)
    for N in sizes:
        kernels = {str(row["kernel"]).partition(".")[2] for row in compiled if row["N"] == N}
        assert {"forward_kernel", "backward_kernel"} <= kernels
    too_large = [row for row in compiled if int(str(row["shared"])) > 1024 * GPUS[capability][0]]
    assert not too_large


def test_kernels_compile_and_fit(tmp_path: Path) -> None:
    """One program for each tile of the batch at 64 units, several at 256."""
    check(86, "bf16", "euler", (64, 256), tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(("capability", "precision", "integrator"), EVERY + OTHERS)
def test_kernels_compile_and_fit_on_every_gpu(capability: int, precision: str, integrator: str, tmp_path: Path) -> None:
    check(capability, precision, integrator, SIZES, tmp_path)
