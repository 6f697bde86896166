"""Stacks against attacks: two and three layers, every integrator, lengths, irregular steps, directions, precisions."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from radius_attack import worst_excess
from radius_cases import stack

from lipschitz_rnn.stability import certified_radius

SHORT, LONG = 6, int(os.environ.get("LIPSCHITZ_RNN_STACKS", "200"))
NORMS = ("l2", "linf", "step")
PRECISIONS = ("float64", "float64", "highest", "bfloat16", "float16")


def attacked(seed: int, norm: Any, precision: str, steps: int, restarts: int) -> tuple[int, int, int]:
    """Samples with a radius; of them, those that an attack at 0.999 of it changes; and those at three times of it."""
    case = stack(seed)
    dtype = {"float64": torch.float64, "highest": torch.float32}.get(precision) or getattr(torch, precision)
    case.network.unit.to(dtype)
    case.network.head.to(dtype)
    x, given = case.x.to(dtype), case.given
    found = certified_radius(case.network, x, norm=norm, **given)
    sure = (found.margin > 0) & (found.radius > 0)
    if not bool(sure.any()):
        return 0, 0, 0
    reach = found.radius.clamp(max=1e3)
    room = 0.999 if dtype in (torch.float64, torch.float32) else 0.95  # half precision rounds many changes outwards
    inside = worst_excess(case.network, x, room * reach, norm, **given, steps=steps, restarts=restarts, seed=seed)
    outside = worst_excess(case.network, x, 3 * reach, norm, **given, steps=steps, restarts=restarts, seed=seed)
    return int(sure.sum()), int((inside >= 0)[sure].sum()), int((outside > 0)[sure].sum())


def test_no_attack_crosses_the_radius_of_a_stack() -> None:
    found = [attacked(seed, NORMS[seed % 3], PRECISIONS[seed % 5], 10, 1) for seed in range(SHORT)]
    certified, crossed, beyond = map(sum, zip(*found, strict=True))
    assert crossed == 0
    assert certified >= 3 * SHORT / 2
    assert beyond > 0  # so that the attack can succeed at all


@pytest.mark.full
def test_no_attack_crosses_the_radius_of_many_stacks() -> None:
    certified = beyond = 0
    for seed in range(1000, 1000 + LONG):
        count, crossed, outside = attacked(seed, NORMS[seed % 3], PRECISIONS[seed % 5], 40, 2)
        assert crossed == 0, seed
        certified, beyond = certified + count, beyond + outside
    assert certified > 2 * LONG
    assert beyond > 0.05 * certified
