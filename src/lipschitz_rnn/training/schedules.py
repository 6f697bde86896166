"""The learning rate as a function of the step only: a schedule has no state to save."""

from __future__ import annotations

import math

from lipschitz_rnn.training.settings import Settings


def learning_rate(settings: Settings, step: int, steps_per_epoch: int) -> float:
    """The rate of optimiser step `step`, counted from 0 over the whole run."""
    top = settings.learning_rate
    if settings.schedule == "constant":
        return top
    if settings.schedule == "step":
        epoch = step // steps_per_epoch
        return top * settings.decay_factor ** sum(epoch > passed for passed in settings.decay_epochs)
    total = max(settings.epochs * steps_per_epoch, 1)
    rising = round(settings.warmup * total)
    if step < rising:
        # One-cycle starts at 1/25 of the top rate and rises along a cosine; the warm-up of "cosine" is linear from 0.
        share = (step + 1) / rising
        return top * (_ease(0.04, 1.0, share) if settings.schedule == "one-cycle" else share)
    return top * _ease(1.0, settings.final_rate, (step - rising) / max(total - 1 - rising, 1))


def robust_share(settings: Settings, step: int, steps_per_epoch: int) -> float:
    """The share of margin, radius and penalties that counts in a step: it rises linearly within `robust_ramp`."""
    rising = round(settings.robust_ramp * settings.epochs * steps_per_epoch)
    return 1.0 if step >= rising else step / rising


def why_not_longer(settings: Settings) -> str | None:
    """Why a run with these settings cannot be given more epochs; None if it can.

    It can if the rate of a step does not depend on the number of epochs: then the longer run has had the same steps.
    """
    if settings.robust_ramp:
        return (
            f"its robust_ramp of {settings.robust_ramp:g} is a fraction of all {settings.epochs} epochs, so a longer "
            "run would have had another loss from the start; train it anew with more epochs"
        )
    if settings.schedule in ("constant", "step"):
        return None
    return (
        f"its {settings.schedule} schedule spreads the learning rate over all {settings.epochs} epochs, so a longer "
        "run would have had other rates from the start; train it anew with more epochs"
    )


def _ease(start: float, end: float, share: float) -> float:
    """From `start` to `end` along half a cosine."""
    return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * min(share, 1.0)))
