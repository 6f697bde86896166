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
