"""Compile the kernels of complex modReLU scans and of linear scans for one GPU without having it.

Run as ``python compile_scans.py CAPABILITY KILOBYTES CASES``, with TRITON_INTERPRET=0; prints a line of JSON for each
kernel. Each of the first CASES cases takes seconds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from lipschitz_rnn.ops.common.triton import device, launching

capability, room, count = int(sys.argv[1]), 1024 * int(sys.argv[2]), int(sys.argv[3])


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
    print(json.dumps({"kernel": name, "shared": program.metadata.shared}), flush=True)


driver.set_active(NoDriver())
launching.launch = compile_only  # type: ignore[assignment]
device.shared_memory = lambda device: room  # type: ignore[assignment]
# Imported only now: the modules take these by name.
from lipschitz_rnn.ops.linear.triton import kernels as linear  # noqa: E402
from lipschitz_rnn.ops.modrelu.triton import launch as pairs  # noqa: E402

S, T, B = 2, 2, 9
# Units, the setting of float32 products, and the dtype of the operands.
CASES = (
    (128, "high", torch.float32),
    (128, "highest", torch.float32),
    (128, "highest", torch.bfloat16),
    (51, "highest", torch.float32),
    (1, "high", torch.float16),
    (130, "high", torch.float32),
)
for N, setting, compute in CASES[:count]:
    torch.set_float32_matmul_precision(setting)
    z, W, bias, h0 = (torch.zeros(S, *shape) for shape in ((T, B, 2 * N), (2 * N, N), (N,), (B, 2 * N)))
    pairs.scan_forward(z, W, bias, h0, compute, True)
    pairs.scan_backward(z, bias, z, W, compute, torch.float32, torch.zeros_like(z, dtype=compute))
for dtype in (torch.complex64, torch.float32)[:count]:
    added = torch.zeros(S, T, B, 20, dtype=dtype)
    for factors in (added[:, :1, :1], added)[:count]:
        for backwards in (False, True):
            linear.scan(factors, added, added[:, 0], backwards)
