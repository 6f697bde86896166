"""Gains from energy, theorem 8: attained by a delay line, never exceeded, and no longer than the sequence needs."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from radius_attack import scores_of, worst_excess
from radius_cases import classifier, linear_head, stack
from torch import nn

import lipschitz_rnn as lr
from lipschitz_rnn.stability import StatedClassifier, certified_radius, certify
from lipschitz_rnn.stability.proof.energy import energy_gain
from lipschitz_rnn.stability.proof.norms import MetricNorms
from lipschitz_rnn.stability.proof.rounding import Ball
from lipschitz_rnn.stability.radius import kernels
from lipschitz_rnn.stability.radius.energy import energy_gains
from lipschitz_rnn.stability.radius.network import read_network, read_samples
from lipschitz_rnn.stability.radius.proving import prove_network
from lipschitz_rnn.stability.radius.scores import scores_of as scores_and_readings

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


def without_energy(monkeypatch: pytest.MonkeyPatch, gain: float = math.inf) -> None:
    """Another γ for every layer."""
    monkeypatch.setattr(kernels, "energy_gain", lambda *given: gain)


def gain_of(network: StatedClassifier) -> float:
    certificate = certify(network.unit, precision="exact", rate=1e-4)
    assert certificate.metric is not None
    U = network.unit.cell().weight_ih.detach().numpy()  # type: ignore[operator]
    return energy_gain(certificate, MetricNorms(certificate.metric), Ball.exact(U)) / math.sqrt(
        certificate.metric[0, 0]
    )


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
    without_energy(monkeypatch)  # theorems 1 to 3 add up norms: as if all inputs met in one place
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
    without_energy(monkeypatch)
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
    without_energy(monkeypatch, gain=0.5)
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
        assert energy_gain(certificate, MetricNorms(certificate.metric), Ball.exact(U)) == math.inf
    certificate = certify((A, W), step_size=0.1, rate=0.1)
    assert certificate.metric is not None
    metric = MetricNorms(certificate.metric)
    assert energy_gain(certificate, metric, Ball.exact(np.zeros((4, 2)))) == 0.0
    small, large = (energy_gain(certificate, metric, Ball.exact(size * U)) for size in (1e-200, 1e200))
    assert 0 < small < 1e-198
    assert 1e199 < large < math.inf
    assert large * 1e-200 == pytest.approx(small * 1e200, rel=0.01)
    for huge in (1.7e308, math.inf):  # of a layer above another, U is multiplied by roots of metrics
        assert energy_gain(certificate, metric, Ball.exact(np.full((4, 2), huge))) == math.inf


def energy_of(network: StatedClassifier, x: torch.Tensor, norm: str, **given: Any) -> torch.Tensor:
    """(B, q): the gains of theorem 8 alone."""
    read = read_network(network)
    samples = read_samples(read, x, given.get("timespans"), given.get("lengths"))
    proved, timeline = prove_network(read, samples.given.timespans, None, 20.0), kernels.Timeline(read, samples)
    size = math.sqrt(x.shape[-1]) if norm == "linf" else 1.0
    sizes = torch.full((len(x),), size, dtype=torch.float64)
    with torch.no_grad():
        return energy_gains(proved, timeline, scores_and_readings(proved, timeline).readings, sizes, norm)


@pytest.mark.parametrize("norm", ["l2", "step", "linf"])
def test_no_gradient_of_a_stack_exceeds_its_gain(norm: str) -> None:
    """The slope of every score difference, at random points: layers, directions, lengths, irregular steps, readouts."""
    finite, closest = 0, 0.0
    for seed in range(1, 80, 2):
        case = stack(seed)
        if not case.options["bounded_gain"]:
            continue
        bound = energy_of(case.network, case.x, norm, **case.given)
        finite += int(bound.isfinite().all())
        x = case.x.clone().requires_grad_()
        scores = scores_of(case.network, x, **case.given)
        own = scores.argmax(1)
        for other in range(scores.shape[1]):
            aim = (scores.gather(1, own[:, None]).squeeze(1) - scores[:, other]).sum()
            (slope,) = torch.autograd.grad(aim, x, retain_graph=True)
            if case.lengths is not None:
                slope = slope * (torch.arange(len(x))[:, None] < case.lengths)[..., None]
            size = {"l2": slope.norm(dim=(0, 2)), "step": slope.norm(dim=2).sum(0), "linf": slope.abs().sum((0, 2))}
            assert (size[norm] <= bound[:, other] * (1 + 1e-9)).all(), case.options
            closest = max(closest, float((size[norm] / bound[:, other]).nan_to_num(0.0).max()))
    assert finite >= 10
    assert closest > 0.1  # so that a bound that forgets a layer, a step or a coupling would be exceeded


def test_a_stack_needs_the_energy_of_all_steps_below() -> None:
    """h⁺ = ρh + x twice: the product of both gains is a tenth of the truth, and theorem 8 is above it."""
    rho, T = 0.99, 400
    one = ((rho - 1) / STEP, 0.0, 1 / STEP)
    network = classifier([one, one], [[1.0], [-1.0]], nonlinearity="identity", num_layers=2, step_size=STEP)
    x = torch.ones(T, 1, 1, dtype=torch.float64)
    kernel = rho ** np.arange(T)
    truth = 2 * np.linalg.norm(np.convolve(kernel, kernel)[:T])
    found = float(energy_of(network, x, "l2").max())
    assert 2 * np.linalg.norm(kernel) ** 2 < 0.11 * truth
    assert truth <= found < 20 * truth


def test_a_stack_with_a_bounded_gain_has_a_larger_radius(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"stability": "contracting", "rate": 0.01, "step_size": 0.03, "metric_spread": 100.0}
    unit = lr.LipschitzRNN(1, 16, num_layers=2, bounded_gain=True, dtype=torch.float64, **options).eval()
    network = StatedClassifier(unit, nn.Linear(16, 3, dtype=torch.float64))
    x = torch.rand(300, 4, 1, dtype=torch.float64)
    for precision in ("exact", "float32"):
        with monkeypatch.context() as patched:
            without_energy(patched)
            by_norms = certified_radius(network, x, precision=precision)
        assert (certified_radius(network, x, precision=precision).radius > 2 * by_norms.radius).all()


def test_no_gain_underflows_beside_a_huge_scale() -> None:
    """What a change counts is taken relative to the largest scale, here one of padding; its square is tiny then."""
    rho, T = 0.1, 30
    one = ((rho - 1) / STEP, 0.0, 1 / STEP)
    network = classifier([one, one], [[1.0], [-1.0]], nonlinearity="identity", num_layers=2, step_size=STEP)
    x, scale = torch.zeros(T + 1, 1, 1, dtype=torch.float64), torch.zeros(T + 1, 1, dtype=torch.float64)
    x[T - 1], scale[0], scale[T], lengths = 1e-20, 1.0, 1e200, torch.tensor([T])
    found = certified_radius(network, x, precision="exact", lengths=lengths, scale=scale, method="global")
    changed = x.clone()
    changed[0] = -1e15
    assert scores_of(network, changed, lengths).argmax() != found.prediction[0]
    assert found.radius[0] < 1e15
