"""Gains from energy, theorem 8: attained by a delay line, never exceeded, and no longer than the sequence needs."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from radius_attack import worst_excess
from radius_cases import linear_head
from torch import nn

import lipschitz_rnn as lr
from lipschitz_rnn.stability import StatedClassifier, certified_radius, certify
from lipschitz_rnn.stability.proof.energy import energy_gain
from lipschitz_rnn.stability.proof.norms import MetricNorms
from lipschitz_rnn.stability.radius.kernels import ProvedPart

STEP = 0.1


def delay_line(N: int) -> StatedClassifier:
    """h keeps the last N inputs, one a step, and loses no energy until an input leaves at the end; classes by sign."""
    shift = 0.999 * torch.diag(torch.ones(N - 1, dtype=torch.float64), -1)
    options: dict[str, Any] = {"step_size": STEP, "nonlinearity": "identity", "dtype": torch.float64}
    unit = lr.LipschitzRNN(1, N, bias=False, beta=0.5, gamma=0.0, **options)
    head = nn.Linear(N, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        cell: Any = unit.cell()
        cell.hidden.M_A.copy_((shift - torch.eye(N)) / STEP)
        cell.hidden.M_W.zero_()
        cell.weight_ih.zero_()[0, 0] = 1.0 / STEP
        head.weight.copy_(torch.stack((torch.ones(N), -torch.ones(N))))
    return StatedClassifier(unit.eval(), head)


def gain_of(network: StatedClassifier) -> float:
    certificate = certify(network.unit, precision="exact", rate=1e-4)
    assert certificate.metric is not None
    U = network.unit.cell().weight_ih.detach().numpy()  # type: ignore[operator]
    return energy_gain(certificate, MetricNorms(certificate.metric), U) / math.sqrt(certificate.metric[0, 0])


def test_a_delay_line_attains_its_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    N = 12
    network = delay_line(N)
    assert gain_of(network) == pytest.approx(1.0, rel=0.01)
    x = torch.full((40, 1, 1), 0.01, dtype=torch.float64)
    found = certified_radius(network, x, method="global", precision="exact")
    change = torch.zeros_like(x)
    change[-N:] = -0.01  # every input that is still kept: the class flips just beyond
    size = float(change.norm())
    assert found.radius[0] <= size
    assert found.radius[0] > 0.98 * size
    monkeypatch.setattr(
        ProvedPart, "energy", math.inf
    )  # theorems 1 to 3 add up norms: as if all inputs met in one place
    assert certified_radius(network, x, method="global", precision="exact").radius[0] < 0.5 * found.radius[0]


def test_the_gain_does_not_grow_with_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"stability": "contracting", "rate": 0.001, "step_size": 0.03, "metric_spread": 100.0}
    unit = lr.LipschitzRNN(1, 16, bounded_gain=True, dtype=torch.float64, **options).eval()
    network = StatedClassifier(unit, nn.Linear(16, 3, dtype=torch.float64))

    def gain(T: int) -> float:
        x = torch.rand(T, 1, 1, dtype=torch.float64)
        return float(certified_radius(network, x, method="global", precision="exact").gain[0])

    assert gain(800) <= 1.001 * gain(200)
    monkeypatch.setattr(ProvedPart, "energy", math.inf)
    assert gain(800) > 1.5 * gain(200)


def trained_like(seed: int, dtype: torch.dtype) -> StatedClassifier:
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    unit = lr.LipschitzRNN(
        2, 8, stability="contracting", bounded_gain=True, rate=0.01, step_size=0.2, metric_spread=50.0
    )
    head = linear_head(8, 3, generator)
    with torch.no_grad():
        for parameter in unit.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return StatedClassifier(unit.to(dtype).eval(), head.to(dtype), unit_takes_lengths=True)


@pytest.mark.parametrize("norm", ["l2", "step", "linf"])
@pytest.mark.parametrize("precision", ["highest", "float64"])
def test_no_attack_crosses_the_radius(norm: Any, precision: str) -> None:
    dtype = torch.float64 if precision == "float64" else torch.float32
    certified = 0
    for seed in range(4):
        network = trained_like(seed, dtype)
        x = torch.randn(30, 6, 2, generator=torch.Generator().manual_seed(seed)).to(dtype)
        found = certified_radius(network, x, norm=norm, method="global")
        held = found.margin > 0
        certified += int(held.sum())
        excess = worst_excess(network, x, 0.999 * found.radius, norm, steps=12, restarts=1)
        assert (excess[held] < 0).all()
    assert certified >= 12


def test_a_gain_that_is_too_small_is_crossed(monkeypatch: pytest.MonkeyPatch) -> None:
    network = delay_line(8)
    x = torch.full((20, 2, 1), 0.01, dtype=torch.float64)
    monkeypatch.setattr(ProvedPart, "energy", 0.5 / STEP * STEP)
    found = certified_radius(network, x, method="global", precision="exact")
    assert (worst_excess(network, x, 0.999 * found.radius, steps=12, restarts=1) > 0).all()


def test_what_has_no_energy_gain() -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    A = -2.0 * np.eye(4) + 0.1 * rng.normal(size=(4, 4))
    W = 0.2 * rng.normal(size=(4, 4))
    U = rng.normal(size=(4, 2))
    for integrator in ("midpoint", "heun"):
        certificate = certify((A, W), step_size=0.1, integrator=integrator)
        assert certificate.metric is not None
        assert energy_gain(certificate, MetricNorms(certificate.metric), U) == math.inf
    certificate = certify((A, W), step_size=0.1, rate=0.1)
    assert certificate.metric is not None
    metric = MetricNorms(certificate.metric)
    assert energy_gain(certificate, metric, np.zeros((4, 2))) == 0.0
    small, large = (energy_gain(certificate, metric, size * U) for size in (1e-200, 1e200))
    assert 0 < small < 1e-198
    assert 1e199 < large < math.inf
    assert large * 1e-200 == pytest.approx(small * 1e200, rel=0.01)
