"""Guarantees under attack: radii, bounds and certificates of networks that were changed in ways nobody announces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

import lipschitz_rnn as lr
from lipschitz_rnn.stability import StatedClassifier, certified_radius, certify, rounding_bound
from lipschitz_rnn.training import SequenceModel
from lipschitz_rnn.units.recurrence import UnstatedRecurrenceError

WIDE = {"dtype": torch.float64}


def contracting(hidden: int = 4, **options: Any) -> lr.LipschitzRNN:
    torch.manual_seed(0)
    return lr.LipschitzRNN(2, hidden, stability="contracting", **options).eval()


def dissipative(**options: Any) -> lr.LipschitzRNN:
    torch.manual_seed(0)
    return lr.LipschitzRNN(2, 6, step_size=0.1, gamma=(1.2, 0.5), init_scale=1.0, **options).eval()


@pytest.mark.parametrize("norm", ["l2", "linf", "step"])
@pytest.mark.parametrize("irregular", [False, True])
def test_input_weights_whose_squares_overflow_have_no_radius(norm: Any, irregular: bool) -> None:
    """Their gain is infinite times zero: no number, which once counted as a gain of zero and an infinite radius."""
    unit = contracting(**WIDE)
    with torch.no_grad():
        unit.cell().weight_ih.fill_(1e200)
    network = StatedClassifier(unit, nn.Linear(4, 3, **WIDE))
    x, spans = torch.zeros(5, 2, 2, **WIDE), torch.full((5, 2), 0.03, **WIDE)
    spans[0] = 0.0
    found = certified_radius(network, x, norm=norm, timespans=spans if irregular else None)
    assert bool((found.margin > 0).all())
    assert bool((found.radius == 0).all())


class Flickering(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * (0.5 + torch.rand_like(weight))


@pytest.mark.parametrize("name", ["weight_ih", "bias_ih"])
def test_random_input_weights_have_no_radius(name: str) -> None:
    unit = contracting()
    register_parametrization(unit.cell(), name, Flickering())
    with pytest.raises(UnstatedRecurrenceError, match=r"input weights of this .* change from call to call"):
        certified_radius(StatedClassifier(unit, nn.Linear(4, 3)), torch.randn(7, 5, 2))


def test_a_unit_that_takes_time_for_the_batch_has_no_radius() -> None:
    unit, head, x = contracting(batch_first=True), nn.Linear(4, 3), torch.randn(5, 7, 2)
    with pytest.raises(ValueError, match=r"batch_first=True, but is stated to read \(T, B, p\)"):
        certified_radius(StatedClassifier(unit, head), x)
    assert certified_radius(StatedClassifier(unit, head, batch_first=True), x).samples == 5
    with pytest.raises(ValueError, match=r"a SequenceModel calls it with \(T, B, p\)"):
        SequenceModel(unit, head, "last")
    model = SequenceModel(contracting(), head, "last")
    model.unit.batch_first = True
    with pytest.raises(ValueError, match=r"batch_first=True, but is stated to read \(T, B, p\)"):
        certified_radius(model, x)


@pytest.mark.needs("cvxpy", "scipy")
def test_rounding_is_not_bounded_with_the_certificate_of_nearly_the_same_layer() -> None:
    layer = dissipative(**WIDE)
    certificate, x = certify(layer), torch.randn(50, 1, 2, **WIDE)
    assert np.all(rounding_bound(layer, x, certificate=certificate).states < 1e-10)
    with torch.no_grad():
        layer.cell().hidden.M_A.mul_(1 + 1e-6)  # type: ignore[union-attr, operator]
    with pytest.raises(ValueError, match="about another A than the layer has"):
        rounding_bound(layer, x, certificate=certificate)


@pytest.mark.needs("cvxpy", "scipy")
def test_an_attached_certificate_covers_only_the_matrices_that_run() -> None:
    layer, x = dissipative(), torch.randn(300, 2, 2)
    layer.parallel = 4
    plain, half = certify(layer), certify(layer, precision="bfloat16")
    for certificate, autocast in ((plain, False), (half, True), (certify(layer, precision="exact"), False)):
        layer.attach_certificate(certificate)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            layer(x)
        assert layer.bounds[0].proved
        with torch.autocast("cpu", torch.bfloat16, enabled=not autocast), pytest.raises(ValueError, match="run in"):
            layer(x)


def test_chunks_are_refused_where_a_contracting_unit_runs_other_matrices() -> None:
    x = torch.randn(40, 2, 2)

    def stretched(module: nn.Module, given: Any, matrices: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return matrices[0], 1.5 * matrices[1]

    hooked, replaced = contracting(parallel=4), contracting(parallel=4)
    hooked(x)
    hooked.cell().hidden.register_forward_hook(stretched)
    make = replaced.cell().hidden.forward
    replaced.cell().hidden.forward = lambda: tuple(1.5 * matrix for matrix in make())
    for layer in (hooked, replaced):
        with pytest.raises(ValueError, match="nothing proves that they contract"):
            layer(x)


def test_a_cell_of_another_kind_is_named() -> None:
    layer = contracting()
    layer.cells["l0"] = nn.Linear(2, 4)
    with pytest.raises(TypeError, match=r"cells\.l0 is a Linear; it must be a LipschitzRNNCell"):
        layer(torch.randn(3, 1, 2))
