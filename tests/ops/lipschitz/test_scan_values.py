"""The scan's values against an independent NumPy loop, on every backend that runs here."""

from itertools import product

import numpy as np
import pytest
import torch
from problems import INTEGRATORS, NONLINEARITIES, Problem, member, numpy_scan, random_problem

from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops.lipschitz.nonlinearities import get_nonlinearity

BACKENDS = ("reference", "cpu")
SWITCHES = ("timespans", "lengths", "initial", "inputs", "bias")
OPTIONS = [dict(zip(SWITCHES, values, strict=True)) for values in product((False, True), repeat=len(SWITCHES))]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.usefixtures("nan_memory")
def test_values_equal_numpy(integrator: str, nonlinearity: str, backend: str, generator: torch.Generator) -> None:
    """Every combination of options, for one network and for three at once."""
    for options, alpha, networks in product(OPTIONS, (1.0, 0.6), (None, 3)):
        problem = random_problem(
            generator, integrator=integrator, nonlinearity=nonlinearity, alpha=alpha, networks=networks, **options
        )
        states, last = lipschitz_scan(**problem.arguments, backend=backend)
        expected_states, expected_last = numpy_scan(problem)
        np.testing.assert_allclose(states, expected_states, rtol=1e-12, atol=1e-13, err_msg=str(options))
        np.testing.assert_allclose(last, expected_last, rtol=1e-12, atol=1e-13, err_msg=str(options))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("steps", "batch", "size", "networks"),
    [(1, 1, 1, None), (1, 5, 3, 1), (17, 1, 1, 5), (33, 7, 13, None), (4, 0, 3, None)],
    ids=lambda value: str(value),
)
@pytest.mark.usefixtures("nan_memory")
def test_odd_shapes(
    steps: int, batch: int, size: int, networks: int | None, backend: str, generator: torch.Generator
) -> None:
    shape = {"steps": steps, "batch": batch, "size": size, "networks": networks}
    problem = random_problem(generator, **shape, integrator="midpoint", inputs=True, bias=True)
    leaves = problem.with_gradients()
    states, last = lipschitz_scan(**leaves.arguments, backend=backend)
    (states.sum() + last.sum()).backward()
    expected_states, expected_last = numpy_scan(problem)
    np.testing.assert_allclose(states.detach(), expected_states, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(last.detach(), expected_last, rtol=1e-11, atol=1e-12)
    assert all(tensor.grad.isfinite().all() for tensor in leaves.tensors.values())


@pytest.mark.parametrize("backend", BACKENDS)
def test_layout_in_memory_plays_no_part(backend: str, generator: torch.Generator) -> None:
    """Transposed, strided and expanded arguments, and cotangents that are expanded, as ``sum`` makes them."""
    problem = random_problem(generator, timespans=True)
    other = dict(problem.arguments)
    other["u"] = problem.u.transpose(0, 1).contiguous().transpose(0, 1)
    other["A"], other["W"] = problem.A.mT.contiguous().mT, torch.stack((problem.W, problem.W), dim=-1)[..., 0]
    other["step_size"] = problem.step_size.T.contiguous().T
    other["hx"] = problem.hx[:1].expand(3, 4)
    plain = problem.arguments | {"hx": problem.hx[:1].repeat(3, 1)}
    found = []
    for arguments in (plain, other):
        leaves = {name: arguments[name].detach().requires_grad_() for name in ("u", "A", "W", "step_size")}
        states, last = lipschitz_scan(**(arguments | leaves), backend=backend)
        (states.sum() + last.sum()).backward()
        found.append([states, last, *(leaf.grad for leaf in leaves.values())])
    for one, another in zip(*found, strict=True):
        torch.testing.assert_close(one, another, rtol=1e-13, atol=1e-13)


def test_fresh_memory_is_nan(nan_memory: None) -> None:
    """Otherwise the fixture would guard nothing."""
    assert torch.empty(3).isnan().all()
    assert torch.zeros(2).new_empty((2, 2)).isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_last_state_alone(backend: str, generator: torch.Generator) -> None:
    problem = random_problem(generator, integrator="midpoint", lengths=True, inputs=True, bias=True)
    _, expected = lipschitz_scan(**problem.arguments, backend=backend)
    states, last = lipschitz_scan(**problem.arguments, backend=backend, need_output=False)
    assert states is None
    torch.testing.assert_close(last, expected, rtol=1e-13, atol=1e-14)  # other memory: BLAS may sum in another order
    # The gradient of the last state needs the states inside; not asking for them must not lose them.
    leaves, full = problem.with_gradients(), problem.with_gradients()
    lipschitz_scan(**leaves.arguments, backend=backend, need_output=False)[1].square().sum().backward()
    lipschitz_scan(**full.arguments, backend=backend)[1].square().sum().backward()
    for name in leaves.tensors:
        torch.testing.assert_close(leaves.tensors[name].grad, full.tensors[name].grad, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("backend", BACKENDS)
def test_ensemble_equals_its_members(backend: str, generator: torch.Generator) -> None:
    problem = random_problem(generator, networks=3, timespans=True, lengths=True, inputs=True, bias=True)
    states, last = lipschitz_scan(**problem.arguments, backend=backend)
    for s in range(3):
        alone = lipschitz_scan(**member(problem, s).arguments, backend=backend)
        torch.testing.assert_close(states[s], alone[0], rtol=1e-13, atol=1e-14)
        torch.testing.assert_close(last[s], alone[1], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("shape", [(), (5, 3), (2, 5, 3)], ids=["number", "shared", "own"])
def test_ensemble_step_sizes(shape: tuple[int, ...], generator: torch.Generator) -> None:
    """A 0-dimensional tensor is a number; (T, B) serves every network."""
    problem = random_problem(generator, networks=2)
    steps = 0.1 + torch.rand(shape, generator=generator, dtype=torch.float64)
    full = steps.expand(2, 5, 3)
    states, _ = lipschitz_scan(**(problem.arguments | {"step_size": steps}))
    expected, _ = lipschitz_scan(**(problem.arguments | {"step_size": full.contiguous()}))
    torch.testing.assert_close(states, expected, rtol=1e-13, atol=1e-14)  # a number may be multiplied and added at once


def test_shared_lengths_of_an_ensemble(generator: torch.Generator) -> None:
    problem = random_problem(generator, networks=2)
    lengths = torch.tensor([5, 1, 3])
    states, last = lipschitz_scan(**(problem.arguments | {"lengths": lengths}))
    expected = lipschitz_scan(**(problem.arguments | {"lengths": lengths.expand(2, 3)}))
    assert torch.equal(states, expected[0])
    assert torch.equal(last, expected[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_beyond_its_length_a_state_is_zero_and_the_last_one_stands(backend: str, generator: torch.Generator) -> None:
    problem = random_problem(generator, integrator="rk4")
    lengths = torch.tensor([2, 5, 1])
    states, last = lipschitz_scan(**(problem.arguments | {"lengths": lengths}), backend=backend)
    for sample, length in enumerate(lengths.tolist()):
        assert states[length:, sample].eq(0).all()
        assert torch.equal(last[sample], states[length - 1, sample])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_of_no_time_changes_nothing(backend: str, generator: torch.Generator) -> None:
    problem = random_problem(generator, integrator="heun")
    states, _ = lipschitz_scan(**(problem.arguments | {"step_size": torch.zeros(5, 3)}), backend=backend)
    assert torch.equal(states, problem.hx.expand(5, 3, 4))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_same_input_same_bits(integrator: str, backend: str, generator: torch.Generator) -> None:
    problem = random_problem(generator, integrator=integrator, inputs=True, bias=True, batch=16, size=32)

    def run() -> list[torch.Tensor]:
        leaves = problem.with_gradients()
        states, last = lipschitz_scan(**leaves.arguments, backend=backend)
        (states.sum() + last.square().sum()).backward()
        return [states, last, *(tensor.grad for tensor in leaves.tensors.values())]

    assert all(torch.equal(one, other) for one, other in zip(run(), run(), strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("nonlinearity", ["tanh", "sigmoid"])
@pytest.mark.parametrize("size", [1e3, 1e10, 1e30])
def test_saturated_inputs(size: float, nonlinearity: str, backend: str, generator: torch.Generator) -> None:
    """σ at its ends, in float32: values and gradients stay finite, and the gradient of the input vanishes."""
    problem = random_problem(
        generator, integrator="midpoint", nonlinearity=nonlinearity, inputs=True, bias=True, dtype=torch.float32
    )
    signs = torch.where(problem.u > 0, 1.0, -1.0)
    problem.u = size * signs
    leaves = problem.with_gradients()
    states, last = lipschitz_scan(**leaves.arguments, backend=backend)
    (states.square().sum() + last.sum()).backward()
    assert states.isfinite().all()
    assert all(tensor.grad.isfinite().all() for tensor in leaves.tensors.values())
    assert leaves.u.grad.abs().max() < 1e-6


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
def test_nan_passes_through(nonlinearity: str, backend: str, generator: torch.Generator) -> None:
    """From the step at which it comes, in its own sample only."""
    problem = random_problem(generator, nonlinearity=nonlinearity)
    clean, _ = lipschitz_scan(**problem.arguments, backend=backend)
    problem.u[2, 1, 0] = torch.nan
    states, last = lipschitz_scan(**problem.arguments, backend=backend)
    assert states[2:, 1, 0].isnan().all()
    assert last[1].isnan().all()  # one step later W has carried it to every unit
    untouched = torch.ones(5, 3, dtype=torch.bool)
    untouched[2:, 1] = False
    torch.testing.assert_close(states[untouched], clean[untouched])


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_in_padding_has_no_influence(backend: str, generator: torch.Generator) -> None:
    problem = random_problem(generator, inputs=True, bias=True, integrator="midpoint")
    problem.lengths = torch.tensor([3, 5, 1])
    padding = torch.arange(5)[:, None] >= problem.lengths
    results = []
    for fill in (0.0, torch.nan, torch.inf):
        leaves = problem.with_gradients()
        with torch.no_grad():
            leaves.u[padding] = fill
        states, last = lipschitz_scan(**leaves.arguments, backend=backend)
        (states.square().sum() + last.square().sum()).backward()
        results.append([states, last, *(tensor.grad for tensor in leaves.tensors.values())])
    clean, *others = results
    for dirty in others:
        for one, other in zip(clean, dirty, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("need_output", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("every", [1, 2, 5, 7])
def test_recomputing_equals_remembering(
    every: int, backend: str, need_output: bool, generator: torch.Generator
) -> None:
    problem = random_problem(
        generator, integrator="midpoint", timespans=True, lengths=True, inputs=True, bias=True, networks=2
    )

    def run(recompute_every: int | None) -> list[torch.Tensor]:
        leaves = problem.with_gradients()
        states, last = lipschitz_scan(
            **leaves.arguments, backend=backend, need_output=need_output, recompute_every=recompute_every
        )
        loss = last.square().sum() + (0.0 if states is None else states.sin().sum())
        loss.backward()
        return [last, *([] if states is None else [states]), *(tensor.grad for tensor in leaves.tensors.values())]

    for plain, again in zip(run(None), run(every), strict=True):
        torch.testing.assert_close(plain, again, rtol=1e-13, atol=1e-14)


def test_rk2_is_midpoint(generator: torch.Generator) -> None:
    problem = random_problem(generator, integrator="midpoint")
    states, _ = lipschitz_scan(**problem.arguments)
    assert torch.equal(states, lipschitz_scan(**(problem.arguments | {"integrator": "rk2"}))[0])


def test_auto_says_what_it_chose(generator: torch.Generator, caplog: pytest.LogCaptureFixture) -> None:
    problem = random_problem(generator)
    with caplog.at_level("DEBUG", logger="lipschitz_rnn"):
        lipschitz_scan(**problem.arguments)
        torch.func.jvp(lambda u: _last(problem, u), (problem.u,), (problem.u,))
    assert "runs on cpu (fastest on cpu)" in caplog.messages[0]
    assert "runs on reference (not cpu: it has no forward-mode derivative)" in caplog.messages[1]


def _last(problem: Problem, u: torch.Tensor) -> torch.Tensor:
    return lipschitz_scan(**(problem.arguments | {"u": u}))[1]


@pytest.mark.parametrize("name", NONLINEARITIES)
def test_what_a_nonlinearity_says_of_itself(name: str, generator: torch.Generator) -> None:
    """Difference quotients stay within the slope range and come near both ends; the slope is the derivative."""
    sigma = get_nonlinearity(name)
    a, b = 6 * torch.randn(2, 200_000, generator=generator, dtype=torch.float64)
    quotients = (sigma.function(a) - sigma.function(b)) / (a - b)
    low, high = sigma.slope_range
    assert low - 1e-9 <= quotients.min() < low + 0.01
    assert high - 0.01 < quotients.max() <= high + 1e-9
    assert sigma.lipschitz == high
    assert sigma.monotone
    z = a[:1000].requires_grad_()
    (derivative,) = torch.autograd.grad(sigma.function(z).sum(), z)
    torch.testing.assert_close(sigma.slope_from_value(sigma.function(z)), derivative, rtol=1e-9, atol=1e-9)
