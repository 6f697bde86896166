"""How far the states of a running network are from those of exact arithmetic.

With the factor ρ of a certificate and the local error d of ``stepping``, both in the norm of its metric,

    e⁺ ≤ ρ e + d,    e = ‖ĥ − h‖_P,

because ‖ĥ⁺ − Φ(h)‖ ≤ ‖ĥ⁺ − Φ(ĥ)‖ + ‖Φ(ĥ) − Φ(h)‖. Exact arithmetic means the certificate's A and W, U and b in the
dtype in which the kernels take them, and inputs, α and steps as they are given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from lipschitz_rnn.ops.common.dtypes import without_autocast
from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.ops.lipschitz.scan import lipschitz_scan
from lipschitz_rnn.stability.proof.arithmetic import Arithmetic, arithmetic
from lipschitz_rnn.stability.proof.certificate import Certificate
from lipschitz_rnn.stability.proof.gain import step_gain
from lipschitz_rnn.stability.proof.norms import MetricNorms, euclidean
from lipschitz_rnn.stability.proof.precision import PRECISIONS, as_precision, held, nominal, rounded
from lipschitz_rnn.stability.proof.rounding import UNDERFLOW, Ball, Matrix
from lipschitz_rnn.stability.proof.stepping import OWN, Feed, StepModel


class RunningPart:
    """One certified recurrence with its input map, as it runs in one precision.

    Args:
        certificate: of a single pair, discrete, that holds.
        precision, backend: as in ``arithmetic``; ``inputs`` is the precision of the products with U, by default the
            same.
        input_weight, bias: U (N, p) and b (N,); None: the drives u are given as they are.
        returned: relative rounding of the states that the caller sees, where it is more than the precision's.
    """

    def __init__(
        self,
        certificate: Certificate,
        precision: str,
        backend: str = "any",
        input_weight: Matrix | None = None,
        bias: Matrix | None = None,
        inputs: str | None = None,
        returned: float = 0.0,
    ) -> None:
        P, A, W = certificate.metric, certificate.A, certificate.W
        if certificate.parts or not certificate.holds or P is None or A is None or W is None:
            raise ValueError(
                "the certificate does not hold for a single pair, so nothing bounds how rounding adds up; "
                f"{certificate.next_step or 'pass one of certificate.parts, or certify first'}"
            )
        if certificate.step_range is None or certificate.factor is None:
            raise ValueError("the certificate is about continuous time, which does not run; certify with a step_size")
        if certificate.nonlinearity is None:
            raise ValueError(
                "the certificate names no nonlinearity, only slopes, so its rounding is not known; certify with "
                "nonlinearity='tanh', 'relu', 'sigmoid' or 'identity'"
            )
        self.certificate, self.metric, self.size = certificate, MetricNorms(P), len(A)
        self.precision, model = as_precision(precision), arithmetic(precision, backend, len(A))
        self.model = replace(model, returned=max(model.returned, returned))
        self.inputs = self.model if inputs is None else arithmetic(inputs, backend, len(A))
        p = 0 if input_weight is None else input_weight.shape[1]
        self.U = None if input_weight is None else self._in_dtype(input_weight)
        self.bias = None if bias is None else self._in_dtype(bias)
        self.step_model = self._step_model(self.precision.name, self.model, p)
        self.exact_model = self._step_model("float64", arithmetic("float64"), p)
        self.sensitivities: dict[tuple[float, float, bool], float] = {}

    def _in_dtype(self, values: Matrix) -> Matrix:
        return rounded(values, self.precision)

    def _step_model(self, name: str, model: Arithmetic, features: int) -> StepModel:
        c = self.certificate
        assert c.A is not None
        assert c.W is not None
        precision = replace(PRECISIONS[name], products=model.matrices)
        exact = nominal(c.A, c.W, c.alpha)
        kept = held(rounded(c.A, precision), rounded(c.W, precision), c.alpha, precision)
        (A, W), (A_off, W_off) = (
            [ball.upper_magnitude() for ball in balls]
            for balls in (exact, [k - e for k, e in zip(kept, exact, strict=True)])
        )
        return StepModel(
            A,
            W,
            A_off,
            W_off,
            slope=max(abs(slope) for slope in c.slopes),
            sigma=c.nonlinearity,
            tableau=get_integrator(c.dynamics),
            terms=self.size + features + 2,
            scalars=4.04 * model.unit,  # of a step that is cast, divided and multiplied by a coefficient
            arithmetic=model,
        )

    @cached_property
    def reach(self) -> Matrix:
        """|xᵢ| ≤ reachᵢ ‖x‖_P: (N,)."""
        return self.readings(np.eye(self.size))

    def readings(self, C: Matrix) -> Matrix:
        """|c x| ≤ reading · ‖x‖_P for every row c of C (q, N): (q,)."""
        turned = (Ball.exact(C) @ self.metric.T).upper_magnitude()
        found: Matrix = euclidean(turned) / math.sqrt(self.metric.scale) * OWN
        return found

    def length(self, r: Matrix) -> Matrix:
        """‖x‖_P of every x with |x| ≤ r in each entry (…, N)."""
        root = np.abs(self.metric.root)
        by_entries = self.metric.root_slack * euclidean(r @ root)
        by_size = self.metric.largest * euclidean(r)
        lost = np.where(r.any(-1), UNDERFLOW, 0.0)  # of products that underflow
        found: Matrix = np.where(np.isfinite(r).all(-1), np.minimum(by_entries, by_size) * OWN + lost, np.inf)
        return found

    def factors(self, steps: Matrix) -> Matrix:
        """ρ of every step; refused for steps that the certificate does not cover."""
        c = self.certificate
        assert c.step_range is not None
        assert c.factor is not None
        shortest, longest = c.step_range
        moving = steps[steps > 0.0]
        inherits = shortest < longest or get_integrator(c.dynamics).order == 1
        low = 0.0 if get_integrator(c.dynamics).order == 1 else shortest * (1 - 1e-6)
        if moving.size and (moving.max() > longest * (1 + 1e-6) or moving.min() < low):
            raise ValueError(
                f"the steps reach from {moving.min():g} to {moving.max():g}, but the certificate covers {shortest:g} "
                f"to {longest:g}; certify with step_size=({moving.min():g}, {moving.max():g})"
            )
        if not inherits:
            return np.where(steps > 0.0, c.factor * (1 + 1e-15), 1.0)
        # A chord: 1 at ε = 0, ρ at the longest step. A step that exceeds it by rounding keeps ρ up to that rounding.
        decay = c.rate if shortest < longest else (1.0 - c.factor) / longest
        found: Matrix = np.maximum(1.0 - np.minimum(steps, longest) * decay * (1 - 1e-15), 0.0) * (1 + 1e-15)
        return found

    def share(self, steps: Matrix) -> Matrix:
        """Steps in units of the longest one that is certified."""
        assert self.certificate.step_range is not None
        return steps / self.certificate.step_range[1] * (1 + 1e-15)

    def float64_states(self, x: Matrix, start: Matrix, steps: Matrix) -> Matrix:
        """The states of a run in float64, (T, B, N)."""
        c = self.certificate
        assert c.nonlinearity is not None
        A, W, drive, first, spans = (torch.tensor(a, dtype=torch.float64) for a in (c.A, c.W, x, start, steps))
        U, b = (None if a is None else torch.tensor(a, dtype=torch.float64) for a in (self.U, self.bias))
        with torch.no_grad(), without_autocast(torch.device("cpu")):
            states, _ = lipschitz_scan(
                drive, A, W, first, spans, c.alpha, c.dynamics, c.nonlinearity,
                backend="cpu", input_weight=U, bias=b,
            )  # fmt: skip
        assert states is not None
        found: Matrix = states.numpy()
        return found

    def feed(self, x: Matrix) -> Feed:
        """From |x| (…, p), or |u| (…, N) where no input map was given."""
        if self.U is None:
            return self.step_model.drive(x)
        bias = np.zeros(self.size) if self.bias is None else np.abs(self.bias)
        off = (self.inputs.matrices + 1.01 * self.model.unit) * np.abs(self.U)
        return self.step_model.feed(x, np.abs(self.U), off, bias, self.inputs)

    def feed_growth(self, rows: Matrix, off: float = 0.0) -> Feed:
        """By how much the feed grows when |U x| grows by ``rows`` (N,), and x is off by ``off`` times that growth."""
        held = self.inputs.matrices + 1.01 * self.model.unit
        relative = self.inputs.product(self.step_model.terms) + self.inputs.received + 2 * self.model.unit
        size = rows * (1.0 + off) * OWN
        return Feed(size[None], ((held + relative * (1.0 + held)) * size + off * rows)[None] * OWN)

    def exact_feed(self, x: Matrix) -> Feed:
        """The same for the float64 run that stands in for exact arithmetic."""
        if self.U is None:
            return self.exact_model.drive(x)
        bias = np.zeros(self.size) if self.bias is None else np.abs(self.bias)
        model = self.exact_model
        return model.feed(x, np.abs(self.U), np.zeros_like(self.U), bias, model.arithmetic)


@dataclass(frozen=True)
class PartBound:
    """How far the states of one recurrence are from exact ones, for T steps of B samples.

    Attributes:
        part: the recurrence.
        added: (T, B), what a step's own rounding adds at most, in ‖·‖_P.
        states: (T, B), bounds on ‖ĥ_t − h_t‖_P after each step.
        exact: (T, B), the same for a run in float64.
        around: (T, B), how far the exact states of all inputs that are covered can be from those of the given ones.
        sizes: (T, B, N), bounds on the computed |ĥ_t|.
    """

    part: RunningPart
    added: Matrix
    states: Matrix
    exact: Matrix
    around: Matrix
    sizes: Matrix

    def coordinates(self) -> Matrix:
        """(T, B, N): bounds on |ĥ − h| in every coordinate, with the rounding of the output to its dtype."""
        model = self.part.model
        return self.states[..., None] * self.part.reach + model.returned * self.sizes + model.smallest


@dataclass(frozen=True)
class Disturbance:
    """Inputs of a layer above another one: computed ones are off, and so are those of the float64 run.

    Attributes:
        size: (T, B, p), by how much the computed |x| may exceed the one given.
        argument: (T, B, N), by how much U x is off, entry by entry, apart from the following.
        norm: (T, B), what the rest adds to ‖h⁺‖_P in a step; ``exact``: the same for the float64 run.
        near: (T, B), what inputs that are to be covered as well, but differ from these, add to ‖h⁺‖_P in a step.
    """

    size: Matrix
    argument: Matrix
    norm: Matrix
    exact: Matrix
    near: Matrix

    @staticmethod
    def of_inputs(part: RunningPart, steps: Matrix, features: int, radius: float) -> Disturbance:
        """All inputs that differ from the given ones by at most ``radius`` in the Euclidean norm, at every step."""
        feed = Ball.exact(np.eye(part.size) if part.U is None else part.U)
        near = step_gain(part.certificate, part.metric, feed) * radius * part.share(steps)
        nothing = np.zeros(steps.shape)
        size, argument = np.full((*steps.shape, features), radius), np.zeros((*steps.shape, part.size))
        return Disturbance(size, argument, nothing, nothing, near * OWN)

    @staticmethod
    def of_computed(part: RunningPart, steps: Matrix, off: Matrix) -> Disturbance:
        """Inputs that the network computes itself: off from the given ones by at most ``off`` (T, B, p)."""
        assert part.U is not None
        nothing = np.zeros(steps.shape)
        return Disturbance(off, off @ np.abs(part.U).T * OWN, nothing, nothing, nothing)


def trajectory(
    part: RunningPart,
    x: Matrix,
    steps: Matrix,
    states: Matrix,
    start: Matrix,
    disturbed: Disturbance | None = None,
    between: float = 0.0,
) -> PartBound:
    """The bound for one recurrence.

    Args:
        x: (T, B, p), the inputs in float64, or drives (T, B, N); of a higher layer its computed inputs in float64.
        steps: (T, B), their lengths; zero where nothing happens.
        states: (T, B, N), the states of a run in float64 with these inputs; start: (B, N), the first ones.
        disturbed: where the inputs are not those of the exact trajectory.
        between: relative rounding of the state from step to step, where a caller keeps it in 16 bits.
    """
    T, B, N = states.shape
    before = np.concatenate((start[None], states[:-1]))
    rows, lengths = np.abs(before).reshape(T * B, N), steps.reshape(T * B, 1)
    size = np.abs(x).reshape(T * B, -1)
    exact_feed = part.exact_feed(size)
    own_rounding, moved = part.exact_model.local(rows, exact_feed, lengths)
    own = part.length(own_rounding).reshape(T, B)
    if disturbed is not None:
        size = size + disturbed.size.reshape(T * B, -1)
        own = own + disturbed.exact
    feed = part.feed(size)
    if disturbed is not None:
        feed = Feed(feed.size, feed.error + disturbed.argument.reshape(T * B, N))
    local = part.step_model.local(rows, feed, lengths)[0]
    if between:
        local = local + np.where(lengths > 0.0, between, 0.0) * (rows + moved)
    added = part.length(local).reshape(T, B)
    if disturbed is not None:
        added = added + disturbed.norm
    factors, longest = part.factors(steps), float(steps.max(initial=0.0))
    growth, growth_exact = sensitivity(part, longest, between), sensitivity(part, longest, 0.0, exact=True)
    cast = part.model.returned if between or part.precision.name in ("bfloat16", "float16") else 2 * part.model.unit
    error = part.length(cast * np.abs(start) + part.model.smallest)
    reference = np.zeros(B)
    near = np.zeros(B)
    found, off, around = np.empty((T, B)), np.empty((T, B)), np.zeros((T, B))
    for t in range(T):
        moves = steps[t] > 0.0
        grown = np.where(moves, growth, 0.0) * (error + reference + near)
        error = (factors[t] * error + added[t] + grown) * (1 + 1e-12)
        reference = (factors[t] * reference + own[t] + np.where(moves, growth_exact, 0.0) * reference) * (1 + 1e-12)
        if disturbed is not None:
            near = (factors[t] * near + disturbed.near[t]) * (1 + 1e-12)
        found[t], off[t], around[t] = error, reference, near
    distance = found + off + around
    sizes, worst = np.abs(states) + distance[..., None] * part.reach, distance.max(axis=0)
    lost = ~np.isfinite(worst)
    if not fits(part, float(worst[~lost].max(initial=0.0)), longest):
        lost[:] = True
    found[:, lost] = sizes[:, lost] = np.inf
    return PartBound(part, added, found, off, around, sizes)


def measured(part: RunningPart, x: Matrix, steps: Matrix, states: Matrix, start: Matrix) -> PartBound:
    """The bound for a run whose computed states are at hand: what each step was off by is computed, not assumed.

    Args:
        x, steps: as in :func:`trajectory`.
        states: (T, B, N), the states that were computed, not rounded on their way here; start: (B, N), the first ones.
    """
    T, B, N = states.shape
    before = np.concatenate((start[None], states[:-1])).reshape(T * B, N)
    lengths, feed = steps.reshape(T * B, 1), part.exact_feed(np.abs(x).reshape(T * B, -1))
    after = part.float64_states(x.reshape(1, T * B, -1), before, steps.reshape(1, T * B))[0]
    off = states.reshape(T * B, N) - after
    root = part.metric.root
    length = part.metric.root_slack * euclidean(off @ root) + 1e-12 * part.length(np.abs(off))
    added = (length + part.length(part.exact_model.local(np.abs(before), feed, lengths)[0])) * OWN
    added, factors, found, error = added.reshape(T, B), part.factors(steps), np.empty((T, B)), np.zeros(B)
    for t in range(T):
        error = (factors[t] * error + added[t]) * (1 + 1e-12)
        found[t] = error
    return PartBound(part, added, found, np.zeros((T, B)), np.zeros((T, B)), np.abs(states))


def sensitivity(part: RunningPart, step: float, between: float, exact: bool = False) -> float:
    """By how much the local error grows at most, in ‖·‖_P, for each unit of ‖·‖_P that the state is larger.

    It grows by R|δ| at most, entry by entry, with the growth for each unit vector as the columns of R: so by ‖R‖.
    Taking the largest possible |δᵢ| of all entries at once is simpler, and up to √N more.
    """
    known = part.sensitivities.get((step, between, exact))
    if known is None:
        model = part.exact_model if exact else part.step_model
        at_once = float(part.length(model.growth(part.reach, step) + between * 1.01 * part.reach))
        each = np.stack([model.growth(unit, step) for unit in np.eye(part.size)], axis=1)
        # R acts on the difference before the step, what is kept in 16 bits on the one after it: their norms add up.
        kept = 1.01 * between * part.metric.entrywise(np.eye(part.size)) if between else 0.0
        together = (part.metric.entrywise(each * OWN) + kept) * OWN
        known = part.sensitivities[step, between, exact] = min(at_once, together)
    return known


def fits(part: RunningPart, error: float, step: float) -> bool:
    """Whether states that are larger by an error of this size still cannot overflow."""
    rows = (error * part.reach)[None]
    return bool(np.all(np.isfinite(part.step_model.local(rows, Feed.none(part.size), np.full((1, 1), step))[0])))
