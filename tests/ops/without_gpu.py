"""Kernels compiled for a GPU that is not here: scripts launch them, and tests run the scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

# Kilobytes of shared memory for one program, and multiprocessors: A100, RTX 3090, RTX 4090, H100, B200, RTX 5090.
GPUS = {80: (163, 108), 86: (99, 82), 89: (99, 128), 90: (227, 132), 100: (227, 148), 120: (99, 170)}


def compile_for(capability: int, script: Path, arguments: Sequence[object], cache: Path) -> list[dict[str, Any]]:
    """Name and shared memory of every kernel that the script launches, all of which find room on the GPU."""
    pytest.importorskip("triton", reason="Triton is not installed (it exists for Linux only)")
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache), "TRITON_DEFAULT_FP_FUSION": "1"}
    done = subprocess.run(
        [sys.executable, str(script), *map(str, (capability, *arguments))],
        env=os.environ | settings | {"PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = [json.loads(line) for line in done.stdout.splitlines()]
    too_large = [row for row in compiled if row["shared"] > 1024 * GPUS[capability][0]]
    assert not too_large, too_large
    return compiled


def compile_instead_of_launching(capability: int) -> dict[str, object]:
    """From now on a launch compiles its kernel and prints a line of JSON, with what is in the dictionary returned.

    Before the modules are imported that launch kernels: they take these functions by name.
    """
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    from lipschitz_rnn.ops.common.triton import device, launching

    kilobytes, processors = GPUS[capability]
    facts: dict[str, object] = {}

    class NoDriver:
        """All that the compiler asks of a driver."""

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", capability, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, number: int = 0) -> int:
            return 0

    def compile_only(
        kernel: Any, grid: object, tensors: Sequence[Any], numbers: Sequence[Any], constants: Sequence[Any],
        **options: int,
    ) -> None:  # fmt: skip
        program = kernel.warmup(*tensors, *numbers, *constants, grid=grid, **options)
        name = f"{kernel.fn.__module__.rpartition('.')[2]}.{kernel.fn.__name__}"
        print(json.dumps({"kernel": name, **facts, "shared": program.metadata.shared}), flush=True)

    driver.set_active(NoDriver())
    launching.launch = compile_only  # type: ignore[assignment]
    device.shared_memory = lambda device: 1024 * kilobytes  # type: ignore[assignment]
    device.multiprocessors = lambda device: processors  # type: ignore[assignment]
    return facts
