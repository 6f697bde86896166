"""White noise and salt-and-pepper noise on the inputs, and the accuracy under it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.common.validation import require_floating, require_number, require_tensor
from lipschitz_rnn.robustness.model_calls import (
    Progress,
    check_classes,
    check_device,
    evaluation_mode,
    ignore_progress,
    outputs_of,
    padding_of,
)
from lipschitz_rnn.robustness.samples import Range, draw_samples, unit_range, valid_range
from lipschitz_rnn.tasks import Split, Task

Kind = Literal["white", "salt-and-pepper"]
KINDS: tuple[Kind, ...] = get_args(Kind)
AMOUNTS: dict[Kind, tuple[float, ...]] = {
    "white": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6),
    "salt-and-pepper": (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3),
}


def white_noise(
    inputs: Tensor,
    amount: float,
    generator: torch.Generator,
    *,
    bounds: Range | None = None,
    clip: bool = False,
) -> Tensor:
    """inputs + amount · (highest − lowest value) · ξ with ξ standard normal, independent for every value.

    Args:
        inputs: (…, T, B, p), or any shape where `bounds` are numbers or None.
        amount: standard deviation as a fraction of the range; an absolute number without `bounds`.
        bounds: lowest and highest valid value.
        clip: clip the noisy values to the range.
    """
    _check(inputs, amount, math.inf, generator)
    if clip and bounds is None:
        raise ValueError("clip=True needs the valid range; give bounds, for example bounds=(0.0, 1.0)")
    if amount == 0.0:
        return inputs.clone()
    low, span = _laid_out(bounds, inputs)
    draws = torch.randn(inputs.shape, generator=generator, device=generator.device, dtype=inputs.dtype)
    noisy = inputs + amount * span * draws.to(inputs.device)
    return torch.minimum(torch.maximum(noisy, low), low + span) if clip else noisy


def salt_and_pepper(
    inputs: Tensor,
    amount: float,
    generator: torch.Generator,
    *,
    bounds: Range = (0.0, 1.0),
    lengths: Tensor | None = None,
    batch_first: bool = False,
) -> Tensor:
    """A fraction `amount` of the values of every sample is replaced: half by the lowest, half by the highest value.

    Of the n values of a sample, round(amount · n) are replaced, at places drawn without replacement; if that number is
    odd, one more is set to the highest value.

    Args:
        inputs: (T, B, p), or (B, T, p) with `batch_first`.
        bounds: lowest and highest valid value.
        lengths: (B,), the numbers of valid steps; the rest is left as it is and does not count.
    """
    _check(inputs, amount, 1.0, generator)
    if inputs.dim() != 3:
        raise ValueError(
            f"inputs have shape {tuple(inputs.shape)}; they must be (T, B, p), or (B, T, p) with batch_first=True"
        )
    if not batch_first:
        swapped = salt_and_pepper(
            inputs.transpose(0, 1), amount, generator, bounds=bounds, lengths=lengths, batch_first=True
        )
        return swapped.transpose(0, 1).contiguous()
    low, span = unit_range(bounds, inputs)
    flat = inputs.flatten(1)
    draws = torch.rand(flat.shape, generator=generator, device=generator.device).to(inputs.device)
    valid = inputs.new_full((len(flat), 1), flat.shape[1], dtype=torch.float64)
    if lengths is not None:
        draws = draws.masked_fill(padding_of(inputs, lengths, batch_first=True).expand_as(inputs).flatten(1), 2.0)
        valid = lengths.to(valid)[:, None] * inputs.shape[2]
    rank = draws.argsort(1).argsort(1)  # the padding comes last
    replaced = (amount * valid).round()
    pepper, salt = rank < (replaced / 2).floor(), rank < replaced
    lowest, highest = (end.expand(inputs.shape[1:]).reshape(1, -1) for end in (low, low + span))
    return torch.where(pepper, lowest, torch.where(salt, highest, flat)).view(inputs.shape)


@dataclass(frozen=True)
class NoiseCurve:
    """Accuracy of one model against the amount of noise: one row for each amount, one column for each seed."""

    kind: Kind
    amounts: tuple[float, ...]
    seeds: tuple[int, ...]
    accuracy: tuple[tuple[float, ...], ...]
    samples: int

    @property
    def mean(self) -> tuple[float, ...]:
        return tuple(statistics.fmean(row) for row in self.accuracy)

    @property
    def spread(self) -> tuple[float, ...]:
        """Standard deviation over the seeds of the noise; zero for a single one."""
        return tuple(statistics.stdev(row) if len(row) > 1 else 0.0 for row in self.accuracy)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "amounts": list(self.amounts),
            "seeds": list(self.seeds),
            "accuracy": [list(row) for row in self.accuracy],
            "mean": list(self.mean),
            "spread": list(self.spread),
            "samples": self.samples,
        }


def noise_curve(
    model: nn.Module,
    task: Task,
    amounts: Sequence[float] | None = None,
    seeds: Iterable[int] = range(3),
    *,
    kind: Kind = "white",
    split: Split = "test",
    samples: int | None = None,
    clip: bool = False,
    batch_size: int = 1000,
    progress: Progress = ignore_progress,
) -> NoiseCurve:
    """Accuracy on a split of `task` under noise of every amount, for every seed of the noise.

    A seed draws the same noise for every model and, up to its scale, for every amount, so that curves differ by what
    the models do and not by chance. The amount 0 gives the clean accuracy. Lengths and timespans of the batches go to
    the model as they are. Model and data must be on one device.

    Args:
        amounts: see `white_noise` and `salt_and_pepper`; by default those of `AMOUNTS`.
        seeds: of the noise.
        samples: how many samples of the split; all by default.
        clip: clip inputs with white noise to the valid range.
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(map(repr, KINDS))}")
    bounds = valid_range(task)
    if bounds is None and kind == "salt-and-pepper":
        raise ValueError(
            f"task {task.name!r} has no range of values, so there is no salt and no pepper; use kind='white' "
            "(--kind white)"
        )
    levels = tuple(float(amount) for amount in (AMOUNTS[kind] if amounts is None else amounts))
    chosen = tuple(seeds)
    if not levels or not chosen:
        raise ValueError("amounts or seeds are empty; give at least one of each")
    batch = draw_samples(task, split, samples)
    count = batch.inputs.shape[1]
    check_classes(batch.targets, count)
    check_device(model, batch.inputs)
    precision = next((p.dtype for p in model.parameters()), torch.float32)

    def accuracy(amount: float, seed: int) -> float:
        generator = torch.Generator().manual_seed(seed)
        correct = 0
        for start in range(0, count, batch_size):
            part = slice(start, start + batch_size)
            inputs, lengths = batch.inputs[:, part], None if batch.lengths is None else batch.lengths[part]
            if kind == "white":
                inputs = white_noise(inputs, amount, generator, bounds=bounds, clip=clip)
            elif bounds is not None:
                inputs = salt_and_pepper(inputs, amount, generator, bounds=bounds, lengths=lengths)
            times = None if batch.timespans is None else batch.timespans[:, part]
            outputs = outputs_of(model, inputs.to(precision), lengths, times)
            correct += int((outputs.argmax(-1) == batch.targets[part]).sum())
        return correct / count

    rows: list[tuple[float, ...]] = []
    with evaluation_mode(model), torch.no_grad():
        for done, amount in enumerate(levels):
            progress(f"{kind} noise", done, len(levels))
            if amount == 0.0:  # no noise, so one run is enough
                rows.append((accuracy(0.0, chosen[0]),) * len(chosen))
            else:
                rows.append(tuple(accuracy(amount, seed) for seed in chosen))
        progress(f"{kind} noise", len(levels), len(levels))
    return NoiseCurve(kind, levels, chosen, tuple(rows), count)


def _check(inputs: Tensor, amount: float, most: float, generator: torch.Generator) -> None:
    require_floating("inputs", require_tensor("inputs", inputs))
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"generator is {generator!r}; pass a torch.Generator, which makes the noise repeatable")
    _check_amount(amount, most)


def _check_amount(amount: float, most: float) -> None:
    amount = require_number("amount", amount, low=0.0)
    if not 0.0 <= amount <= most or math.isinf(amount):
        limits = "at least 0" if math.isinf(most) else f"between 0 and {most:g}"
        raise ValueError(f"amount is {amount!r}; it must be {limits}")


def _laid_out(bounds: Range | None, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest value and width of the range in the layout (T, B, p) of the inputs."""
    low, span = unit_range(bounds, inputs)
    return tuple(end.unsqueeze(-2) if end.dim() == 2 else end for end in (low, span))  # type: ignore[return-value]
