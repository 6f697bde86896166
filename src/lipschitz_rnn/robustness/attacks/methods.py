"""Attacks with full access to the model: PGD and DeepFool in l2 and l∞, FGSM in l∞; all steps are foolbox's."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.common.validation import require_count
from lipschitz_rnn.robustness.attacks.result import AttackResult
from lipschitz_rnn.robustness.attacks.runner import require_foolbox, run_attack, within
from lipschitz_rnn.robustness.model_calls import Progress, check_positive, ignore_progress
from lipschitz_rnn.robustness.samples import Range
from lipschitz_rnn.tasks import Batch

UNIT_RANGE: Range = (0.0, 1.0)


def pgd(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    norm: Literal["l2", "linf"] = "linf",
    steps: int = 7,
    step_size: float = 0.01,
    radius: float | None = None,
    random_start: bool = False,
    generator: torch.Generator | None = None,
    bounds: Range | None = UNIT_RANGE,
    lengths: Tensor | None = None,
    timespans: Tensor | None = None,
    batch_first: bool = False,
    batch_size: int = 500,
    progress: Progress = ignore_progress,
) -> AttackResult:
    """Projected gradient descent: x ← clip(x + step_size · sign ∇ₓ loss), kept within `radius` of the start.

    In l2 the gradient divided by its length takes the place of its sign.

    Only samples that the model classifies correctly are attacked. Step and radius are fractions of the valid range,
    so 0.01 is a hundredth of the way from black to white, whatever the scale of the pixels.

    Args:
        model: maps inputs to one row of class scores per sequence, returned alone or first in a tuple.
        inputs: (T, B, p), or (B, T, p) with `batch_first`.
        targets: (B,), the true classes.
        norm: "linf" or "l2".
        radius: of the ball; by default as far as the steps reach, steps · step_size.
        random_start: begin at a uniformly drawn point of the ball; needs `generator`.
        bounds: lowest and highest valid value, see `valid_range`; None for no limits.
        lengths: (B,), passed on to the model where sequences are padded; the padding is not perturbed.
        timespans: (T, B), or (B, T) with `batch_first`, passed on as `timespans=` where given; they are not perturbed.
        batch_size: samples that are attacked at once.
        progress: called with ("pgd", samples done, samples in all).
    """
    require_count("steps", steps)
    check_positive("step_size", step_size)
    reach = steps * step_size if radius is None else radius
    check_positive("radius", reach)
    if random_start and generator is None:
        raise ValueError("random_start=True draws random numbers; give a generator, e.g. torch.Generator()")
    if norm not in ("l2", "linf"):
        raise ValueError(f'norm is {norm!r}; it must be "l2" or "linf"')
    attacks = require_foolbox().attacks
    kind = attacks.L2PGD if norm == "l2" else attacks.LinfPGD
    attack = kind(abs_stepsize=step_size, steps=steps, random_start=random_start)

    def draw(start: Any, size: float) -> Any:
        """In place of foolbox's draw from the global generator."""
        assert generator is not None
        if norm == "l2":  # any point of the ball: a direction, and how far along it
            normal = torch.randn(start.shape, generator=generator, device=generator.device)
            share = torch.rand(len(normal), 1, 1, generator=generator, device=generator.device)
            drawn = share * normal / normal.flatten(1).norm(dim=1)[:, None, None]
            return start + size * type(start)(drawn.to(start.raw))
        uniform = torch.rand(start.shape, generator=generator, device=generator.device).to(start.raw)
        return start + size * (2.0 * type(start)(uniform) - 1.0)

    attack.get_random_start = draw
    settings = {"steps": steps, "step_size": step_size, "radius": reach, "random_start": random_start}
    ball = within(attack, reach)
    batch = Batch(inputs, targets, lengths, timespans)
    name = "pgd" if norm == "linf" else "pgd-l2"
    return run_attack(name, settings, ball, model, batch, bounds, batch_first, batch_size, progress)


def fgsm(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    radius: float = 0.07,
    bounds: Range | None = UNIT_RANGE,
    lengths: Tensor | None = None,
    timespans: Tensor | None = None,
    batch_first: bool = False,
    batch_size: int = 500,
    progress: Progress = ignore_progress,
) -> AttackResult:
    """The fast gradient sign method: one step x + radius · sign ∇ₓ loss. Arguments as for `pgd`."""
    check_positive("radius", radius)
    attack = within(require_foolbox().attacks.LinfFastGradientAttack(), radius)
    batch = Batch(inputs, targets, lengths, timespans)
    return run_attack("fgsm", {"radius": radius}, attack, model, batch, bounds, batch_first, batch_size, progress)


def deepfool(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    norm: Literal["l2", "linf"] = "l2",
    steps: int = 7,
    overshoot: float = 0.02,
    radius: float | None = None,
    candidates: int | None = None,
    bounds: Range | None = UNIT_RANGE,
    lengths: Tensor | None = None,
    timespans: Tensor | None = None,
    batch_first: bool = False,
    batch_size: int = 500,
    progress: Progress = ignore_progress,
) -> AttackResult:
    """DeepFool: step to the nearest class boundary of the linearised model until the class changes.

    Let f be the score of class k minus that of the predicted class. A step is the smallest one in the norm that closes
    the gap to the nearest k: |f| ∇f / ‖∇f‖₂² for l2, |f| sign(∇f) / ‖∇f‖₁ for l∞. foolbox adds 10⁻⁴ to its length.
    As in the DeepFool paper, the overshoot is applied at the end. foolbox would linearise at the extended points
    instead; on dark images, where clipping removes part of every step, the iteration then stalls at the boundary.

    Other arguments as for `pgd`.

    Args:
        norm: "l2" or "linf".
        steps: at most this many; a sample that keeps its class to the end withstood the attack.
        overshoot: a perturbation that ends short of the boundary is extended by this fraction, to end beyond it.
        radius: perturbations are limited to this size in the norm, and count only if they still fool the model; None
            for no limit.
        candidates: only the boundaries to this many of the most likely classes are considered; all by default.
    """
    if norm not in ("l2", "linf"):
        raise ValueError(f'norm is {norm!r}; it must be "l2" or "linf"')
    require_count("steps", steps)
    if radius is not None:
        check_positive("radius", radius)
    if overshoot < 0.0:
        raise ValueError(f"overshoot is {overshoot!r}; it must be at least 0")
    if candidates is not None and candidates < 2:
        raise ValueError(f"candidates is {candidates!r}; it must be at least 2: the predicted class is one of them")
    attacks = require_foolbox().attacks
    kind = attacks.L2DeepFoolAttack if norm == "l2" else attacks.LinfDeepFoolAttack
    iteration = kind(steps=steps, candidates=candidates, overshoot=0.0)

    def attack(seen: Any, start: Tensor, classes: Tensor) -> Tensor:
        end = iteration(seen, start, classes, epsilons=None)[0]
        short = (seen(end).argmax(-1) == classes)[:, None, None]
        end = torch.where(short, start + (1.0 + overshoot) * (end - start), end).clamp(*seen.bounds)
        return end if radius is None else iteration.distance.clip_perturbation(start, end, radius)

    settings = {"norm": norm, "steps": steps, "overshoot": overshoot, "radius": radius}
    batch = Batch(inputs, targets, lengths, timespans)
    return run_attack(f"deepfool-{norm}", settings, attack, model, batch, bounds, batch_first, batch_size, progress)
