"""Running an attack: the model as foolbox sees it, batches, and what became of each sample."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.common.validation import require_count
from lipschitz_rnn.robustness.attacks.result import AttackResult
from lipschitz_rnn.robustness.model_calls import (
    Progress,
    check_batch,
    check_classes,
    check_device,
    evaluation_mode,
    outputs_of,
    padding_of,
)
from lipschitz_rnn.robustness.samples import Range, unit_range
from lipschitz_rnn.tasks import Batch

Attack = Callable[[Any, Tensor, Tensor], Tensor]  # foolbox's view of a model, inputs (B, T, p), classes ▶ inputs


def require_foolbox() -> Any:
    try:
        with warnings.catch_warnings():
            # It imports a name from a deprecated place in SciPy.
            warnings.simplefilter("ignore", DeprecationWarning)
            import foolbox
    except ImportError as error:
        raise ImportError('attacks need foolbox: pip install "lipschitz-rnn[robustness]"') from error
    return foolbox


def within(attack: Any, radius: float | None) -> Attack:
    """The attack with its results cut to the ball: foolbox gives them before and after."""
    return lambda model, inputs, classes: attack(model, inputs, classes, epsilons=radius)[1]


class _OnUnitRange(nn.Module):
    """A model as foolbox sees it: from (B, T, p) with values in [0, 1] to class scores (B, q)."""

    def __init__(self, model: nn.Module, low: Tensor, span: Tensor, time_major: bool, batch: Batch) -> None:
        """`batch`: lengths and timespans of the samples, in the model's layout."""
        super().__init__()
        self.model, self.low, self.span = model, low, span
        self.time_major, self.batch = time_major, batch
        self.training = False  # of this wrapper alone; `evaluation_mode` handles the modules inside

    def forward(self, x: Tensor) -> Tensor:
        values = self.low + self.span * x
        inputs = values.transpose(0, 1) if self.time_major else values
        scores = outputs_of(self.model, inputs, self.batch.lengths, self.batch.timespans)
        if not isinstance(scores, Tensor) or scores.dim() != 2 or len(scores) != len(x):
            found = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(
                f"the model gives {found} for {len(x)} sequences; attacks need one row of class scores per sequence, "
                "(B, classes). Read the last state, or check batch_first"
            )
        return scores


def run_attack(
    name: str,
    settings: dict[str, Any],
    attack: Attack,
    model: nn.Module,
    batch: Batch,
    bounds: Range | None,
    batch_first: bool,
    batch_size: int,
    progress: Progress,
) -> AttackResult:
    """Attack the correctly classified samples, batch after batch, and measure what became of them."""
    require_count("batch_size", batch_size)
    inputs, targets = batch.inputs, batch.targets
    count = check_batch(batch, 0 if batch_first else 1)
    check_classes(targets, count)
    if inputs.dim() != 3 or not inputs.is_floating_point():
        raise ValueError(
            f"inputs have shape {tuple(inputs.shape)} and type {inputs.dtype}; attacks change real values of shape "
            "(T, B, p), or (B, T, p) with batch_first=True"
        )
    check_device(model, inputs)
    precision = next((parameter.dtype for parameter in model.parameters()), inputs.dtype)
    values = (inputs if batch_first else inputs.transpose(0, 1)).to(precision)
    low, span = unit_range(bounds, values)
    start = (values - low) / span
    padding = None if batch.lengths is None else padding_of(start, batch.lengths, batch_first=True)
    if padding is not None:  # whatever is there is outside the data
        start = start.masked_fill(padding, 0.0)
    if bounds is not None:
        start = _inside(start)
    limits = (-math.inf, math.inf) if bounds is None else (0.0, 1.0)
    end = start.clone()
    correct, fooled = torch.zeros_like(targets, dtype=torch.bool), torch.zeros_like(targets, dtype=torch.bool)
    with evaluation_mode(model):
        for first in range(0, count, batch_size):
            progress(name, first, count)
            part = torch.arange(first, min(first + batch_size, count), device=targets.device)
            scores = _classifier(model, low, span, batch_first, batch, part)
            with torch.no_grad():
                part = part[scores(start[part]).argmax(-1) == targets[part]]
            correct[part] = True
            if len(part) == 0:
                continue
            scores = _classifier(model, low, span, batch_first, batch, part)
            seen = require_foolbox().PyTorchModel(scores, bounds=limits, device=start.device)
            found = attack(seen, start[part], targets[part]).detach().clamp(*limits)
            end[part] = found if padding is None else torch.where(padding[part], start[part], found)
            with torch.no_grad():
                fooled[part] = scores(end[part]).argmax(-1) != targets[part]
        progress(name, count, count)
    distance = (end - start).flatten(1)
    perturbed = low + span * end
    if padding is not None:
        perturbed = torch.where(padding, values, perturbed)
    return AttackResult(
        name=name,
        settings=settings,
        perturbed=perturbed if batch_first else perturbed.transpose(0, 1),
        correct=correct,
        fooled=fooled,
        l2=distance.norm(dim=1),
        linf=distance.abs().amax(1),
    )


def _classifier(
    model: nn.Module, low: Tensor, span: Tensor, batch_first: bool, batch: Batch, part: Tensor
) -> _OnUnitRange:
    lengths = None if batch.lengths is None else batch.lengths[part]
    times = batch.timespans
    if times is not None:
        times = times[part] if batch_first else times[:, part]
    chosen = Batch(batch.inputs, batch.targets[part], lengths, times)
    return _OnUnitRange(model, low, span, not batch_first, chosen)


def _inside(values: Tensor) -> Tensor:
    """Values clipped to the unit range; only rounding may have put them outside, anything more is a caller's error."""
    lowest, highest = values.min().item(), values.max().item()
    if lowest < -1e-5 or highest > 1.0 + 1e-5:
        raise ValueError(
            f"inputs lie outside the valid range: as fractions of it they go from {lowest:.4g} to {highest:.4g}; give "
            "bounds=(lowest, highest) as they are in the data, or bounds=None for no limits"
        )
    return values.clamp(0.0, 1.0)
