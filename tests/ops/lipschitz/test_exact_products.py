"""``exact_products``: the products with A and W keep float32 whatever the settings around them allow.

What PyTorch's own float32 products lose at ``medium`` depends on the CPU, so here it is made to round where it may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from operators import OperatorCalls
from problems import Problem, member, random_problem, relative_error
from torch import Tensor

from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops.common.precision import float32_products

BACKENDS = ("reference", "cpu", "triton")
FLOAT32 = 2.0**-23


@pytest.fixture
def rounding_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every float32 product is taken in bfloat16 where the settings let a machine do that."""

    def rounded(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*args: Tensor, **options: Any) -> Tensor:
            if args[-1].dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
                args = (*args[:-2], *(arg.bfloat16().float() for arg in args[-2:]))
            return function(*args, **options)

        return call

    for name in ("matmul", "bmm", "addmm", "baddbmm"):
        monkeypatch.setattr(torch, name, rounded(getattr(torch, name)))
    monkeypatch.setattr(Tensor, "__matmul__", rounded(Tensor.__matmul__))


@pytest.fixture(params=["high", "medium"])
def lower_setting(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield
    torch.set_float32_matmul_precision(before)


def converted(problem: Problem, dtype: torch.dtype) -> Problem:
    return Problem(**{**vars(problem), **{name: tensor.to(dtype) for name, tensor in problem.tensors.items()}})


def results(problem: Problem, **options: Any) -> list[Tensor]:
    """States, last state and all gradients."""
    leaves = problem.with_gradients()
    states, last = lipschitz_scan(**leaves.arguments, **options)
    weight = torch.randint(-1, 2, states.shape, generator=torch.Generator().manual_seed(0)).to(states)  # exact
    loss = (states * weight).sum() + last.sum()
    return [states, last, *torch.autograd.grad(loss, list(leaves.tensors.values()))]


def worst(found: list[Tensor], exact: list[Tensor]) -> float:
    return max(relative_error(one, true) for one, true in zip(found, exact, strict=True))


@pytest.mark.usefixtures("without_kernels")  # which round nothing
@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("integrator", ["euler", "rk4"])
def test_products_that_may_be_rounded_are_not_taken(
    integrator: str, backend: str, lower_setting: None, rounding_machine: None, generator: torch.Generator
) -> None:
    """On a machine that rounds, forward and backward: with the flag nothing is lost, without it much is."""
    problem = random_problem(generator, integrator=integrator, inputs=True, bias=True, timespans=True)
    single = converted(problem, torch.float32)
    exact = results(converted(single, torch.float64), backend="reference")
    found = results(single, backend=backend, exact_products=True)
    rounded = results(single, backend=backend)
    assert all(tensor.dtype == torch.float32 for tensor in found)
    assert worst(found, exact) < 4 * FLOAT32
    assert worst(rounded, exact) > 1e-4


def test_kernels_take_all_parts(lower_setting: None) -> None:
    pytest.importorskip("triton", reason="Triton is not installed (it exists for Linux only)")
    from lipschitz_rnn.ops.lipschitz.triton.backend import matmul_precision

    for size in (5, 40, 130, 1000):
        assert matmul_precision(torch.float32, size, exact=True) == "bf16x6"
    assert matmul_precision(torch.float32, 130) != "bf16x6"


def test_kernels_as_at_the_highest_setting(generator: torch.Generator) -> None:
    pytest.importorskip("triton", reason="Triton is not installed (it exists for Linux only)")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    problem = random_problem(generator, size=40, steps=2, batch=2, dtype=torch.float32)
    for name, tensor in problem.tensors.items():
        setattr(problem, name, tensor.to(device))
    with float32_products("medium"):
        found, rounded = (results(problem, backend="triton", exact_products=exact) for exact in (True, False))
    with float32_products("highest"):
        plain = results(problem, backend="triton")
    states = 2
    assert all(torch.equal(one, other) for one, other in zip(found[:states], plain[:states], strict=True))
    assert not torch.equal(rounded[0], plain[0])
    # Gradients prove nothing: they are taken in the precision of the setting, along states that are not rounded.
    errors = [relative_error(one, true) for one, true in zip(found[states:], plain[states:], strict=True)]
    assert 1e-5 < max(errors) < 2**-6


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_computed_in_float32(dtype: torch.dtype, backend: str, generator: torch.Generator) -> None:
    if backend == "triton":
        pytest.importorskip("triton", reason="Triton is not installed (it exists for Linux only)")
        if torch.cuda.is_available():
            pytest.skip("the tensors are on the CPU; without a GPU the interpreter takes them")
    problem = converted(random_problem(generator, steps=8, size=16, inputs=True), dtype)
    found = results(problem, backend=backend, exact_products=True)
    exact = results(converted(problem, torch.float64), backend="reference")
    assert all(tensor.dtype == dtype for tensor in found)
    # All that is left is the rounding of each result.
    for one, true in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), true, rtol=torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_nothing_changes_where_nothing_is_rounded(backend: str, generator: torch.Generator) -> None:
    problem = random_problem(generator, dtype=torch.float32, integrator="heun")
    found, plain = results(problem, backend=backend, exact_products=True), results(problem, backend=backend)
    assert all(torch.equal(one, other) for one, other in zip(found, plain, strict=True))


def test_float64_stays_as_it_is(lower_setting: None, rounding_machine: None, generator: torch.Generator) -> None:
    problem = random_problem(generator)
    found, plain = results(problem, exact_products=True), results(problem)
    assert all(torch.equal(one, other) for one, other in zip(found, plain, strict=True))


def ways(problem: Problem) -> dict[str, Callable[[Tensor], Tensor]]:
    """The last state as a function of W, by every road that leads to a backend."""

    def last(W: Tensor, **options: Any) -> Tensor:
        return lipschitz_scan(**(problem.arguments | {"W": W}), exact_products=True, **options)[1]

    return {
        "eager": last,
        "reference": lambda W: last(W, backend="reference"),
        "recompute": lambda W: last(W, recompute_every=2),
        "last state only": lambda W: last(W, need_output=False),
        "vmap": lambda W: torch.func.vmap(last)(W.unsqueeze(0)).squeeze(0),
        "autocast": autocast(last),
    }


def autocast(last: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def inside(W: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return last(W)

    return inside


@pytest.mark.parametrize("way", ["eager", "reference", "recompute", "last state only", "vmap", "autocast"])
def test_every_way_to_a_backend_carries_it(
    way: str, lower_setting: None, rounding_machine: None, generator: torch.Generator
) -> None:
    problem = random_problem(generator, dtype=torch.float32, steps=6)

    def both(of: Callable[[Tensor], Tensor], W: Tensor) -> list[Tensor]:
        W = W.clone().requires_grad_()
        last = of(W)
        return [last.detach(), *torch.autograd.grad(last.square().sum(), W)]

    exact = both(ways(converted(problem, torch.float64))["eager"], problem.W.double())
    found = both(ways(problem)[way], problem.W)
    assert worst(found, exact) < 4 * FLOAT32


def test_second_derivatives_carry_it(lower_setting: None, rounding_machine: None, generator: torch.Generator) -> None:
    problem = random_problem(generator, dtype=torch.float32)

    def hessian(problem: Problem) -> Tensor:
        def loss(W: Tensor) -> Tensor:
            return lipschitz_scan(**(problem.arguments | {"W": W}), exact_products=True)[1].square().sum()

        return torch.autograd.functional.hessian(loss, problem.W)

    exact = hessian(converted(problem, torch.float64))
    found = hessian(problem)
    assert relative_error(found, exact) < 8 * FLOAT32


def test_the_setting_counts_when_the_backward_pass_runs(rounding_machine: None, generator: torch.Generator) -> None:
    """Forward at ``highest``, backward at ``medium``: the setting may change in between, the promise may not."""
    problem = random_problem(generator, dtype=torch.float32)
    wide = converted(problem, torch.float64).with_gradients()
    expected = torch.autograd.grad(lipschitz_scan(**wide.arguments)[1].square().sum(), wide.W)
    leaves = problem.with_gradients()
    loss = lipschitz_scan(**leaves.arguments, exact_products=True)[1].square().sum()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        found = torch.autograd.grad(loss, leaves.W)
    finally:
        torch.set_float32_matmul_precision(before)
    assert worst([*found], [*expected]) < 8 * FLOAT32


def test_transformed_programs_pass_it_on(generator: torch.Generator) -> None:
    problem = random_problem(generator, networks=2, dtype=torch.float32)
    flags: list[bool] = []

    class Watch(OperatorCalls):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace == "lipschitz_rnn":
                schema = [argument.name for argument in func._schema.arguments]
                flags.append(args[schema.index("exact_products")])
            return super().__torch_dispatch__(func, types, args, kwargs)

    def last(A: Tensor) -> Tensor:
        single = member(problem, 0)
        return lipschitz_scan(**(single.arguments | {"A": A}), exact_products=True)[1].square().sum()

    with Watch():
        torch.func.vmap(torch.func.grad(last))(problem.A)
    assert flags == [True, True]


def test_compiled(lower_setting: None, request: pytest.FixtureRequest, generator: torch.Generator) -> None:
    problem = random_problem(generator, dtype=torch.float32).with_gradients()
    compiled = torch.compile(lipschitz_scan, backend="aot_eager", fullgraph=True)
    exact = lipschitz_scan(**converted(problem, torch.float64).arguments)[1]
    compiled(**problem.arguments, exact_products=True)
    request.getfixturevalue("rounding_machine")  # only now: the compiler looks at PyTorch's functions
    _, last = compiled(**problem.arguments, exact_products=True)
    assert relative_error(last, exact) < 4 * FLOAT32


def test_export_keeps_float32(lower_setting: None, generator: torch.Generator) -> None:
    problem = random_problem(generator, dtype=torch.float32)

    class Module(torch.nn.Module):
        def forward(self, u: Tensor) -> Tensor:
            return lipschitz_scan(**(problem.arguments | {"u": u}), exact_products=True)[1]

    program = torch.export.export(Module(), (problem.u,))
    assert "float64" not in program.graph_module.print_readable(print_output=False)
    torch.testing.assert_close(program.module()(problem.u), Module()(problem.u), rtol=1e-5, atol=1e-6)


def test_what_is_no_flag_is_refused(generator: torch.Generator) -> None:
    with pytest.raises(TypeError, match="exact_products is 'yes'"):
        lipschitz_scan(**random_problem(generator).arguments, exact_products="yes")  # type: ignore[arg-type]


def test_no_setting_is_touched(
    lower_setting: None, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = random_problem(generator, dtype=torch.float32)

    def refuse(*args: Any) -> None:
        raise AssertionError("a setting of the whole process was changed")

    monkeypatch.setattr(torch, "set_float32_matmul_precision", refuse)
    monkeypatch.setattr(torch._C, "_set_fp32_precision_setter", refuse)
    for backend in ("reference", "cpu"):
        results(problem, backend=backend, exact_products=True)
    monkeypatch.undo()
