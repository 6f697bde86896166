"""The contraction that the parallel scan relies on: no such network, a factor that is too small, a proof or none."""

from __future__ import annotations

import math

import pytest
import torch
from parallel_cases import WIDE, make_case, plain_case
from torch import Tensor

from lipschitz_rnn.ops import Contraction, ContradictedFactorError, Parallel, ScanBound


@pytest.mark.parametrize("batch", [1, 3])
def test_as_many_passes_as_chunks_are_the_sequential_scan_of_any_network(batch: int) -> None:
    """Also of one that grows; nothing is proved then."""
    torch.manual_seed(0)
    case = plain_case(B=batch, T=60)
    case.tensors["A"] = case.tensors["A"] + 6.0 * torch.eye(6, **WIDE)
    settings = Parallel(5, warm_up=12, passes=5, fixed=True, proved=False)
    bound = ScanBound()
    exact, states = case.gradients(1)
    found, parallel = case.gradients(1, parallel=settings, bound=bound)
    assert not bound.proved
    assert float(states.abs().max()) > 1e3
    torch.testing.assert_close(parallel, states, rtol=1e-12, atol=1e-12)
    for name, gradient in exact.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-11, atol=1e-11)


def test_a_network_that_remembers_runs_sequentially() -> None:
    """The tolerance is met in any case: here by running the chunks one after another."""
    case = plain_case(rate=1e-4, T=80)
    bound = ScanBound()
    exact, states = case.gradients(1)
    found, parallel = case.gradients(1, parallel=8, contraction=case.contraction, bound=bound)
    assert bound.passes == 0
    assert bound.adjoint_passes == 0
    assert float(bound.states) == 0.0
    torch.testing.assert_close(parallel, states, rtol=1e-12, atol=1e-12)
    for name, gradient in exact.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-10)


def test_a_device_is_asked_once_per_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the proved warm-up is short, once forwards and once backwards; with fixed passes never."""
    case, asked = plain_case(T=480), []
    real = Tensor.cpu
    monkeypatch.setattr(Tensor, "cpu", lambda tensor: (asked.append(tensor.shape), real(tensor))[1])
    for fixed, copies in ((True, 0), (False, 1)):
        asked.clear()
        settings = Parallel(4, fixed=fixed)
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in case.tensors.items()}
        bound = ScanBound()
        states, _ = case.run(leaves, parallel=settings, contraction=case.contraction, bound=bound)
        assert len(asked) == copies
        asked.clear()
        states.square().mean().backward()
        assert len([shape for shape in asked if len(shape) == 4]) == copies  # the factors are on the host already
        assert bound.adjoint_passes == 2


def test_a_measured_residual_is_marked_as_not_proved() -> None:
    case = plain_case()
    bound = ScanBound()
    states, _ = case.run(parallel=Parallel(4, proved=False), bound=bound)
    assert not bound.proved
    assert "not proved" in repr(bound)
    torch.testing.assert_close(states, case.run()[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_factor_that_is_too_small_is_caught(dtype: torch.dtype) -> None:
    case = plain_case(rate=0.1)
    case.tensors = {name: tensor.to(dtype) for name, tensor in case.tensors.items()}
    case.in_parallel(ScanBound(), Parallel(4))  # the true one is not
    planted = Contraction(0.8, case.contraction.root, case.contraction.longest)
    with pytest.raises(ContradictedFactorError, match=r"0\.8 is contradicted"):
        case.run(parallel=4, contraction=planted)


def test_a_contradiction_shows_in_a_bound_that_nobody_waits_for() -> None:
    case = plain_case(rate=0.1)
    planted = Contraction(0.8, case.contraction.root, case.contraction.longest)
    bound = ScanBound()
    case.run(parallel=Parallel(4, passes=2, fixed=True), contraction=planted, bound=bound)
    assert math.isinf(float(bound.states))


def test_a_state_that_is_nan_makes_such_a_bound_infinite() -> None:
    case = plain_case(rate=0.1)
    case.tensors["u"][..., 7, 0, 0] = math.nan
    bound = ScanBound()
    case.run(parallel=Parallel(4, passes=2, fixed=True), contraction=case.contraction, bound=bound)
    assert all(math.isinf(float(number)) for number in (bound.states, bound.relative, bound.in_metric))


def test_a_root_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match=r"root is None; it must be a torch\.Tensor"):
        Contraction(0.9, None, 0.03)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_root_or_metric_that_is_not_finite_is_refused(value: float) -> None:
    case = plain_case()
    N = case.tensors["A"].shape[-1]
    matrix = torch.full((N, N), 0.1) + torch.eye(N)
    matrix[1, 0] = value
    with pytest.raises(ValueError, match=rf"root is {value} at \[1, 0\]; its entries must be finite"):
        Contraction(0.9, matrix, 0.03)
    for metric in (matrix, matrix[1]):
        with pytest.raises(ValueError, match=rf"metric is {value} at .*; its entries must be finite"):
            Contraction.from_metric(0.9, metric, 0.03)
    diagonal = Contraction(case.contraction.factor, matrix[1], case.contraction.longest)
    with pytest.raises(ValueError, match=rf"root is {value} at \[0, 0\]; its entries must be finite"):
        case.run(parallel=4, contraction=diagonal)


@pytest.mark.parametrize("metric", [1.0, [[1.0, 2.0]], [[[1.0]]]])
def test_a_metric_of_another_shape_is_refused(metric: object) -> None:
    with pytest.raises(ValueError, match=r"metric has shape \(.*\); pass P, \(N, N\), or its diagonal"):
        Contraction.from_metric(0.9, metric, 0.03)


@pytest.mark.parametrize("index", range(30, 42))
def test_a_true_factor_is_never_contradicted_in_float32(index: int) -> None:
    case = make_case(index)
    case.tensors = {name: tensor.float() for name, tensor in case.tensors.items()}
    if "step_size" in case.tensors:
        case.tensors["step_size"].clamp_(max=case.contraction.longest)
    case.run(parallel=case.chunks, contraction=case.contraction)


def test_the_signs_of_a_diagonal_root_do_not_matter() -> None:
    """P is its square; a bound must not become negative with it."""
    case = plain_case()
    signs = torch.ones(6, dtype=torch.float64)
    signs[2] = -1.0
    found = []
    for root in (case.contraction.root, case.contraction.root * signs):
        bound = ScanBound(complete=True)
        contraction = Contraction(case.contraction.factor, root, case.contraction.longest)
        case.run(parallel=case.cut_short, contraction=contraction, bound=bound)
        found.append((float(bound.states), float(bound.complete)))  # type: ignore[arg-type]
    assert found[0] == found[1]
    assert found[0][0] > 0.0
