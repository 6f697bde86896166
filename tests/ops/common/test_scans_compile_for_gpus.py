"""The kernels of complex modReLU scans and linear scans compile for GPUs that are not here, and find room on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Kilobytes of shared memory for one program: A100, RTX 3090, RTX 4090, H100, B200, RTX 5090.
GPUS = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}


def compile_for(capability: int, cases: int, cache: Path) -> list[dict[str, Any]]:
    pytest.importorskip("triton", reason="Triton is not installed (it exists for Linux only)")
    settings = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache), "TRITON_DEFAULT_FP_FUSION": "1"}
    script = Path(__file__).with_name("compile_scans.py")
    done = subprocess.run(
        [sys.executable, str(script), str(capability), str(GPUS[capability]), str(cases)],
        env=os.environ | settings, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(row["shared"] <= 1024 * GPUS[capability] for row in compiled)
    return compiled


def count(compiled: list[dict[str, Any]], name: str) -> int:
    return len([row for row in compiled if row["kernel"].startswith(name)])


def test_kernels_compile_and_fit(tmp_path: Path) -> None:
    """128 complex units in two bfloat16 parts, and a complex linear scan."""
    compiled = compile_for(90, 1, tmp_path)
    assert count(compiled, "resident.") == count(compiled, "kernels._kernel") == 2
    assert len(compiled) == 4


@pytest.mark.full
@pytest.mark.parametrize("capability", GPUS)
def test_kernels_compile_and_fit_on_every_gpu(capability: int, tmp_path: Path) -> None:
    compiled = compile_for(capability, 6, tmp_path)
    assert count(compiled, "kernels._kernel") == 8
    # Half-precision operands and few units fit everywhere; 128 units in two and three parts where there is most room.
    assert count(compiled, "resident.") == (10 if GPUS[capability] >= 200 else 8 if GPUS[capability] >= 160 else 6)
    assert count(compiled, "pairs.") >= 4
