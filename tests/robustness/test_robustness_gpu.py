"""The same numbers on a GPU, with cuDNN's units in evaluation mode."""

from __future__ import annotations

import pytest
import torch
from robustness_models import build, problem

import lipschitz_rnn as lr
from lipschitz_rnn.robustness import deepfool, hessian, pgd

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("unit", lr.units.available())
def test_attacks_agree_with_the_cpu(unit: str) -> None:
    """In float64, where the two machines differ by rounding alone."""
    inputs, _ = problem(50)
    model = build(unit, hidden=8).double().eval()
    inputs = inputs.double()
    targets = model(inputs)[0].argmax(1)
    for attack, options in ((pgd, {"step_size": 0.05}), (deepfool, {"norm": "l2"}), (deepfool, {"norm": "linf"})):
        here = attack(model, inputs, targets, **options)
        there = attack(model.cuda(), inputs.cuda(), targets.cuda(), **options)
        model.cpu()
        assert not model.training
        assert there.clean_accuracy == 1.0
        assert abs(here.accuracy - there.accuracy) <= 0.02
        assert (here.l2 - there.l2.cpu()).abs().median() <= 1e-6 * max(1.0, here.l2.abs().max().item())


@pytest.mark.parametrize("unit", ["lipschitz", "lstm", "gru", "neural-ode", "urnn"])
def test_curvature_agrees_with_the_cpu(unit: str) -> None:
    inputs, targets = problem(40)
    model = build(unit, hidden=8).eval()
    here = hessian(model, inputs, targets, dtype=torch.float64)
    there = hessian(model.cuda(), inputs.cuda(), targets.cuda())
    assert there.lambda_max == pytest.approx(here.lambda_max, rel=0.01)
    assert there.lambda_min == pytest.approx(here.lambda_min, rel=0.01)
    assert abs(there.trace - here.trace) <= 4.0 * (here.trace_error + there.trace_error)
