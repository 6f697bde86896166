"""The parallel scan against the sequential one: every option, states and gradients."""

from __future__ import annotations

import itertools

import pytest
import torch
from parallel_cases import WIDE, assert_same, plain_case

from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops import Contraction, Parallel, ScanBound
from lipschitz_rnn.ops.lipschitz import scan
from lipschitz_rnn.ops.lipschitz.parallel.chunks import beside, joined


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


def test_results_are_deterministic() -> None:
    case = plain_case()
    first, again = (case.in_parallel(ScanBound(), Parallel(4)) for _ in range(2))
    assert torch.equal(first[0], again[0])


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
