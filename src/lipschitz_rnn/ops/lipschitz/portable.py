"""The recurrence as PyTorch's structured ``scan``, for programs that leave Python.

``torch.export`` keeps it as a loop of any length without this package, and the ONNX exporter turns it into ONNX's own
``Scan``. Inference only.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lipschitz_rnn.ops.lipschitz.problem import Problem
from lipschitz_rnn.ops.lipschitz.reference import integrate_step


def scan(problem: Problem, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """All states (S, T, B, N) and the last one (S, B, N).

    Args:
        counts: (S, T, B), how many equal sub-steps each step takes; one if None.
    """
    from torch._higher_order_ops.scan import scan as structured_scan
    from torch._higher_order_ops.while_loop import while_loop

    # Cut from autograd: PyTorch's scan saves sizes for a backward pass, and the ONNX exporter takes them for tensors.
    problem = Problem.of([None if tensor is None else tensor.detach() for tensor in problem.tensors], problem.scheme)
    scheme, A, W = problem.scheme, problem.A, problem.W
    drive = problem.expanded_drive().transpose(0, 1)

    def advance(h: Tensor, u: Tensor, step: Tensor | float) -> tuple[Tensor, Tensor]:
        h = integrate_step(h, u, A, W, step, scheme.alpha, scheme.tableau, scheme.sigma)
        return h, h.clone()

    def advance_often(h: Tensor, u: Tensor, step: Tensor, count: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
        # Every sample has its own count: beyond it, sub-steps have length zero.
        def go_on(number: Tensor, h: Tensor) -> Tensor:
            return number < most

        def again(number: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            return number + 1, advance(h, u, torch.where(number < count, step, 0.0))[0]

        _, h = while_loop(go_on, again, (torch.zeros_like(most), h))
        return h, h.clone()

    if problem.timespans is None:
        last, states = structured_scan(
            lambda h, u: advance(h, u, scheme.step_size), problem.initial_state(), drive, dim=0
        )
    else:
        steps = problem.timespans.transpose(0, 1).unsqueeze(-1)
        body: Callable[..., tuple[Tensor, Tensor]] = advance
        over: tuple[Tensor, ...] = (drive, steps)
        if counts is not None:
            counts = counts.transpose(0, 1).unsqueeze(-1)
            body, over = advance_often, (drive, steps / counts, counts, counts.amax((1, 2, 3)))
        last, states = structured_scan(lambda h, xs: body(h, *xs), problem.initial_state(), over, dim=0)
    return states.transpose(0, 1), last
