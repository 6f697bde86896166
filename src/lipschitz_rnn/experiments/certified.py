"""Certified accuracy against radius, beside what attacks reach: a lower and an upper bound of the true robustness."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.common.precision import float32_products
from lipschitz_rnn.robustness import AttackResult, deepfool, draw_samples, pgd, valid_range
from lipschitz_rnn.robustness.samples import Range
from lipschitz_rnn.stability import CertifiedRadii, certified_radius
from lipschitz_rnn.stability.proof.precision import as_precision
from lipschitz_rnn.stability.radius.radius import Method
from lipschitz_rnn.tasks import Split, Task

_ARITHMETIC = {
    "float32": "float32 (highest)",
    "high": "float32 with products in TF32 (high)",
    "medium": "float32 with products of bfloat16 numbers (medium)",
}

Norm = Literal["l2", "linf", "step"]
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Samples:
    """Samples in the layout and the units of a model.

    Attributes:
        inputs: (T, B, p), or raw values (B, T, p) for a `SeriesModel`.
        targets: (B,).
        times: timespans, or raw times for a `SeriesModel`.
        bounds: the valid range, of which sizes are fractions; None: sizes are in units of the values.
        attackable: whether attacks know how to change these inputs.
    """

    inputs: Tensor
    targets: Tensor
    lengths: Tensor | None = None
    times: Tensor | None = None
    batch_first: bool = False
    bounds: Range | None = None
    attackable: bool = True

    @property
    def scale(self) -> Tensor:
        """By how much an input changes for a unit of size."""
        if self.bounds is None:
            return torch.ones(())
        low, high = (torch.as_tensor(end, dtype=torch.float64) for end in self.bounds)
        return high - low

    def part(self, count: int) -> Samples:
        """The first samples."""
        cut = slice(None, count)
        in_layout = (cut,) if self.batch_first else (slice(None), cut)
        return Samples(
            self.inputs[in_layout],
            self.targets[cut],
            None if self.lengths is None else self.lengths[cut],
            None if self.times is None else self.times[in_layout],
            self.batch_first,
            self.bounds,
            self.attackable,
        )

    @classmethod
    def of_task(cls, task: Task, split: Split = "test", count: int | None = None) -> Samples:
        """Samples of a split; pixels are measured in [0, 1], whatever a network reads for them."""
        batch = draw_samples(task, split, None if count is None else min(count, task.size(split)))
        return cls(batch.inputs, batch.targets, batch.lengths, batch.timespans, bounds=valid_range(task))


@dataclass(frozen=True)
class CertifiedCurve:
    """Certified accuracy at some radii, and the accuracy under attacks of those sizes.

    Attributes:
        radii: those asked for.
        certified: at each of them, the fraction of all samples that are right and proved to stay so.
        attacked: name of an attack -> the fraction of the attacked samples that it left right.
        certified_of_attacked: as ``certified``, of the attacked samples only: never more than any attack leaves.
        samples, attacked_samples: how many.
        clean: accuracy without any change, of all samples.
        contradictions: attacks that succeeded within a certified radius: zero, or something is wrong.
        found: the radius of every sample, and the certificate.
    """

    radii: tuple[float, ...]
    certified: tuple[float, ...]
    attacked: dict[str, tuple[float, ...]]
    certified_of_attacked: tuple[float, ...]
    samples: int
    attacked_samples: int
    clean: float
    contradictions: int
    found: CertifiedRadii = field(repr=False)
    targets: Tensor = field(repr=False)

    def accuracy(self, radius: float) -> float:
        return self.found.accuracy(self.targets, radius)

    def statement(self) -> str:
        """What the certified accuracy speaks about."""
        name = self.found.arithmetic
        if name == "exact":
            return (
                "certified: the class of the exact network of these weights is right and stays so under every change "
                "of at most the radius. The numbers that a running network computes may differ by rounding"
            )
        return (
            f"certified: the class that comes out in {_ARITHMETIC.get(name, name)}, on a CPU or a GPU, is right and "
            "stays so under every change of at most the radius, all rounding included"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = [
            {"radius": radius, "certified": certified, **{name: left[at] for name, left in self.attacked.items()}}
            for at, (radius, certified) in enumerate(zip(self.radii, self.certified, strict=True))
        ]
        right = (self.found.prediction == self.targets) & (self.found.margin > 0)
        own = self.found.radius.where(right, 0.0)
        certificate = self.found.certificate
        return {
            "norm": self.found.norm,
            "method": self.found.method,
            "arithmetic": self.found.arithmetic,
            "median_rounding": _finite(float(self.found.rounding.median())),
            "samples": self.samples,
            "attacked_samples": self.attacked_samples,
            "clean_accuracy": self.clean,
            "median_radius": _finite(float(own.median())),
            "curve": rows,
            "certified_of_attacked": [_finite(share) for share in self.certified_of_attacked],
            "contradictions": self.contradictions,
            "factor": certificate.factor,
            "rate": _finite(certificate.rate),
            "certificate": certificate.sentence(),
        }


def certified_curve(
    model: nn.Module,
    samples: Samples,
    radii: Sequence[float],
    norm: Norm = "l2",
    *,
    attacked: int = 0,
    steps: int = 40,
    restarts: int = 2,
    precision: str | None = None,
    time_limit: float = 150.0,
    batch_size: int | None = None,
    method: Method = "auto",
    progress: Progress | None = None,
) -> CertifiedCurve:
    """Certify all samples, and attack the first ``attacked`` of them.

    Args:
        radii: positive sizes, as fractions of the valid range where there is one (pixels in [0, 1]).
        method: of `certified_radius`.
        precision: what the network runs in, as in `certified_radius`; attacks run in it too.
        steps, restarts: of PGD, which runs at every radius; DeepFool runs once, without a limit.

    Raises:
        stability.NoCertificate: the network has no certificate of contraction.
    """
    for radius in radii:
        if not (radius > 0 and math.isfinite(radius)):
            raise ValueError(f"radius is {radius:g}; give positive, finite radii")
    found = certified_radius(
        model,
        samples.inputs,
        norm=norm,
        lengths=samples.lengths,
        timespans=samples.times,
        scale=samples.scale,
        method=method,
        precision=precision,
        time_limit=time_limit,
        batch_size=batch_size,
        progress=progress,
    )
    targets = samples.targets.to(found.prediction.device)
    some = samples.part(attacked) if attacked and samples.attackable else None
    left: dict[str, tuple[float, ...]] = {}
    contradictions = 0
    if some is not None:
        with _running_in(precision, some.inputs.device):
            left, contradictions = _under_attack(model, some, radii, norm, found, steps, restarts, progress)
    count = 0 if some is None else len(some.targets)
    held = (found.prediction == targets) & (found.margin > 0)
    return CertifiedCurve(
        radii=tuple(radii),
        certified=tuple(found.accuracy(targets, radius) for radius in radii),
        attacked=left,
        certified_of_attacked=tuple(
            float((held & (found.radius >= radius))[:count].double().mean()) if count else math.nan for radius in radii
        ),
        samples=len(targets),
        attacked_samples=count,
        clean=float((found.prediction == targets).double().mean()),
        contradictions=contradictions,
        found=found,
        targets=targets,
    )


@contextmanager
def _running_in(precision: str | None, device: torch.device) -> Iterator[None]:
    """What float32 networks run in here. Nothing runs in exact numbers: then as without it."""
    name = "exact" if precision is None else as_precision(precision).name
    if name in ("bfloat16", "float16"):
        with torch.autocast(device.type, dtype=getattr(torch, name)):
            yield
    elif name in ("float32", "high", "medium"):
        with float32_products("highest" if name == "float32" else name):
            yield
    else:
        yield


class _Called(nn.Module):
    """A `SeriesModel` called as attacks call a model: times where others have timespans."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, values: Tensor, lengths: Tensor | None = None, timespans: Tensor | None = None) -> Any:
        return self.model(values, timespans, lengths)


def _under_attack(
    model: nn.Module,
    samples: Samples,
    radii: Sequence[float],
    norm: Norm,
    found: CertifiedRadii,
    steps: int,
    restarts: int,
    progress: Progress | None,
) -> tuple[dict[str, tuple[float, ...]], int]:
    """For each attack the accuracy at every radius, and how many certified samples were fooled within their radius."""
    called = _Called(model) if samples.batch_first else model
    generator = torch.Generator().manual_seed(0)
    shared: dict[str, Any] = {"lengths": samples.lengths, "timespans": samples.times, "bounds": samples.bounds}
    shared |= {"batch_first": samples.batch_first} | ({} if progress is None else {"progress": progress})
    # A ball of l∞ inside of the set of changes with at most this l2 norm in every step.
    inside = samples.inputs.shape[-1] ** -0.5 if norm == "step" else 1.0
    by_norm: Literal["l2", "linf"] = "l2" if norm == "l2" else "linf"
    call = partial(pgd, called, samples.inputs, samples.targets, norm=by_norm, steps=steps, **shared)
    nearest: dict[str, Tensor] = {}  # attack -> (B,), the smallest change that fooled the network
    for radius in radii:
        reach = radius * inside
        for restart in range(restarts):
            result = call(radius=reach, step_size=2.5 * reach / steps, random_start=restart > 0, generator=generator)
            nearest["pgd"] = _nearer(nearest.get("pgd"), result, samples, norm)
    result = deepfool(called, samples.inputs, samples.targets, norm=by_norm, steps=50, **shared)
    nearest["deepfool"] = _nearer(None, result, samples, norm)
    left = {
        name: tuple(float((result.correct & (size > radius * (1 + 1e-5))).double().mean()) for radius in radii)
        for name, size in nearest.items()
    }
    own = found.radius[: len(samples.targets)].where(found.margin[: len(samples.targets)] > 0, 0.0)
    fooled = torch.stack(list(nearest.values())).amin(0) < own * (1 - 1e-5)
    return left, int((fooled & result.correct).sum())


def _nearer(before: Tensor | None, result: AttackResult, samples: Samples, norm: Norm) -> Tensor:
    """(B,): the size of the smallest change that fooled the network so far; infinite where none did."""
    change = (result.perturbed - samples.inputs).double().nan_to_num(0.0) / samples.scale.to(samples.inputs.device)
    axis = 1 if samples.batch_first else 0
    if norm == "l2":
        size = change.square().sum((axis, 2)).sqrt()
    else:
        size = (change.abs().amax(2) if norm == "linf" else change.norm(dim=2)).amax(axis)
    size = size.where(result.fooled, torch.inf)
    return size if before is None else torch.minimum(before, size)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
