"""``rounding_bound``: how far what a network computes is from what exact arithmetic would give."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from lipschitz_rnn.stability.proof.certificate import Certificate
from lipschitz_rnn.stability.proof.inputs import as_array, as_float
from lipschitz_rnn.stability.proof.peak import PeakBound, anywhere, checked_vector
from lipschitz_rnn.stability.proof.running import Disturbance, RunningPart, trajectory
from lipschitz_rnn.stability.running.bound import RoundingBound, collect
from lipschitz_rnn.stability.running.layers import LayerRun
from lipschitz_rnn.units.lipschitz.layer import LipschitzRNN


def rounding_bound(
    target: Any,
    inputs: Any = None,
    hx: Any = None,
    *,
    lengths: Tensor | None = None,
    timespans: Any = None,
    input_bound: Any = None,
    input_weight: Any = None,
    bias: Any = None,
    certificate: Certificate | None = None,
    precision: str | None = None,
    backend: str | None = None,
    within: float = 0.0,
    measured: bool = False,
) -> RoundingBound | PeakBound:
    """Bound the distance between the states that a network computes and those of exact arithmetic.

    Exact arithmetic runs the same network: its A and W, U and b in the dtype that the kernels load, its inputs, α and
    steps as given. The bound is that of every kernel of this package at this precision.

    Args:
        target: a LipschitzRNN, or the certificate of a single pair (A, W).
        inputs: as the layer takes them; for a certificate x (T, B, p) with ``input_weight``, or drives u (T, B, N).
        hx, lengths, timespans: as the layer takes them. For a certificate hx is (B, N).
        input_bound: instead of inputs: a number, or one for each feature, that no |x| (or |u|) exceeds. The bound is
            then about all such sequences, of any length, of a single layer from the state zero.
        input_weight, bias: U and b that go with a certificate; a layer has its own.
        certificate: of the layer; made here if None. It must hold, and cover the steps.
        precision: as in :func:`certify`. None: what is in force, or for a certificate its own.
        backend: ``any``, ``cpu`` or ``triton``. None: ``cpu`` for a layer that runs there, else ``any``.
        within: the bound also holds for all inputs that differ from these by at most this much in the Euclidean norm at
            every step.
        measured: run the layer here, and bound that run from what its steps were off by: far sharper, but about this
            run and backend only. Needs results in float32 or float64, and steps that are not divided.

    Returns:
        A :class:`RoundingBound` for given inputs, a :class:`PeakBound` for an input bound.
    """
    if (inputs is None) == (input_bound is None):
        raise ValueError("give either inputs, for a bound on that run, or input_bound, for all inputs of that size")
    with np.errstate(all="ignore"):
        if isinstance(target, Certificate):
            if lengths is not None or timespans is not None or certificate is not None:
                raise ValueError("lengths, timespans and certificate go with a layer; a certificate has one step")
            if measured:
                raise ValueError("measured=True runs a layer; a certificate has none")
            part = _part_of_pair(target, input_weight, bias, precision, backend or "any")
            return _of_pair(part, inputs, hx, input_bound, _as_radius(within))
        if not isinstance(target, LipschitzRNN):
            kind = type(target).__name__
            raise TypeError(f"target is a {kind}; give a LipschitzRNN, or what certify returned for a pair (A, W)")
        if input_weight is not None or bias is not None:
            raise ValueError("input_weight and bias go with a certificate; a layer has its own")
        job = LayerRun(target, certificate, precision, backend, timespans, _as_radius(within), bool(measured))
        return job.bound(inputs, hx, lengths, input_bound)


def _as_radius(within: Any) -> float:
    radius = as_float("within", within)
    if radius < 0:
        raise ValueError(f"within is {within}; give a radius of at least 0")
    return radius


def _part_of_pair(certificate: Certificate, weight: Any, bias: Any, precision: str | None, backend: str) -> RunningPart:
    U = None if weight is None else as_array(weight, "input_weight", "a matrix (N, p)")
    b = None if bias is None else as_array(bias, "bias", "a vector (N,)")
    if U is not None and certificate.A is not None and (U.ndim != 2 or U.shape[0] != len(certificate.A)):
        raise ValueError(f"input_weight has shape {U.shape}; it must be ({len(certificate.A)}, p)")
    if b is not None and (U is None or b.shape != U.shape[:1]):
        raise ValueError(
            f"bias has shape {b.shape}; it must have one number for each unit, and go with an input_weight"
        )
    return RunningPart(certificate, precision or certificate.precision, backend, U, b)


def _of_pair(part: RunningPart, inputs: Any, hx: Any, limit: Any, radius: float) -> RoundingBound | PeakBound:
    features = part.size if part.U is None else part.U.shape[1]
    if limit is not None:
        return anywhere(part, checked_vector(limit, "input_bound", features))
    x = as_array(inputs, "inputs", f"a tensor (T, B, {features})")
    if x.ndim != 3 or x.shape[-1] != features or x.shape[0] == 0:
        raise ValueError(f"inputs has shape {x.shape}; it must be (T, B, {features}) with at least one step")
    start = np.zeros((x.shape[1], part.size)) if hx is None else as_array(hx, "hx", "a tensor (B, N)")
    if start.shape != (x.shape[1], part.size):
        raise ValueError(f"hx has shape {start.shape}; it must be ({x.shape[1]}, {part.size})")
    assert part.certificate.step_range is not None  # RunningPart has checked it
    steps = np.full(x.shape[:2], part.certificate.step_range[1])
    states = part.float64_states(x, start, steps)
    disturbed = Disturbance.of_inputs(part, steps, features, radius) if radius else None
    found = trajectory(part, x, steps, states, start, disturbed)
    return collect([found], 1, np.full(x.shape[1], x.shape[0]), part.precision.name)
