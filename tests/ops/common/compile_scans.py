"""Compile the kernels of complex modReLU, FastGRNN and linear scans for one GPU without having it.

Run by ``compile_for`` in ``without_gpu`` with CAPABILITY CASES. Each of the first CASES cases takes seconds.
"""

from __future__ import annotations

import sys

import torch
from without_gpu import compile_instead_of_launching

capability, count = int(sys.argv[1]), int(sys.argv[2])
compile_instead_of_launching(capability)
# Imported only now: the modules take what was replaced by name.
from lipschitz_rnn.ops.fastgrnn.triton import kernels as fastgrnn  # noqa: E402
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
for N, compute in ((229, torch.bfloat16), (1, torch.float32))[:count]:
    shapes = ((T, B, N), (N, N), (N,), (N,), (), (), (B, N))
    given = fastgrnn.FastGRNN(*(torch.zeros(S, *shape) for shape in shapes))
    states, sums = fastgrnn.scan_forward(given, compute, True)
    fastgrnn.scan_backward(given, states, sums, states, compute)
