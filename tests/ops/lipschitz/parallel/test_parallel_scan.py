"""The parallel scan against the sequential one: every option, and what it does where it cannot be proved right."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import pytest
import torch
from parallel_cases import Case, make_case
from torch import Tensor

from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops import Contraction, ContradictedFactorError, Parallel, ScanBound
from lipschitz_rnn.ops.lipschitz import scan
from lipschitz_rnn.ops.lipschitz.parallel.chunks import beside, joined
from lipschitz_rnn.units.lipschitz.contracting import ContractingPair

WIDE = {"dtype": torch.float64}


def plain_case(T: int = 120, B: int = 2, N: int = 6, chunks: int = 4, rate: float = 3.0, **options: Any) -> Case:
    """A network that forgets within a chunk."""
    torch.manual_seed(T + B + N)
    step = 0.1
    pair = ContractingPair(N, step_size=step, rate=rate, **WIDE, **options)
    A, W = (matrix.detach() for matrix in pair())
    tensors = {
        "u": torch.randn(T, B, 3, **WIDE),
        "A": A,
        "W": W,
        "hx": torch.randn(B, N, **WIDE),
        "input_weight": torch.randn(N, 3, **WIDE),
        "bias": torch.randn(N, **WIDE),
    }
    given = {"step_size": step, "integrator": pair.integrator, "nonlinearity": pair.nonlinearity}
    contraction = Contraction(math.exp(-rate * step), pair.metric_root(), step)
    return Case(tensors, given, contraction, chunks, 5, None)


def assert_same(case: Case, **options: Any) -> ScanBound:
    """States, last state and all gradients equal those of the sequential scan up to the tolerance."""
    bound = ScanBound()
    exact, states = case.gradients(1)
    more = {"parallel": case.chunks, "contraction": case.contraction, "bound": bound} | options
    found, parallel = case.gradients(1, **more)
    torch.testing.assert_close(parallel, states, rtol=1e-5, atol=1e-5)
    for name, gradient in exact.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-4, msg=lambda text, n=name: f"{n}: {text}")
    return bound


@pytest.mark.parametrize("chunks", [2, 4, 7])
@pytest.mark.parametrize("integrator", ["euler", "midpoint", "heun"])
@pytest.mark.parametrize("every", [None, 5])
def test_equals_the_sequential_scan(chunks: int, integrator: str, every: int | None) -> None:
    rate = 3.0 if integrator == "euler" else 2.0
    case = plain_case(T=242, chunks=chunks, integrator=integrator, rate=rate)
    bound = assert_same(case, recompute_every=every)
    assert bound.proved
    assert bound.passes >= 2
    assert bound.adjoint_passes is not None
    assert bound.adjoint_passes >= 2


@pytest.mark.parametrize("every", [None, 5, 7])
@pytest.mark.parametrize("warm_up", [1, 3, 11, 60])
def test_a_small_tolerance_is_reached_step_by_step(warm_up: int, every: int | None) -> None:
    """Two passes join after several tries; then nothing is left of the error, in states and every gradient."""
    case = plain_case(T=242)
    bound = ScanBound()
    settings = Parallel(4, tolerance=1e-13, warm_up=warm_up)
    exact, states = case.gradients(1)
    options = {"parallel": settings, "contraction": case.contraction, "bound": bound, "recompute_every": every}
    found, parallel = case.gradients(1, **options)
    assert bound.passes >= 2
    torch.testing.assert_close(parallel, states, rtol=1e-11, atol=1e-11)
    for name, gradient in exact.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("backend", ["reference", "cpu", "triton"])
def test_every_backend(backend: str, fixed: bool) -> None:
    case = plain_case(T=12, N=4, chunks=3)
    if backend == "triton":
        pytest.importorskip("triton")
        case.tensors = {name: tensor.float() for name, tensor in case.tensors.items()}
    assert_same(case, backend=backend, parallel=Parallel(3, passes=3, fixed=fixed, warm_up=4))


@pytest.mark.parametrize("units", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("begin", [0, 1])
def test_copies_of_chunks_keep_every_number(units: int, dtype: torch.dtype, begin: int) -> None:
    """Rows of a multiple of 16 bytes are copied in such pieces, unless they begin elsewhere; others are not."""
    memory = torch.arange(begin + 2 * 12 * 3 * units).to(dtype)
    whole = memory[begin:].view(2, 12, 3, units)
    cut = beside(whole, 4)
    assert cut.shape == (2, 3, 12, units)
    for sample, chunk in itertools.product(range(3), range(4)):
        assert torch.equal(cut[:, :, 4 * sample + chunk], whole[:, 3 * chunk : 3 * chunk + 3, sample])
    assert torch.equal(joined(cut, 4), whole)


def test_without_compiled_kernels(without_kernels: None) -> None:
    assert_same(plain_case())


def test_lengths_times_and_substeps() -> None:
    case = plain_case(T=122, B=3)
    spans = 0.25 * torch.rand(122, 3, **WIDE)
    case.options.pop("step_size")
    case.tensors["step_size"] = spans
    case.lengths = torch.tensor([122, 61, 1])
    exact, states = case.gradients(1, max_step=0.1)
    bound = ScanBound()
    found, parallel = case.gradients(1, max_step=0.1, parallel=4, contraction=case.contraction, bound=bound)
    assert bound.passes >= 2
    torch.testing.assert_close(parallel, states, rtol=1e-5, atol=1e-5)
    for name in exact:
        torch.testing.assert_close(found[name], exact[name], rtol=1e-4, atol=1e-4)


def test_only_the_last_state_is_kept() -> None:
    case = plain_case()
    tensors = dict(case.tensors)
    _, last = case.run()
    bound = ScanBound()
    states, found = lipschitz_scan(
        tensors.pop("u"), tensors.pop("A"), tensors.pop("W"), **tensors, **case.options, need_output=False,
        parallel=4, contraction=case.contraction, bound=bound,
    )  # fmt: skip
    assert states is None
    assert bound.passes >= 2
    torch.testing.assert_close(found, last, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("every", [None, 7])
def test_one_chunk_is_the_sequential_scan_bit_for_bit(every: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """States and gradients, and with recompute_every in its memory: the states are still computed again."""
    case, bound, recomputed = plain_case(), ScanBound(), []
    real = scan._run_in_chunks
    monkeypatch.setattr(scan, "_run_in_chunks", lambda *given: (recomputed.append(given), real(*given))[1])
    expected, states = case.gradients(1, recompute_every=every)
    options = {"parallel": 1, "contraction": case.contraction, "bound": bound, "recompute_every": every}
    found, parallel = case.gradients(1, **options)
    assert torch.equal(parallel, states)
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())
    assert float(bound.states) == 0.0
    assert bound.sequential
    assert len(recomputed) == (0 if every is None else 2)


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


def test_results_are_deterministic() -> None:
    case = plain_case()
    first, again = (case.in_parallel(ScanBound(), Parallel(4)) for _ in range(2))
    assert torch.equal(first[0], again[0])


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


@pytest.mark.parametrize("index", range(30, 42))
def test_a_true_factor_is_never_contradicted_in_float32(index: int) -> None:
    case = make_case(index)
    case.tensors = {name: tensor.float() for name, tensor in case.tensors.items()}
    if "step_size" in case.tensors:
        case.tensors["step_size"].clamp_(max=case.contraction.longest)
    case.run(parallel=case.chunks, contraction=case.contraction)


def test_full_metric_and_networks_beside_each_other() -> None:
    """The same diagonal metric as a matrix, and two networks with their own factors."""
    case = plain_case()
    P = torch.diag(case.contraction.root**2)
    case.contraction = Contraction.from_metric(case.contraction.factor, P, case.contraction.longest)
    bound = assert_same(case)
    two = plain_case()
    two.tensors = {name: torch.stack((tensor, tensor)) for name, tensor in two.tensors.items()}
    factor = torch.tensor([two.contraction.factor, two.contraction.factor], **WIDE)
    two.contraction = Contraction(factor, torch.stack((two.contraction.root,) * 2), 0.1)
    pair = assert_same(two)
    assert float(pair.in_metric) == pytest.approx(float(bound.in_metric), rel=1e-6)


def test_a_metric_that_may_mean_two_things_is_refused() -> None:
    u, A = torch.randn(3, 20, 1, 3), -torch.eye(3).expand(3, 3, 3)
    for root, message in ((torch.eye(3), "two things"), (torch.ones(2, 3, 3), "for each of 3 network")):
        with pytest.raises(ValueError, match=message):
            lipschitz_scan(u, A, A, step_size=0.1, parallel=2, contraction=Contraction(0.9, root, 0.1))


def test_half_precision_hands_ends_on_in_float32() -> None:
    case = plain_case()
    case.tensors = {name: tensor.bfloat16() for name, tensor in case.tensors.items()}
    bound = ScanBound()
    states, last = case.in_parallel(bound, Parallel(4))
    assert states.dtype == last.dtype == torch.bfloat16
    assert float(bound.relative) < 1e-4
    torch.testing.assert_close(states, case.run()[0], rtol=2e-2, atol=2e-2)


def test_values_that_are_not_finite_show() -> None:
    case = plain_case()
    case.tensors["u"][7, 0, 0] = torch.nan
    states, _ = case.in_parallel(ScanBound(), Parallel(4))
    expected, _ = case.run()
    assert torch.equal(states.isnan(), expected.isnan())


def test_function_transforms_run_as_ever() -> None:
    case = plain_case(T=40)
    bound = ScanBound()
    tensors = dict(case.tensors)
    u, A, W = (tensors.pop(name) for name in ("u", "A", "W"))

    def last(u: Tensor) -> Tensor:
        more = {"parallel": 4, "contraction": case.contraction, "bound": bound}
        return lipschitz_scan(u, A, W, **tensors, **case.options, **more)[1].sum()

    assert torch.func.grad(last)(u).shape == u.shape
    assert "torch.func" in bound.sequential


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"tolerance": 0.0}, ValueError, "tolerance is 0.0"),
    ({"tolerance": -1.0}, ValueError, "tolerance is -1.0"),
    ({"parallel": 121}, ValueError, "parallel is 121 chunks, but the sequence has 120 steps"),
    ({"parallel": 0}, ValueError, "parallel is 0"),
    ({"parallel": "often"}, ValueError, "parallel is 'often'"),
    ({"parallel": 2.5}, TypeError, "parallel is 2.5"),
    ({"parallel": True}, TypeError, "parallel is True"),
    ({"contraction": None}, ValueError, "known to contract"),
    ({"contraction": 0.9}, TypeError, "contraction is a float"),
    ({"bound": {}}, TypeError, "bound is a dict"),
    ({"step_size": 0.2}, ValueError, "proved for steps of 0 to 0.1, but these are 0.2"),
    ({"parallel": None}, ValueError, "without parallel"),
    ({"contraction": Contraction(0.9, torch.ones(5), 0.1)}, ValueError, "the state has 6 units"),
    ({"contraction": Contraction(0.9, torch.zeros(6), 0.1)}, ValueError, "zero in some direction"),
    ({"contraction": Contraction(0.9, torch.eye(6).tril(-1), 0.1)}, ValueError, "zero in some direction"),
    ({"contraction": Contraction(0.9, torch.ones(6, 6), 0.1)}, ValueError, "zero in some direction"),
    ({"contraction": Contraction(0.9, torch.eye(1, 6), 0.1)}, ValueError, "zero in some direction"),
    ({"contraction": Contraction(0.9, 1e-200 * torch.ones(6).double(), 0.1)}, ValueError, "range of float64"),
    ({"contraction": Contraction(0.9, 1e200 * torch.eye(6).double(), 0.1)}, ValueError, "range of float64"),
]


@pytest.mark.parametrize(("changes", "error", "message"), WRONG, ids=[message[:25] for _, _, message in WRONG])
def test_wrong_use(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    case = plain_case()
    options = {"parallel": 4, "contraction": case.contraction} | changes
    with pytest.raises(error, match=re.escape(message)):
        case.run(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factor": 1.5}, "factor is 1.5"),
        ({"longest": 0.0}, "no range"),
        ({"shortest": 0.5}, "no range"),
    ],
)
def test_wrong_contraction(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Contraction(**{"factor": 0.9, "root": torch.ones(3), "longest": 0.1} | options)


def test_a_factor_that_is_no_number() -> None:
    with pytest.raises(TypeError, match=r"factor is '0\.9'"):
        Contraction("0.9", torch.ones(3), 0.1)  # type: ignore[arg-type]


def test_wrong_settings() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        Parallel(4, passes=1)
    with pytest.raises(ValueError, match="warm_up is 0"):
        Parallel(4, warm_up=0)


@pytest.mark.parametrize("power", [1, 2], ids=["constant gradient", "gradient of the states"])
def test_second_derivatives_are_refused(power: int) -> None:
    """Also of a sum, whose gradient is a constant: they would lack what goes through the scan."""
    case = plain_case(T=40)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in case.tensors.items()}
    states, _ = case.run(leaves, parallel=4, contraction=case.contraction)
    (gradient,) = torch.autograd.grad(states.pow(power).sum(), leaves["A"], create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        gradient.sum().backward()


@pytest.mark.parametrize("by", ["A", "u", "the gradient"])
def test_second_derivatives_are_refused_beside_others(by: str) -> None:
    """Where the same tensor is used elsewhere too, torch.autograd.grad finds a way to it that avoids the scan."""
    case = plain_case(T=40)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in case.tensors.items()}
    states, _ = case.run(leaves, parallel=4, contraction=case.contraction)
    assert states is not None
    given = torch.ones_like(states, requires_grad=True)
    (gradient,) = torch.autograd.grad(states, leaves["A"], given, create_graph=True)
    asked = given if by == "the gradient" else leaves[by]
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(gradient.sum() + asked.pow(3).sum(), asked)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(gradient.sum(), asked, allow_unused=True)


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


def test_a_network_without_contraction_is_refused() -> None:
    u, A = torch.randn(20, 2, 3), torch.zeros(3, 3)
    with pytest.raises(ValueError, match="attach a certificate"):
        lipschitz_scan(u, A, A, parallel="auto")
