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

from lipschitz_rnn.ops.triton.products import leading

PARTS = {"bf16": 1, "fp16": 1, "tf32": 1, "bf16x6": 3}


def left_operand(A: Tensor, W: Tensor, alpha: float, precision: str, block: int, *, transpose: bool) -> Tensor:
    """(S, N, N) twice → (S, parts, 2·block, block), or (S, parts, block, 2·block) with ``transpose``."""
    dtype = {"tf32": torch.float32, "fp16": torch.float16}.get(precision, torch.bfloat16)
    S, N, _ = A.shape
    shape = (block, 2 * block) if transpose else (2 * block, block)
    operand = torch.empty((S, PARTS[precision], *shape), dtype=dtype, device=A.device)
    tile = min(block, 64)
    _operand_kernel[(triton.cdiv(block, tile), 2, S)](
        A, W, operand, N, alpha, *A.stride(), *W.stride(),
        PRECISION=precision, PARTS=PARTS[precision], TRANSPOSE=transpose, TILE=tile, BLOCK=block,
    )  # fmt: skip
    return operand


@triton.jit
def _operand_kernel(
    A, W, operand, N, alpha, A_s, A_i, A_j, W_s, W_i, W_j,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, TRANSPOSE: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    half = tl.program_id(1)
    network = tl.program_id(2).to(tl.int64)
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    j = tl.arange(0, BLOCK)
    mask = (i < N)[:, None] & (j < N)[None, :]
    if half == 0:
        M = (
            tl.load(A + network * A_s + i[:, None] * A_i + j[None, :] * A_j, mask=mask, other=0.0).to(tl.float32)
            * alpha
        )
    else:
        M = tl.load(W + network * W_s + i[:, None] * W_i + j[None, :] * W_j, mask=mask, other=0.0).to(tl.float32)
    size = 2 * BLOCK * BLOCK
    if TRANSPOSE:
        place = j[None, :] * (2 * BLOCK) + half * BLOCK + i[:, None]
    else:
        place = (half * BLOCK + i[:, None]) * BLOCK + j[None, :]
    for part in tl.static_range(PARTS):
        piece = leading(M, PRECISION)
        tl.store(operand + (network * PARTS + part) * size + place, piece)
        M -= piece.to(tl.float32)
