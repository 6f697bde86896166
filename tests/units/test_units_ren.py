"""The recurrent equilibrium network contracts by its factor for all parameter values, and says so."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lipschitz_rnn import units
from lipschitz_rnn.ops.common.precision import float32_products
from lipschitz_rnn.stability import certify
from lipschitz_rnn.units.ren import RENCell, _within


def anywhere(seed: int, **options: Any) -> units.registry.Recurrent:
    """A unit with parameters of any size."""
    torch.manual_seed(seed)
    unit = units.build("ren", 2, 6, **options)
    with torch.no_grad():
        for parameter in unit.parameters():
            parameter.copy_(float(10 ** torch.empty(()).uniform_(-2, 1)) * torch.randn(parameter.shape))
    return unit


@pytest.mark.parametrize("seed", range(6))
def test_the_construction_proves_its_factor(seed: int) -> None:
    """The built-in metric and multipliers prove the factor asked for, for any parameters, in exact arithmetic."""
    options = {"factor": (0.3, 0.9, 0.999)[seed % 3], "depth": (1, 3, 5)[seed % 3], "neurons": 5}
    unit = anywhere(seed, **options).double()
    certificate = certify(unit, rate=-math.log(options["factor"]) * (1 - 1e-6), solver="structured")
    assert certificate.holds, certificate.reason
    assert certificate.factor <= options["factor"] * (1 + 1e-5)


def test_the_inequality_is_the_papers() -> None:
    """‖Δh⁺‖² ≤ a² ‖Δh‖² − 2 wᵀΛ(v − w): the matrix of the difference is positive semidefinite, written out by hand."""
    cell = anywhere(0, factor=0.8, depth=2).cell()
    assert isinstance(cell, RENCell)
    A, B, C, D, P, multiplier = (part.detach().numpy() for part in cell.equations())
    Lambda, n, m = np.diag(multiplier), len(A), len(C)
    both = np.hstack((A, B))
    form = np.zeros((n + m, n + m))
    form[:n, :n] = 0.8**2 * P
    form[:n, n:] = -C.T @ Lambda
    form[n:, :n] = form[:n, n:].T
    form[n:, n:] = 2 * Lambda - Lambda @ D - D.T @ Lambda
    form -= both.T @ P @ both
    assert np.linalg.eigvalsh(form)[0] > -1e-9 * np.abs(form).max()
    assert not np.triu(D).any()
    assert np.linalg.eigvalsh(P)[0] > 0


def test_states_approach_each_other_at_the_factor() -> None:
    unit = anywhere(1, factor=0.7).double()
    x = torch.randn(30, 1, 2, dtype=torch.float64)
    first, second = (5 * torch.randn(1, 1, 6, dtype=torch.float64) for _ in range(2))
    paths = [torch.cat([h, unit(x, h)[0]]).detach()[:, 0] for h in (first, second)]
    metric = unit.cell().equations()[4].detach()
    difference = paths[0] - paths[1]
    lengths = torch.einsum("ti,ij,tj->t", difference, metric, difference).sqrt()
    assert torch.all(lengths[1:] <= 0.7 * lengths[:-1] * (1 + 1e-9) + 1e-12)


def test_it_stays_contracting_while_it_trains() -> None:
    torch.manual_seed(0)
    unit = units.build("ren", 1, 8, factor=0.95)
    optimizer = torch.optim.SGD(unit.parameters(), lr=1.0)  # far too much, on purpose
    x = torch.randn(20, 4, 1)
    for _ in range(10):
        optimizer.zero_grad()
        unit(x)[0].square().mean().neg().backward()  # asks for large states
        torch.nn.utils.clip_grad_norm_(unit.parameters(), 1.0)
        optimizer.step()
    assert certify(unit, rate=-math.log(0.96)).holds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factor": 1.0}, "factor is 1.0; it must be above 0 and below 1"),
        ({"factor": 0.0}, "factor is 0.0"),
        ({"depth": 9}, "depth is 9; it must be from 1 to neurons = 4"),
        ({"neurons": 0}, "neurons"),
        ({"nonlinearity": "sine"}, "choose 'tanh' or 'relu'"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        units.build("ren", 2, 4, **options)


@pytest.mark.parametrize("how", ["autocast", "medium products", "compiled"])
@pytest.mark.parametrize("depth", [1, 3])
def test_no_setting_voids_the_factor(how: str, depth: int) -> None:
    """In bfloat16 0.999 is 1. Steps are those of float32 matrices under every setting, and `certify` says so."""
    torch.manual_seed(0)
    unit = units.build("ren", 1, 12, factor=0.999, depth=depth)
    x, h_0 = torch.zeros(8 if how == "compiled" else 300, 2, 1), torch.randn(1, 2, 12)
    with torch.no_grad():
        unit.cell().input.bias.zero_()  # which autocast rounds: that moves all states alike
        states, _ = unit(x, h_0)
        run: Callable[..., Any] = unit
        if how == "compiled":
            torch._dynamo.reset()
            run = torch.compile(unit, backend="eager")
        precision = "medium" if how == "medium products" else "highest"
        with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"), float32_products(precision):
            found, _ = run(x, h_0)
            certificate = certify(unit)
    tolerance = 2.0**-8 if how == "autocast" else 1e-5  # only the results are rounded
    torch.testing.assert_close(found.float(), states, rtol=tolerance, atol=1e-5)
    assert certificate.holds
    assert certificate.precision == "float32"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_size_of_the_parameters_voids_the_factor(dtype: torch.dtype) -> None:
    """Beyond a norm they are scaled down: beside an H of 1e12 float64 loses the εI that makes the inequality strict."""
    generator = torch.Generator().manual_seed(0)
    slopes = torch.tensor(list(itertools.product([0.0, 1.0], repeat=4)), dtype=torch.float64)
    for case in range(300):
        unit = units.build("ren", 1, 4, factor=0.999).to(dtype)
        cell = unit.cell()
        assert isinstance(cell, RENCell)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        largest = 10.0 ** (case % 20 if dtype == torch.float32 else case % 200)
        root = (
            torch.outer(torch.ones(12), normal(12))
            if case % 3 == 0
            else normal(12, 1 + case % 7) @ normal(1 + case % 7, 12)
        )
        with torch.no_grad():
            cell.root.copy_(largest * root)
            cell.rotation.copy_(largest * (case % 2) * normal(4, 4))
            both, back, _ = (part.double() for part in cell.weights())
        jacobians = both.mT[:4] + back.mT @ (slopes.unsqueeze(-1) * both.mT[4:])
        assert torch.linalg.eigvals(jacobians).abs().max() <= 0.999, (case, largest)


def test_small_parameters_are_taken_as_they_are() -> None:
    for value in (torch.zeros(3, 3), torch.randn(3, 3), 1e-300 * torch.randn(3, 3, dtype=torch.float64)):
        assert torch.equal(_within(value, 2.0**8), value)
    large = _within(1e200 * torch.ones(3, 3, dtype=torch.float64), 2.0**8)
    torch.testing.assert_close(torch.linalg.matrix_norm(large), torch.tensor(2.0**8, dtype=torch.float64))
