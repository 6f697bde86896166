"""The forward and the backward scan of the LSTM, one launch each, and the gradient of its matrix after them."""

from __future__ import annotations

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import matmul
from lipschitz_rnn.ops.common.triton.device import multiprocessors
from lipschitz_rnn.ops.common.triton.gradients import add_partial_sums, matrix_partial_sums
from lipschitz_rnn.ops.common.triton.launching import beyond_32_bits, divide_up, launch, power_of_two
from lipschitz_rnn.ops.lstm.triton.kernels import backward_kernel, forward_kernel

PRECISIONS = {torch.bfloat16: "bf16", torch.float16: "fp16"}


def scan_forward(
    x: Tensor, U: Tensor, W: Tensor, b: Tensor, h0: Tensor, c0: Tensor, compute: torch.dtype, save: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tape, z, last h and last c, as `ops.lstm.gradients.scan_forward` has them; without ``save`` no c and no z."""
    (S, T, B, p), N = x.shape, W.shape[-1]
    # Inputs of one feature are multiplied by U inside the kernel and never expanded to (T, B, 4N) in memory.
    drive = x if p == 1 else matmul(x.flatten(1, 2).to(compute), U.mT.to(compute))
    block, batch = _blocks(S, B, N, x.device, backward=False)
    weights = W.new_zeros((S, 4, block, block), dtype=compute)
    weights[:, :, :N, :N] = W.unflatten(1, (4, N))
    tape = torch.empty((S, T + 1, 2 if save else 1, B, N), dtype=compute, device=x.device)
    z = torch.empty((S, T if save else 0, B, 4 * N), dtype=compute, device=x.device)
    last_h, last_c = (W.new_empty((S, B, N)) for _ in range(2))
    given = (U.contiguous(), b.contiguous(), h0.contiguous(), c0.contiguous())
    tensors = (x, drive, weights, *given, tape, z if save else tape, last_h, last_c)
    numbers = (T, B, N, *x.stride()[:3])
    constants = (PRECISIONS[compute], p == 1, save, beyond_32_bits((B, 4 * N)), block, batch)
    launch(forward_kernel, (divide_up(B, batch), S, 1), tensors, numbers, constants, **_options(block))
    return tape, z, last_h, last_c


def scan_backward(
    x: Tensor,
    W: Tensor,
    tape: Tensor,
    z: Tensor,
    grad_states: Tensor | None,
    grad_h: Tensor | None,
    grad_c: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """d, ∂h0, ∂c0, and with inputs of one feature ∂U and ∂b one above the other, (S, 2, 4N), in float32."""
    (S, T, B, p), N = x.shape, W.shape[-1]
    block, batch = _blocks(S, B, N, x.device, backward=True)
    weights = W.new_zeros((S, block, 4, block), dtype=z.dtype)
    weights[:, :N, :, :N] = W.unflatten(1, (4, N)).permute(0, 3, 1, 2)
    d = torch.empty_like(z)
    grad_h0, grad_c0 = (W.new_empty((S, B, N)) for _ in range(2))
    tiles = divide_up(B, batch)
    sums = torch.empty((S, tiles, 2, 4 * N), device=x.device) if p == 1 else None
    # Any tensor may stand where none is read or written.
    given = [z if grad is None else grad.contiguous() for grad in (grad_states, grad_h, grad_c)]
    tensors = (weights, tape, z, *given, x, d, grad_h0, grad_c0, grad_h0 if sums is None else sums)
    has = (grad_states is not None, grad_h is not None, grad_c is not None, p == 1)
    constants = (PRECISIONS[z.dtype], *has, beyond_32_bits((B, 4 * N)), block, batch)
    launch(backward_kernel, (tiles, S, 1), tensors, (T, B, N, *x.stride()[:3]), constants, **_options(block))
    return d, grad_h0, grad_c0, None if sums is None else sums.sum(1)


def matrix_gradient(d: Tensor, tape: Tensor, dtype: torch.dtype) -> Tensor:
    """Σ d hᵀ with the h before a step, (S, 4N, N): two matrices at a time, which is what the kernel there takes."""
    before, N = tape[:, :-1, 0], tape.shape[-1]
    pieces: list[Tensor] = []
    for pair in d.chunk(2, dim=-1):
        sums = matrix_partial_sums([(pair, before)], PRECISIONS[d.dtype])
        pieces += add_partial_sums(sums, N, None, 1.0, dtype)[:2]
    return torch.cat(pieces, dim=1)


def shared_bytes(N: int) -> int:
    """What a program takes of a multiprocessor's shared memory, at most: the matrices, and what threads pass on."""
    block = max(16, power_of_two(N))
    return 8 * block * block + 256 * block


def _blocks(S: int, B: int, N: int, device: torch.device, *, backward: bool) -> tuple[int, int]:
    """Padded units, and samples of a program.

    Eight get through a step sooner than sixteen, as long as all programs run at once; backward, where four times as
    much has to be turned for the product, the warp-group instructions of sixteen are worth more.
    """
    few = not backward and S * divide_up(B, 8) <= multiprocessors(device)
    return max(16, power_of_two(N)), 8 if few else 16


def _options(block: int) -> dict[str, int]:
    return {"num_warps": 8 if block >= 128 else 4}
