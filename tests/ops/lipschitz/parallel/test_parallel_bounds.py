"""No error of the parallel scan is larger than its bound, whatever the network, the cut and the input."""

from __future__ import annotations

import pytest
import torch
from parallel_cases import Case, make_case

import lipschitz_rnn as lr
from lipschitz_rnn.ops import Parallel, ScanBound
from lipschitz_rnn.ops.lipschitz.parallel.known import only_rounding
from lipschitz_rnn.ops.lipschitz.parallel.plan import allowed

SAMPLE = range(60)
ALL = range(60, 2000)
ROUNDING = 1e-11  # of two computations in float64, relative to what they add up


def check(index: int) -> None:
    case = make_case(index)
    bound = ScanBound(complete=True, gradients=True)
    joined = Parallel(case.chunks, warm_up=case.warm_up, tolerance=10.0 ** (-1 - index % 8))
    settings = case.cut_short if index % 3 else joined
    exact, states = case.gradients(index)
    found, parallel = case.gradients(index, parallel=settings, contraction=case.contraction, bound=bound)
    check_states(case, bound, parallel, states)
    check_gradients(case, bound, found, exact)


def check_states(case: Case, bound: ScanBound, found: torch.Tensor, exact: torch.Tensor) -> None:
    assert bound.proved
    rounding = ROUNDING * float(exact.abs().max())
    wrong = (found - exact).norm(dim=-1)
    assert float(wrong.max()) <= float(bound.states) + rounding
    root = case.contraction.root
    root = root.diagonal(dim1=-2, dim2=-1) if root.dim() == 3 else root
    root = root if exact.dim() == 3 else root[:, None, None]
    in_metric = float(((found - exact) * root).norm(dim=-1).max())
    assert in_metric <= float(bound.in_metric) + rounding * float(root.max())
    if case.lengths is None and bound.complete is not None:  # nothing is added for rounding: it is in this bound
        assert float(wrong.max()) <= float(bound.complete) * (1 + 1e-9) or float(wrong.max()) <= rounding


def check_gradients(
    case: Case, bound: ScanBound, found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]
) -> None:
    if case.options["nonlinearity"] == "relu":
        assert bound.gradients is None
        assert "relu" in bound.no_gradients
        return
    assert bound.gradients is not None
    scale = max(float(gradient.norm()) for gradient in exact.values())
    for name, gradient in exact.items():
        wrong, allowed = float((found[name] - gradient).norm()), bound.gradients["x" if name == "u" else name]
        assert wrong <= float(allowed) + ROUNDING * scale, (name, wrong, float(allowed))


@pytest.mark.parametrize("index", SAMPLE)
def test_error_is_within_its_bound(index: int) -> None:
    check(index)


@pytest.mark.full
def test_error_is_within_its_bound_in_2000_cases() -> None:
    for index in ALL:
        check(index)


@pytest.mark.parametrize("index", range(12))
def test_complete_bound_covers_float32(index: int) -> None:
    """Rounding in float32 is in the complete bound: against the trajectory in float64 of the same numbers."""
    case = make_case(index)
    case.lengths = None
    case.tensors = {name: tensor.float() for name, tensor in case.tensors.items()}
    if "step_size" in case.tensors:
        case.tensors["step_size"].clamp_(max=case.contraction.longest)
    bound = ScanBound(complete=True)
    states, _ = case.in_parallel(bound, case.cut_short)
    case.tensors = {name: tensor.double() for name, tensor in case.tensors.items()}
    exact, _ = case.run()
    assert bound.complete is not None
    assert float((states.double() - exact).norm(dim=-1).max()) <= float(bound.complete)


def test_complete_bound_of_a_scan_in_one_piece() -> None:
    """Nothing is cut off then, but its states are rounded as well."""
    case = make_case(1)
    case.lengths = None
    case.tensors = {name: tensor.float() for name, tensor in case.tensors.items()}
    bound = ScanBound(complete=True)
    states, _ = case.in_parallel(bound, Parallel(1))
    case.tensors = {name: tensor.double() for name, tensor in case.tensors.items()}
    exact, _ = case.run()
    assert bound.sequential
    assert bound.complete is not None
    assert 0.0 < float((states.double() - exact).norm(dim=-1).max()) <= float(bound.complete)


def test_bound_of_a_fading_error_is_close_to_it() -> None:
    """Truncation alone, in float64: within 1,000 times of the difference seen, and small."""
    case = make_case(3)
    bound = ScanBound()
    torch.manual_seed(0)
    states, _ = case.in_parallel(bound, Parallel(2, warm_up=1))
    exact, _ = case.run()
    seen = float((states - exact).norm(dim=-1).max())
    assert float(bound.relative) <= 1e-6 + 64 * torch.finfo(torch.float64).eps
    assert float(bound.states) <= max(1000 * seen, 1e-10)


def test_rounding_at_every_border_counts_as_the_bound_adds_it() -> None:
    """Two rounded trajectories never meet, and a chunk that shrinks errors by little adds up what all borders leave."""
    fading = torch.full((1, 20, 1), 0.9, dtype=torch.float64)
    limit = allowed(1e-6, torch.float32)
    added = allowed(0.0, torch.float32) * (1 - 0.9**19) / 0.1  # 19 borders lie before the last chunk

    def is_rounding(relative: float, factors: torch.Tensor = fading) -> bool:
        return only_rounding(factors, fading.new_tensor(relative), limit, torch.float32)

    assert is_rounding(limit)
    assert is_rounding(1e-6 + 0.99 * added)
    assert not is_rounding(1e-6 + 1.01 * added)
    assert not is_rounding(1.01 * limit, torch.zeros_like(fading))
    assert not is_rounding(float("nan"))


@pytest.mark.parametrize("scale", [1e-155, 1e-170])
def test_states_whose_squares_underflow_are_within_their_bound(scale: float) -> None:
    torch.manual_seed(0)
    layer = lr.LipschitzRNN(1, 16, stability="contracting", rate=0.01, bias=False, parallel=8).double()
    x = (torch.rand(4000, 1, 1, dtype=torch.float64) + 0.5) * scale
    with torch.no_grad():
        found = layer(x)[0]
        (bound,) = layer.bounds
        layer.parallel = None
        wrong = (found - layer(x)[0]) / scale
    assert bound.proved
    assert float(wrong.norm(dim=-1).max()) <= float(bound.states) / scale * (1 + 1e-9) + 1e-11
    assert float(bound.relative) <= 1e-6
