"""The backend's two functions: the scan by the kernels, and the gradients from what it leaves in memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.cublas import cublas_is_faster, sums_by_cublas
from lipschitz_rnn.ops.common.memory import signed
from lipschitz_rnn.ops.common.precision import float32_setting
from lipschitz_rnn.ops.common.triton.gradients import add_partial_sums, matrix_partial_sums
from lipschitz_rnn.ops.lipschitz.problem import Problem
from lipschitz_rnn.ops.lipschitz.triton.inputs import drive_gradient, input_gradients
from lipschitz_rnn.ops.lipschitz.triton.launch import scan_backward, scan_forward
from lipschitz_rnn.ops.lipschitz.triton.plan import RESIDENT_UNITS


def forward(problem: Problem, tape: Tensor, keep_states: bool, save: bool) -> Tensor:
    """Writes states and, with ``save``, the values of σ to the tape, (S, T, slots, B, N); returns the last state."""
    if 0 in problem.shape:  # nothing to launch
        S, _, B, N = problem.shape
        return problem.A.new_empty((S, B, N))
    return scan_forward(problem.signed(), tape, problem_precision(problem), keep_states, save)


def backward(
    problem: Problem,
    tape: Tensor,
    grad_states: Tensor | None,
    grad_last: Tensor | None,
    needs: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of ``problem.tensors``, None where ``needs`` says so, from the tape that ``forward`` wrote."""
    if 0 in problem.shape:
        pairs = zip(problem.tensors, needs, strict=True)
        return tuple(torch.zeros_like(tensor) if need and tensor is not None else None for tensor, need in pairs)
    problem = problem.signed()
    tape, grad_states, grad_last = signed(tape, grad_states, grad_last)
    tape = tape.contiguous()  # one tape for all cotangents of a vmap has a stride of 0
    # What is proved of exact products is proved of the states; gradients have the precision that the user chose.
    precision = matmul_precision(problem.A.dtype, problem.A.shape[-1])
    kappa_d, grad_h0, input_sums = scan_backward(problem, tape, precision, grad_states, grad_last)
    grad_A, grad_W, grad_U, grad_b = _parameter_gradients(problem, tape, kappa_d, input_sums, precision, needs)
    grad_drive = _drive_gradient(problem, kappa_d) if needs[0] else None
    return grad_drive, grad_A, grad_W, grad_h0 if needs[3] else None, grad_U, grad_b, None, None


def _parameter_gradients(
    problem: Problem,
    tape: Tensor,
    kappa_d: Tensor,
    input_sums: Tensor | None,
    precision: str,
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """∂A = α Σ κ Hᵀ, ∂W = Σ d Hᵀ, ∂U = Σ d xᵀ and ∂b = Σ d over all stages, steps and samples."""
    if not (needs[1] or needs[2] or needs[4] or needs[5]):
        return [None] * 4
    # The state before step t is the one after step t − 1: shifted views need no copy, and h0 is a pair of its own,
    # left out where it is zero.
    pairs: list[tuple[Tensor, Tensor]] = []
    if problem.h0 is not None or tape.shape[1] == 1:
        pairs.append((kappa_d[:, :1, 0], problem.initial_state().contiguous()[:, None]))
    if tape.shape[1] > 1:
        later, earlier = kappa_d.select(2, 0), tape.select(2, 0)
        pairs.append((later.narrow(1, 1, tape.shape[1] - 1), earlier.narrow(1, 0, tape.shape[1] - 1)))
    stages = len(problem.scheme.tableau)
    pairs += [(kappa_d[:, :, i], tape[:, :, stages + i]) for i in range(1, stages)]
    N, dtype = tape.shape[-1], tape.dtype
    cublas = tape.is_cuda and cublas_is_faster(N, dtype)
    sums = sums_by_cublas(pairs) if cublas else matrix_partial_sums(pairs, precision)
    found = list(add_partial_sums(sums, N, input_sums, problem.scheme.alpha, dtype))
    if problem.input_weight is not None and input_sums is None:
        found[2:] = input_gradients(_total_d(kappa_d, N), problem.drive, precision)
    wanted = (needs[1], needs[2], needs[4], needs[5])
    return [gradient if need else None for gradient, need in zip(found, wanted, strict=True)]


def _drive_gradient(problem: Problem, kappa_d: Tensor) -> Tensor:
    d = _total_d(kappa_d, problem.shape[-1])
    return d if problem.input_weight is None else drive_gradient(d, problem.input_weight)


def _total_d(kappa_d: Tensor, N: int) -> Tensor:
    """∂u = Σ d over the stages, (S, T, B, N)."""
    d = kappa_d.narrow(-1, kappa_d.shape[-1] // 2, N)
    return d[:, :, 0] if d.shape[2] == 1 else d.sum(2)


def problem_precision(problem: Problem) -> str:
    """How the products of this problem's forward pass are taken."""
    return matmul_precision(problem.A.dtype, problem.A.shape[-1], problem.scheme.exact_products)


def matmul_precision(dtype: torch.dtype, hidden_size: int, exact: bool = False) -> str:
    """How products are taken: half precision as it is, float32 as ``torch.get_float32_matmul_precision`` says.

    ``exact`` asks for float32 in full, whatever that says; the dispatcher never brings it half precision.
    """
    if dtype != torch.float32:
        return "fp16" if dtype == torch.float16 else "bf16"
    if exact:
        return "bf16x6"
    setting = float32_setting()
    if setting == "high" and hidden_size <= 32:
        return "bf16x6"  # PyTorch's own small products do not use TF32 either, and the accuracy is nearly free here
    # Two parts of bfloat16 cost what TF32 costs and keep more; larger matrices, read in each step, would be read twice.
    high = "bf16x3" if hidden_size <= RESIDENT_UNITS else "tf32"
    return {"highest": "bf16x6", "high": high, "medium": "bf16"}[setting]
