"""`certified_radius`: how far inputs may change before the predicted class can change, proved for every such change."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import without_autocast
from lipschitz_rnn.ops.common.validation import require_count, require_tensor
from lipschitz_rnn.stability.proof.certificate import Certificate, combine
from lipschitz_rnn.stability.proof.rounding import UNIT, Ball, Matrix
from lipschitz_rnn.stability.radius.computed import ComputedNetwork
from lipschitz_rnn.stability.radius.energy import energy_gains
from lipschitz_rnn.stability.radius.kernels import ProvedNetwork, ProvedPart, Timeline
from lipschitz_rnn.stability.radius.network import Samples, read_network, read_samples
from lipschitz_rnn.stability.radius.proving import prove_network, require_covered
from lipschitz_rnn.stability.radius.scores import Scores, scores_of
from lipschitz_rnn.stability.threads import one_blas_thread

if TYPE_CHECKING:
    from lipschitz_rnn.stability.radius.local import Local

Norm = Literal["l2", "linf", "step"]
Method = Literal["auto", "global", "local"]
NORMS = ("l2", "linf", "step")
METHODS = ("auto", "global", "local")
_LARGEST = 1 << 25  # numbers of a trajectory that are kept at once


@dataclass(frozen=True)
class CertifiedRadii:
    """For every sample: no change of its input of at most ``radius`` changes the predicted class.

    It is a statement about the numbers that come out where the network runs in the precision ``arithmetic``, on any
    backend of this package, for the sample and for every changed input; and about the exact network too. With
    ``arithmetic`` ``exact`` it is about that alone. Where ``margin`` is not positive, rounding leaves open which class
    that is, and nothing is claimed: the radius is 0.

    Attributes:
        radius: (B,), in the norm ``norm`` of the whole change: ``l2`` over all steps and channels, ``linf`` for each
            value, ``step`` for the l2 norm of the change in every single step. Infinite if no change can matter.
        prediction: (B,), the class with the largest score.
        runner_up: (B,), the class that limits the radius; −1 if there is one class only.
        margin: (B,), a lower bound of the difference of their scores, exact and computed.
        rounding: (B,), a bound on what rounding can take from that difference, at the sample and everywhere within the
            radius; already subtracted. 0 for ``exact``.
        gain: (B,), an upper bound of how fast that difference can fall with the size of the change, over all inputs.
        norm, method: ``global`` holds that gain responsible everywhere; ``local`` follows the sample's own trajectory.
        certificate: of contraction, on which it rests.
        arithmetic: the precision, as in `certify`.
    """

    radius: Tensor
    prediction: Tensor
    runner_up: Tensor
    margin: Tensor
    rounding: Tensor
    gain: Tensor
    norm: str
    method: str
    certificate: Certificate = field(repr=False)
    arithmetic: str

    @property
    def samples(self) -> int:
        return len(self.radius)

    def accuracy(self, targets: Tensor, radius: float = 0.0) -> float:
        """Certified accuracy: the fraction of samples whose class is right and cannot change within ``radius``."""
        if tuple(targets.shape) != tuple(self.prediction.shape):
            raise ValueError(f"targets have shape {tuple(targets.shape)}; they must be ({self.samples},)")
        if not radius >= 0:
            raise ValueError(f"radius is {radius}; it must be at least 0")
        right = self.prediction == targets.to(self.prediction.device)
        return int((right & (self.margin > 0) & (self.radius >= radius)).sum()) / self.samples


def certified_radius(
    model: Any,
    inputs: Tensor,
    *,
    norm: Norm = "l2",
    lengths: Tensor | None = None,
    timespans: Tensor | None = None,
    scale: float | Tensor = 1.0,
    method: Method = "auto",
    precision: str | None = None,
    certificate: Certificate | None = None,
    batch_size: int | None = None,
    time_limit: float = 150.0,
    progress: Callable[[str, int, int | None], None] | None = None,
) -> CertifiedRadii:
    """A radius for every sample within which no change of its input changes the predicted class.

    Args:
        model: a `training.SequenceModel`, a `data.SeriesModel` (raw values, radius in their own units), or a
            `StatedClassifier(unit, head)` for a LipschitzRNN and a linear head of your own.
        inputs: (T, B, p), or (B, T, p) where the model is batch-first.
        norm: ``l2``, ``linf`` or ``step``; see `CertifiedRadii`.
        lengths: (B,), the valid steps of padded samples. Padding cannot change.
        timespans: (T, B) or (B, T) as the inputs: the time since the previous sample; raw times for a SeriesModel. They
            do not change with the inputs.
        scale: what the network reads is scale · value + shift; radii are then in units of the value. A number, (p,) or
            (T, p). For pixels in 0…255 that are read as value / 255: 1/255.
        method: ``global``, ``local`` or ``auto``, the larger of both where ``local`` is possible.
        precision: what the network runs in, as in `certify`; its rounding is taken from the margin. None: what is in
            force here (the dtype of the parameters, autocast, `torch.get_float32_matmul_precision()`). ``exact``: real
            numbers, for statements about the weights themselves.
        certificate: of the unit, from `certify(unit, precision="exact")`, to save the time of proving it again. In half
            precision, from `certify(unit)` there.
        batch_size: samples at a time; by default as many as fit.
        time_limit: seconds of search for a certificate, for each layer and direction.
        progress: called with ("radius", samples done, samples in all).

    Raises:
        NoCertificate: the network does not contract, or no proof was found; it says why and what to try.
    """
    if norm not in NORMS:
        raise ValueError(f"norm is {norm!r}; choose one of {', '.join(NORMS)}")
    if method not in METHODS:
        raise ValueError(f"method is {method!r}; choose one of {', '.join(METHODS)}")
    if batch_size is not None:
        require_count("batch_size", batch_size)
    require_tensor("inputs", inputs)
    network = read_network(model, precision)
    with without_autocast(inputs.device):  # what follows is a proof in float64
        samples = read_samples(network, inputs, timespans, lengths)
        proved = prove_network(network, samples.given.timespans, certificate, time_limit)
        computed = None if network.precision == "exact" else ComputedNetwork(proved)
    per_sample = samples.shape[0] * sum(part.size for part in network.layers[-1])
    size = max(1, _LARGEST // per_sample) if batch_size is None else batch_size
    scales = _scales(scale, samples)
    found = []
    with one_blas_thread(), np.errstate(all="ignore"), torch.no_grad(), without_autocast(inputs.device):
        for first in range(0, samples.shape[1], size):
            chosen = slice(first, min(first + size, samples.shape[1]))
            found.append(_of_batch(proved, computed, samples.part(chosen), norm, method, scales))
            if progress is not None:
                progress("radius", chosen.stop, samples.shape[1])
    whole: dict[str, Any] = {key: torch.cat([each[key] for each in found]) for key in found[0] if key != "method"}
    used = "local" if any(each["method"] == "local" for each in found) else "global"
    own = tuple(each.certificate for parts in proved.layers for each in parts)
    return CertifiedRadii(**whole, norm=norm, method=used, certificate=combine(own), arithmetic=network.precision)


def _of_batch(
    proved: ProvedNetwork,
    computed: ComputedNetwork | None,
    samples: Samples,
    norm: str,
    method: str,
    scales: Tensor,
) -> dict[str, Any]:
    timeline = Timeline(proved.network, samples)
    require_covered(proved, timeline)
    scores = scores_of(proved, timeline)
    entering = entries(proved, timeline, norm, scales)
    kernels = _kernels(proved, timeline, entering)
    gains = pair_gains(scores.readings, kernels, norm)  # (B, q)
    sizes = _lengths(scales, norm)
    gains = torch.minimum(gains, energy_gains(proved, timeline, scores.readings, sizes, norm))
    exact, speed, running = scores, gains, None
    taken, most = torch.zeros_like(gains), torch.full_like(gains[:, 0], math.inf)
    if computed is not None:
        rounding = computed.rounding(timeline, scores)
        running = computed, rounding
        scores = replace(scores, margins=scores.margins - rounding.constant * (1 + 8 * UNIT), lost=rounding.constant)
        entered = entries(rounding.network, timeline, norm, scales)
        grown = _kernels(rounding.network, timeline, entered)
        # a′k′ − ak = a′(k′ − k) + (a′ − a)k: how fast rounding grows with the change.
        later = [(k - own).clamp(min=0.0) + 64 * UNIT * k for k, own in zip(grown, kernels, strict=True)]
        more = [a - own + 8 * UNIT * a for a, own in zip(rounding.readings, scores.readings, strict=True)]
        taken = pair_gains([*rounding.readings, *more], [*later, *kernels], norm)
        gains = pair_gains(rounding.readings, grown, norm)
        gains = torch.minimum(gains, energy_gains(rounding.network, timeline, rounding.readings, sizes, norm))
        most = computed.largest_change(rounding, timeline, entered, float(sizes.max()))
    radii = torch.minimum(_quotient(scores.margins, gains), most[:, None])
    if method == "global":
        return _closest(scores, radii, gains, taken, most) | {"method": "global"}
    from lipschitz_rnn.stability.radius.local import Known, local_radii, why_not_local

    obstacle = why_not_local(proved)
    if obstacle is None:
        known = Known(speed, scores.lost, taken, most, running)
        local = local_radii(proved, timeline, exact, entering, norm, scales, known)
        return _closest(scores, radii, gains, taken, most, local) | {"method": "local"}
    if method == "local":
        raise ValueError(f'method="local" is not possible here: {obstacle}; use "auto" or "global"')
    return _closest(scores, radii, gains, taken, most) | {"method": "global"}


def _kernels(proved: ProvedNetwork, timeline: Timeline, entering: list[Tensor]) -> list[Tensor]:
    return [proved.input_kernel(timeline, top, entering) for top in range(len(proved.layers[-1]))]


def _closest(
    scores: Scores, radii: Tensor, gains: Tensor, taken: Tensor, most: Tensor, local: Local | None = None
) -> dict[str, Tensor]:
    """Of all other classes, the one that limits the radius; ``taken``: by rounding, for each unit of the radius up to
    ``most``.

    Both bounds hold, so the better one counts, for each class and for each number.
    """
    own = torch.nn.functional.one_hot(scores.prediction, radii.shape[1]).bool()
    margins = scores.margins
    if local is not None:
        radii, margins = torch.maximum(radii, local.radii), torch.maximum(margins, local.margins)
    radii = radii.masked_fill(own, math.inf)
    if radii.shape[1] == 1:  # nothing else can be predicted
        empty = torch.full_like(radii[:, 0], math.inf)
        nobody = torch.full_like(scores.prediction, -1)
        return {
            "radius": empty,
            "prediction": scores.prediction,
            "runner_up": nobody,
            "margin": empty,
            "rounding": torch.zeros_like(empty),
            "gain": gains[:, 0],
        }
    radius, runner_up = radii.min(1)
    smallest = margins.masked_fill(own, math.inf).min(1).values
    radius = torch.where(smallest > 0, radius, 0.0)
    pick = runner_up[:, None]

    def of_runner_up(values: Tensor) -> Tensor:
        return values.gather(1, pick).squeeze(1)

    rounding = of_runner_up(scores.lost) + torch.where(radius > 0, of_runner_up(taken) * radius, 0.0).nan_to_num(0.0)
    rounding = torch.where(radius <= most, rounding, math.inf)
    if local is not None:
        within = radius <= of_runner_up(local.radii)
        rounding = torch.where(within, torch.minimum(rounding, of_runner_up(local.rounding)), rounding)
    return {
        "radius": radius,
        "prediction": scores.prediction,
        "runner_up": runner_up,
        "margin": torch.where(smallest > 0, of_runner_up(margins), smallest),
        "rounding": rounding,
        "gain": of_runner_up(gains),
    }


def _quotient(margins: Tensor, gains: Tensor) -> Tensor:
    """margin / gain, rounded down; infinite where nothing can change the scores, 0 where no margin or gain is known."""
    radii = margins / gains * (1 - 16 * UNIT)
    unknown = ~(margins > 0) | gains.isnan()
    return torch.where(unknown, 0.0, torch.where(gains > 0, radii, math.inf))


def pair_gains(readings: list[Tensor], kernels: list[Tensor], norm: str) -> Tensor:
    """(B, q): how fast the score of the predicted class can fall behind that of each other class.

    k = Σ_d a_d k_d over the directions d, with a_d (B, q) the reading of the pair in the metric of d.
    """
    T = len(kernels[0])
    if norm != "l2":
        sums = [kernel.sum(0) for kernel in kernels]
        gains = sum((a * s[:, None] for a, s in zip(readings, sums, strict=True)), torch.zeros_like(readings[0]))
    else:
        # Brought to the size of 1 first, so that no square underflows.
        top = torch.stack(readings).amax(0).clamp(min=2.0**-1000)
        peak = torch.stack(kernels).amax((0, 1)).clamp(min=2.0**-1000)
        shares, shapes = [a / top for a in readings], [k / peak for k in kernels]
        squares = torch.zeros_like(readings[0])
        for a, k in zip(shares, shapes, strict=True):
            for other, m in zip(shares, shapes, strict=True):
                squares = squares + a * other * (k * m).sum(0)[:, None]
        gains = squares.sqrt() * top * peak[:, None]
    gains = gains * (1 + 16 * UNIT * (T + 8))
    return gains.masked_fill(gains.isnan(), math.inf)  # overflow left nothing to say


def entries(proved: ProvedNetwork, timeline: Timeline, norm: str, scales: Tensor) -> list[Tensor]:
    """For each part of the first layer: what one unit of change of the values adds to its state, (T, B), by time."""
    rows, index = torch.unique(scales, dim=0, return_inverse=True)  # (n, p) and (T,)
    found = []
    for direction, own in enumerate(proved.layers[0]):
        values = torch.tensor([entry_in(own, row, norm) for row in rows.cpu().numpy()], dtype=torch.float64)
        steps, more = timeline.steps(own.part), proved.rounding[0][direction]
        unit = timeline.ordered(own.gains(steps, 1.0, more.state), own.part)
        added = unit * values.to(unit.device)[index][:, None]
        if more.entry > 0:
            rest = timeline.ordered(own.gains(steps, 0.0, more.state, more.entry), own.part)
            added = added + rest * _lengths(scales, norm)[:, None]
        found.append(added * (1 + 8 * UNIT))
    return found


def _lengths(scales: Tensor, norm: str) -> Tensor:
    """(T,): the largest Euclidean length of an input's change, for a change of size 1 of the values in this norm."""
    found = scales.square().sum(-1).sqrt() if norm == "linf" else scales.amax(-1)
    return found * (1 + 8 * UNIT * (scales.shape[-1] + 4))


def entry_in(own: ProvedPart, scale: Matrix, norm: str) -> float:
    """‖D U S Δ‖_P ≤ entry for ‖Δ‖ ≤ 1: in l2, or for |Δ| ≤ 1 in every channel."""
    if not scale.any():
        return 0.0
    U = Ball.exact(own.part.U) * Ball.exact(np.broadcast_to(scale, own.part.U.shape))
    whole = own.entry(U)
    if norm != "linf":
        return whole
    columns = [own.entry(Ball(U.mid[:, i : i + 1], U.rad[:, i : i + 1])) for i in range(U.shape[1])]
    return min(math.sqrt(U.shape[1]) * whole * (1 + 4 * UNIT), math.fsum(columns) * (1 + 4 * UNIT))


def _scales(scale: float | Tensor, samples: Samples) -> Tensor:
    """(T, p): how much what the network reads changes for a unit of change of a value."""
    inputs = samples.given.inputs
    T, p = inputs.shape[0], inputs.shape[-1]
    given = torch.as_tensor(scale, dtype=torch.float64, device=inputs.device).abs()
    if tuple(given.shape) not in ((), (1,), (p,), (T, p)) or not bool(torch.isfinite(given).all()):
        raise ValueError(
            f"scale has shape {tuple(given.shape)}; "
            f"give a finite number, or finite numbers of shape ({p},) or ({T}, {p})"
        )
    own = samples.given.scale
    if own is not None:
        given = given * own.to(given) * (1 + 4 * UNIT)
    return given.expand(T, p).contiguous()
