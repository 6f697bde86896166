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
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.stability.proof.rounding import UNIT, Matrix
from lipschitz_rnn.stability.radius.ellipsoid import Ellipsoids, ellipsoids
from lipschitz_rnn.stability.radius.kernels import ProvedNetwork, ProvedPart, Timeline
from lipschitz_rnn.stability.radius.remainder import SMOOTH, remainder
from lipschitz_rnn.stability.radius.scores import Scores
from lipschitz_rnn.stability.radius.trajectory import Stepper, length_of

_WAYS, _ROUNDS = 9, 3  # radii tried at once, and how often the gap between two of them is divided
_LIKELY = (0.5, 1.1, 1.1)  # of the largest possible radius, then of the radius found
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
class _Linearized:
    """One direction: everything about the sample that does not depend on the radius, in reading order."""

    own: ProvedPart
    stepper: Stepper
    a: Tensor  # (T, B, N), what σ is applied to
    slope: Tensor  # (T, B, N), D̂
    off: Tensor  # (T, B, 1), how far a can be from the exact one
    step: Tensor  # (T, B, 1)
    factor: Tensor  # (T, B)
    spread: Tensor  # (T, B, N), s_t
    adjoint: Tensor  # (T, B, q, N), ε|λ_t|
    across: Tensor  # (N,), ‖w_i‖ in the dual metric
    residual: Tensor  # (B, q), rounding of the adjoint, for a unit of radius
    gradient: Tensor  # (T, B, q, p), by time


def local_radii(
    proved: ProvedNetwork,
    timeline: Timeline,
    scores: Scores,
    entering: list[Tensor],
    norm: str,
    scales: Tensor,
    start: Tensor,
    taken: Tensor,
) -> Tensor:
    """(B, q): a radius for every other class, at least 0.

    ``start`` are those of the global bound; ``taken`` (B, q) is what rounding takes for each unit of the radius.
    """
    T, B = timeline.samples.shape
    numbers = T * proved.network.D.shape[1] * (scores.margins.shape[1] + 4)  # of one sample
    chosen = max(1, (_AT_ONCE << 5 if start.is_cuda else _AT_ONCE) // numbers)
    found = []
    for first in range(0, B, chosen):
        part = slice(first, min(first + chosen, B))
        found.append(_of_some(proved, timeline, scores, entering, norm, scales, start, taken, part))
    return torch.cat(found)


def _of_some(
    proved: ProvedNetwork,
    timeline: Timeline,
    scores: Scores,
    entering: list[Tensor],
    norm: str,
    scales: Tensor,
    start: Tensor,
    taken: Tensor,
    part: slice,
) -> Tensor:
    some = Timeline(timeline.network, timeline.samples.part(part))
    if any(bool((some.steps(own.part).counts > 1).any()) for own in proved.layers[0]):
        return torch.zeros_like(start[part])  # sub-steps hold their input: only the global bound knows them
    # Scores of the size of 1: a power of two changes no digit, and squares of gradients do not underflow.
    D, at = proved.network.D, 0
    unit = 2.0 ** -math.floor(math.log2(max(float(np.abs(D).max()), 2.0**-1000)))
    D, margins, prediction = D * unit, scores.margins[part] * unit, scores.prediction[part]
    lines = []
    for direction, own in enumerate(proved.layers[0]):
        block = np.ascontiguousarray(D[:, at : at + own.part.size])
        at += own.part.size
        states, error = scores.states[direction].states[:, part], scores.states[direction].error[:, part]
        most = entering[direction][:, part].sum(0)  # bounds ‖δh‖_P for a change of size 1, in every norm
        lines.append(_linearize(own, some, states, error, block, prediction, scales, most))
    gradient = sum((line.gradient for line in lines[1:]), lines[0].gradient)
    dual = _dual(gradient, norm)  # (B, q)
    valid = some.samples.valid.sum(0).double()
    energy = {"l2": torch.ones_like(valid), "step": valid.sqrt(), "linf": (valid * scales.shape[1]).sqrt()}[norm]
    own_class = torch.nn.functional.one_hot(prediction, margins.shape[1]).bool()
    linear = dual + sum(line.residual for line in lines) + taken[part] * unit * (1 + 8 * UNIT)
    # Without any remainder the radius would be margin / gradient: search below the smallest of them.
    highest = (margins / linear.clamp(min=1e-300)).masked_fill(own_class, torch.inf).clamp(max=1e12).min(1).values
    low = torch.zeros_like(highest)
    for likely in _LIKELY:  # ellipsoids are made for one size of change; the later ones are near the answer
        reference = (likely * highest if likely < 1 else likely * low).clamp(min=0.0) * energy
        around = [_ellipsoids(line, reference) for line in lines]
        low = torch.maximum(low, _search(lines, around, margins, linear, own_class, energy, low, highest))
    return torch.where(margins > 0, low[:, None].expand_as(margins), 0.0)


def _search(
    lines: list[_Linearized],
    around: list[Ellipsoids],
    margins: Tensor,
    linear: Tensor,
    own_class: Tensor,
    energy: Tensor,
    low: Tensor,
    highest: Tensor,
) -> Tensor:
    """(B,): the largest radius above ``low`` that is certified; ``low`` where there is none."""
    high = torch.maximum(low, highest)
    for _ in range(_ROUNDS):
        ways = torch.arange(1, _WAYS + 1, dtype=torch.float64, device=low.device)[:, None] / (_WAYS + 1)
        tried = low + ways * (high - low)  # (K, B)
        lost = linear * tried[..., None]
        for line, own in zip(lines, around, strict=True):
            lost = lost + _bent(line, own, tried * energy * (1 + 8 * UNIT))
        good = ((margins - lost * (1 + 1e-9) > 0) | own_class).all(-1)  # (K, B)
        passed = good.to(torch.int64).cumprod(0).sum(0)  # how many of them, from below
        grid = torch.cat((low[None], tried, high[None]))
        low, high = (grid.gather(0, (passed + shift)[None]).squeeze(0) for shift in (0, 1))
    return low


def _ellipsoids(line: _Linearized, energy: Tensor) -> Ellipsoids:
    """Around what remainders add, for changes of energy (B,)."""

    def remainders(t: int, reach: Tensor) -> Tensor:
        V = energy[:, None] * line.spread[t] + reach
        return remainder(line.own.part.sigma, line.a[t], line.slope[t], V, line.off[t])

    return ellipsoids(line.stepper, line.step, line.slope, remainders)


def _linearize(
    own: ProvedPart,
    timeline: Timeline,
    states: Tensor,
    error: Tensor,
    head: Matrix,
    prediction: Tensor,
    scales: Tensor,
    most: Tensor,
) -> _Linearized:
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
    step = steps.lengths[..., None]
    F = step[..., None] * slope[..., None] * stepper.U * (scale * valid)[..., None, :]  # (T, B, N, p)
    spread = _spread(stepper, step, slope, F, scale * valid)
    adjoint, gradient, missed, flat = _adjoints(own, stepper, timeline, step, slope, F, head, prediction)
    return _Linearized(
        own=own,
        stepper=stepper,
        a=a,
        slope=slope,
        off=off[..., None],
        step=step,
        factor=own.step_factors(steps),
        spread=spread,
        adjoint=adjoint,
        across=across,
        residual=missed * most[:, None] + flat,
        gradient=timeline.ordered(gradient, part),
    )


def _inputs(timeline: Timeline, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (T, B, p), which steps may change (T, B, 1), and the scales (T, B, p), by time."""
    x = timeline.samples.given.inputs
    return x, timeline.samples.valid.double()[..., None], scales[:, None].expand(-1, x.shape[1], -1)


def _spread(stepper: Stepper, step: Tensor, slope: Tensor, F: Tensor, scale: Tensor) -> Tensor:
    """s_t (T, B, N): |W ℓ + U S Δ| ≤ s_t for all changes Δ of energy 1 up to step t.

    C⁺ ≽ J C Jᵀ + F Fᵀ, kept true under rounding by adding what it can cost to the diagonal.
    """
    T, B, N = slope.shape
    eye = torch.eye(N, dtype=torch.float64, device=slope.device)
    C = slope.new_zeros(B, N, N)
    found = torch.empty_like(slope)
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
    return ((found + direct).clamp(min=0.0) + 2.0**-900).sqrt() * (1 + 1e-9)  # squares may have underflowed


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


def _bent(line: _Linearized, around: Ellipsoids, energy: Tensor) -> Tensor:
    """Σ_t ε|λ_t|ᵀ remainder_t for changes of energy (K, B): (K, B, q)."""
    K, B = energy.shape
    lost = energy.new_zeros(K, B, line.adjoint.shape[2])
    q, squared = torch.zeros_like(energy), torch.zeros_like(energy)
    for t in range(len(line.a)):
        # Two bounds on W q: in the metric of the certificate, and by the ellipsoids of this sample.
        known = torch.minimum(line.across * q[..., None], around.bound(t, squared))
        V = reach_of(line.spread[t], energy[..., None], known)
        left = remainder(line.own.part.sigma, line.a[t], line.slope[t], V, line.off[t])  # (K, B, N)
        lost = lost + torch.einsum("bqn,kbn->kbq", line.adjoint[t], left)
        q = (line.factor[t] * q + line.step[t].squeeze(-1) * line.stepper.length(left)) * (1 + 1e-12)
        squared = around.grown(t, squared, left, (line.step[t] > 0).squeeze(-1))
    return lost


def reach_of(spread: Tensor, energy: Tensor, known: Tensor) -> Tensor:
    """|W δh + U Δx| in every entry: what the linear part can be, and what the remainders so far have added."""
    return energy * spread + known


def _dual(gradient: Tensor, norm: str) -> Tensor:
    """How fast a linear function with this gradient (T, B, q, p) can fall for changes of size 1: (B, q)."""
    if norm == "l2":
        size = length_of(gradient, (0, -1))
    elif norm == "step":
        size = length_of(gradient, (-1,)).sum(0)
    else:
        size = gradient.abs().sum((0, -1))
    return size * (1 + 1e-12)
