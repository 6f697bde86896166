"""Every constant of a certified radius: attained where it can be, and needed where it cannot."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from proof.exact import fractions
from radius_attack import scores_of, worst_excess
from radius_cases import Case, classifier, layer, linear_head, random_case
from torch import nn

import lipschitz_rnn as lr
from lipschitz_rnn.stability import StatedClassifier, certified_radius
from lipschitz_rnn.stability.proof.norms import MetricNorms
from lipschitz_rnn.stability.proof.rounding import Ball
from lipschitz_rnn.stability.radius import bent as bent_steps
from lipschitz_rnn.stability.radius.kernels import ProvedPart, Timeline
from lipschitz_rnn.stability.radius.network import read_network, read_samples
from lipschitz_rnn.stability.radius.proving import prove_network

NORMS = ("l2", "linf", "step")


def slope_of_scores(case: Case, norm: str) -> torch.Tensor:
    """How fast the difference of the two scores of a linear network falls with the size of a change."""
    x = case.x.clone().requires_grad_()
    scores = scores_of(case.network, x, **case.given)
    (gradient,) = torch.autograd.grad((scores[:, 0] - scores[:, 1]).sum(), x)
    if norm == "l2":
        return gradient.square().sum((0, 2)).sqrt()
    return gradient.abs().sum((0, 2)) if norm == "linf" else gradient.norm(dim=2).sum(0)


def scalar(seed: int, **options: Any) -> Case:
    """A linear network with one unit and one input for which everything adds up: all bounds are attained."""
    rng = np.random.default_rng(seed)
    count = 2 if options.get("bidirectional") else 1
    given = [(-rng.uniform(0.5, 3), -rng.uniform(0, 1), rng.uniform(0.5, 2)) for _ in range(count)]
    network = classifier(given, [[1.0] * count, [-0.5] * count], nonlinearity="identity", **options)
    x = torch.randn(17, 3, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Case(network, x, None, None, options)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    "options",
    [
        {"step_size": 0.1},
        {"step_size": 0.1, "bidirectional": True},
        {"step_size": 0.2, "max_step": 0.06},
        {"step_size": 0.1, "alpha": 0.5},
    ],
    ids=["euler", "both directions", "divided steps", "alpha"],
)
def test_the_gain_of_a_linear_system_is_attained(options: dict[str, Any], norm: Any) -> None:
    """Never below the truth, not even by what float32 would round off, nor above it by 1 %."""
    for seed in range(2):
        case = scalar(seed, **options)
        found = certified_radius(case.network, case.x, norm=norm, method="global")
        exact = slope_of_scores(case, norm)
        assert bool((found.gain >= exact * (1 - 1e-14)).all())
        assert bool((found.gain <= exact * 1.01).all())


def test_irregular_steps_and_lengths_are_attained() -> None:
    generator = torch.Generator().manual_seed(3)
    spans = 0.02 + 0.2 * torch.rand(17, 3, generator=generator, dtype=torch.float64)
    base = scalar(3, step_size=0.1)
    lengths = torch.tensor([17, 4, 9])
    case = Case(base.network, base.x, lengths, spans * (torch.arange(17)[:, None] < lengths), {})
    for norm in ("l2", "step"):
        found = certified_radius(case.network, case.x, norm=norm, method="global", **case.given)
        exact = slope_of_scores(case, norm)
        # 1 − λε brings the factor of the longest step down in a straight line, which Euler attains.
        assert bool((found.gain >= exact * (1 - 1e-14)).all())
        assert bool((found.gain <= 1.01 * exact).all())


def test_a_rotation_attains_the_gain_in_two_dimensions_and_a_hundredth_more_is_beaten() -> None:
    a, omega, step = 0.8, 2.0, 0.1
    A = [[-a, omega], [-omega, -a]]
    network = classifier([(A, np.zeros((2, 2)), np.eye(2))], [[1, 2], [-1, 0.5]], nonlinearity="identity")
    network.unit.step_size = step
    x = torch.randn(30, 5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    case = Case(network, x, None, None, {})
    found = certified_radius(network, x, method="global")
    assert abs(float(found.certificate.factor or 0) / np.hypot(1 - step * a, step * omega) - 1) < 0.01
    assert bool((found.gain <= 1.01 * slope_of_scores(case, "l2")).all())
    assert bool((worst_excess(network, x, found.radius) < 0).all())
    assert bool((worst_excess(network, x, 1.01 * found.radius) > 0).all())


@pytest.mark.parametrize("norm", NORMS)
def test_the_local_radius_of_a_linear_network_is_exact_to_one_percent(norm: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    unit = layer(3, 5, generator, nonlinearity="identity", stability="contracting", step_size=0.3)
    network = StatedClassifier(unit, linear_head(5, 4, generator))
    x = torch.randn(25, 6, 3, generator=generator, dtype=torch.float64)
    found = certified_radius(network, x, norm=norm, method="local")
    assert found.method == "local"
    assert bool((worst_excess(network, x, found.radius, norm) < 0).all())
    assert bool((worst_excess(network, x, 1.01 * found.radius, norm) > 0).all())


def test_a_stack_needs_the_convolution_and_the_product_of_gains_would_be_wrong() -> None:
    rho, T, step = 0.99, 400, 0.1
    one = ((rho - 1) / step, 0.0, 1 / step)  # h⁺ = ρ h + x
    network = classifier([one, one], [[1.0], [-1.0]], nonlinearity="identity", num_layers=2, step_size=step)
    x = torch.randn(T, 2, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = certified_radius(network, x)
    kernel = rho ** np.arange(T)
    both, each = np.convolve(kernel, kernel)[:T], np.linalg.norm(kernel)
    assert np.allclose(found.gain.numpy(), 2 * np.linalg.norm(both), rtol=1e-3)
    assert np.linalg.norm(both) > 9 * each**2  # 498 against 50
    assert bool((worst_excess(network, x, found.radius, steps=3, restarts=1) < 0).all())
    by_product = found.margin / (2 * each**2)
    assert bool((worst_excess(network, x, 0.12 * by_product, steps=3, restarts=1) > 0).all())


def proved_of(case: Case) -> tuple[Any, Any]:
    network = read_network(case.network)
    samples = read_samples(network, case.x, case.timespans, case.lengths)
    return prove_network(network, samples.given.timespans, None, 20.0), Timeline(network, samples)


def full_metric() -> ProvedPart:
    """A part with a metric that is far from diagonal."""
    rng = np.random.default_rng(5)
    root = rng.normal(size=(4, 4)) + np.eye(4)
    case = scalar(0, step_size=0.1)
    proved, _ = proved_of(case)
    part = proved.layers[0][0]
    return ProvedPart(part.part.__class__(**{**vars(part.part), "sigma": _tanh()}), part.certificate, _norms(root))


def _tanh() -> Any:
    return lr.ops.lipschitz.nonlinearities.get_nonlinearity("tanh")


def _norms(root: np.ndarray) -> MetricNorms:
    return MetricNorms(root @ root.T)


def test_what_enters_needs_both_terms_where_the_metric_is_full() -> None:
    """½‖P^½U‖ + ½‖P^½‖‖U‖: without the second term, slopes of 0 and 1 exceed it."""
    part = full_metric()
    U = np.random.default_rng(1).normal(size=(4, 2))
    root = part.metric.root
    corners = [np.diag([float(bit) for bit in f"{number:04b}"]) for number in range(16)]
    worst = max(np.linalg.norm(root.T @ D @ U, 2) for D in corners)
    assert np.linalg.norm(root.T @ U, 2) < worst <= part.entry(Ball.exact(U))


def test_the_reading_of_the_head_is_attained_however_ill_conditioned_the_metric() -> None:
    part = full_metric()
    steep = ProvedPart(part.part, part.certificate, MetricNorms(np.diag([1e-10, 1.0, 1e4, 3.0])))
    rows = np.random.default_rng(2).normal(size=(3, 4))
    for own in (part, steep):
        exact = np.linalg.norm(np.linalg.solve(own.metric.root, rows.T), axis=0)
        found = own.reading(rows, np.zeros_like(rows))
        assert np.all(exact * (1 - 1e-13) <= found)
        assert np.all(found <= 1.01 * exact)
    tiny = part.reading(1e-200 * rows, np.zeros_like(rows))
    assert np.allclose(tiny, 1e-200 * part.reading(rows, np.zeros_like(rows)), rtol=1e-6)


def test_a_later_stage_passes_the_change_of_an_earlier_one_on() -> None:
    """Midpoint under a fast rotation: without the term of αA + D W, one step would already exceed the gain."""
    omega, step = 8.0, 0.1
    A = [[-0.5, omega], [-omega, -0.5]]
    network = classifier(
        [(A, np.zeros((2, 2)), np.eye(2))], [[1.0, 0], [-1, 0]], nonlinearity="identity", integrator="midpoint"
    )
    network.unit.step_size = step
    case = Case(network, torch.ones(1, 1, 2, dtype=torch.float64), None, None, {})
    found = certified_radius(network, case.x)
    exact = float(slope_of_scores(case, "l2"))
    assert 2 * step < exact <= float(found.gain)


def nearly_off() -> tuple[StatedClassifier, torch.Tensor]:
    """relu: unit 1 is off and drives unit 2, which is off too and is read by the head; no gradient shows anything."""
    A, W = [[-1.0, 0.0], [0.0, -1.0]], [[-1.0, 0.0], [8.0, -1.0]]
    network = classifier([(A, W, [[1.0], [0.0]])], [[-1.0, -4.0], [-1.0, 0.0]], nonlinearity="relu", step_size=0.2)
    network.unit.cells["l0"].bias_ih = nn.Parameter(torch.tensor([-0.1, -0.2], dtype=torch.float64))
    network.head.bias = nn.Parameter(torch.tensor([0.2, 0.0], dtype=torch.float64))
    return network, torch.zeros(12, 1, 1, dtype=torch.float64)


def bent(name: str, seed: int = 0) -> tuple[StatedClassifier, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    unit = layer(1, 4, generator, nonlinearity=name, stability="contracting", step_size=0.5, rate=0.05)
    return StatedClassifier(unit, linear_head(4, 3, generator)), 2 * torch.randn(
        15, 8, 1, generator=generator, dtype=torch.float64
    )


def beaten_without(monkeypatch: pytest.MonkeyPatch, name: str, replacement: Any, network: Any, x: Any) -> None:
    kept = certified_radius(network, x, method="local")
    assert bool((worst_excess(network, x, kept.radius) < 0).all())
    monkeypatch.setattr(bent_steps, name, replacement)
    loose = certified_radius(network, x, method="local").radius.clamp(max=100.0)
    assert bool((loose > kept.radius).any())
    assert bool((worst_excess(network, x, loose, restarts=6) > 0).any())


def test_the_remainder_of_the_linearization_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = nearly_off()
    beaten_without(monkeypatch, "chord_change", lambda sigma, a, slope, V, off: torch.zeros_like(V), network, x)


def test_what_remainders_add_to_the_arguments_of_other_units_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = nearly_off()
    beaten_without(monkeypatch, "reach_of", lambda spread, energy, known: energy * spread + 0 * known, network, x)


def test_what_the_linear_part_adds_to_the_arguments_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = nearly_off()
    beaten_without(monkeypatch, "reach_of", lambda spread, energy, known: known + 0 * energy * spread, network, x)


def test_rounding_of_the_scores_is_covered_and_shows() -> None:
    """Against rational numbers, at values so large that float64 gets the difference of scores wrong."""
    generator = torch.Generator().manual_seed(4)
    unit = layer(2, 3, generator, nonlinearity="relu", stability="contracting", step_size=0.25)
    network = StatedClassifier(unit, linear_head(3, 2, generator))
    network.head.weight.data[1] = network.head.weight.data[0] * (1 + 2.0**-45)
    x = 1e6 * torch.randn(9, 20, 2, generator=generator, dtype=torch.float64)
    found = certified_radius(network, x)
    cell = unit.cell()
    A, W = (fractions(matrix.detach().numpy()) for matrix in cell.hidden_matrices())
    U, b, D = (fractions(value.detach().numpy()) for value in (cell.weight_ih, cell.bias_ih, network.head.weight))
    h = fractions(np.zeros((20, 3)))
    for step in fractions(x.numpy()):
        h = h + Fraction(1, 4) * (h @ A.T + np.maximum(h @ W.T + step @ U.T + b, Fraction(0)))
    exact = h @ D.T
    computed = scores_of(network, x).detach()
    off = 0
    for sample, first in enumerate(found.prediction.tolist()):
        difference = exact[sample, first] - exact[sample, 1 - first]
        assert difference >= Fraction(float(found.margin[sample]))
        shown = float(computed[sample, first] - computed[sample, 1 - first])
        off += difference < Fraction(shown)
    assert off > 0, "float64 was never wrong, so this test shows nothing"


def test_a_scale_gives_the_radius_in_units_of_the_value() -> None:
    case = random_case(0)
    plain = certified_radius(case.network, case.x, **case.given)
    scaled = certified_radius(case.network, case.x, scale=1 / 255, **case.given)
    finite = plain.radius.isfinite() & (plain.radius > 0)
    assert bool(finite.any())
    # The search along a trajectory stops within 0.1 % of the largest radius.
    assert torch.allclose(scaled.radius[finite], 255 * plain.radius[finite], rtol=2e-3)
    frozen = certified_radius(case.network, case.x, scale=0.0, **case.given)
    assert bool((frozen.radius[plain.margin > 0] == torch.inf).all())
