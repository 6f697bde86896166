"""Contraction of a GRU on the box of its states, for inputs of a given size. docs/stability.md has the proof."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from torch import nn

from lipschitz_rnn.stability.proof.inputs import as_array
from lipschitz_rnn.stability.proof.peak import checked_vector
from lipschitz_rnn.stability.proof.precision import as_precision, in_force, overflows
from lipschitz_rnn.stability.proof.rounding import Matrix
from lipschitz_rnn.units.arguments import unit_name
from lipschitz_rnn.units.library import GRU
from lipschitz_rnn.units.recurrence import (
    UnstatedRecurrenceError,
    repeatable_matrices,
    require_no_hooks,
    require_own_statement,
)

_OWN = 1.0 + 1e-11  # more than the rounding of any sum or σ here
_PIECES = 256  # into which the values of the update gate are divided
# Of a weight that is rounded to 16 bits, and its products with it.
_HALF = {"bfloat16": 2.0**-7, "float16": 2.0**-9}


@dataclass(frozen=True)
class GatedCertificate:
    """Two runs of a GRU under the same input approach each other by ``factor`` a step in max |δᵢ| / sᵢ, s = ``scales``.

    It is about exact arithmetic, for first states with entries in [−1, 1] (zeros, as by default, are such), which no
    step leaves, and for inputs with |x| ≤ ``input_bound``. With several layers, each contracts along its own direction.

    Attributes:
        holds: whether ``factor`` < 1 was proved, rounding of the check included.
        factor: of the slowest layer; ``factors`` has those of all layers and directions, ``scales`` their norms.
        reason, next_step: why it does not hold, and what to try; empty if it does.
        precision: what the weights are rounded to where they run.
    """

    holds: bool
    factor: float
    factors: tuple[float, ...]
    scales: tuple[Matrix, ...] = field(repr=False)
    input_bound: Matrix = field(repr=False)
    precision: str
    reason: str = ""
    next_step: str = ""

    def __bool__(self) -> bool:
        return self.holds


def certify_gru(unit: nn.Module, input_bound: Any, *, precision: str | None = None) -> GatedCertificate:
    """Prove a factor of contraction for a GRU.

    Where its update gate is closed a GRU keeps its state as it is, and a large input can close it. So nothing below 1
    holds for all inputs, and the claim is for inputs of a given size.

    Args:
        unit: the unit ``gru``, or a `torch.nn.GRU`, with any number of layers and directions.
        input_bound: a number, or one for each feature, that no |x| exceeds.
        precision: as in :func:`certify`; None: what is in force.
    """
    inner = _plain_gru(unit)
    name = in_force(inner.get_parameter("weight_hh_l0")) if precision is None else as_precision(precision).name
    kind = as_precision(name)
    largest = max(float(weight.detach().abs().max()) for weight in inner.parameters())
    if overflows(largest, name):
        raise ValueError(f"the largest weight of this GRU is {largest:.3g}, which {name} cannot hold; use float32")
    wider = 1.0 + _HALF.get(name, 2 * kind.products + 4 * kind.unit)
    bound = checked_vector(input_bound, "input_bound", inner.input_size)
    factors, scales = [], []
    for layer in range(inner.num_layers):
        size = bound if layer == 0 else np.ones(inner.hidden_size * (2 if inner.bidirectional else 1))
        for suffix in ("", "_reverse") if inner.bidirectional else ("",):
            with np.errstate(all="ignore"):
                factor, scale = _Step.read(inner, f"_l{layer}{suffix}", size, wider).best()
            factors.append(factor)
            scales.append(scale)
    worst = max(factors)
    reason = next_step = ""
    if not worst < 1.0:
        reason = f"layer {factors.index(worst)} of {len(factors)} may magnify a difference by {worst:.4g} in a step"
        next_step = (
            "smaller recurrent weights, above all of the reset and the new gate (weight decay on weight_hh), or a "
            "smaller input_bound; for a guarantee at any size, train the unit 'ren' or a contracting LipschitzRNN"
        )
    return GatedCertificate(worst < 1.0, worst, tuple(factors), tuple(scales), bound, name, reason, next_step)


@dataclass(frozen=True)
class _Step:
    """One layer: magnitudes of the recurrent weights, and the range of every gate's argument over the box.

    Attributes:
        reset, update, new: |W_r|, |W_z| and |W_n|, (N, N).
        resets, updates: lowest and highest argument of r and z, (N,) each.
        inner: bounds on |W_n h + b_n|, (N,).
    """

    reset: Matrix
    update: Matrix
    new: Matrix
    resets: tuple[Matrix, Matrix]
    updates: tuple[Matrix, Matrix]
    inner: Matrix

    @classmethod
    def read(cls, gru: nn.GRU, suffix: str, inputs: Matrix, wider: float) -> _Step:
        names = ["weight_hh", "weight_ih", *(["bias_hh", "bias_ih"] if gru.bias else [])]
        found = repeatable_matrices(lambda: tuple(getattr(gru, name + suffix) for name in names), type(gru).__name__)
        arrays = [as_array(each, name + suffix) for each, name in zip(found, names, strict=True)]
        N = gru.hidden_size
        W, U = (np.abs(each).reshape(3, N, -1) * (wider * _OWN) for each in arrays[:2])
        state, fed = arrays[2:] if gru.bias else [np.zeros(3 * N)] * 2
        own, together = state.reshape(3, N), (state + fed).reshape(3, N)
        rounding = (np.abs(state) + np.abs(fed)).reshape(3, N) * (wider * _OWN - 1.0)
        reach = (W.sum(-1) + U @ inputs + rounding) * _OWN
        ranges = [(together[i] - reach[i], together[i] + reach[i]) for i in range(2)]
        inner = (W[2].sum(-1) + np.abs(own[2]) * wider) * _OWN
        return cls(W[0], W[1], W[2], ranges[0], ranges[1], inner)

    def best(self) -> tuple[float, Matrix]:
        """The smallest factor over two norms: all entries alike, and the one that levels out the rows."""
        N = len(self.new)
        open_reset, steep = _sigmoid(self.resets[1]) * _OWN, self._steepness()
        whole = open_reset[:, None] * self.new + (self.inner * steep)[:, None] * self.reset + 2 * self.update
        levelled = np.ones(N)
        for _ in range(200):  # towards the Perron vector
            levelled = levelled + whole @ levelled
            levelled = np.maximum(levelled / levelled.max(), 1e-3)
        tried = [(self.factor(scale), scale) for scale in (np.ones(N), levelled)]
        return min(tried, key=lambda each: each[0])

    def _steepness(self) -> Matrix:
        """The largest r(1 − r) of the reset gate."""
        low, high = self.resets
        nearest = np.where((low <= 0) & (high >= 0), 0.0, np.minimum(np.abs(low), np.abs(high)))
        value = _sigmoid(nearest)
        found: Matrix = np.minimum(value * _sigmoid(-nearest) * _OWN, 0.25)
        return found

    def factor(self, scale: Matrix) -> float:
        """max over rows of Σ_j |J_ij| s_j / s_i, over all states of the box and all inputs."""
        new, reset, update = (matrix @ scale / scale * _OWN for matrix in (self.new, self.reset, self.update))
        # n's derivative is 1 − n² times this.
        direct = (
            np.minimum(_sigmoid(self.resets[1]) * _OWN, 1.0) * new + self.inner * self._steepness() * reset
        ) * _OWN
        low, high = self.updates
        worst = -np.inf
        edges = np.linspace(0.0, 1.0, _PIECES + 1)[:, None] * (high - low) + low
        edges[-1] = high
        for first, last in pairwise(edges):
            top = np.minimum(_sigmoid(last) * _OWN, 1.0)
            slope = _over_new(direct, top * update) * _OWN
            # z + (1 − z) slope is largest at the upper end if the slope is below 1, and at the lower end otherwise.
            closed = np.where(slope < 1.0, _sigmoid(-last - 1e-9 * (1 + np.abs(last))) / _OWN, _sigmoid(-first) * _OWN)
            found = np.max(1.0 - closed * (1.0 - slope))
            if not np.isfinite(found):  # weights so large that something overflowed prove nothing
                return np.inf
            worst = max(worst, float(found))
        return worst + 1e-11


def _over_new(direct: Matrix, moved: Matrix) -> Matrix:
    """max over 0 ≤ m ≤ 1 of (1 − m²) direct + (1 + m) moved, m = |n|."""
    m = np.minimum(moved / np.maximum(2.0 * direct, 1e-300), 1.0)
    found: Matrix = ((1.0 - m**2) * direct + (1.0 + m) * moved) * (1.0 + 1e-9)
    return found


def _sigmoid(values: Matrix) -> Matrix:
    found: Matrix = np.where(values < 0, np.exp(np.minimum(values, 0.0)), 1.0) / (1.0 + np.exp(-np.abs(values)))
    return found


def _plain_gru(unit: Any) -> nn.GRU:
    """The PyTorch module that runs; refused where something else may."""
    inner = unit.inner if isinstance(unit, GRU) else unit
    if type(inner) is not nn.GRU or set(vars(inner)) & {"forward", "__call__"}:
        raise UnstatedRecurrenceError(
            f"{unit_name(unit)} is not a GRU; give the unit 'gru' or a torch.nn.GRU, and certify others with certify"
        )
    for module in {id(unit): unit, id(inner): inner}.values():
        require_no_hooks(module)
    if isinstance(unit, GRU):
        require_own_statement(unit, "run")
    if inner.training and inner.num_layers > 1 and inner.dropout > 0:
        raise UnstatedRecurrenceError(
            f"dropout is {inner.dropout:g} and this GRU is in training mode, so the inputs of its layers are random; "
            "call eval() first"
        )
    return inner
