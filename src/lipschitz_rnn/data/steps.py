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


# Steps for one typical gap, of units whose own defaults do not fit: nais is a contraction up to 1, ten such gaps.
STEPS = {"lipschitz": 0.1, "nais": 0.1}
# How a contracting layer learns best; its own defaults keep the distance of two states shorter on the way.
_CONTRACTING = {"metric_spread": 1000.0, "init_scale": 0.3}
_LONGEST_STEP = 2.0  # steps: a longer time between samples is integrated in several


def with_step(unit: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The unit's options with those that suit series of somebody's own, if they give none: step size and start."""
    own = _CONTRACTING if unit == "lipschitz" and options.get("stability") == "contracting" else {}
    return ({"step_size": STEPS[unit]} if unit in STEPS else {}) | own | dict(options)


def named_unit(unit: str, options: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    """A unit and its options; "contracting" is short for the Lipschitz unit with ``stability="contracting"``."""
    if unit != "contracting":
        return unit, dict(options or {})
    found = {"stability": "contracting", **(options or {})}
    if found["stability"] != "contracting":
        raise ValueError(
            f"the unit is 'contracting', but its option stability is {found['stability']!r}; leave the option out, or "
            "choose the unit 'lipschitz'"
        )
    return "lipschitz", found


def with_max_step(unit: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a unit that takes timespans with a `max_step`, if they give none: longer gaps are divided."""
    step = unit_step(unit, options)
    if step is None or "max_step" not in units.info(unit).options():
        return dict(options)
    # A contracting unit is proved for steps up to its own.
    return {"max_step": step if options.get("stability") is not None else _LONGEST_STEP * step} | dict(options)


def possible_spans(preprocessing: Mapping[str, Any]) -> tuple[float, float] | None:
    """The timespans that a model with this preprocessing (`Preprocessing.to_dict`) can meet; None: the unit's step.

    They reach from 0, which is no step and so stands as a thousandth of a typical gap, to the longest gap that counts.
    So too for regular training times: such a model predicts series with irregular ones.
    """
    if preprocessing["time_use"] != "step":
        return None
    return 1e-3 * preprocessing["step_size"], preprocessing["longest_gap"] * preprocessing["step_size"]
