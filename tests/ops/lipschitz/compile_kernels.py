"""Compile the kernels of the scan for one GPU without having it: what a launch needs, as lines of JSON.

Run as ``python compile_kernels.py CAPABILITY KILOBYTES PROCESSORS PRECISION INTEGRATOR N…``, with TRITON_INTERPRET=0.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from lipschitz_rnn.ops.common.triton import device, launching
from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme

capability, room, processors = int(sys.argv[1]), 1024 * int(sys.argv[2]), int(sys.argv[3])
precision, integrator, sizes = sys.argv[4], sys.argv[5], [int(N) for N in sys.argv[6:]]
dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)


class NoDriver:
    """All that the compiler asks of a driver."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, number: int = 0) -> int:
        return 0


def compile_only(
    kernel: Any,
    grid: object,
    tensors: Sequence[Tensor],
    numbers: tuple[Any, ...],
    constants: tuple[Any, ...],
    **options: int,
) -> None:
    program = kernel.warmup(*tensors, *numbers, *constants, grid=grid, **options)
    name = f"{kernel.fn.__module__.rpartition('.')[2]}.{kernel.fn.__name__}"
    print(json.dumps({"kernel": name, "N": N, "shared": program.metadata.shared}), flush=True)


driver.set_active(NoDriver())
launching.launch = compile_only  # type: ignore[assignment]
device.shared_memory = lambda device: room  # type: ignore[assignment]
device.multiprocessors = lambda device: processors  # type: ignore[assignment]
# Imported only now: the modules take these three by name.
from lipschitz_rnn.ops.lipschitz.triton import backend, inputs, pair_scan  # noqa: E402
from lipschitz_rnn.ops.lipschitz.triton.pair_launches import PairCall  # noqa: E402

torch.set_float32_matmul_precision({"bf16x6": "highest", "tf32": "high", "bf16x3": "high"}.get(precision, "highest"))
S, T, B = 1, 3, 128
for N in sizes:
    A, W, U, b = (torch.zeros((S, N, *shape), dtype=dtype) for shape in ((N,), (N,), (1,), ()))
    scheme = Scheme(0.03, 1.0, integrator, "tanh")
    problem = Problem(torch.zeros((S, T, B, 1), dtype=dtype), A, W, None, U, b, None, scheme)
    tape = torch.zeros((S, T, 2 * len(scheme.tableau), B, N), dtype=dtype)
    backend.forward(problem, tape, True, True)
    backend.backward(problem, tape, None, torch.zeros((S, B, N), dtype=dtype), [True] * 7)
    three = (problem.drive.expand(S, T, B, 3).contiguous(), U.expand(S, N, 3).contiguous())
    inputs.expanded_drive(replace(problem, drive=three[0], input_weight=three[1]))
    inputs.input_gradients(torch.zeros((S, T, B, N), dtype=dtype), three[0], precision)
    sizes, places = (T, B, 1, N), (B, 1, 1)
    facts = (places, (N, 1, N, 1), (-0.5, 0.1, -0.5, 0.1), scheme, dtype, dtype, A.device, False, True)
    layer = pair_scan.prepare(problem, PairCall(sizes, *facts, True, True, False))
    if layer is not None:
        x, hidden, U, b = problem.drive[0], A[0], problem.input_weight[0], problem.bias[0]  # type: ignore[index]
        states, last, tape, operand = layer.forward(x, hidden, hidden, None, U, b)
        layer.backward((x, None, U, tape, operand), states, last, (True,) * 6)  # type: ignore[arg-type]
