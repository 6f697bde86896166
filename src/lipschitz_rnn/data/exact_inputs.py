"""What a network reads for raw values, in float64 with a bound on its rounding, and how it depends on the values."""

from __future__ import annotations

import torch
from torch import Tensor

from lipschitz_rnn.data.preprocessing import Preprocessing
from lipschitz_rnn.units.readout import NetworkInputs

_UNIT = 2.0**-53


def exact_inputs(
    preprocessing: Preprocessing,
    values: Tensor,
    times: Tensor | None,
    lengths: Tensor | None,
    dtype: torch.dtype = torch.float32,
) -> NetworkInputs:
    """The inputs (T, B, ·) for raw values (B, T, p), and by how much each changes with its value at most.

    A running model computes them in the dtype of the values, and then casts them to ``dtype``, that of its network.

    Only numbers that are there may change: not holes, categories or times. Clipping never enlarges a change. A value
    that is carried forward into holes would act in several steps, so it is refused.
    """
    fitted = preprocessing.fitted
    if fitted.missing in ("forward", "since"):
        inside = torch.ones(values.shape[:2], dtype=torch.bool, device=values.device)
        if lengths is not None:
            inside = torch.arange(values.shape[1], device=values.device) < lengths.to(values.device).unsqueeze(-1)
        holes = ~values.isfinite() & inside.unsqueeze(-1)
        if bool(holes.any()):
            raise ValueError(
                f"{int(holes.sum())} values are missing, and this model fills them with earlier ones "
                f"(missing={fitted.missing!r}), so that one changed value acts in several steps; give series without "
                'holes, or train with missing="mask"'
            )
    # Times in their own dtype: their gaps are then those that the running model computes.
    inputs, spans = preprocessing(values.double(), times, lengths)
    numbers = len(fitted.numbers)
    scale = torch.zeros(inputs.shape[-1], dtype=torch.float64, device=inputs.device)
    chosen = torch.tensor(fitted.numbers, dtype=torch.int64, device=inputs.device)
    # Rounded up: a subtraction and a division, each off by at most one unit.
    scale[:numbers] = (1.0 + 4.0 * _UNIT) / preprocessing.scale.to(inputs.device).index_select(0, chosen).abs()
    x = inputs.transpose(0, 1)
    # (value − center) / scale: both constants are rounded, the difference, the quotient and the cast to ``dtype``.
    unit = 0.505 * (torch.finfo(values.dtype).eps + torch.finfo(dtype).eps)
    center = torch.zeros_like(scale)
    center[:numbers] = preprocessing.center.to(inputs).index_select(0, chosen).abs() * scale[:numbers]
    kept = torch.stack((preprocessing.center, preprocessing.scale)).to(values.dtype)
    if not bool(kept.isfinite().all() & (kept[1].abs() >= torch.finfo(values.dtype).tiny).all()):
        unit = torch.inf  # this dtype cannot hold the scaling
    return NetworkInputs(
        computed=4.0 * unit * (x.abs() + center) + 8.0 * torch.finfo(torch.promote_types(values.dtype, dtype)).tiny,
        computed_relative=4.0 * unit,
        inputs=x,
        timespans=None if spans is None else spans.transpose(0, 1),
        error=4.0 * _UNIT * x.norm(dim=-1) + 2.0**-1000,
        scale=scale,
    )
