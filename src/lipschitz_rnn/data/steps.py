"""The step of a unit with continuous time, to which the time between samples is scaled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lipschitz_rnn import units


def unit_step(name: str, options: Mapping[str, Any] | None = None) -> float | None:
    """The step size of a unit with these options; None if it has no continuous time."""
    if not units.info(name).timespans:
        return None
    with torch.random.fork_rng(devices=[]):
        unit = units.build(name, 1, 4, **(options or {}))  # small: only its settings are read
    steps = [getattr(module, "step_size", None) for module in unit.modules()]
    return next((float(step) for step in steps if isinstance(step, int | float)), 1.0)


STEP = 0.1  # of the Lipschitz unit, for one typical gap: series of tens to hundreds of samples need more than 0.03
_LONGEST_STEP = 3.0  # steps: a longer time between samples is integrated in several


def with_step(unit: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The unit's options with a step size that suits series of somebody's own, if they give none."""
    return ({"step_size": STEP} if unit == "lipschitz" else {}) | dict(options)


def with_max_step(unit: str, options: Mapping[str, Any], longest: float | None) -> dict[str, Any]:
    """The unit's options with a `max_step` if the longest timespan needs one and they give none.

    longest: the longest timespan in training, in the unit of the step size; None for regular samples.
    """
    found, step = dict(options), unit_step(unit, options)
    if longest is None or step is None or "max_step" not in units.info(unit).options() or "max_step" in found:
        return found
    if found.get("stability") is not None:
        if longest > step:
            found["max_step"] = step  # a contracting unit is proved for steps up to its own
    elif longest > _LONGEST_STEP * step:
        found["max_step"] = _LONGEST_STEP * step
    return found
