"""The scan of one network with symmetric-skew matrices, from the free matrices to their gradients.

What a call launches depends on sizes, strides, dtypes and settings. All of that is settled once for each combination,
so that a call only allocates and launches: for a short scan Python would otherwise take longer than the GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lipschitz_rnn.ops.common.dtypes import matmul, without_autocast
from lipschitz_rnn.ops.common.memory import signed
from lipschitz_rnn.ops.common.triton.gradients import MatrixSums
from lipschitz_rnn.ops.common.triton.launching import Launch, allocator, divide_up, on_device
from lipschitz_rnn.ops.lipschitz.cuda.plan import CudaPlan
from lipschitz_rnn.ops.lipschitz.cuda.plan import make_plan as make_cuda_plan
from lipschitz_rnn.ops.lipschitz.pair_call import PairCall
from lipschitz_rnn.ops.lipschitz.problem import Problem
from lipschitz_rnn.ops.lipschitz.triton.backend import problem_precision
from lipschitz_rnn.ops.lipschitz.triton.inputs import FEW, drive_gradient, expansion, input_gradients
from lipschitz_rnn.ops.lipschitz.triton.pair import PairOperands, PairSums
from lipschitz_rnn.ops.lipschitz.triton.pair_launches import CudaLaunches, Launches, ResidentLaunches
from lipschitz_rnn.ops.lipschitz.triton.plan import LaunchPlan, make_plan

Found = tuple[Tensor | None, ...]
MOST_UNITS = 256  # beyond, gradients come from other kernels, and Python is not what takes time


def prepare(problem: Problem, call: PairCall) -> PairScan | None:
    """The launches of a call; None where these kernels do not serve the problem."""
    precision = problem_precision(problem)
    cuda_plan = make_cuda_plan(problem, precision)
    if isinstance(cuda_plan, CudaPlan):
        return PairScan(call, cuda_plan, CudaLaunches(call, cuda_plan)) if problem.shape[-1] <= MOST_UNITS else None
    plan = make_plan(problem, precision)
    return PairScan(call, plan, ResidentLaunches(call, plan)) if plan.resident else None


class PairScan:
    """The launches of one kind of call."""

    backend = "triton"

    def __init__(self, call: PairCall, plan: LaunchPlan | CudaPlan, launches: Launches) -> None:
        self.call, self.plan, self._launches = call, plan, launches
        T, B, p, N = call.sizes
        scheme, self.stages, self.fused = call.scheme, call.stages, call.fused
        self._slots = 2 * self.stages if call.save else 1
        steps = T if call.keep or call.save else 0
        dtype, own, device = call.dtype, call.own_dtype, call.device
        self._new_tape = allocator((steps, self._slots, B, N), dtype, device)
        self._new_last = allocator((1, B, N), dtype, device)
        self._operands = PairOperands(plan, N, scheme.alpha, call.M_strides, call.maps, dtype, device, call.save)
        self._expansion: Launch | None = None
        if 1 < p <= FEW:
            self._expansion = expansion((1, T, B, N), p, (0, *call.x_strides), call.bias, dtype, device)
        tiles = divide_up(B, launches.samples) if self.fused else 0
        self._new_input_sums = allocator((1, tiles, 2, N), torch.float32, device)
        # κ and d of each stage with the states at which they belong; the state before step t is after step t − 1.
        step, stage = launches.strides
        places = (0, step, 2 * N, 0, self._slots * B * N, N)
        pairs = [(T - 1, B, *places, step, 0)] if T > 1 else []
        if call.starts or T == 1:
            pairs.insert(0, (1, B, *places, 0, 0))
        pairs += [(T, B, *places, i * stage, (self.stages + i) * B * N) for i in range(1, self.stages)]
        self._sums = MatrixSums((1, 2 * N, N), pairs, dtype, plan.precision, device)
        self._pair = PairSums(self._sums.shape, tiles, scheme.alpha, (call.maps[0], call.maps[2]), own, device)

    def converted(
        self, x: Tensor, M_A: Tensor, M_W: Tensor, h0: Tensor | None, U: Tensor, b: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor | None]:
        """The tensors as the kernels take them: all but M_A and M_W in the dtype of the scan."""
        dtype = self.call.dtype
        x, M_A, M_W, h0, U, b = signed(x, M_A, M_W, h0, U, b)
        if x.dtype != dtype:
            x = x.to(dtype).contiguous()
        if h0 is not None:
            h0 = h0.to(dtype).contiguous()
        if self.call.own_dtype != dtype:
            U, b = U.to(dtype), None if b is None else b.to(dtype)
        return x, M_A, M_W, h0, U.contiguous(), None if b is None else b.contiguous()

    def forward(
        self, x: Tensor, M_A: Tensor, M_W: Tensor, h0: Tensor | None, U: Tensor, b: Tensor | None
    ) -> tuple[Tensor | None, Tensor, Tensor, Tensor | None]:
        """The states, None unless kept; the last state, (1, B, N); the tape; the operand of the backward scan."""
        call = self.call
        with on_device(x):
            weights, later = self._operands(M_A, M_W)
            tape, last = self._new_tape(), self._new_last()
            drive = x if self.fused else self._expanded(x, U, b)
            self._launches.forward(drive, weights, h0, U, b, tape, last)
        return (call.written(tape.select(1, 0)) if call.keep else None), last, tape, later

    def backward(
        self,
        tensors: tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor],
        grad_states: Tensor | None,
        grad_last: Tensor | None,
        needs: tuple[bool, ...],
    ) -> Found:
        """Gradients of x, M_A, M_W, h0, U and b, where needed; ``tensors`` are x, h0, U, the tape and the operand."""
        call, (x, h0, U, tape, weights, grad_states, grad_last) = self.call, signed(*tensors, grad_states, grad_last)
        # Hooks on saved tensors may have laid them out anew; the input is taken as it lies.
        tape, weights, h0 = tape.contiguous(), weights.contiguous(), None if h0 is None else h0.contiguous()
        with on_device(x), without_autocast(call.device):  # the forward pass has settled the dtypes
            kappa_d, grad_h0 = self._launches.new_kappa_d(), self._new_last()
            sums = self._new_input_sums() if self.fused else None
            if grad_states is not None and call.batch_first:
                grad_states = grad_states.transpose(0, 1)
            final = None if grad_last is None else grad_last.contiguous()
            self._launches.backward(weights, tape, grad_states, final, x, U, kappa_d, grad_h0, sums)
            grad_A = grad_W = grad_U = grad_b = None
            if any(needs[1:3]) or (self.fused and any(needs[4:])):
                partial = self._sums(self._pairs(kappa_d, tape, h0))
                grad_A, grad_W, grad_U, grad_b = self._pair(partial, sums)
            grad_x = None
            if not self.fused and any(needs[i] for i in (0, 4, 5)):
                grad_x, grad_U, grad_b = self._input_gradients(kappa_d, x, U, needs)
            elif needs[0]:
                grad_x = matmul(self._total_d(kappa_d), U)
        return grad_x, grad_A, grad_W, grad_h0, grad_U, grad_b

    def _pairs(self, kappa_d: Tensor, tape: Tensor, h0: Tensor | None) -> list[tuple[Tensor, Tensor]]:
        """The tensors of the pairs, each of which knows where in them it begins."""
        T, B, _, N = self.call.sizes
        pairs = [(kappa_d, tape)] * (self.stages - 1 + (T > 1))
        if h0 is not None or T == 1:
            pairs.insert(0, (kappa_d, kappa_d.new_zeros((B, N)) if h0 is None else h0))
        return pairs

    def _expanded(self, x: Tensor, U: Tensor, b: Tensor | None) -> Tensor:
        """u = U x + b, (T, B, N)."""
        if self._expansion is None:
            return F.linear(x, U, b).contiguous()
        T, B, _, N = self.call.sizes
        u = torch.empty((T, B, N), dtype=x.dtype, device=x.device)
        self._expansion(x, U, U if b is None else b, u)
        return u

    def _input_gradients(self, kappa_d: Tensor, x: Tensor, U: Tensor, needs: tuple[bool, ...]) -> Found:
        """∂x, ∂U and ∂b, for inputs of several features."""
        d = self._total_d(kappa_d).unsqueeze(0)
        grad_x = drive_gradient(d, U).squeeze(0) if needs[0] else None
        if not (needs[4] or needs[5]):
            return grad_x, None, None
        grad_U, grad_b = input_gradients(d, x.unsqueeze(0), self.plan.precision)
        return grad_x, grad_U.view(U.shape), grad_b.view(U.shape[:1])

    def _total_d(self, kappa_d: Tensor) -> Tensor:
        """∂u = Σ d over the stages, (T, B, N)."""
        d = self._launches.by_step(kappa_d)[..., kappa_d.shape[-1] // 2 :]
        return d[:, 0] if self.stages == 1 else d.sum(1)
