"""The compiled kernels of the cpu backend against the reference in float64, and what they promise beside values."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError
from itertools import product
from typing import Any

import pytest
import torch
from problems import INTEGRATORS, NONLINEARITIES, Problem, random_problem
from torch import Tensor

from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops.lipschitz.cores import layout, machine, support, threads
from lipschitz_rnn.ops.lipschitz.problem import Problem as Scan
from lipschitz_rnn.ops.lipschitz.problem import Scheme

# Each option on and off; batches of two groups, the second short; sizes with a part of a vector; a short last chunk.
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"initial": False, "steps": 9, "batch": 1, "size": 16},
    "state, odd": {"steps": 11, "batch": 19, "size": 33},
    "inputs, bias": {"inputs": True, "bias": True, "features": 1, "batch": 6, "size": 7, "initial": False},
    "one step": {"steps": 1, "batch": 3, "size": 5, "inputs": True, "features": 9},
    "timespans, lengths": {"timespans": True, "lengths": True, "steps": 17, "batch": 10, "size": 20},
    "ensemble": {"networks": 3, "inputs": True, "timespans": True, "alpha": -0.5, "batch": 5, "size": 18},
}
DTYPES = [torch.float32, torch.float64]


def converted(problem: Problem, dtype: torch.dtype) -> Problem:
    values = vars(problem).items()
    return Problem(**{k: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in values})


def results(problem: Problem, backend: str = "cpu") -> list[Tensor]:
    """States, last state, the last state without the others, and all gradients of a function of both."""
    leaves = problem.with_gradients()
    states, last = lipschitz_scan(**leaves.arguments, backend=backend)
    assert states is not None
    weights = torch.linspace(0.3, 1.0, states.numel(), dtype=torch.float64).reshape(states.shape).to(states.dtype)
    gradients = torch.autograd.grad((states * weights).sum() + 1.3 * last.sum(), list(leaves.tensors.values()))
    with torch.no_grad():
        _, alone = lipschitz_scan(**problem.arguments, backend=backend, need_output=False)
    return [states.detach(), last.detach(), alone, *gradients]


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).abs().max() / exact.abs().max().clamp_min(1e-30))


def assert_as_exact_as_the_reference(problem: Problem, dtype: torch.dtype, name: str) -> None:
    """Three times the reference's own error in this precision, and what a sum in another order costs."""
    problem = converted(problem, dtype)
    exact = results(converted(problem, torch.float64), "reference")
    rounding = 16 * torch.finfo(dtype).eps
    for found, own, true in zip(results(problem), results(problem, "reference"), exact, strict=True):
        assert found.dtype == dtype
        assert error(found, true) <= 3 * error(own, true) + rounding, name


@pytest.mark.usefixtures("compiled", "nan_memory")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_values_and_gradients(integrator: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    for nonlinearity, (name, options) in product(NONLINEARITIES, OPTIONS.items()):
        problem = random_problem(generator, integrator=integrator, nonlinearity=nonlinearity, **options)
        assert_as_exact_as_the_reference(problem, dtype, f"{nonlinearity}, {name}")


@pytest.fixture
def another_processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for a processor with other registers; the code runs here as well."""
    here = machine.processor()
    assert here is not None
    monkeypatch.setattr(machine, "processor", lambda: machine.Processor(here.name, here.features, *request.param))
    monkeypatch.setattr(machine, "_kernels", cache(machine._kernels.__wrapped__))


@pytest.mark.usefixtures("compiled", "nan_memory", "another_processor")
@pytest.mark.parametrize(
    "another_processor",
    [pytest.param((32, 6), id="32 bytes")],  # as of AVX2
    indirect=True,
)
def test_other_registers(generator: torch.Generator) -> None:
    for name, options in OPTIONS.items():
        problem = random_problem(generator, integrator="heun", **options)
        assert_as_exact_as_the_reference(problem, torch.float32, name)


@pytest.mark.usefixtures("compiled")
def test_the_named_processors_are_known_and_have_these_registers(capfd: pytest.CaptureFixture[str]) -> None:
    """LLVM ends the process at a name it does not know."""
    from llvmlite import binding

    source = "define <16 x float> @f(<16 x float> %a) { %b = fadd <16 x float> %a, %a ret <16 x float> %b }"
    machine._kernels(4)  # has prepared LLVM
    for name in machine.AVX512 + machine.AVX2:
        target = binding.Target.from_default_triple().create_target_machine(cpu=name, opt=3)
        assert ("zmm" in target.emit_assembly(binding.parse_assembly(source))) == (name in machine.AVX512), name
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("compiled")
def test_a_processor_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    find = machine.processor.__wrapped__
    monkeypatch.setenv(machine.CPU_NAME, "pentium")
    with pytest.raises(ValueError, match=r"is 'pentium'; this processor, .* can run kernels compiled for .*haswell"):
        find()
    monkeypatch.setenv(machine.CPU_NAME, "haswell")
    found = find()
    assert (found.name, found.register, found.tile_rows) == ("haswell", 32, 6)
    assert "+" not in found.features  # what this processor lacks is taken from the name, and nothing is added


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("integrator", ["euler", "rk4"])
def test_bits_do_not_depend_on_threads(
    integrator: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "WORTH_A_THREAD", 1)
    options = {"steps": 20, "batch": 70, "size": 12, "networks": 2, "inputs": True, "timespans": True}
    problem = converted(random_problem(generator, integrator=integrator, **options), torch.float32)
    before, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3, 1):
            torch.set_num_threads(count)
            found.append(results(problem))
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    "size", [35, 60, 100, 130, 200]
)  # a sample alone takes 8 or 12 vectors at once, if it has so many
def test_a_sample_does_not_depend_on_its_batch(size: int, generator: torch.Generator) -> None:
    problem = converted(random_problem(generator, steps=12, batch=21, size=size, initial=False), torch.float32)
    together = lipschitz_scan(**problem.arguments, backend="cpu")[0]
    assert together is not None
    for count in (1, 2, 13):
        alone = lipschitz_scan(problem.u[:, :count], problem.A, problem.W, step_size=0.3, backend="cpu")[0]
        assert alone is not None
        assert torch.equal(alone, together[:, :count])


@pytest.mark.usefixtures("compiled")
def test_either_way_goes_on_from_the_others_tape(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the kernels run may change between forward and backward, e.g. in another process after a checkpoint."""
    problem = random_problem(generator, integrator="rk4", timespans=True, batch=4, size=6)
    leaves = problem.with_gradients()
    _, last = lipschitz_scan(**leaves.arguments, backend="cpu")
    monkeypatch.setattr(machine, "obstacle", lambda: "switched off")
    found = torch.autograd.grad(last.sum(), list(leaves.tensors.values()))
    leaves = problem.with_gradients()
    _, last = lipschitz_scan(**leaves.arguments, backend="reference")
    for one, other in zip(found, torch.autograd.grad(last.sum(), list(leaves.tensors.values())), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


def ulps(found: Tensor, exact: Tensor) -> float:
    """The largest error in units in the last place of the exact value."""
    dtype = found.dtype
    nearest = exact.to(dtype)
    unit = (torch.nextafter(nearest.abs(), torch.tensor(torch.inf, dtype=dtype)) - nearest.abs()).double()
    return float(((found.double() - exact) / unit).abs().max())


def applied(name: str, values: Tensor) -> Tensor:
    kernels = machine.kernels(values.element_size())
    padded = torch.zeros(-(-len(values) // kernels.lanes) * kernels.lanes, dtype=values.dtype)
    padded[: len(values)] = values
    kernels.apply(NONLINEARITIES.index(name), len(padded) // kernels.lanes, padded.data_ptr())
    return padded[: len(values)]


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", ["tanh", "sigmoid"])
def test_accuracy_of_nonlinearities(name: str) -> None:
    """At every 4096th float32 there is, and dense where the argument is reduced."""
    words = torch.arange(-(2**31), 2**31, 4096 + 1, dtype=torch.int64).to(torch.int32).view(torch.float32)
    x = torch.cat((words[words.isfinite()], torch.linspace(-20.0, 20.0, 200_001)))
    if name == "sigmoid":
        x = x[x > -87.0]  # below, the result is not representable with all its digits
    assert ulps(applied(name, x), getattr(torch, name)(x.double())) < 3.0
    wide = torch.cat((torch.linspace(-30.0, 30.0, 100_001, dtype=torch.float64), x[::7].double()))
    assert ulps(applied(name, wide), getattr(torch, name)(wide)) < 4.0  # of which PyTorch's own is one


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ends_of_nonlinearities(dtype: torch.dtype) -> None:
    huge = torch.finfo(dtype).max
    x = torch.tensor([0.0, -0.0, 50.0, -50.0, huge, -huge, torch.inf, -torch.inf, torch.nan], dtype=dtype)
    torch.testing.assert_close(applied("tanh", x), torch.tanh(x), rtol=0.0, atol=0.0, equal_nan=True)
    assert applied("tanh", x)[1].signbit()
    for name in ("sigmoid", "relu", "identity"):
        exact = x if name == "identity" else getattr(torch, name)(x)
        torch.testing.assert_close(applied(name, x), exact, rtol=1e-6, atol=1e-37, equal_nan=True)


@pytest.mark.usefixtures("compiled")
def test_a_row_that_is_not_finite_stays_alone(generator: torch.Generator) -> None:
    problem = random_problem(generator, inputs=True, bias=True, batch=9, size=5, steps=10, initial=False)
    clean = lipschitz_scan(**problem.arguments, backend="cpu")[1]
    for value in (torch.nan, torch.inf):
        problem.u[3, 4, 0] = value
        last = lipschitz_scan(**problem.arguments, backend="cpu")[1]
        true = lipschitz_scan(**problem.arguments, backend="reference")[1]
        torch.testing.assert_close(last, true, rtol=1e-12, atol=1e-12, equal_nan=True)
        others = torch.arange(9) != 4
        assert torch.equal(last[others], clean[others])


def outline(dtype: torch.dtype = torch.float32, size: int = 4, batch: int = 2) -> Scan:
    matrix = torch.zeros(1, size, size, dtype=dtype)
    drive = torch.zeros(1, 3, batch, size, dtype=dtype)
    return Scan(drive, matrix, matrix, None, None, None, None, Scheme(0.1, 1.0, "euler", "tanh"))


def no_package(name: str) -> str:
    raise PackageNotFoundError(name)


@pytest.mark.parametrize(
    ("installed", "named"),
    [(no_package, "llvmlite is not installed"), (lambda name: "0.44.0", "0.44.0")],
    ids=["missing", "too old"],
)
def test_without_a_usable_llvmlite(
    installed: Any, named: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's operations run, nothing is compiled, and whoever asks is told why."""
    monkeypatch.setattr(machine, "version", installed)
    monkeypatch.setattr(machine, "obstacle", machine.obstacle.__wrapped__)
    monkeypatch.setattr(machine, "kernels", lambda size: pytest.fail("something was compiled"))
    reason = support.obstacle(outline())
    assert reason is not None
    assert named in reason
    assert named in support.describe(outline())
    problem = random_problem(generator, integrator="midpoint")
    for one, other in zip(results(problem), results(problem, "reference"), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.usefixtures("compiled")
def test_what_the_kernels_leave_to_others() -> None:
    assert support.serves(outline())
    assert support.serves(outline(torch.float64, size=support.most_units()))
    assert not support.serves(outline(size=support.most_units() + 1))
    assert not support.serves(outline(torch.bfloat16))
    assert not support.serves_forward(outline(batch=1))
    assert support.serves(outline(batch=1))
    U, bag = torch.zeros(1, 4, support.MOST_FEATURES + 1), torch.zeros(1, 2, 3, support.MOST_FEATURES + 1)
    wide = replace(outline(size=4), drive=bag, input_weight=U)
    assert "features" in str(support.obstacle(wide))
    assert support.serves(replace(wide, drive=bag[..., 1:], input_weight=U[..., 1:]))


def test_no_vector_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "version", lambda name: "1.0")
    monkeypatch.setattr(machine, "processor", lambda: None)
    reason = machine.obstacle.__wrapped__()
    assert reason is not None
    assert "AVX2" in reason


@pytest.mark.usefixtures("compiled")
def test_a_default_device_plays_no_part(generator: torch.Generator) -> None:
    problem = random_problem(generator, batch=3)
    with torch.device("meta"):
        found = lipschitz_scan(**problem.arguments, backend="cpu")[1]
    assert torch.equal(found, lipschitz_scan(**problem.arguments, backend="cpu")[1])


def test_errors_of_a_thread_reach_the_caller() -> None:
    done = []

    def worker(queue: Iterator[int]) -> None:
        for task in queue:
            if task == 5:
                raise OSError("task 5")
            done.append(task)

    with pytest.raises(OSError, match="task 5"):
        threads.share(range(40), 3, worker)
    assert len(set(done)) == len(done)  # nothing twice; what was not begun when the caller met the error is left out
    assert {0, 1, 2, 3, 4} <= {*done} <= {*range(40)} - {5}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_threads_after_a_fork() -> None:
    """A data loader's worker is a copy of a process whose threads it does not have."""

    def total() -> int:
        found: list[int] = []
        threads.share(range(100), 2, lambda queue: found.extend(queue))
        return sum(found)

    assert total() == 4950
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: that a fork leaves threads behind
        child = os.fork()
    if child == 0:
        os._exit(0 if total() == 4950 else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0


@pytest.mark.usefixtures("compiled", "nan_memory")
def test_chunks_of_time(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many steps enter the gradients together."""
    problem = random_problem(generator, integrator="midpoint", timespans=True, steps=10, batch=3)
    exact = results(problem, "reference")
    monkeypatch.setattr(layout, "_layout", layout.Layout)  # one that is kept knows no other depth
    for depth in (1, 9, 12, 1000):
        monkeypatch.setattr(layout, "DEPTH", depth)
        for one, other in zip(results(problem), exact, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)
