"""The reference behind the registered operator: autograd does the backward pass on a second forward.

Only for compiled programs whose tensors no faster backend serves; eager code calls the reference itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lipschitz_rnn.ops.lipschitz import reference
from lipschitz_rnn.ops.lipschitz.differentiation import reference_gradients
from lipschitz_rnn.ops.lipschitz.problem import Problem


def forward(problem: Problem, tape: Tensor, keep_states: bool, save: bool) -> Tensor:
    states, last = reference.scan(problem)
    if keep_states:
        tape[:, :, 0] = states
    return last.clone()


def backward(
    problem: Problem,
    tape: Tensor,
    grad_states: Tensor | None,
    grad_last: Tensor | None,
    needs: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    return tuple(reference_gradients(problem, grad_states, grad_last, needs))
