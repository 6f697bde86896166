"""Radii are about the numbers that come out: the computed prediction does not change within them either."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any

import pytest
import torch
from radius_attack import projected, scores_of
from radius_cases import layer, linear_head
from torch import Tensor, nn

import lipschitz_rnn as lr
from lipschitz_rnn.stability import StatedClassifier, certified_radius

NETWORKS: dict[str, dict[str, Any]] = {
    "euler": {"stability": "contracting", "rate": 0.3},
    "stack": {"stability": "contracting", "rate": 0.3, "num_layers": 2, "nonlinearity": "relu"},
    "directions": {"stability": "contracting", "rate": 0.3, "bidirectional": True, "integrator": "midpoint"},
    "free": {"gamma": 2.5, "integrator": "heun"},
    "divided": {"gamma": 2.5, "max_step": 0.07, "nonlinearity": "identity"},
}
KINDS: dict[str, tuple[torch.dtype, AbstractContextManager[Any] | None]] = {
    "float32": (torch.float32, None),
    "bfloat16": (torch.bfloat16, None),
    "float16": (torch.float16, None),
    "autocast": (torch.float32, torch.autocast("cpu", dtype=torch.bfloat16)),
}

# One in four combinations runs by default: every network and every kind once or twice.
COMBINATIONS = [
    pytest.param(kind, name, marks=[] if (row + column) % 4 == 0 else [pytest.mark.full], id=f"{kind}-{name}")
    for row, kind in enumerate(KINDS)
    for column, name in enumerate(NETWORKS)
]


def difficult(kind: str, name: str, seed: int, classes: int = 3) -> tuple[StatedClassifier, Tensor]:
    """A network whose scores have a large part in common, so that its margins are of the size of rounding."""
    generator = torch.Generator().manual_seed(seed)
    options = {"step_size": 0.2, **NETWORKS[name]}
    unit = layer(2, 5, generator, spread=0.5 if "stability" in options else 0.1, **options)
    head = linear_head(5 * unit.num_directions, classes, generator, scale=0.3)
    dtype, context = KINDS[kind]
    unit_common = {torch.float32: 3e3, torch.float16: 4.0, torch.bfloat16: 0.5}[torch.bfloat16 if context else dtype]
    common = unit_common * (0.1, 10.0, 1e3)[seed % 3]
    with torch.no_grad():
        head.weight += common * torch.randn(1, head.weight.shape[1], generator=generator, dtype=torch.float64)
        if "stability" not in options and unit_common < 1.0:
            # Every product of a free recurrence is rounded to 16 bits on a GPU: margins have to be larger.
            head.bias = nn.Parameter(torch.tensor([2.0] + [0.0] * (classes - 1), dtype=torch.float64))
    readout = ("last", "mean", "state")[seed % 3]
    x = torch.randn(25, 6, 2, generator=generator, dtype=torch.float64).to(dtype)
    return StatedClassifier(unit.to(dtype), head.to(dtype), readout=readout), x  # type: ignore[arg-type]


def widened(network: StatedClassifier) -> StatedClassifier:
    """The same weights in float64."""
    unit: Any = deepcopy(network.unit).double()
    for mine, theirs in zip(unit.cells.values(), network.unit.cells.values(), strict=True):  # type: ignore[operator, union-attr]
        A, W = (matrix.detach().double() for matrix in theirs.hidden_matrices())
        mine.hidden_matrices = lambda A=A, W=W: (A, W)  # a contracting unit would compute them anew
    return StatedClassifier(unit, deepcopy(network.head).double(), network.readout)


def changes(x: Tensor, radius: Tensor, count: int, seed: int) -> Tensor:
    """(count, T, B, p), each of at most the radius, in the dtype of x."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn((count, *x.shape), generator=generator, dtype=torch.float64)
    return torch.stack([projected(1e3 * one, radius.double(), "l2") for one in drawn]).to(x.dtype)


def flips(network: StatedClassifier, x: Tensor, radius: Tensor, prediction: Tensor, kind: str) -> int:
    """How many computed predictions differ from the certified one, for changes of 0.9 of the radius and for none."""
    _, context = KINDS[kind]
    found = 0
    with torch.no_grad(), context or nullcontext():
        for change in [torch.zeros_like(x), *changes(x, 0.9 * radius, 12, 3)]:
            found += int(((scores_of(network, x + change).argmax(1) != prediction) & (radius > 0)).sum())
    return found


@pytest.mark.parametrize(("kind", "name"), COMBINATIONS)
def test_the_computed_prediction_does_not_change_within_the_radius(kind: str, name: str) -> None:
    certified = 0
    for seed in range(3):
        network, x = difficult(kind, name, seed)
        _, context = KINDS[kind]
        with context or nullcontext():
            found = certified_radius(network, x, method="global")
        assert found.arithmetic == ("bfloat16" if kind == "autocast" else kind)
        assert flips(network, x, found.radius, found.prediction, kind) == 0
        certified += int((found.radius > 0).sum())
        real = certified_radius(network, x, method="global", precision="exact")
        assert bool((found.radius <= real.radius).all())
        assert bool((real.rounding == 0).all())
    assert certified > 0


def test_margins_of_the_size_of_rounding_have_no_radius() -> None:
    """y₀ − y₁ = 0.6 h₂, but both scores are 10⁸ h₁ in float32: the class that comes out is arbitrary."""
    torch.manual_seed(0)
    unit = lr.LipschitzRNN(2, 2, stability="contracting", step_size=0.2, rate=0.3)
    head = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1e8, 0.3], [1e8, -0.3]]))
    network = StatedClassifier(unit, head)
    x = torch.randn(20, 16, 2)
    real, found = certified_radius(network, x, precision="exact"), certified_radius(network, x)
    assert flips(network, x, real.radius, real.prediction, "float32") > 0
    assert bool((found.radius == 0).all())
    assert bool((found.margin < 0).all())
    assert bool((found.rounding > real.margin).all())
    with pytest.raises(ValueError, match="precision is"):
        certified_radius(network, x, precision="float8")


@pytest.mark.parametrize(("kind", "name"), [each for each in COMBINATIONS if each.values[0] != "autocast"])
def test_the_rounding_covers_the_distance_to_float64(kind: str, name: str) -> None:
    """At the sample and at changed inputs, for every difference of the prediction and its runner-up."""
    for seed in range(3):
        network, x = difficult(kind, name, seed)
        found = certified_radius(network, x)
        pick = torch.stack((found.prediction, found.runner_up), 1)
        exact = widened(network)
        with torch.no_grad():
            for change in [torch.zeros_like(x), *changes(x, 0.99 * found.radius, 6, seed)]:
                computed = scores_of(network, x + change).double().gather(1, pick)
                real = scores_of(exact, (x + change).double()).gather(1, pick)
                off = (computed[:, 0] - computed[:, 1] - real[:, 0] + real[:, 1]).abs()
                assert bool((off <= found.rounding).all())
                assert bool((computed[:, 0] > computed[:, 1])[found.radius > 0].all())


def test_no_change_makes_the_running_network_overflow() -> None:
    """Equal rows of the head: no change matters in exact arithmetic, but inf − inf is no score."""
    torch.manual_seed(0)
    unit = lr.LipschitzRNN(1, 3, stability="contracting", step_size=0.2, nonlinearity="relu")
    head = nn.Linear(3, 2)
    with torch.no_grad():
        head.weight.zero_()
        unit.cell().weight_ih.mul_(1e3)
        head.bias.copy_(torch.tensor([1.0, 0.0]))
    network, x = StatedClassifier(unit, head), torch.ones(30, 1, 1)
    assert certified_radius(network, x, precision="exact").radius > 1e200
    found = certified_radius(network, x)
    assert bool((found.radius > 1e30).all())
    assert bool(found.radius.isfinite().all())
    with torch.no_grad():
        assert scores_of(network, x + 0.9 * found.radius.float() / 30).isfinite().all()
        assert not scores_of(network, torch.full_like(x, 3e38)).isfinite().all()


def test_chunks_in_parallel_are_refused() -> None:
    torch.manual_seed(0)
    unit = lr.LipschitzRNN(1, 3, stability="contracting", step_size=0.2, parallel=2)
    network, x = StatedClassifier(unit, nn.Linear(3, 2)), torch.randn(9, 2, 1)
    with pytest.raises(ValueError, match="parallel chunks"):
        certified_radius(network, x)
    assert certified_radius(network, x, precision="exact").arithmetic == "exact"
