"""Theorem 7: the rounding of every step, carried to the scores by the sample's own adjoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from radius_attack import scores_of, worst_excess
from radius_cases import layer, linear_head
from rounding_attack import RoundingAdversary
from test_radius_constants import nearly_off
from test_radius_rounding import KINDS, changes, difficult, widened
from torch import Tensor, nn

from lipschitz_rnn.stability import StatedClassifier, certified_radius
from lipschitz_rnn.stability.radius import NoCertificate, carried
from lipschitz_rnn.stability.radius.computed import ComputedNetwork
from lipschitz_rnn.stability.radius.local import Known
from lipschitz_rnn.stability.radius.rounded_steps import RoundedSteps, StepBounds


def some(names: Iterable[str], default: tuple[str, ...]) -> list[Any]:
    """Parameters, of which only the named ones run by default."""
    return [pytest.param(name, marks=[] if name in default else [pytest.mark.full]) for name in names]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theorem 6 claims nothing, so that only what is tested here bounds the rounding."""
    monkeypatch.setattr(Known, "rounding", lambda self, size, chosen: torch.full_like(size, torch.inf)[..., None])
    monkeypatch.setattr(ComputedNetwork, "largest_change", lambda self, *given: torch.zeros_like(given[0].fixed[:, 0]))


def small(seed: int, dtype: torch.dtype = torch.float32, **options: Any) -> tuple[StatedClassifier, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    options = {"stability": "contracting", "step_size": 0.25, "rate": 0.3} | options
    unit = layer(2, 5, generator, **options).to(dtype)
    head = linear_head(5 * unit.num_directions, 3, generator).to(dtype)
    x = torch.randn(16, 8, 2, generator=generator, dtype=torch.float64).to(dtype)
    return StatedClassifier(unit, head), x


@pytest.mark.parametrize(
    "precision", some(("float32", "high", "medium", "bfloat16", "float16"), ("float32", "bfloat16"))
)
def test_no_rounding_that_a_precision_allows_exceeds_the_bound(precision: str, alone: None) -> None:
    """Every step errs by all that is allowed, in the worst direction, at the sample and within the radius."""
    nearest = 0.0
    for seed, name in enumerate(("tanh", "relu", "identity")):
        dtype = getattr(torch, precision) if precision in ("bfloat16", "float16") else torch.float32
        network, x = small(seed, dtype, nonlinearity=name)
        found = certified_radius(network, x, precision=precision)
        decided = found.radius > 0
        assert bool(decided.any())
        adversary = RoundingAdversary(network, precision)
        lowest, taken = adversary.falls(x.double(), found.prediction, found.runner_up, found.radius)
        assert bool((lowest > 0)[decided].all())
        assert bool((taken <= found.rounding)[decided].all())
        nearest = max(nearest, float((taken / found.rounding)[decided].max()))
    assert nearest > 0.5  # what the precision allows is nearly reached


@pytest.mark.parametrize("kind", some(("float32", "bfloat16", "float16"), ("float16",)))
def test_the_bound_covers_the_distance_to_float64(kind: str, alone: None) -> None:
    for seed in range(3):
        network, x = difficult(kind, "euler", seed)
        found = certified_radius(network, x)
        pick, exact = torch.stack((found.prediction, found.runner_up), 1), widened(network)
        with torch.no_grad():
            for change in [torch.zeros_like(x), *changes(x, 0.99 * found.radius, 6, seed)]:
                computed = scores_of(network, x + change).double().gather(1, pick)
                real = scores_of(exact, (x + change).double()).gather(1, pick)
                off = (computed[:, 0] - computed[:, 1] - real[:, 0] + real[:, 1]).abs()
                assert bool((off <= found.rounding)[found.radius > 0].all())


def test_the_bound_covers_the_distance_to_rational_numbers(alone: None) -> None:
    """A relu network of three units in float32 and in fractions, at the sample and at changed inputs."""
    network, x = small(4, nonlinearity="relu", bias=False)
    found = certified_radius(network, x)
    assert bool((found.radius > 0).all())
    cell: Any = network.unit.cell()  # type: ignore[operator]
    A, W, U, D = (
        np.vectorize(Fraction, otypes=[object])(value.detach().double().numpy())
        for value in (*cell.hidden_matrices(), cell.weight_ih, network.head.weight)
    )
    largest = 0.0
    for change in [torch.zeros_like(x), *changes(x, 0.99 * found.radius, 2, 0)]:
        h = np.vectorize(Fraction, otypes=[object])(np.zeros((x.shape[1], len(A))))
        for inputs in np.vectorize(Fraction, otypes=[object])((x + change).double().numpy()):
            h = h + Fraction(1, 4) * (h @ A.T + np.maximum(h @ W.T + inputs @ U.T, Fraction(0)))
        exact = h @ D.T
        computed = scores_of(network, x + change).detach().double()
        for sample, (first, other) in enumerate(zip(found.prediction.tolist(), found.runner_up.tolist(), strict=True)):
            shown = Fraction(float(computed[sample, first])) - Fraction(float(computed[sample, other]))
            off = abs(shown - (exact[sample, first] - exact[sample, other]))
            assert off <= Fraction(float(found.rounding[sample]))
            largest = max(largest, float(off) / float(found.rounding[sample]))
    assert largest > 1e-3


def test_it_is_far_below_the_norm_times_the_kernel() -> None:
    """60 steps of a network that remembers: most of what theorem 6 subtracts is not lost."""
    generator = torch.Generator().manual_seed(0)
    unit = layer(1, 16, generator, spread=0.05, stability="contracting", step_size=0.1, rate=0.02).float()
    network = StatedClassifier(unit, linear_head(16, 2, generator, scale=0.3).float())
    x = torch.rand(60, 4, 1, generator=generator)
    for precision in ("high",):
        norms = certified_radius(network, x, precision=precision, method="global")
        along = certified_radius(network, x, precision=precision)
        exact = certified_radius(network, x, precision="exact")
        lost, left = ((exact.margin - found.margin).clamp(min=0.0) for found in (norms, along))
        assert bool((left < 0.5 * lost).all())
        assert bool((along.radius >= norms.radius * (1 - 1e-9)).all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", some(("l2", "linf", "step"), ("l2",)))
def test_no_attack_in_any_precision_succeeds_just_inside(kind: str, norm: Any) -> None:
    dtype, context = KINDS[kind]
    network, x = small(7, dtype)
    with context or torch.no_grad():
        found = certified_radius(network, x, norm=norm)
    assert float((found.radius > 0).double().mean()) > 0.5
    reach = 0.97 * found.radius.to(torch.float64)  # adding a change to an input rounds as well
    moved = torch.finfo(dtype).eps * (x.double().abs().amax((0, 2)) + reach)
    inside = moved * (1.0 if norm == "linf" else x[:, 0].numel() ** 0.5) < 0.03 * found.radius
    with context or torch.enable_grad():
        excess = worst_excess(network, x, reach, norm, steps=8, restarts=1)
    assert bool((excess < 0)[(found.radius > 0) & inside].all())


def hostile(seed: int) -> tuple[StatedClassifier, Tensor, Tensor | None, str]:
    """Free and contracting networks, huge, tiny and saturating values, steps of length zero, all precisions."""
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    precision = ("float32", "high", "medium", "bfloat16", "float16", "float64")[seed % 6]
    dtype = getattr(torch, precision) if precision[:2] in ("bf", "fl") else torch.float32
    step = float(rng.choice([0.02, 0.1, 0.3]))
    options: dict[str, Any] = {"step_size": step, "nonlinearity": str(rng.choice(["tanh", "tanh", "relu", "sigmoid"]))}
    free = bool(rng.random() < 0.4)
    options |= {"gamma": 2.5} if free else {"stability": "contracting", "rate": float(rng.choice([0.01, 0.3]))}
    N, T = int(rng.integers(1, 8)), int(rng.integers(1, 20))
    unit = layer(2, N, generator, spread=0.12 if free else 0.6, **options)
    with torch.no_grad():
        unit.cell().weight_ih.mul_(float(rng.choice([1e-3, 1.0, 100.0])))
    head = linear_head(N, 3, generator, scale=float(rng.choice([1e-4, 3.0, 3.0, 1e3])))
    x = float(rng.choice([1e-5, 1.0, 1.0, 1e3])) * torch.randn(T, 4, 2, generator=generator, dtype=torch.float64)
    spans = None
    if rng.random() < 0.4:
        spans = torch.from_numpy(rng.uniform(0.2 * step, step, size=(T, 4))).float().double()
        spans[torch.rand(T, 4, generator=generator) < 0.2] = 0.0
        spans[0] = step * 0.5
    return StatedClassifier(unit.to(dtype), head.to(dtype)), x.to(dtype), spans, precision


@pytest.mark.parametrize("seed", some(map(str, range(48)), ("1", "3")))
def test_hostile_networks_under_the_adversary_and_in_their_own_arithmetic(seed: str) -> None:
    network, x, spans, precision = hostile(int(seed))
    given = None if spans is None else spans.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    try:
        found = certified_radius(network, x, precision=precision, timespans=given, time_limit=10.0)
    except NoCertificate as refusal:
        pytest.skip(str(refusal))
    decided, reach = found.margin > 0, found.radius.clamp(max=1e12)
    assert bool((found.radius >= 0).all())
    adversary = RoundingAdversary(network, precision, spans)
    lowest, taken = adversary.falls(x.double(), found.prediction, found.runner_up, reach)
    # The adversary's own float64 arithmetic rounds too.
    assert bool((lowest > -1e-13 * found.margin)[decided].all())
    assert bool((taken <= found.rounding * (1 + 1e-9) + 1e-13 * found.margin.abs())[decided].all())
    with torch.no_grad():
        seen = scores_of(network, x, timespans=given).argmax(1)
    assert torch.equal(seen[decided], found.prediction[decided])


# Disturbed by hand: errors of any size, so that every term of the proof matters.


def disturbed(
    monkeypatch: pytest.MonkeyPatch, network: StatedClassifier, inside: float, outside: float, feed: float
) -> None:
    """Steps whose η is ``inside`` + ``feed``·|U x|, and whose ω is ε · ``outside`` · (1 + |ĥ|)."""
    from lipschitz_rnn.stability.radius import computed

    original = computed.rounded_steps

    def steps(*arguments: Any) -> RoundedSteps:
        found = original(*arguments)
        state, size, U = arguments[3], arguments[4], network.unit.cell().weight_ih.detach().double().abs()  # type: ignore[operator]
        eye = torch.eye(state.shape[-1], dtype=torch.float64)
        return replace(
            found,
            inside=inside + feed * (size @ U.T),
            outside=outside * (1.0 + state),
            inside_growth=0 * eye,
            outside_growth=outside * eye,
            kept=0 * found.kept,
            fed_inside=feed,
            fed=feed,
        )

    monkeypatch.setattr(computed, "rounded_steps", steps)


def worst_fall(
    network: StatedClassifier, x: Tensor, radius: Tensor, inside: float, outside: float, feed: float, steps: int = 5
) -> Tensor:
    """(B,): the most that such errors took from y₀ − y₁ at one and the same input."""
    unit: Any = network.unit
    cell = unit.cell()
    A, W = (matrix.detach() for matrix in cell.hidden_matrices())
    U, b, D = cell.weight_ih.detach(), cell.bias_ih.detach(), network.head.weight.detach()
    row = D[0] - D[1]

    def last(inputs: Tensor, eta: Tensor, omega: Tensor) -> Tensor:
        h = inputs.new_zeros(inputs.shape[1], len(A))
        for t in range(len(inputs)):
            off = eta[t] * (inside + feed * (inputs[t].abs() @ U.abs().T))
            rate = h @ A.T + unit_function(unit)(h @ W.T + inputs[t] @ U.T + b + off)
            h = h + cell.step_size * (rate + omega[t] * outside * (1.0 + h.abs()))
        return (h * row).sum(-1)

    best = torch.zeros(x.shape[1], dtype=torch.float64)
    shape = (*x.shape[:2], len(A))
    generator = torch.Generator().manual_seed(0)
    for start in range(4):
        change = torch.zeros_like(x) if start == 0 else torch.randn(x.shape, generator=generator, dtype=torch.float64)
        if start in (1, 2):
            change = torch.full_like(x, 1.0 if start == 1 else -1.0)
        change = change / change.norm(dim=(0, 2), keepdim=True).clamp(min=1e-300) * radius[:, None]
        eta, omega = (torch.randn(shape, generator=generator, dtype=torch.float64).sign() for _ in range(2))
        if start in (1, 2):
            eta, omega = torch.ones_like(eta), torch.ones_like(omega)
        for _ in range(steps):
            leaves = [each.detach().requires_grad_() for each in (eta, omega)]
            fall = last(x + change, 0 * eta, 0 * omega) - last(x + change, *leaves)
            best = torch.maximum(best, fall.detach())
            gradients = torch.autograd.grad(fall.sum(), leaves, allow_unused=True)
            eta, omega = (
                each if g is None else torch.where(g == 0, each, g.sign())
                for each, g in zip((eta, omega), gradients, strict=True)
            )
    return best


def unit_function(unit: Any) -> Callable[[Tensor], Tensor]:
    return {"relu": torch.relu, "tanh": torch.tanh}[unit.nonlinearity]


def nearly_on() -> tuple[StatedClassifier, Tensor]:
    """Unit 1 is on, unit 2 is off: errors of unit 1 reach the score only where they turn unit 2 on."""
    network, x = nearly_off()
    network.unit.cells["l0"].bias_ih = nn.Parameter(torch.tensor([0.3, -0.6], dtype=torch.float64))  # type: ignore[operator, union-attr]
    network.head.weight = nn.Parameter(torch.tensor([[0.0, -4.0], [0.0, 0.0]], dtype=torch.float64))
    network.head.bias = nn.Parameter(torch.tensor([1.0, 0.0], dtype=torch.float64))
    return network, x


def turning() -> tuple[StatedClassifier, Tensor]:
    """tanh at its knee."""
    generator = torch.Generator().manual_seed(3)
    unit = layer(1, 3, generator, stability="contracting", step_size=0.5, rate=0.1)
    x = torch.randn(10, 4, 1, generator=generator, dtype=torch.float64)
    return StatedClassifier(unit, linear_head(3, 2, generator)), 2 * x


def flat(sigma: Any, a: Tensor, slope: Tensor, V: Tensor, off: Tensor) -> Tensor:
    return torch.zeros_like(V)


def straight(adjoint: Tensor, change: Tensor, across: Tensor, whole: float) -> Tensor:
    return change.new_zeros(*change.shape[:2], adjoint.shape[1])


Sizes = tuple[float, float, float]
TERMS: dict[str, tuple[Callable[[], tuple[StatedClassifier, Tensor]], Sizes, Callable[[pytest.MonkeyPatch], None]]] = {
    "inside": (turning, (0.05, 0.0, 0.0), lambda m: _without(m, inside=0.0)),
    "outside": (turning, (0.0, 0.05, 0.0), lambda m: _without(m, outside=0.0)),
    "fed by a change": (nearly_on, (0.0, 0.0, 0.3), lambda m: _without(m, fed=0.0, fed_inside=0.0)),
    "other slopes": (nearly_off, (0.05, 0.0, 0.0), lambda m: m.setattr(carried, "slope_change", flat)),
    "errors of other units": (nearly_on, (0.05, 0.0, 0.0), lambda m: m.setattr(carried, "turned_by", straight)),
}


def _without(monkeypatch: pytest.MonkeyPatch, **dropped: float) -> None:
    original = RoundedSteps.at

    def at(self: RoundedSteps, t: int, grown: Tensor, size: Tensor) -> StepBounds:
        found = original(self, t, grown, size)
        return replace(found, **{name: share * getattr(found, name) for name, share in dropped.items()})

    monkeypatch.setattr(RoundedSteps, "at", at)


@pytest.mark.parametrize("term", TERMS)
def test_every_term_is_needed(term: str, alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all terms no errors exceed the bound; without one they do."""
    example, sizes, drop = TERMS[term]
    network, x = example()
    network.head.bias = nn.Parameter(torch.tensor([6.0, 0.0], dtype=torch.float64))  # errors must leave a radius
    disturbed(monkeypatch, network, *sizes)
    full = certified_radius(network, x, method="local")
    assert bool(((full.radius > 0) & (full.prediction == 0)).all())
    worst = worst_fall(network, x, full.radius, *sizes)
    assert bool((worst <= full.rounding).all())
    drop(monkeypatch)
    loose = certified_radius(network, x, method="local")
    worst = worst_fall(network, x, loose.radius.clamp(max=2.0), *sizes)
    assert bool((worst > loose.rounding).any())
