"""The CUDA kernels without a GPU: their own source, compiled for this processor by g++, on an emulated machine.

``emulation`` has the machine, and in ``hardware.hpp`` what the two files of the kernels with assembly in them do. All
else is the code that a GPU runs, called by the code that calls it there.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lipschitz_rnn.ops.common.triton.support import interpreting
from lipschitz_rnn.ops.lipschitz.cuda import launch
from lipschitz_rnn.ops.lipschitz.cuda.plan import CudaPlan, Kernel
from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.ops.lipschitz.triton import launch as scan

EMULATION = Path(__file__).parent / "emulation"
SOURCES = files(launch.__package__)

_ENTRY = """
static {arguments} given;
static void start() {{ {name}(given); }}

extern "C" const char* run(const void* bytes, unsigned length, unsigned groups, unsigned shared_bytes, unsigned seed,
                           const Range* ranges, unsigned count) {{
    if (length != sizeof given) return "the arguments have another size than their structure";
    memcpy(&given, bytes, length);
    return run_launch(start, groups, CLUSTER, THREADS, shared_bytes, seed, ranges, count);
}}
"""


class EmulatorError(AssertionError):
    """A kernel did what a GPU would not survive, or would not notice."""


@pytest.fixture
def emulated(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``emulated(plan)``: from then on scans of the Triton backend run the CUDA kernels of this plan."""
    if shutil.which("g++") is None or platform.machine() != "x86_64":
        pytest.skip("the emulator needs g++ and an x86-64 processor")
    if not interpreting():
        pytest.skip("here is a GPU, which runs the kernels itself; Triton's part of a call would not take CPU tensors")
    folder = tmp_path_factory.getbasetemp() / "emulated"
    folder.mkdir(exist_ok=True)
    launch.settled.cache_clear()

    def compiled(name: str, plan: CudaPlan, device: torch.device, key: tuple[Any, ...]) -> Emulated:
        return Emulated(folder, name, plan, key)

    def remember(self: launch.Settled, device: torch.device, tensors: Sequence[Tensor | None]) -> None:
        Emulated.tensors = [tensor for tensor in tensors if tensor is not None]
        call(self, device, tensors)

    def choose(plan: CudaPlan) -> None:
        monkeypatch.setattr(scan, "make_cuda_plan", lambda *_: plan)

    call = launch.Settled.__call__
    monkeypatch.setattr(launch, "_compiled", compiled)
    # cuBLAS, for which rows are padded, is not here: Triton's sums, which take its place, know of no padding.
    monkeypatch.setattr(launch, "gradient_width", lambda N, dtype: N)
    monkeypatch.setattr(launch.Settled, "__call__", remember)
    return choose


class Emulated:
    """Stands for ``driver.Function``."""

    tensors: Sequence[Tensor] = ()  # of the call under way: kernels may read and write nothing else
    seed = 0

    def __init__(self, folder: Path, name: str, plan: CudaPlan, key: tuple[Any, ...]) -> None:
        integrator, _, dtype, *_ = key
        self._shared = plan.shared_bytes(name, Kernel(len(get_integrator(integrator)), dtype.itemsize))
        self._run = _library(folder, _source(name, plan, key)).run
        self._run.restype = ctypes.c_char_p

    def launch(self, groups: int, arguments: bytes) -> None:
        ends = [end for tensor in self.tensors for end in _extent(tensor)]
        ranges = (ctypes.c_void_p * len(ends))(*ends)
        Emulated.seed += 1
        given = (len(arguments), groups, self._shared, Emulated.seed)
        fault = self._run(arguments, *(ctypes.c_uint(number) for number in given), ranges, len(self.tensors))
        if fault:
            raise EmulatorError(fault.decode())


def _extent(tensor: Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _source(name: str, plan: CudaPlan, key: tuple[Any, ...]) -> str:
    macros = "\n".join(f"#define {macro} {value}" for macro, value in launch.macros(plan, *key).items())
    kernel = launch.source(name, plan.cluster)
    for place, header in enumerate(("hardware.cuh", "access.cuh")):
        own = (EMULATION / "hardware.hpp").read_text() if place == 0 else ""
        original = (SOURCES / header).read_text()
        assert kernel.count(original) == 1
        kernel = kernel.replace(original, own)
    entry = _ENTRY.format(name=name, arguments=f"{name.capitalize()}Arguments")
    return "\n".join(((EMULATION / "machine.hpp").read_text(), macros, kernel, entry))


@cache
def _library(folder: Path, source: str) -> ctypes.CDLL:
    place = folder / hashlib.sha256(source.encode()).hexdigest()[:20]
    place.with_suffix(".cpp").write_text(source)
    options = ("-std=c++17", "-O1", "-mf16c", "-w", "-shared", "-fPIC")
    command = ["g++", *options, str(place.with_suffix(".cpp")), "-o", str(place.with_suffix(".so"))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"the kernels do not compile for the emulator:\n{done.stderr[:2000]}")
    return ctypes.CDLL(str(place.with_suffix(".so")))
