"""Everything that is measured of one network at once: noise, attacks and curvature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lipschitz_rnn.robustness import (
    AttackResult,
    HessianResult,
    deepfool,
    draw_samples,
    hessian,
    noise_curve,
    pgd,
    valid_range,
)
from lipschitz_rnn.robustness.noise import KINDS
from lipschitz_rnn.tasks import Task

RADII = {
    "l2": (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5),
    "linf": (0.0, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.15),
}


@dataclass(frozen=True)
class Method:
    """How the networks are measured; all of it stands in the record."""

    target_loss: float | None = None  # training loss of the networks; None: the lowest that all came down to
    attacked: int | None = None  # samples of the test split; None for all
    steps: int = 7  # of every attack, as in the paper
    step_size: float = 0.01  # of PGD, as in the paper
    radius_pgd: float = 0.01  # of the balls that the table shows; the paper names none
    radius_l2: float = 0.2
    radius_linf: float = 0.02
    curved: int = 1000  # training samples of the Hessian
    probes: int = 16
    lanczos: int = 30
    tolerance: float = 0.01
    noises: int = 3  # seeds of the noise


def measure(network: nn.Module, task: Task, method: Method, noise_only: bool = False) -> dict[str, Any]:
    """Accuracy under noise and, unless `noise_only`, under attack, and the Hessian of the unit's parameters."""
    curves = {kind: noise_curve(network, task, seeds=range(method.noises), kind=kind) for kind in KINDS}
    noise = {kind: {"amounts": list(curve.amounts), "accuracy": list(curve.mean)} for kind, curve in curves.items()}
    found: dict[str, Any] = {"noise": noise, "accuracy": curves["white"].mean[0]}
    if noise_only:
        return found
    batch = draw_samples(task, "test", method.attacked)
    common: dict[str, Any] = {"steps": method.steps, "bounds": valid_range(task)}
    common |= {"lengths": batch.lengths, "timespans": batch.timespans}
    for name, radius in (("pgd", method.radius_pgd), ("pgd-wide", None)):  # as far as the steps reach
        attack = pgd(network, batch.inputs, batch.targets, step_size=method.step_size, radius=radius, **common)
        found[name] = attack.to_dict()
    for norm, ball in (("l2", method.radius_l2), ("linf", method.radius_linf)):
        attack = deepfool(network, batch.inputs, batch.targets, norm=norm, **common)  # type: ignore[arg-type]
        within = {"radii": list(RADII[norm]), "accuracy": [accuracy_within(attack, norm, r) for r in RADII[norm]]}
        inside = {"radius": ball, "accuracy_within": accuracy_within(attack, norm, ball), "within": within}
        found[f"deepfool-{norm}"] = attack.to_dict() | inside
    how: dict[str, Any] = {"probes": method.probes, "lanczos": method.lanczos, "tolerance": method.tolerance}
    return found | {"hessian": unit_hessian(network, task, method.curved, **how).to_dict(density=False)}


def unit_hessian(
    network: nn.Module,
    task: Task,
    samples: int,
    *,
    probes: int,
    lanczos: int,
    tolerance: float,
    batch_size: int = 1000,
) -> HessianResult:
    """The Hessian of the loss on training samples, as in the paper: of the recurrent unit, not of the head."""
    batch = draw_samples(task, "train", min(samples, task.size("train")))
    return hessian(
        network,
        batch.inputs,
        batch.targets,
        parameters="unit",
        tolerance=tolerance,
        probes=probes,
        runs=1,
        steps=lanczos,
        lengths=batch.lengths,
        timespans=batch.timespans,
        generator=torch.Generator().manual_seed(0),
        batch_size=batch_size,
    )


def accuracy_within(attacked: AttackResult, norm: str, radius: float) -> float:
    """The share of all samples that no perturbation within the ball has fooled."""
    sizes = attacked.l2 if norm == "l2" else attacked.linf
    return int((attacked.correct & ~(attacked.fooled & (sizes <= radius))).sum()) / attacked.samples
