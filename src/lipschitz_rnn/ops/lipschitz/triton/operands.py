"""The hidden matrices as the left operand of a kernel's products, written once per launch.

Both matrices form one operand, so that a stage of the recurrence takes a single product: [αA; W] forward and
[αAᵀ Wᵀ] backward. Each comes padded to the block size and in the parts that the precision asks for; loaded without
a conversion they stay in shared memory for all of the sequence.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lipschitz_rnn.ops.common.triton.launching import divide_up, launch, power_of_two
from lipschitz_rnn.ops.common.triton.products import round_to_operand
from lipschitz_rnn.ops.lipschitz.cuda.plan import CudaPlan
from lipschitz_rnn.ops.lipschitz.triton.plan import LaunchPlan


def left_operand(A: Tensor, W: Tensor, alpha: float, plan: LaunchPlan | CudaPlan, *, transpose: bool) -> Tensor:
    """(S, N, N) twice → (S, parts, 2·padded, padded), or (S, parts, padded, 2·padded) with ``transpose``."""
    precision, padded, parts = plan.precision, plan.padded, plan.parts
    dtype = {"tf32": torch.float32, "fp16": torch.float16}.get(precision, torch.bfloat16)
    S, N, _ = A.shape
    shape = (padded, 2 * padded) if transpose else (2 * padded, padded)
    operand = torch.empty((S, parts, *shape), dtype=dtype, device=A.device)
    tile = min(64, power_of_two(padded))
    tiles = divide_up(padded, tile)
    numbers = (N, alpha, padded, *A.stride(), *W.stride())
    constants = (precision, parts, transpose, tile)
    launch(_operand_kernel, (tiles * tiles, 2, S), (A, W, operand), numbers, constants)
    return operand


@triton.jit
def _operand_kernel(
    A, W, operand, N, alpha, padded, A_s, A_i, A_j, W_s, W_i, W_j,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, TRANSPOSE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(padded, TILE)
    half = tl.program_id(1)
    network = tl.program_id(2).to(tl.int64)
    i = (tl.program_id(0) // tiles) * TILE + tl.arange(0, TILE)
    j = (tl.program_id(0) % tiles) * TILE + tl.arange(0, TILE)
    mask = (i < N)[:, None] & (j < N)[None, :]
    far_i, far_j = i.to(tl.int64)[:, None], j.to(tl.int64)[None, :]
    if half == 0:
        M = tl.load(A + network * A_s + far_i * A_i + far_j * A_j, mask=mask, other=0.0).to(tl.float32)
        M *= alpha
    else:
        M = tl.load(W + network * W_s + far_i * W_i + far_j * W_j, mask=mask, other=0.0).to(tl.float32)
    if TRANSPOSE:
        place = j[None, :] * (2 * padded) + half * padded + i[:, None]
    else:
        place = (half * padded + i[:, None]) * padded + j[None, :]
    inside = (i < padded)[:, None] & (j < padded)[None, :]
    for part in tl.static_range(PARTS):
        piece = round_to_operand(M, PRECISION)
        tl.store(operand + (network * PARTS + part) * 2 * padded * padded + place, piece, mask=inside)
        M -= piece.to(tl.float32)
