"""The scan of one network with symmetric-skew matrices on a CPU, from the free matrices to their gradients.

A short scan is over before Python has prepared it. So the matrices are formed where the kernels want them, in one node
of the graph, and what follows from sizes and settings alone is kept in the layout.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipschitz_rnn.ops.common import buffers
from lipschitz_rnn.ops.common.dtypes import without_autocast
from lipschitz_rnn.ops.common.memory import signed
from lipschitz_rnn.ops.lipschitz.cores import support
from lipschitz_rnn.ops.lipschitz.cores.layout import layout_of, rowwise
from lipschitz_rnn.ops.lipschitz.cores.run import product_with_inputs, scan_backward, scan_forward
from lipschitz_rnn.ops.lipschitz.pair_call import PairCall
from lipschitz_rnn.ops.lipschitz.problem import Problem

Found = tuple[Tensor | None, ...]


def prepare(problem: Problem, call: PairCall) -> PairScan | None:
    """The scan of such calls; None where other code serves the problem, or converts its tensors first."""
    if call.dtype != call.own_dtype or not support.serves(problem):
        return None
    return PairScan(problem, call)


class PairScan:
    """One kind of call."""

    backend = "cpu"

    def __init__(self, problem: Problem, call: PairCall) -> None:
        self.call, self._layout = call, layout_of(problem)
        T, B, _, N = call.sizes
        steps, slots = T if call.keep or call.save else 0, 1 + call.stages if call.save else 1
        self._tape_shape = (1, steps, slots, B, N)

    def converted(self, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        """x, M_A, M_W, h0, U and b as the kernels take them; ``prepare`` has seen to their dtypes."""
        return signed(*tensors)

    def forward(
        self, x: Tensor, M_A: Tensor, M_W: Tensor, h0: Tensor | None, U: Tensor, b: Tensor | None
    ) -> tuple[Tensor | None, Tensor, Tensor, Tensor | None]:
        """The states, None unless kept; the last state, (1, B, N); the tape; W above αA, in whole vectors."""
        call, layout = self.call, self._layout
        f_A, gamma_A, f_W, gamma_W = call.maps
        N, padded = call.sizes[3], layout.padded
        stacked = (M_A.new_empty if padded == N else M_A.new_zeros)((2 * padded, N))
        _write_skew(stacked[:N], M_W, f_W, gamma_W)
        _write_skew(A := stacked[padded : padded + N], M_A, f_A, gamma_A)
        if call.scheme.alpha != 1.0:
            A.mul_(call.scheme.alpha)
        tape = buffers.empty(self._tape_shape, call.dtype) if call.save else M_A.new_empty(self._tape_shape)
        arrays = {
            "drive": rowwise(x.unsqueeze(0)),
            "start": rowwise(h0),
            "forward_panels": layout.panels(stacked.mT.unsqueeze(0)),
            "input_panels": layout.panels(U.mT.unsqueeze(0)),
            "bias": layout.bias(None if b is None else b.unsqueeze(0)),
            "tape": tape,
        }
        last = scan_forward(layout, arrays, call.keep or call.save, call.save)
        tape = tape.squeeze(0)
        return (call.written(tape.select(1, 0)) if call.keep else None), last, tape, (stacked if call.save else None)

    def backward(
        self,
        tensors: tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor],
        grad_states: Tensor | None,
        grad_last: Tensor | None,
        needs: tuple[bool, ...],
    ) -> Found:
        """Gradients of x, M_A, M_W, h0, U and b, where needed; ``tensors`` are x, h0, U, the tape and the matrices."""
        call, layout = self.call, self._layout
        x, h0, U, tape, stacked, grad_states, grad_last = signed(*tensors, grad_states, grad_last)
        if grad_states is not None:
            grad_states = (grad_states.transpose(0, 1) if call.batch_first else grad_states).unsqueeze(0)
        arrays = {
            "drive": rowwise(x.unsqueeze(0)),
            "start": rowwise(h0),
            "tape": rowwise(tape.unsqueeze(0)),  # as a hook on saved tensors may give it back
            "grad_states": rowwise(grad_states),
            "grad_last": rowwise(grad_last),
        }
        W, A = stacked.split(layout.padded)
        with without_autocast(call.device):
            found = scan_backward(layout, arrays, torch.cat((A, W)).unsqueeze(0), (*needs[:6], False, False))
            grad_x = (
                None if found.drive is None else product_with_inputs(found.drive, U[None], in_float64=False).squeeze(0)
            )
            grad_A = None if found.A is None else found.A[0]
            if grad_A is not None and call.scheme.alpha != 1.0:
                grad_A = grad_A * call.scheme.alpha
            grad_W = None if found.W is None else found.W[0]
            return (
                grad_x,
                None if grad_A is None or not needs[1] else torch.add(grad_A, grad_A.mT, alpha=call.maps[0]),
                None if grad_W is None or not needs[2] else torch.add(grad_W, grad_W.mT, alpha=call.maps[2]),
                found.start,
                None if found.U is None or not needs[4] else found.U[0].contiguous(),
                None if found.bias is None or not needs[5] else found.bias[0].contiguous(),
            )


def _write_skew(place: Tensor, M: Tensor, factor: float, gamma: float) -> None:
    """M + f Mᵀ − γI, rounded as ``hidden_matrices()`` rounds it."""
    torch.add(M, M.mT, alpha=factor, out=place)
    if gamma != 0.0:
        place.diagonal().sub_(gamma)
