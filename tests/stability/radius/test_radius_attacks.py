"""No attack within a certified radius changes the class; just outside of what attacks need, they do."""

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from radius_attack import scores_of, worst_excess
from radius_cases import layer, linear_head, random_case
from torch import nn

import lipschitz_rnn as lr
from lipschitz_rnn.stability import StatedClassifier, certified_radius
from lipschitz_rnn.stability.radius import NoCertificate

CASES = int(os.environ.get("LIPSCHITZ_RNN_RADII", "6"))
NORMS = ("l2", "linf", "step")
# Cases that were once wrong, or that hold a combination which few draws have.
KEPT = (46,)


def require_safe(case: Any, norm: str, found: Any, restarts: int = 1) -> torch.Tensor:
    """Attack at the radius itself; returns how much of the margin was left, for samples with one."""
    decided = found.margin > 0
    reach = found.radius.clamp(max=1e6)
    excess = worst_excess(case.network, case.x, reach, norm, **case.given, steps=20, restarts=restarts)
    scores = scores_of(case.network, case.x, **case.given).detach().double()
    assert torch.equal(scores.argmax(1)[decided], found.prediction[decided])
    rounding = 1e-13 * scores.abs().amax(1)  # of the attack's own float64 arithmetic
    assert bool((excess <= rounding)[decided].all()), case.options
    return (excess / found.margin)[decided]


@pytest.mark.parametrize("seed", [*KEPT, *range(1000, 1000 + CASES)])
def test_random_networks_cannot_be_fooled_within_their_radius(seed: int) -> None:
    """Layers, directions, integrators, nonlinearities, α, lengths, irregular and divided steps, readouts: all drawn."""
    case, norm = random_case(seed), NORMS[seed % 3]
    try:
        found = certified_radius(case.network, case.x, norm=norm, time_limit=10.0, **case.given)
    except NoCertificate as refusal:  # 5 of the first 200 draws do not contract
        pytest.skip(str(refusal))
    require_safe(case, norm, found)


def test_the_radius_is_not_far_below_what_attacks_need() -> None:
    """A network that is neither linear nor trivial: five times the radius is beaten for most samples."""
    generator = torch.Generator().manual_seed(0)
    unit = layer(1, 6, generator, spread=0.05, stability="contracting", step_size=0.3, rate=0.1)
    network = StatedClassifier(unit, linear_head(6, 3, generator))
    x = torch.randn(20, 16, 1, generator=generator, dtype=torch.float64)
    found = certified_radius(network, x)
    assert found.method == "local"
    assert bool((worst_excess(network, x, found.radius) < 0).all())
    assert float((worst_excess(network, x, 5 * found.radius) > 0).double().mean()) > 0.7


@pytest.mark.parametrize("integrator", ["euler", "midpoint", "heun"])
def test_huge_values_give_no_false_radius(integrator: str) -> None:
    """Where float64 overflows or loses the margin there is no radius; elsewhere it holds."""
    generator = torch.Generator().manual_seed(7)
    unit = layer(2, 4, generator, integrator=integrator, stability="contracting", step_size=0.2)
    network = StatedClassifier(unit, linear_head(4, 3, generator))
    x = torch.randn(6, 8, 2, generator=generator, dtype=torch.float64)
    x = x * 10.0 ** torch.tensor([0, 3, 8, 20, 100, 200, 280, 306], dtype=torch.float64)[:, None]
    found = certified_radius(network, x)
    assert not bool(found.radius.isnan().any())
    assert bool((found.radius >= 0).all())
    excess = worst_excess(network, x, found.radius.clamp(max=1e300))
    assert bool(((excess <= 0) | (found.margin <= 0)).all())


def test_huge_and_tiny_heads_and_weights_give_no_false_radius() -> None:
    for scale in (1e-200, 1e-30, 1e30, 1e200):
        generator = torch.Generator().manual_seed(8)
        unit = layer(1, 3, generator, nonlinearity="identity", stability="contracting", step_size=0.2)
        network = StatedClassifier(unit, linear_head(3, 3, generator, scale=scale))
        x = torch.randn(6, 4, 1, generator=generator, dtype=torch.float64)
        found = certified_radius(network, x)
        assert bool((found.radius > 0).all())
        assert bool((worst_excess(network, x, found.radius) < 0).all())
        assert bool((worst_excess(network, x, 1.01 * found.radius) > 0).all())


@pytest.mark.parametrize("norm", NORMS)
def test_tiny_inputs_and_states_give_no_false_radius(norm: Any) -> None:
    """Numbers whose squares underflow: what is rounded to zero still moves scores that are as small."""
    generator = torch.Generator().manual_seed(8)
    unit = layer(2, 3, generator, nonlinearity="identity", stability="contracting", step_size=0.2, bias=False)
    with torch.no_grad():
        unit.cell().weight_ih.mul_(1e-200)
    network = StatedClassifier(unit, linear_head(3, 3, generator))
    x = torch.randn(6, 4, 2, generator=generator, dtype=torch.float64)
    found = certified_radius(network, x, norm=norm)
    linear = torch.autograd.functional.jacobian(lambda v: scores_of(network, v).sum(1 - 1), x)  # (q, T, B, p)
    scores = scores_of(network, x).detach()
    for sample, first in enumerate(found.prediction.tolist()):
        for other in {0, 1, 2} - {first}:
            slope = (linear[first] - linear[other])[:, sample] * 1e200
            size = {"l2": slope.norm(), "linf": slope.abs().sum(), "step": slope.norm(dim=1).sum()}[norm]
            exact = (scores[sample, first] - scores[sample, other]) * 1e200 / size
            assert float(found.radius[sample]) <= float(exact) * (1 + 1e-12)


def float64_scores(network: StatedClassifier, x: torch.Tensor) -> torch.Tensor:
    """The exact network of these weights, whatever their dtype, by the reference scan in float64."""
    cell: Any = network.unit.cell()  # type: ignore[operator]
    A, W = (matrix.detach().double() for matrix in cell.hidden_matrices())
    drive = x.double() @ cell.weight_ih.double().T + cell.bias_ih.double()
    start = torch.zeros(x.shape[1], len(A), dtype=torch.float64)
    states, _ = lr.lipschitz_scan(drive, A, W, start, step_size=cell.step_size, backend="reference")
    return states[-1] @ network.head.weight.double().T


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_of_every_precision_are_taken_as_they_are(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    unit = layer(1, 5, generator, stability="contracting", step_size=0.25, rate=0.1).to(dtype)
    head = linear_head(5, 3, generator).to(dtype)
    network = StatedClassifier(unit, head)
    x = torch.randn(12, 6, 1, generator=generator).to(dtype)
    found = certified_radius(network, x)
    exact = float64_scores(network, x).detach()
    decided = found.margin > 0
    assert torch.equal(found.prediction[decided], exact.argmax(1)[decided])
    gaps = exact.gather(1, found.prediction[:, None]) - exact
    assert bool((found.margin <= gaps.gather(1, found.runner_up[:, None]).squeeze(1)).all())
    plain = certified_radius(network, x, precision="exact")
    with torch.autocast("cpu", dtype=torch.bfloat16):  # the exact network does not know of it
        again, running = certified_radius(network, x, precision="exact"), certified_radius(network, x)
    assert torch.equal(again.radius, plain.radius)
    assert bool((running.radius <= found.radius).all())
    assert bool((found.margin < plain.margin).all())


def test_padding_cannot_change_and_has_no_effect(generator: torch.Generator) -> None:
    unit = layer(2, 4, generator, stability="contracting", step_size=0.2, bidirectional=True)
    network = StatedClassifier(unit, linear_head(8, 3, generator), readout="state", unit_takes_lengths=True)
    x = torch.randn(9, 3, 2, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([9, 5, 2])
    found = certified_radius(network, x, lengths=lengths)
    for sample, length in enumerate(lengths.tolist()):
        alone = certified_radius(network, x[:length, sample : sample + 1])
        assert torch.allclose(alone.radius, found.radius[sample : sample + 1], rtol=1e-6)
    nonsense = x.masked_fill((torch.arange(9)[:, None] >= lengths)[..., None], float("nan"))
    assert torch.equal(certified_radius(network, nonsense, lengths=lengths).radius, found.radius)


def test_a_batch_in_parts_gives_the_same_radii_and_reports_progress() -> None:
    case = random_case(3, batch=7)
    seen: list[tuple[str, int, int | None]] = []
    whole = certified_radius(case.network, case.x, **case.given)
    parts = certified_radius(case.network, case.x, batch_size=3, progress=lambda *step: seen.append(step), **case.given)
    assert torch.allclose(whole.radius, parts.radius, rtol=1e-9)
    assert seen == [("radius", 3, 7), ("radius", 6, 7), ("radius", 7, 7)]


def test_one_class_cannot_change_and_ties_have_no_radius() -> None:
    case = random_case(5)
    features = case.network.head.in_features
    alone = replace(case.network, head=nn.Linear(features, 1, dtype=torch.float64))
    assert bool((certified_radius(alone, case.x, **case.given).radius == torch.inf).all())
    tied = nn.Linear(features, 2, bias=False, dtype=torch.float64)
    nn.init.ones_(tied.weight)
    found = certified_radius(replace(case.network, head=tied), case.x, **case.given)
    assert bool((found.radius == 0).all())
    assert found.accuracy(found.prediction, 0.0) == 0.0  # nothing proves which class it is
