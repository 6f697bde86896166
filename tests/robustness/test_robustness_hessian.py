"""Curvature against full Hessians, known matrices and finite differences."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from robustness_models import build, problem, trained
from torch import Tensor, nn

import lipschitz_rnn as lr
from lipschitz_rnn.robustness import HessianResult, hessian
from lipschitz_rnn.robustness.curvature import LossHessian
from lipschitz_rnn.robustness.hessian_spectrum import NotConverged
from lipschitz_rnn.robustness.plots import draw_density
from lipschitz_rnn.tasks import Batch

F64 = torch.float64


@pytest.fixture(scope="module", params=["lipschitz", pytest.param("lstm", marks=pytest.mark.slow)])
def pair(request: pytest.FixtureRequest) -> tuple[HessianResult, HessianResult]:
    """Estimated and exact, of the same trained network and samples."""
    model = trained(request.param, hidden=5)
    inputs, targets = problem(60, seed=3)
    estimated = hessian(model, inputs, targets, dtype=F64)
    return estimated, hessian(model, inputs, targets, dtype=F64, exact=True)


def test_estimates_agree_with_the_full_hessian(pair: tuple[HessianResult, HessianResult]) -> None:
    estimated, exact = pair
    assert not estimated.exact
    assert exact.exact
    assert exact.lambda_min < 0.0 < exact.lambda_max
    assert estimated.lambda_max == pytest.approx(exact.lambda_max, rel=0.01)
    assert estimated.lambda_min == pytest.approx(exact.lambda_min, rel=0.01)
    assert estimated.condition_number == pytest.approx(exact.lambda_max / -exact.lambda_min, rel=0.02)
    # A standard error: three of them hold in 99.7 of 100 cases. It must be small enough to say something.
    assert abs(estimated.trace - exact.trace) <= 3.0 * estimated.trace_error
    assert 0.0 < estimated.trace_error < 0.05 * exact.trace
    assert exact.trace_error == 0.0
    assert estimated.loss == pytest.approx(exact.loss)


def test_the_density_integrates_to_one_and_follows_the_eigenvalues(pair: tuple[HessianResult, HessianResult]) -> None:
    for result in pair:
        density = result.density
        assert np.trapezoid(density.values, density.grid) == pytest.approx(1.0, abs=1e-6)
        assert density.weights.sum() == pytest.approx(1.0)
        assert result.parameters * (density.nodes * density.weights).sum() == pytest.approx(pair[1].trace, rel=0.05)
    estimated, exact = (result.density for result in pair)
    cut = np.linspace(exact.nodes[0], exact.nodes[-1], 50)[1:-1]
    shares = [[d.weights[d.nodes <= value].sum() for value in cut] for d in (estimated, exact)]
    assert np.abs(np.subtract(*shares)).max() < 0.05


@pytest.mark.slow
def test_the_standard_error_of_the_trace_is_honest() -> None:
    """Over many draws the deviation from the exact trace is as large as stated, not twice and not half of it."""
    model, (inputs, targets) = trained(hidden=4), problem(20, seed=3)
    exact = hessian(model, inputs, targets, dtype=F64, exact=True).trace
    results = [
        hessian(model, inputs, targets, dtype=F64, probes=8, runs=1, steps=5, generator=generator)
        for generator in (torch.Generator().manual_seed(seed) for seed in range(16))
    ]
    in_errors = [(result.trace - exact) / result.trace_error for result in results]
    assert 0.5 < math.sqrt(np.mean(np.square(in_errors))) < 2.0
    assert abs(np.mean(in_errors)) < 3.0 / math.sqrt(16)


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(80, 1, bias=False, dtype=F64)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[0])


def squares(outputs: Tensor, batch: Batch) -> Tensor:
    return (outputs - batch.targets).square().mean()


def test_a_known_hessian() -> None:
    """Least squares: H = 2 XᵀX / count, whatever the weights are."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(1, 200, 80, generator=generator, dtype=F64)
    targets = torch.randn(200, 1, generator=generator, dtype=F64)

    eigenvalues = torch.linalg.eigvalsh(2.0 * inputs[0].T @ inputs[0] / 200)
    for exact in (True, False):
        found = hessian(Regression(), inputs, targets, loss=squares, exact=exact, tolerance=1e-6, batch_size=64)
        assert found.lambda_max == pytest.approx(eigenvalues[-1].item(), rel=1e-6)
        assert found.lambda_min == pytest.approx(eigenvalues[0].item(), rel=1e-6)
        assert abs(found.trace - eigenvalues.sum().item()) <= 4.0 * found.trace_error + 1e-9
        assert found.condition_number == pytest.approx((eigenvalues[-1] / eigenvalues[0]).item(), rel=1e-5)
        assert found.parameters == 80


def test_the_same_numbers_twice() -> None:
    """Where ARPACK has seen all that one vector leads to, it asks for another, which must not come from anywhere."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(1, 200, 80, generator=generator, dtype=F64)
    inputs[..., 12:] = 0.0  # parameters that nothing depends on, as a network has them too
    model, targets = Regression(), torch.randn(200, 1, generator=generator, dtype=F64)
    first, second = (hessian(model, inputs, targets, loss=squares, probes=2, runs=1, steps=2) for _ in range(2))
    assert first.to_dict() == second.to_dict()


def test_the_full_hessian_is_that_of_pytorch() -> None:
    model = build(hidden=3).double()
    inputs, targets = problem(10)
    names = [name for name, _ in model.named_parameters()]

    def loss(*values: Tensor) -> Tensor:
        outputs, _ = torch.func.functional_call(model, dict(zip(names, values, strict=True)), (inputs.double(),))
        return F.cross_entropy(outputs, targets)

    blocks = torch.autograd.functional.hessian(loss, tuple(p.detach() for p in model.parameters()))
    sizes = [p.numel() for p in model.parameters()]
    rows = [torch.cat([b.reshape(sizes[i], sizes[j]) for j, b in enumerate(row)], 1) for i, row in enumerate(blocks)]
    expected = torch.cat(rows)
    operator = LossHessian(model, Batch(inputs, targets))
    torch.testing.assert_close(operator.dense(), expected, rtol=1e-8, atol=1e-10)
    unit = sum(p.numel() for p in model.unit.parameters())
    part = LossHessian(model, Batch(inputs, targets), parameters="unit")
    assert part.size == unit
    torch.testing.assert_close(part.dense(), expected[:unit, :unit], rtol=1e-8, atol=1e-10)
    same = LossHessian(model, Batch(inputs, targets), parameters=model.unit, batch_size=3)
    torch.testing.assert_close(same.dense(), part.dense(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("unit", lr.units.available())
def test_products_of_every_unit_against_finite_differences(unit: str) -> None:
    model = build(unit, hidden=4).double()
    batch = Batch(*problem(5))
    operator = LossHessian(model, batch, dtype=F64, batch_size=3)
    direction = torch.randn(1, operator.size, dtype=F64, generator=torch.Generator().manual_seed(1))

    def gradient(step: float) -> Tensor:
        moved = LossHessian(model, batch, dtype=F64)
        offset = 0
        for parameter in moved.parameters:
            piece = direction[0, offset : offset + parameter.numel()]
            parameter.data += step * piece.view_as(parameter)
            offset += parameter.numel()
        return moved.gradient()[0]

    difference = (gradient(1e-5) - gradient(-1e-5)) / 2e-5
    product = (operator @ direction)[0]
    assert product.norm() > 0.0
    torch.testing.assert_close(product, difference, rtol=1e-4, atol=1e-6 * difference.norm().item())


def test_outputs_at_every_step_and_padding() -> None:
    """The mean over valid steps does not depend on how the samples are cut into batches."""
    model = build().double()
    model.readout = "all"
    generator = torch.Generator().manual_seed(0)
    inputs = problem(7)[0].double()
    targets = torch.randn(6, 7, 3, generator=generator, dtype=F64)
    lengths = torch.tensor([6, 1, 3, 2, 6, 5, 4])

    def loss(outputs: Tensor, batch: Batch) -> Tensor:
        assert batch.lengths is not None
        valid = (torch.arange(6)[:, None] < batch.lengths).double()
        return ((outputs - batch.targets).square().mean(-1) * valid).sum() / valid.sum()

    whole, parts = (LossHessian(model, Batch(inputs, targets, lengths), loss, batch_size=size) for size in (7, 2))
    direction = torch.randn(2, whole.size, generator=generator, dtype=F64)
    torch.testing.assert_close(parts @ direction, whole @ direction, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(parts.gradient(), whole.gradient(), rtol=1e-9, atol=1e-12)


def test_tokens() -> None:
    """An embedding, and a class at every step."""
    generator = torch.Generator().manual_seed(0)
    model = build(hidden=4).double()
    model.embedding, model.readout = nn.Embedding(3, 4, dtype=F64), "all"
    tokens = torch.randint(3, (7, 6), generator=generator)
    operator = LossHessian(model, Batch(tokens[:-1], tokens[1:]), batch_size=4)
    assert operator.size == sum(parameter.numel() for parameter in model.parameters())
    one, two = torch.randn(2, 1, operator.size, generator=generator, dtype=F64)
    torch.testing.assert_close((operator @ one) @ two.T, (operator @ two) @ one.T)
    whole = LossHessian(model, Batch(tokens[:-1], tokens[1:]))
    torch.testing.assert_close(whole @ one, operator @ one)


def test_the_model_is_left_as_it_was() -> None:
    model = build("lstm", num_layers=2, dropout=0.5).train()
    inputs, targets = problem(8)
    stages: list[str] = []
    first, second = (
        hessian(model, inputs, targets, steps=4, runs=1, tolerance=0.1, progress=lambda *facts: stages.append(facts[0]))
        for _ in range(2)
    )
    assert first.to_dict() == second.to_dict()
    assert set(stages) == {"eigenvalues", "trace and density"}
    assert all(module.training for module in model.modules())
    assert all(p.grad is None and p.requires_grad and p.dtype == torch.float32 for p in model.parameters())


def test_layouts_agree_and_a_small_model_is_exact() -> None:
    layer = lr.LipschitzRNN(4, 3, batch_first=True)
    head = nn.Linear(3, 3)

    class Classifier(nn.Module):
        def __init__(self, batch_first: bool) -> None:
            super().__init__()
            self.layer, self.head, self.batch_first = layer, head, batch_first

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layer(x if self.batch_first else x.transpose(0, 1))[1][-1])

    inputs, targets = problem(9)
    found = hessian(Classifier(False), inputs, targets)
    swapped = hessian(Classifier(True), inputs.transpose(0, 1), targets, batch_first=True)
    assert found.exact
    assert found.to_dict() == swapped.to_dict()
    assert hessian(Classifier(False), inputs, targets, parameters=head).parameters == 12
    figure = draw_density({"one": found.density, "two": swapped.density})
    assert len(figure.axes[0].lines) == 2


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"parameters": "head"}, "head"),
        ({"parameters": nn.Linear(2, 2)}, "no trainable parameters"),
        ({"probes": 1}, "probes"),
        ({"steps": 1}, "steps"),
        ({"runs": 0}, "runs"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_wrong_arguments(options: dict[str, object], part: str) -> None:
    inputs, targets = problem(5)
    with pytest.raises(ValueError, match=part):
        hessian(build(), inputs, targets, **options)


def test_errors_that_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, targets = problem(5)
    with pytest.raises(ValueError, match="pass the submodule"):
        hessian(nn.Sequential(nn.Linear(4, 3)), inputs, targets, parameters="unit")
    broken = build()
    broken.head.weight.data.fill_(math.nan)
    with pytest.raises(ValueError, match="diverged"):
        hessian(broken, inputs, targets)
    module = sys.modules["lipschitz_rnn.robustness.hessian_spectrum"]
    monkeypatch.setattr(module, "LARGEST_EXACT", 100)
    with pytest.raises(ValueError, match="the limit is 100"):
        hessian(build(), inputs, targets, exact=True)
    monkeypatch.setattr(module, "RESTARTS", 1)
    with pytest.raises(NotConverged, match="larger tolerance"):
        hessian(build(), inputs, targets, tolerance=1e-15)
