"""The recurrence as PyTorch's structured ``scan``, for programs that leave Python.

``torch.export`` keeps it as a loop of any length without this package, and the ONNX exporter turns it into ONNX's own
``Scan``. Inference only.
"""

from __future__ import annotations

from torch import Tensor

from lipschitz_rnn.ops.problem import Problem
from lipschitz_rnn.ops.reference import integrate_step


def scan(problem: Problem) -> tuple[Tensor, Tensor]:
    from torch._higher_order_ops.scan import scan as structured_scan

    # Cut from autograd: PyTorch's scan saves sizes for a backward pass, and the ONNX exporter takes them for tensors.
    problem = Problem.of([None if tensor is None else tensor.detach() for tensor in problem.tensors], problem.scheme)
    scheme, A, W = problem.scheme, problem.A, problem.W
    drive = problem.expanded_drive().transpose(0, 1)

    def advance(h: Tensor, u: Tensor, step: Tensor | float) -> tuple[Tensor, Tensor]:
        h = integrate_step(h, u, A, W, step, scheme.alpha, scheme.tableau, scheme.sigma)
        return h, h.clone()

    if problem.timespans is None:
        last, states = structured_scan(
            lambda h, u: advance(h, u, scheme.step_size), problem.initial_state(), drive, dim=0
        )
    else:
        steps = problem.timespans.transpose(0, 1).unsqueeze(-1)
        last, states = structured_scan(lambda h, xs: advance(h, *xs), problem.initial_state(), (drive, steps), dim=0)
    return states.transpose(0, 1), last
