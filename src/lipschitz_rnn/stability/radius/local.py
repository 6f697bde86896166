"""Radii that follow the sample's own trajectory: the exact gradient of each score difference, plus what bends it.

Write a change of the states as δh = ℓ + q: ℓ follows the linearized steps J_t = I + ε(αA + D̂_t W) of this sample, and q
is driven by the remainders of σ. Over all changes of the input of size r, W ℓ_t + U Δx_t stays within r·s_t, entry by
entry, with s_t from the Gram matrix C_t of the linear map from inputs to ℓ_t. q is bounded in the metric of the
certificate and by ellipsoids (`ellipsoid`). With λ_t the adjoint of the difference of two scores,

    difference(x + Δx) ≥ difference(x) − ⟨gradient, Δx⟩ − Σ_t ε|λ_t|ᵀ remainder_t(r),

so that r is certified if the right side is positive. docs/stability.md has the proof, rounding included.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.stability.proof.rounding import UNIT, Ball, Matrix
from lipschitz_rnn.stability.radius.bent import bent
from lipschitz_rnn.stability.radius.computed import ComputedNetwork, Rounding
from lipschitz_rnn.stability.radius.ellipsoid import Ellipsoids, ellipsoids, root_of
from lipschitz_rnn.stability.radius.kernels import ProvedNetwork, ProvedPart, Timeline, part_kernel
from lipschitz_rnn.stability.radius.linearized import HeadRounding, Linearized
from lipschitz_rnn.stability.radius.remainder import SMOOTH, chord_change
from lipschitz_rnn.stability.radius.scores import Scores
from lipschitz_rnn.stability.radius.trajectory import Stepper, length_of

_WAYS, _ROUNDS = 9, 3  # radii tried at once, and how often the gap between two of them is divided
_LIKELY = (0.5, 1.1, 1.1)  # of the largest possible radius, then of the radius found
_FARTHEST = 64.0  # radii are searched up to this many times those of the gain
_AT_ONCE = 1 << 24  # numbers that are kept at once on a CPU


def why_not_local(proved: ProvedNetwork) -> str | None:
    """The obstacle, or None."""
    if len(proved.layers) > 1:
        return f"the network has {len(proved.layers)} layers, and trajectories are followed through one"
    part = proved.layers[0][0].part
    if part.tableau.name != "euler":
        return f"the integrator is {part.tableau.name}, and trajectories are followed with Euler steps"
    if part.sigma.name not in SMOOTH:
        return f"nothing is known about the curvature of {part.sigma.name}"
    return None


@dataclass(frozen=True)
class Known:
    """What the global bound says, (B, q) each: how fast differences can fall, and what rounding takes at most.

    Attributes:
        gains: of the exact network.
        constant, taken: of rounding, at the sample and for each unit of change up to ``most`` (B,).
        computed: the network that runs; None for the exact one.
    """

    gains: Tensor
    constant: Tensor
    taken: Tensor
    most: Tensor
    computed: tuple[ComputedNetwork, Rounding] | None

    def rounding(self, size: Tensor, chosen: slice) -> Tensor:
        """(K, B, q), for sizes (K, B) and some samples."""
        found = self.constant[chosen] + self.taken[chosen] * size[..., None]
        allowed = (size <= self.most[chosen])[..., None]
        return torch.where(allowed, found * (1 + 8 * UNIT), torch.inf).nan_to_num(nan=torch.inf)


@dataclass(frozen=True)
class Local:
    """For every other class, (B, q) each.

    Attributes:
        radii: within which it cannot win, at least 0.
        margins: what is certain of the differences of scores at the sample, rounding subtracted.
        rounding: what rounding can take from them, anywhere within ``radii``.
    """

    radii: Tensor
    margins: Tensor
    rounding: Tensor


def local_radii(
    proved: ProvedNetwork,
    timeline: Timeline,
    scores: Scores,
    entering: list[Tensor],
    norm: str,
    scales: Tensor,
    known: Known,
) -> Local:
    """The radii of all samples; ``scores`` are exact ones."""
    T, B = timeline.samples.shape
    numbers = T * proved.network.D.shape[1] * (scores.margins.shape[1] + 4)  # of one sample
    chosen = max(1, (_AT_ONCE << 5 if scores.margins.is_cuda else _AT_ONCE) // numbers)
    parts = [slice(first, min(first + chosen, B)) for first in range(0, B, chosen)]
    found = [_of_some(proved, timeline, scores, entering, norm, scales, known, part) for part in parts]
    return Local(*(torch.cat([getattr(each, name) for each in found]) for name in ("radii", "margins", "rounding")))


def _of_some(
    proved: ProvedNetwork,
    timeline: Timeline,
    scores: Scores,
    entering: list[Tensor],
    norm: str,
    scales: Tensor,
    known: Known,
    part: slice,
) -> Local:
    some = Timeline(timeline.network, timeline.samples.part(part))
    margins, prediction = scores.margins[part], scores.prediction[part]
    if any(bool((some.steps(own.part).counts > 1).any()) for own in proved.layers[0]):
        # Sub-steps hold their input: only the global bound knows them.
        nothing = torch.zeros_like(margins)
        return Local(nothing, nothing - torch.inf, nothing + torch.inf)
    # Scores of the size of 1: a power of two changes no digit, and squares of gradients do not underflow.
    D, at = proved.network.D, 0
    unit = 2.0 ** -math.floor(math.log2(max(float(np.abs(D).max()), 2.0**-1000)))
    D, margins = D * unit, margins * unit
    lines, read = [], []
    for direction, own in enumerate(proved.layers[0]):
        block = np.ascontiguousarray(D[:, at : at + own.part.size])
        at += own.part.size
        states, error = scores.states[direction].states[:, part], scores.states[direction].error[:, part]
        line = _linearize(
            own, some, states, error, block, prediction, scales, entering[direction][:, part], norm,
            scores.readings[direction][part] * unit,
        )  # fmt: skip
        if known.computed is not None:
            line, sizes = _rounded(line, direction, some, states, error, scales, norm, *known.computed, part, unit)
            read.append(sizes)
        lines.append(line)
    fixed = torch.zeros_like(margins) if known.computed is None else known.computed[1].at_the_sample(read, part) * unit
    dual = _dual(_added([line.gradient for line in lines]), norm)  # (B, q)
    valid = some.samples.valid.sum(0).double()
    energy = {"l2": torch.ones_like(valid), "step": valid.sqrt(), "linf": (valid * scales.shape[1]).sqrt()}[norm]
    own_class = torch.nn.functional.one_hot(prediction, margins.shape[1]).bool()
    linear = dual + _added([line.residual for line in lines])
    gains = known.gains[part] * unit

    def lost(around: list[Ellipsoids], size: Tensor) -> tuple[Tensor, Tensor]:
        """For sizes (K, B): by the change itself, and by rounding, (K, B, q) each. Of two bounds the smaller counts."""
        change, rounding = linear * size[..., None], fixed.expand(len(size), *fixed.shape)
        for line, own in zip(lines, around, strict=True):
            found = bent(line, own, size, size * energy * (1 + 8 * UNIT), norm)
            change, rounding = change + found.bent, rounding + found.rounding
        change = torch.minimum(change.nan_to_num(nan=torch.inf), gains * size[..., None])
        return change * (1 + 1e-9), torch.minimum(rounding * (1 + 1e-9), known.rounding(size, part) * unit)

    # Without any remainder the radius would be margin / gradient: search below the smallest of them. That can be far
    # above what the gain allows, as where units are off, and a grid has to find both.
    steepest = torch.minimum(linear, gains).maximum(gains / _FARTHEST).clamp(min=1e-300)
    highest = (margins / steepest).masked_fill(own_class, torch.inf).clamp(max=1e12).min(1).values
    low = torch.zeros_like(highest)
    for likely in _LIKELY:  # ellipsoids are made for one size of change; the later ones are near the answer
        reference = (likely * highest if likely < 1 else likely * low).clamp(min=0.0)
        around = [_ellipsoids(line, reference, reference * energy) for line in lines]
        # Once a radius is known, a finer grid around it.
        high = highest if likely < 1 else torch.minimum(highest, 2.0 * low + 0.01 * highest)
        low = _search(partial(lost, around), margins, own_class, low, high)
    _, rounding = lost(around, torch.stack((torch.zeros_like(low), low)))
    certain = margins - rounding[0]
    radii = torch.where(certain > 0, low[:, None].expand_as(margins), 0.0)
    return Local(radii, certain / unit, rounding[1] / unit)


def _added(terms: list[Tensor]) -> Tensor:
    return sum(terms[1:], terms[0])


def _search(
    lost: Callable[[Tensor], tuple[Tensor, Tensor]], margins: Tensor, own_class: Tensor, low: Tensor, highest: Tensor
) -> Tensor:
    """(B,): the largest radius above ``low`` that is certified; ``low`` where there is none."""
    high = torch.maximum(low, highest)
    for _ in range(_ROUNDS):
        ways = torch.arange(1, _WAYS + 1, dtype=torch.float64, device=low.device)[:, None] / (_WAYS + 1)
        tried = low + ways * (high - low)  # (K, B)
        change, rounding = lost(tried)
        good = ((margins - change - rounding > 0) | own_class).all(-1)  # (K, B)
        passed = good.to(torch.int64).cumprod(0).sum(0)  # how many of them, from below
        grid = torch.cat((low[None], tried, high[None]))
        low, high = (grid.gather(0, (passed + shift)[None]).squeeze(0) for shift in (0, 1))
    return low


def _ellipsoids(line: Linearized, size: Tensor, energy: Tensor) -> Ellipsoids:
    """Around what remainders add, for changes of a size and an energy (B,)."""

    def remainders(t: int, reach: Tensor) -> Tensor:
        V = torch.minimum(energy[:, None] * line.spread[t] + reach, line.most(t, size))
        return chord_change(line.own.part.sigma, line.a[t], line.slope[t], V, line.off[t]) * V

    return ellipsoids(line.stepper, line.step, line.slope, remainders)


def _linearize(
    own: ProvedPart,
    timeline: Timeline,
    states: Tensor,
    error: Tensor,
    head: Matrix,
    prediction: Tensor,
    scales: Tensor,
    entering: Tensor,
    norm: str,
    readings: Tensor,
) -> Linearized:
    part, device = own.part, states.device
    stepper = Stepper(own, device)
    x, valid, scale = (timeline.ordered(each, part) for each in _inputs(timeline, scales))
    steps = timeline.steps(part)
    after, wrong = timeline.ordered(states, part), timeline.ordered(error, part)
    before = torch.cat((torch.zeros_like(after[:1]), after[:-1]))
    wrong = torch.cat((torch.zeros_like(wrong[:1]), wrong[:-1]))
    drive, size = stepper.drive(x)
    a = before @ stepper.W.T + drive
    magnitude = before.abs() @ stepper.W.abs().T + size
    low, high = part.sigma.slope_range
    slope = part.sigma.slope_from_value(part.sigma.function(a)).clamp(low, high)
    across = torch.from_numpy(own.reading(part.W, np.zeros_like(part.W))).to(device)
    off = across.max() * wrong + stepper.each * magnitude.amax(-1)
    if timeline.samples.given.error is not None:  # of the inputs
        off = off + timeline.ordered(timeline.samples.given.error, part) * stepper.U.norm(dim=-1).max() * (1 + 1e-9)
    step = steps.lengths[..., None]
    F = step[..., None] * slope[..., None] * stepper.U * (scale * valid)[..., None, :]  # (T, B, N, p)
    spread, width = _spread(stepper, step, slope, F, scale * valid)
    adjoint, gradient, missed, flat = _adjoints(own, stepper, timeline, step, slope, F, head, prediction)
    factor, entered = own.step_factors(steps), timeline.ordered(entering, part)
    kernel = part_kernel(own, timeline, timeline.read_weights(part)) * (1 + 16 * UNIT * (len(x) + 16))
    return Linearized(
        own=own,
        stepper=stepper,
        a=a,
        slope=slope,
        off=off[..., None],
        step=step,
        factor=factor,
        spread=spread,
        width=width,
        level=_levels(factor, entered, norm),
        direct=_direct(stepper, scale * valid, norm),
        adjoint=adjoint,
        kernel=timeline.ordered(kernel, part)[..., None] * readings,
        across=across,
        whole=own.metric.reading(Ball.exact(part.W)),
        reach=torch.from_numpy(own.reading(np.eye(part.size), np.zeros((part.size, part.size)))).to(device),
        missed=missed,
        residual=missed * entered.sum(0)[:, None] + flat,  # the sum bounds ‖δh‖_P in every norm
        gradient=timeline.ordered(gradient, part),
    )


def _levels(factor: Tensor, entered: Tensor, norm: str) -> Tensor:
    """(T + 1, B): ‖δh‖_P before each step and after the last, for a change of size 1; theorem 1 along the sequence."""
    levels = [torch.zeros_like(factor[0])]
    for rho, more in zip(factor, entered, strict=True):
        passed = rho * levels[-1]
        levels.append((torch.hypot(passed, more) if norm == "l2" else passed + more) * (1 + 16 * UNIT))
    return torch.stack(levels)


def _direct(stepper: Stepper, scale: Tensor, norm: str) -> Tensor:
    """(T, B, N): |U| |Δx| for a change of size 1."""
    if norm == "linf":
        return scale @ stepper.U.abs().T * (1 + 1e-12)
    return root_of(scale.square() @ stepper.U.square().T)


def _rounded(
    line: Linearized,
    direction: int,
    timeline: Timeline,
    states: Tensor,
    error: Tensor,
    scales: Tensor,
    norm: str,
    computed: ComputedNetwork,
    rounding: Rounding,
    chosen: slice,
    unit: float,
) -> tuple[Linearized, Tensor]:
    """With what the running network rounds, and (B, N): the magnitudes that are read; scores count ``unit``."""
    part = line.own.part
    sizes = states.abs() + line.reach * error[..., None]
    after = timeline.ordered(sizes, part)
    before = torch.cat((torch.zeros_like(after[:1]), after[:-1])) * (1 + 4 * UNIT)
    steps = computed.rounded_steps(direction, timeline, line.step, before, line.direct, float(scales.max()))
    weights, each = timeline.read_weights(part), rounding.each[direction][chosen] * unit
    head = HeadRounding(timeline.ordered(weights, part), each, rounding.sizes[direction], rounding.limit)
    # With each input rounding grows as along a gradient.
    _, valid, scale = (timeline.ordered(each, part) for each in _inputs(timeline, scales))
    along = steps.fed * (line.adjoint @ line.stepper.U.abs()) * (scale * valid)[..., None, :]
    fed = _dual(along, norm) * (1 + 1e-9)
    own = line.slope * steps.inside + steps.outside
    errors = ellipsoids(line.stepper, line.step, line.slope, lambda t, _: own[t])
    return replace(line, rounded=steps, head=head, fed=fed, errors=errors), (weights[..., None] * sizes).sum(0)


def _inputs(timeline: Timeline, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (T, B, p), which steps may change (T, B, 1), and the scales (T, B, p), by time."""
    x = timeline.samples.given.inputs
    return x, timeline.samples.valid.double()[..., None], scales[:, None].expand(-1, x.shape[1], -1)


def _spread(stepper: Stepper, step: Tensor, slope: Tensor, F: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """s_t (T, B, N): |W ℓ + U S Δ| ≤ s_t for all changes Δ of energy 1 up to step t; and (T + 1, B, N) for |ℓ| itself.

    C⁺ ≽ J C Jᵀ + F Fᵀ, kept true under rounding by adding what it can cost to the diagonal.
    """
    T, B, N = slope.shape
    eye = torch.eye(N, dtype=torch.float64, device=slope.device)
    C = slope.new_zeros(B, N, N)
    found, width = torch.empty_like(slope), slope.new_zeros(T + 1, B, N)
    direct = ((stepper.U * scale[..., None, :]) ** 2).sum(-1)  # (T, B, N)
    wide = stepper.W.square().sum(-1)
    each = 8.0 * (N + F.shape[-1] + 16) * UNIT
    for t in range(T):
        size = C.square().sum((-2, -1)).sqrt()
        # The terms of wᵀC w may cancel; ‖w‖²‖C‖ bounds their sum.
        found[t] = ((stepper.W @ C) * stepper.W).sum(-1) + each * size[:, None] * wide
        J = eye + step[t, :, :, None] * (stepper.A + slope[t, :, :, None] * stepper.W)
        C = J @ C @ J.mT + F[t] @ F[t].mT
        # The entries of J may cancel: its rounding follows the sizes of their terms.
        whole = N**0.5 + step[t].squeeze(-1) * stepper.size.norm()
        rounding = each * (whole.square() * size + F[t].square().sum((-2, -1)))
        C = 0.5 * (C + C.mT) + rounding[:, None, None] * eye
        width[t + 1] = root_of(C.diagonal(dim1=-2, dim2=-1))
    return root_of(found.clamp(min=0.0) + direct), width


def _adjoints(
    own: ProvedPart,
    stepper: Stepper,
    timeline: Timeline,
    step: Tensor,
    slope: Tensor,
    F: Tensor,
    head: Matrix,
    prediction: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ε|λ_t| (T, B, q, N), the gradients (T, B, q, p) in reading order, and the rounding of both, (B, q) each.

    λ may be any vectors: what they miss of the recursion J_tᵀλ acts on δh_t and is bounded by its size.
    """
    T, _, N = slope.shape
    D = torch.from_numpy(head).to(slope.device)
    rows = D[prediction][:, None] - D  # (B, q, N)
    weights = timeline.ordered(timeline.read_weights(own.part), own.part)
    running = rows.new_zeros(rows.shape)
    adjoint = rows.new_empty(T, *rows.shape)
    gradient = rows.new_empty(T, *rows.shape[:-1], F.shape[-1])
    sizes = rows.new_zeros(rows.shape[:-1])
    whole = 1.0 + float(step.max()) * float(stepper.size.norm())
    for t in range(T - 1, -1, -1):
        running = running + weights[t, :, None, None] * rows
        adjoint[t] = step[t, :, None] * running.abs()
        gradient[t] = running @ F[t]
        sizes = sizes + running.norm(dim=-1) + weights[t, :, None] * rows.norm(dim=-1)
        running = running + step[t, :, None] * (running @ stepper.A + (slope[t, :, None] * running) @ stepper.W)
    # ‖x‖₂ ≤ dual ‖x‖_P, entry by entry.
    dual = float(own.reading(np.eye(N), np.zeros((N, N))).max()) * N**0.5
    widest = length_of(F, (-2, -1)).amax(0)  # (B,)
    missed = 4.0 * stepper.each * whole * dual * sizes
    return adjoint, gradient, missed, 4.0 * stepper.each * F.shape[-1] ** 0.5 * widest[:, None] * sizes


def _dual(gradient: Tensor, norm: str) -> Tensor:
    """How fast a linear function with this gradient (T, B, q, p) can fall for changes of size 1: (B, q)."""
    if norm == "l2":
        size = length_of(gradient, (0, -1))
    elif norm == "step":
        size = length_of(gradient, (-1,)).sum(0)
    else:
        size = gradient.abs().sum((0, -1))
    return size * (1 + 1e-12)
