"""Attacks with full access to the model: PGD and FGSM in l∞, DeepFool in l2 and l∞; all steps are foolbox's."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lipschitz_rnn.robustness.attack_result import AttackResult
from lipschitz_rnn.robustness.calls import (
    Progress,
    check_batch,
    check_classes,
    evaluation_mode,
    ignore_progress,
    outputs_of,
)
from lipschitz_rnn.robustness.samples import Range, unit_range

UNIT_RANGE: Range = (0.0, 1.0)
Attack = Callable[[Any, Tensor, Tensor], Tensor]  # foolbox's view of a model, inputs (B, T, p), classes ▶ inputs


def pgd(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    steps: int = 7,
    step_size: float = 0.01,
    radius: float | None = None,
    random_start: bool = False,
    generator: torch.Generator | None = None,
    bounds: Range | None = UNIT_RANGE,
    lengths: Tensor | None = None,
    batch_first: bool = False,
    batch_size: int = 500,
    progress: Progress = ignore_progress,
) -> AttackResult:
    """Projected gradient descent in l∞: x ← clip(x + step_size · sign ∇ₓ loss), kept within `radius` of the start.

    Only samples that the model classifies correctly are attacked. Step and radius are shares of the valid range, so
    0.01 is a hundredth of the way from black to white whatever the scale of the pixels.

    Args:
        model: from inputs to one row of class scores for each sequence, alone or first in a tuple.
        inputs: (T, B, p), or (B, T, p) with `batch_first`.
        targets: (B,), the true classes.
        radius: of the l∞ ball; by default as far as the steps reach, steps · step_size.
        random_start: begin at a uniformly drawn point of the ball; needs `generator`.
        bounds: lowest and highest valid value, see `valid_range`; None for no limits.
        lengths: (B,), passed on to the model where sequences are padded.
        batch_size: samples that are attacked at once.
        progress: called with ("pgd", samples done, samples in all).
    """
    _check_positive("steps", steps)
    _check_positive("step_size", step_size)
    reach = steps * step_size if radius is None else radius
    _check_positive("radius", reach)
    if random_start and generator is None:
        raise ValueError("random_start=True draws random numbers; give a generator, e.g. torch.Generator()")
    foolbox = require_foolbox()
    attack = foolbox.attacks.LinfPGD(abs_stepsize=step_size, steps=steps, random_start=random_start)

    def draw(start: Any, size: float) -> Any:
        """In place of foolbox's draw from the global generator."""
        assert generator is not None
        uniform = torch.rand(start.shape, generator=generator, device=generator.device).to(start.raw)
        return start + size * (2.0 * type(start)(uniform) - 1.0)

    attack.get_random_start = draw
    settings = {"steps": steps, "step_size": step_size, "radius": reach, "random_start": random_start}
    ball = _within(attack, reach)
    return _run("pgd", settings, ball, model, inputs, targets, bounds, lengths, batch_first, batch_size, progress)


def fgsm(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    radius: float = 0.07,
    bounds: Range | None = UNIT_RANGE,
    lengths: Tensor | None = None,
    batch_first: bool = False,
    batch_size: int = 500,
    progress: Progress = ignore_progress,
) -> AttackResult:
    """The fast gradient sign method: one step x + radius · sign ∇ₓ loss. Arguments as for `pgd`."""
    _check_positive("radius", radius)
    attack = _within(require_foolbox().attacks.LinfFastGradientAttack(), radius)
    settings = {"radius": radius}
    return _run("fgsm", settings, attack, model, inputs, targets, bounds, lengths, batch_first, batch_size, progress)


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
    batch_first: bool = False,
    batch_size: int = 500,
    progress: Progress = ignore_progress,
) -> AttackResult:
    """DeepFool: walk to the nearest class boundary of the linearised model, until the class changes.

    With f the score of the class k less that of the predicted one, a step is the smallest one in the norm that closes
    the gap to the nearest k: |f| ∇f / ‖∇f‖₂² for l2, |f| sign(∇f) / ‖∇f‖₁ for l∞. foolbox adds 10⁻⁴ to its length.

    Other arguments as for `pgd`.

    Args:
        norm: "l2" or "linf".
        steps: at most this many; a sample that keeps its class to the end withstood the attack.
        overshoot: the walk is prolonged by this share, to arrive beyond the boundary and not on it.
        radius: perturbations are cut to this size in the norm, and count only if they still fool; None for no limit.
        candidates: only the boundaries to this many most likely classes are looked at; all by default.
    """
    if norm not in ("l2", "linf"):
        raise ValueError(f'norm is {norm!r}; it must be "l2" or "linf"')
    _check_positive("steps", steps)
    if radius is not None:
        _check_positive("radius", radius)
    if overshoot < 0.0:
        raise ValueError(f"overshoot is {overshoot!r}; it must be at least 0")
    if candidates is not None and candidates < 2:
        raise ValueError(f"candidates is {candidates!r}; it must be at least 2: the predicted class is one of them")
    attacks = require_foolbox().attacks
    kind = attacks.L2DeepFoolAttack if norm == "l2" else attacks.LinfDeepFoolAttack
    attack = _within(kind(steps=steps, candidates=candidates, overshoot=overshoot), radius)
    settings = {"norm": norm, "steps": steps, "overshoot": overshoot, "radius": radius}
    name = f"deepfool-{norm}"
    return _run(name, settings, attack, model, inputs, targets, bounds, lengths, batch_first, batch_size, progress)


def require_foolbox() -> Any:
    try:
        with warnings.catch_warnings():
            # It imports a name of SciPy from where SciPy no longer likes it to be found.
            warnings.simplefilter("ignore", DeprecationWarning)
            import foolbox
    except ImportError as error:
        raise ImportError('attacks need foolbox: pip install "lipschitz-rnn[robustness]"') from error
    return foolbox


def _within(attack: Any, radius: float | None) -> Attack:
    """The attack with its results cut to the ball: foolbox gives them before and after."""
    return lambda model, inputs, classes: attack(model, inputs, classes, epsilons=radius)[1]


class _OnUnitRange(nn.Module):
    """A model as foolbox sees it: from (B, T, p) with values in [0, 1] to class scores (B, q)."""

    def __init__(self, model: nn.Module, low: Tensor, span: Tensor, time_major: bool, lengths: Tensor | None) -> None:
        super().__init__()
        self.model, self.low, self.span = model, low, span
        self.time_major, self.lengths = time_major, lengths
        self.training = False  # of this wrapper alone; `evaluation_mode` knows better about what is inside

    def forward(self, x: Tensor) -> Tensor:
        values = self.low + self.span * x
        return outputs_of(self.model, values.transpose(0, 1) if self.time_major else values, self.lengths)


def _run(
    name: str,
    settings: dict[str, Any],
    attack: Attack,
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    bounds: Range | None,
    lengths: Tensor | None,
    batch_first: bool,
    batch_size: int,
    progress: Progress,
) -> AttackResult:
    """Attack the correctly classified samples, batch after batch, and measure what became of them."""
    _check_positive("batch_size", batch_size)
    count = check_batch(inputs, targets, lengths, 0 if batch_first else 1)
    check_classes(targets, count)
    precision = next((parameter.dtype for parameter in model.parameters()), inputs.dtype)
    values = (inputs if batch_first else inputs.transpose(0, 1)).to(precision)
    low, span = unit_range(bounds, values)
    start = (values - low) / span
    if bounds is not None:
        start = _inside(start)
    limits = (-math.inf, math.inf) if bounds is None else (0.0, 1.0)
    end = start.clone()
    correct, fooled = torch.zeros_like(targets, dtype=torch.bool), torch.zeros_like(targets, dtype=torch.bool)
    with evaluation_mode(model):
        for first in range(0, count, batch_size):
            progress(name, first, count)
            part = torch.arange(first, min(first + batch_size, count), device=targets.device)
            scores = _classifier(model, low, span, batch_first, lengths, part)
            with torch.no_grad():
                part = part[scores(start[part]).argmax(-1) == targets[part]]
            correct[part] = True
            if len(part) == 0:
                continue
            scores = _classifier(model, low, span, batch_first, lengths, part)
            seen = require_foolbox().PyTorchModel(scores, bounds=limits, device=start.device)
            end[part] = attack(seen, start[part], targets[part]).detach().clamp(*limits)
            with torch.no_grad():
                fooled[part] = scores(end[part]).argmax(-1) != targets[part]
        progress(name, count, count)
    distance = (end - start).flatten(1)
    perturbed = low + span * end
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
    model: nn.Module, low: Tensor, span: Tensor, batch_first: bool, lengths: Tensor | None, part: Tensor
) -> _OnUnitRange:
    return _OnUnitRange(model, low, span, not batch_first, None if lengths is None else lengths[part])


def _inside(values: Tensor) -> Tensor:
    """Values of the unit range without what rounding put outside; more than that is an error of the caller."""
    lowest, highest = values.min().item(), values.max().item()
    if lowest < -1e-5 or highest > 1.0 + 1e-5:
        raise ValueError(
            f"inputs lie outside the valid range: as shares of it they go from {lowest:.4g} to {highest:.4g}; give "
            "bounds=(lowest, highest) as they are in the data, or bounds=None for no limits"
        )
    return values.clamp(0.0, 1.0)


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} is {value!r}; it must be positive")
