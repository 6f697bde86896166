"""The complete bound: how far computed states are from the exact trajectory, however they were computed.

With the defect d_t = ‖h_{t+1} − Φ_t(h_t)‖_P of the states as they are, the error obeys e_{t+1} ≤ ρ_t e_t + d_t. Defects
are single steps in float64, all at once, without a recurrence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipschitz_rnn.ops.lipschitz.parallel.audit import step_rounding
from lipschitz_rnn.ops.lipschitz.parallel.contraction import Norms, accumulate
from lipschitz_rnn.ops.lipschitz.problem import Problem
from lipschitz_rnn.ops.lipschitz.reference import integrate_step

ELEMENTS_AT_ONCE = 2**24


@torch.no_grad()
def complete_bounds(problem: Problem, states: Tensor, norms: Norms) -> Tensor:
    """Bounds on ‖computed − exact‖_P of every state, (S, T, B), rounding included, from the states (S, T, B, N)."""
    S, T, B, N = problem.shape
    wide = problem.to(torch.float64)
    scheme, block = wide.scheme, max(1, ELEMENTS_AT_ONCE // max(1, S * B * N))
    # The rounding of the check itself, in float64; its sizes are those of a state and of what a step adds to it.
    unit = step_rounding(wide, norms)
    ones = norms.size(torch.ones_like(wide.A[:, :1]))[..., None]
    defects = []
    before = wide.initial_state().unsqueeze(1)
    for first in range(0, T, block):
        after = states[:, first : first + block].double()
        start = torch.cat((before, after[:, :-1]), dim=1)
        drive = wide.expanded_drive(slice(first, first + block))
        spans = wide.timespans
        step = scheme.step_size if spans is None else spans[:, first : first + block].unsqueeze(-1)
        A, W = wide.A.unsqueeze(1), wide.W.unsqueeze(1)
        exact = integrate_step(start, drive, A, W, step, scheme.alpha, scheme.tableau, scheme.sigma)
        check = unit * (norms.size(start) + norms.size(after) + norms.longest * (norms.size(drive.abs()) + ones))
        defects.append(norms.size(after - exact) + check)
        before = after[:, -1:]
    total = torch.cat(defects, dim=1)
    steps = torch.full_like(total, scheme.step_size) if problem.timespans is None else problem.timespans
    return accumulate(norms.step_factors(steps), total)
