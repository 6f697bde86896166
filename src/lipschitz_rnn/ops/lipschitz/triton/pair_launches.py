"""The launches of the two kernels of a layer's scan, settled beforehand for one kind of call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from lipschitz_rnn.ops.common.triton.launching import Launch, allocator
from lipschitz_rnn.ops.lipschitz.cuda import launch as cuda
from lipschitz_rnn.ops.lipschitz.cuda.plan import CudaPlan
from lipschitz_rnn.ops.lipschitz.pair_call import PairCall
from lipschitz_rnn.ops.lipschitz.triton.launch import is_wide, resident_backward, resident_forward
from lipschitz_rnn.ops.lipschitz.triton.plan import LaunchPlan

_NO_STRIDES = (0, 0, 0)


class Launches(Protocol):
    """Both kernels of one kind of call; κ and d of all steps and stages are one tensor, in the order of the kernels.

    Attributes:
        samples: of one program, which sums the gradients of U and b over them.
        strides: from one step to the next of κ and d, and from one stage to the next.
        new_kappa_d: allocates them.
    """

    samples: int
    strides: tuple[int, int]
    new_kappa_d: Callable[[], Tensor]

    def by_step(self, kappa_d: Tensor) -> Tensor:
        """(T, stages, B, 2N)."""
        ...

    def forward(
        self, drive: Tensor, weights: Tensor, h0: Tensor | None, U: Tensor, b: Tensor | None, tape: Tensor, last: Tensor
    ) -> None: ...

    def backward(
        self, weights: Tensor, tape: Tensor, grad_states: Tensor | None, final: Tensor | None, x: Tensor, U: Tensor,
        kappa_d: Tensor, grad_h0: Tensor, sums: Tensor | None,
    ) -> None: ...  # fmt: skip


class ResidentLaunches:
    """On Triton's resident kernels."""

    def __init__(self, call: PairCall, plan: LaunchPlan) -> None:
        self._call, self._plan, self.samples = call, plan, plan.batch
        T, B, _, N = call.sizes
        strides = call.drive_strides + _NO_STRIDES
        wide = is_wide((B, N), call.stages, strides)
        has = (call.fused, call.fused and call.bias, False, False, call.keep or call.save, call.save, wide)
        kind = (call.dtype, call.dtype, call.dtype, call.device)
        self.strides = call.stages * B * 2 * N, B * 2 * N
        self.new_kappa_d = allocator((T, call.stages, B, 2 * N), call.dtype, call.device)
        self._forward = resident_forward((1, T, B, N), plan, call.scheme, has, call.starts, strides, kind)
        self._backwards: dict[tuple[tuple[int, ...], bool, tuple[int, ...]], Launch] = {}

    def by_step(self, kappa_d: Tensor) -> Tensor:
        return kappa_d

    def forward(
        self, drive: Tensor, weights: Tensor, h0: Tensor | None, U: Tensor, b: Tensor | None, tape: Tensor, last: Tensor
    ) -> None:
        # Any tensor may stand where none is read.
        self._forward(drive, weights, U if h0 is None else h0, U, U if b is None else b, U, U, tape, last)

    def backward(
        self, weights: Tensor, tape: Tensor, grad_states: Tensor | None, final: Tensor | None, x: Tensor, U: Tensor,
        kappa_d: Tensor, grad_h0: Tensor, sums: Tensor | None,
    ) -> None:  # fmt: skip
        launch = self._backward_launch(grad_states, final is not None, x)
        launch(
            weights, U, tape, U if grad_states is None else grad_states, U if final is None else final, x, U,
            kappa_d, grad_h0, U if sums is None else sums,
        )  # fmt: skip

    def _backward_launch(self, grad_states: Tensor | None, has_last: bool, x: Tensor) -> Launch:
        call = self._call
        T, B, _, N = call.sizes
        given = None if grad_states is None else (0, *grad_states.stride())
        x_strides = (0, *x.stride()[:2]) if call.fused else _NO_STRIDES
        key = (given or (), has_last, x_strides)
        found = self._backwards.get(key)
        if found is None:
            strides = (given or (0, 0, 0, 0)) + _NO_STRIDES + x_strides
            has = (given is not None, has_last, False, call.fused, False, is_wide((B, N), call.stages, strides))
            kind = (call.dtype, None if given is None else call.dtype, call.dtype, call.device)
            if len(self._backwards) >= 64:  # a caller whose gradients never lie alike
                self._backwards.clear()
            found = self._backwards[key] = resident_backward((1, T, B, N), self._plan, call.scheme, has, strides, kind)
        return found


class CudaLaunches:
    """On the kernels in CUDA."""

    def __init__(self, call: PairCall, plan: CudaPlan) -> None:
        self._call, self._plan, self.samples = call, plan, plan.samples
        T, B, _, N = call.sizes
        self.strides = B * 2 * N, T * B * 2 * N
        self.new_kappa_d = allocator((call.stages, T, B, 2 * N), call.dtype, call.device)
        needs = cuda.Needs(call.fused, save=call.save, keep=call.keep or call.save)
        self._forward = self._settled("forward", needs, call.drive_strides + _NO_STRIDES)

    def _settled(self, name: str, needs: cuda.Needs, strides: tuple[int, ...], *width: int) -> cuda.Settled:
        T, B, _, N = self._call.sizes
        return cuda.settled(name, self._plan, (1, T, B, N), self._call.scheme, self._call.dtype, needs, strides, *width)

    def by_step(self, kappa_d: Tensor) -> Tensor:
        return kappa_d.transpose(0, 1)

    def forward(
        self, drive: Tensor, weights: Tensor, h0: Tensor | None, U: Tensor, b: Tensor | None, tape: Tensor, last: Tensor
    ) -> None:
        self._forward(self._call.device, (drive, weights, h0, U, b, None, tape, last))

    def backward(
        self, weights: Tensor, tape: Tensor, grad_states: Tensor | None, final: Tensor | None, x: Tensor, U: Tensor,
        kappa_d: Tensor, grad_h0: Tensor, sums: Tensor | None,
    ) -> None:  # fmt: skip
        fused, given = self._call.fused, (0, 0, 0, 0) if grad_states is None else (0, *grad_states.stride())
        strides = given + _NO_STRIDES + ((0, *x.stride()[:2]) if fused else _NO_STRIDES)
        run = self._settled("backward", cuda.Needs(fused, grads=grad_states is not None), strides, self._call.sizes[-1])
        tensors = (weights, None, tape, grad_states, final, x if fused else None, kappa_d, grad_h0, sums)
        run(self._call.device, tensors)
