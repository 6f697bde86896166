"""The reference behind the registered operator: autograd does the backward pass on a second forward.

Only for compiled programs whose tensors no faster backend serves; eager code calls the reference itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lipschitz_rnn.ops import reference
from lipschitz_rnn.ops.differentiation import reference_gradients
from lipschitz_rnn.ops.problem import Problem


def forward(problem: Problem, keep_states: bool, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    states, last = reference.scan(problem)
    S, T, B, N = problem.shape
    kept = states.new_empty((T if keep_states else 0, S, B, N)).transpose(0, 1)
    activations = states.new_empty((T if save else 0, len(problem.scheme.tableau), S, B, N)).permute(2, 0, 1, 3, 4)
    return (kept.copy_(states) if keep_states else kept), last.clone(), activations


def backward(
    problem: Problem,
    states: Tensor,
    activations: Tensor,
    grad_states: Tensor | None,
    grad_last: Tensor | None,
    needs: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    return tuple(reference_gradients(problem, grad_states, grad_last, needs))
