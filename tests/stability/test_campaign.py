"""A large campaign over small systems: of every certificate, all corners of the cube of slopes are tried.

The worst slopes of a metric are corners, so for small systems this attack is exact: nothing larger exists. Drawn are
pairs of all kinds (every fiftieth is the counterexample to the paper's theorem itself), maps with feedthrough, and
RENs in several precisions. With test_soundness, the default run tries 310 systems. All 100,000, in parts:

    LIPSCHITZ_RNN_CAMPAIGN=100000 pytest tests/stability/test_campaign.py -k "part3 or part4"
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from stability_examples import (
    COUNTEREXAMPLE_A,
    COUNTEREXAMPLE_W,
    KINDS,
    STAGES,
    Setting,
    one_jacobian,
    random_pair,
)
from torch import Tensor, nn

from lipschitz_rnn.stability import Certificate, certify
from lipschitz_rnn.units import build
from lipschitz_rnn.units.recurrence import FeedbackMap

COUNT = int(os.environ.get("LIPSCHITZ_RNN_CAMPAIGN", "250"))
PARTS = 20
FASTEST: dict[str, Any] = {"solver": "structured", "accuracy": 0.2, "time_limit": 20.0}


@dataclass
class Drawn:
    """A system, its certificate, and all Jacobians that the claim is about, each with the length of its step."""

    label: str
    certificate: Certificate
    jacobians: list[tuple[float | None, np.ndarray]]


class Stated(nn.Module):
    """A module that states a map of its own."""

    def __init__(self, stated: FeedbackMap) -> None:
        super().__init__()
        self.stated = stated

    def stated_recurrences(self) -> list[FeedbackMap]:
        return [self.stated]


def draw_pair(index: int, rng: np.random.Generator) -> Drawn:
    kind = "counterexample" if index % 50 == 0 else KINDS[index % len(KINDS)]
    integrator = ("", "euler", "midpoint", "heun", "rk4", "euler")[int(rng.integers(0, 6))]
    stages = STAGES[integrator]
    n = int(rng.integers(1, max(2, 10 // stages) + 1)) if rng.random() < 0.3 else int(rng.integers(1, 4))
    A, W = (COUNTEREXAMPLE_A, COUNTEREXAMPLE_W) if kind == "counterexample" else random_pair(rng, min(n, 8), kind)
    if len(A) * stages > 10:
        integrator, stages = "euler", 1
    longest = float(10.0 ** rng.uniform(-3, 0))
    spread = rng.random() < {"euler": 0.4, "midpoint": 0.1, "heun": 0.1}.get(integrator, 0.0)
    steps = None if integrator == "" else ((float(rng.choice([0.0, 0.3])) if spread else 1.0) * longest, longest)
    setting = Setting(integrator, steps)
    certificate = certify((A, W), **FASTEST, **setting.keywords())
    lengths: list[float | None] = [None]
    if steps is not None:
        lengths = [longest] if not spread else [longest, *rng.uniform(steps[0], longest, 3)]
    corners = np.array(list(itertools.product((0.0, 1.0), repeat=stages * len(A)))).reshape(-1, stages, len(A))
    jacobians = [
        (length, np.stack([one_jacobian(A, W, integrator, length, corner) for corner in corners])) for length in lengths
    ]
    if kind == "counterexample":
        assert not certificate.holds, f"the counterexample was certified: {setting}"
    return Drawn(f"{kind}, {setting}", certificate, jacobians)


def of_map(label: str, certificate: Certificate, held: list[Tensor]) -> Drawn:
    """All corners of F + G (I − D E)⁻¹ D C, for matrices as they run."""
    F, G, C, E = (matrix.detach().double().numpy() for matrix in held)
    corners = np.array(list(itertools.product((0.0, 1.0), repeat=len(C))))
    eye = np.eye(len(C))
    found = np.stack([F + G @ np.linalg.solve(eye - d[:, None] * E, d[:, None] * C) for d in corners])
    return Drawn(label, certificate, [(1.0, found)])


def draw_map(rng: np.random.Generator) -> Drawn:
    n, m = int(rng.integers(1, 6)), int(rng.integers(1, 7))
    F, G, C, E = (torch.from_numpy(rng.normal(size=shape)) for shape in ((n, n), (n, m), (m, n), (m, m)))
    share = float(rng.uniform(0.1, 1.2)) / (float(torch.linalg.matrix_norm(F, 2)) + 1e-9)
    F, E = share * F, torch.tril(E, -1) * float(rng.choice([0.0, 0.3, 1.0]))
    C = C * float(10.0 ** rng.uniform(-2, 0)) / (1 + torch.linalg.matrix_norm(G, 2) * torch.linalg.matrix_norm(C, 2))
    stated = FeedbackMap(F, G, C, E if bool(E.any()) else None, "tanh")
    return of_map("map", certify(Stated(stated), precision="exact", **FASTEST), [F, G, C, E])


def draw_ren(index: int, rng: np.random.Generator) -> Drawn:
    torch.manual_seed(int(rng.integers(0, 2**31)))
    neurons = int(rng.integers(1, 7))
    depth = int(rng.integers(1, neurons + 1))
    unit = build("ren", 1, int(rng.integers(1, 6)), neurons=neurons, depth=depth, factor=float(rng.uniform(0.2, 1)))
    with torch.no_grad():
        for parameter in unit.parameters():
            parameter.copy_(float(10 ** rng.uniform(-2, 1.5)) * torch.randn(parameter.shape))
    unit = unit.to((torch.float32, torch.float64, torch.bfloat16)[index % 3])
    certificate = certify(unit, **FASTEST)
    (stated,) = unit.stated_recurrences()
    assert isinstance(stated, FeedbackMap)
    E = torch.zeros(neurons, neurons) if stated.E is None else stated.E
    if index % 3 < 2:  # two thirds are built to contract, and float32 leaves room for it
        assert certificate.holds or certificate.cause in ("rounding", "precision"), certificate.reason
    return of_map(f"ren, depth {depth}", certificate, [stated.F, stated.G, stated.C, E])


def excess(drawn: Drawn) -> float:
    """By how much the worst corner exceeds the claim; what float64 can be off by is subtracted."""
    certificate = drawn.certificate
    root = np.linalg.cholesky(certificate.metric)
    worst = -np.inf
    for step, jacobians in drawn.jacobians:
        normal = np.swapaxes(np.linalg.solve(root, np.swapaxes(root.T @ jacobians, 1, 2)), 1, 2)
        if step is None:
            reached = np.linalg.eigvalsh(normal + np.swapaxes(normal, 1, 2))[:, -1].max() / 2 + certificate.rate
        else:
            ranged = certificate.step_range[0] < certificate.step_range[1]
            claim = 1.0 - certificate.rate * step if ranged else certificate.factor
            reached = np.linalg.norm(normal, 2, axis=(1, 2)).max() - claim
        size = np.abs(normal).max() + 1.0
        worst = max(worst, float(reached - 1e-13 * size * (certificate.overshoot + 10)))
    return worst


def draw(index: int) -> Drawn:
    """The system of an index, the same in every run of the campaign."""
    rng = np.random.default_rng([22, index])
    choice = rng.random()
    return (
        draw_pair(index, rng)
        if index % 50 == 0 or choice < 0.7
        else draw_map(rng)
        if choice < 0.9
        else draw_ren(index, rng)
    )


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS), ids="part{}".format)
def test_no_corner_exceeds_a_certificate(part: int) -> None:
    issued: Counter[bool] = Counter()
    for index in range(part * COUNT // PARTS, (part + 1) * COUNT // PARTS):
        drawn = draw(index)
        issued[drawn.certificate.holds] += 1
        if drawn.certificate.holds:
            assert excess(drawn) <= 0, f"system {index}: {drawn.label}, {drawn.certificate.sentence()}"
        else:
            assert drawn.certificate.reason
    assert issued[True] > 0
    print(f"part {part}: {issued[True]} of {issued.total()} certified, no false one")


def test_the_campaign_finds_a_false_certificate() -> None:
    """Claims that are a third too good are found out."""
    drawn = [one for one in map(draw, range(1, 60)) if one.certificate.holds]
    assert len(drawn) > 15
    caught = 0
    for one in drawn:
        true = one.certificate
        better = replace(true, rate=1.3 * true.rate, factor=None if true.factor is None else true.factor * 0.7)
        caught += excess(Drawn(one.label, better, one.jacobians)) > 0
    assert caught > 0.9 * len(drawn)
