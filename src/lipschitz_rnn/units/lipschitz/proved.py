"""One step of a contracting unit, with exactly the matrices that are proved to contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from lipschitz_rnn.ops.lipschitz.scan import lipschitz_scan
from lipschitz_rnn.units.lipschitz.autocast import to_proved_dtype

if TYPE_CHECKING:
    from lipschitz_rnn.units.lipschitz.cell import LipschitzRNNCell


def proved_step(
    cell: LipschitzRNNCell, x: Tensor, h: Tensor | None, times: float | Tensor | None, matrices: tuple[Tensor, Tensor]
) -> Tensor:
    """The next state in the dtype of the matrices: a scan of one step with ``exact_products``."""
    A, W, x, h, U, b = to_proved_dtype(*matrices, x, h, cell.weight_ih, cell.bias_ih)
    step: float | Tensor = cell.step_size if times is None else cell.read_step(times, x, A.dtype)
    limit = cell.step_limit(step)
    unbatched = x.dim() == 1
    if unbatched:
        x, h = x.unsqueeze(0), None if h is None else h.unsqueeze(0)
    if isinstance(step, Tensor):
        step = step.reshape(1, -1).expand(1, x.shape[0])
    elif step == 0.0:  # no time passes
        step = x.new_zeros(1, x.shape[0])
    _, last = lipschitz_scan(
        x.unsqueeze(0),
        A,
        W,
        h,
        step,
        cell.alpha,
        cell.integrator,
        cell.nonlinearity,
        input_weight=U,
        bias=b,
        need_output=False,
        exact_products=True,
        max_step=limit,
    )
    return last.squeeze(0) if unbatched else last
