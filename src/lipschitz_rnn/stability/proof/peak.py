"""How far computed states can be from exact ones for all inputs of a size, however long the sequence."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lipschitz_rnn.stability.proof.inputs import as_array
from lipschitz_rnn.stability.proof.rounding import Matrix
from lipschitz_rnn.stability.proof.running import RunningPart, fits, sensitivity
from lipschitz_rnn.stability.proof.stepping import OWN


@dataclass(frozen=True)
class PeakBound:
    """Bounds for all inputs of a given size, however long the sequence: see ``anywhere``.

    Attributes:
        state: on ‖ĥ‖_P.
        added: on what the rounding of a step adds, in ‖·‖_P.
        peak: on ‖ĥ − h‖_P after any number of steps.
        coordinates: (N,), on |ĥ − h|, with the rounding of the output to its dtype.
    """

    state: float
    added: float
    peak: float
    coordinates: Matrix


def anywhere(part: RunningPart, x: Matrix, start: float = 0.0, least: float = math.inf) -> PeakBound:
    """The bound for all sequences of inputs with |x_t| ≤ x (p,), and first states with ‖h_0‖_P ≤ start.

    For steps of the certificate's range, and down to ``least`` if that is less: Euler steps inherit contraction.

    ‖ĥ⁺‖ ≤ (ρ + κ)‖ĥ‖ + ‖Φ(0)‖ + d₀ and e⁺ ≤ ρe + d₀ + κ‖ĥ‖, where d₀ is the local error at h = 0 and κ its growth.
    Infinite if steps may be arbitrarily short, as nothing then decays while rounding adds up.
    """
    c = part.certificate
    assert c.step_range is not None
    shortest, longest = min(c.step_range[0], least), c.step_range[1]
    decay = 1.0 - part.factors(np.full((1, 1), shortest))[0, 0]
    local, moved = part.step_model.local(np.zeros((1, part.size)), part.feed(np.abs(x)[None]), np.full((1, 1), longest))
    constant, motion = float(part.length(local)[0]), float(part.length(moved)[0]) * shortest / longest
    growth = sensitivity(part, longest, 0.0)
    # Decay and motion are in proportion to the step, the rest is not: the shortest step decides.
    room = decay - growth if math.isfinite(constant + motion) else -math.inf
    state = max(start, (motion + constant) / room * OWN) if room > 0.0 else math.inf
    added = constant + growth * state if math.isfinite(state) else math.inf
    cast = part.model.returned * start
    peak = max(cast * OWN, added / decay * OWN) if decay > 0.0 else math.inf
    if math.isfinite(state) and not fits(part, 2 * state, longest):
        state = added = peak = math.inf
    model = part.model
    coordinates = peak * part.reach + model.returned * state * part.reach + model.smallest
    return PeakBound(state, added, peak, coordinates)


def checked_vector(values: object, name: str, size: int) -> Matrix:
    """A bound for each of ``size`` features: one non-negative number for all, or one for each."""
    array = as_array(values, name, f"a non-negative number, or {size} of them")
    if array.ndim == 0:
        array = np.full(size, float(array))
    if array.shape != (size,):
        raise ValueError(f"{name} has shape {array.shape}; give a non-negative number, or {size} of them")
    if not np.all(array >= 0):
        wrong = array[~(array >= 0)][0]
        raise ValueError(f"{name} has the value {wrong:g}; give a non-negative number, or {size} of them")
    return array
