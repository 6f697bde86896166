"""Certificates for the parts of a classifier, over the steps that a batch takes."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.stability.certification import certify
from lipschitz_rnn.stability.proof.certificate import Certificate
from lipschitz_rnn.stability.proof.matching import require_about
from lipschitz_rnn.stability.proof.norms import MetricNorms
from lipschitz_rnn.stability.radius.kernels import ProvedNetwork, ProvedPart, Timeline
from lipschitz_rnn.stability.radius.network import Network, Part
from lipschitz_rnn.stability.threads import one_blas_thread


class NoCertificate(ValueError):
    """The network has no certificate of contraction, so it has no certified radius; ``certificate`` says why."""

    def __init__(self, certificate: Certificate) -> None:
        advice = f" What to try: {certificate.next_step}." if certificate.next_step else ""
        super().__init__(
            "no radius: a radius follows from a certificate of contraction, and this network has none: "
            f"{certificate.reason}.{advice}"
        )
        self.certificate = certificate


def prove_network(
    network: Network, timespans: Tensor | None, certificate: Certificate | None, time_limit: float
) -> ProvedNetwork:
    """All parts with certificates for the exact matrices, and for all steps between the shortest and the longest."""
    if certificate is None:
        certificate = _certified(network, _step_range(network, timespans), time_limit)
    elif not isinstance(certificate, Certificate):
        raise TypeError(f"certificate is a {type(certificate).__name__}; give what certify(model) returned, or None")
    if not certificate.holds:
        raise NoCertificate(certificate)
    found = certificate.parts or (certificate,)
    if len(found) != len(network.parts):
        raise ValueError(f"the certificate is about {len(found)} parts, but the network has {len(network.parts)}")
    layers: list[tuple[ProvedPart, ...]] = []
    remaining = iter(found)
    with one_blas_thread(), np.errstate(all="ignore"):
        for parts in network.layers:
            row = []
            for part, own in zip(parts, remaining, strict=False):
                _require_same(own, part)
                assert own.metric is not None
                row.append(ProvedPart(part, own, MetricNorms(own.metric)))
            layers.append(tuple(row))
    return ProvedNetwork(network, tuple(layers))


def _step_range(network: Network, timespans: Tensor | None) -> tuple[float, float] | None:
    """The shortest and the longest step that is taken for these timespans; None for the unit's own step."""
    if timespans is None:
        return None
    shape = (timespans.shape[0], timespans.shape[1])
    steps = [network.steps_of(part, timespans, shape, timespans.device).lengths for part in network.parts]
    moving = torch.cat([each[each > 0] for each in steps])
    if moving.numel() == 0:  # nothing moves, and the certificate of the unit's own step serves
        return None
    return float(moving.min()), float(moving.max())


def _certified(network: Network, spans: tuple[float, float] | None, time_limit: float) -> Certificate:
    unit = network.stated.unit
    rate = getattr(unit, "rate", None)
    wanted = None
    if rate is not None:
        # The built-in metric proves what the layer guarantees, and usually more; it need not be the best one there is.
        step = float(unit.step_size)  # type: ignore[arg-type]
        wanted = 0.5 * -math.expm1(-rate * step) / step
    precision = network.precision if network.rounded else "exact"  # the rounding of steps is added to the exact map
    return certify(unit, step_size=spans, precision=precision, rate=wanted, time_limit=time_limit)


def _require_same(certificate: Certificate, part: Part) -> None:
    if certificate.step_range is None or certificate.metric is None:
        raise ValueError(
            "the certificate is about continuous time; a radius needs one for the map that runs: leave continuous out"
        )
    require_about(certificate, part.name, part.A, part.W, part.alpha, part.tableau.name, part.sigma)


def require_covered(proved: ProvedNetwork, timeline: Timeline) -> None:
    """Raise if a step of the batch lies outside the range of its certificate."""
    for parts in proved.layers:
        for own in parts:
            assert own.certificate.step_range is not None
            shortest, longest = own.certificate.step_range
            lengths = timeline.steps(own.part).lengths
            lengths = lengths[lengths > 0]
            if lengths.numel() == 0:
                continue
            low, high = float(lengths.min()), float(lengths.max())
            if low < shortest or high > longest:
                raise ValueError(
                    f"the samples take steps from {low:g} to {high:g}, but the certificate of {own.part.name} covers "
                    f"{shortest:g} to {longest:g}; certify with step_size=({low:g}, {high:g}), or leave certificate out"
                )
