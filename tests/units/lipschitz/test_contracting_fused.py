"""The contracting pair as one operation: its inverse by products, its own gradient, and every way around them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hostile_contraction import hostile_pair, make_hostile, worst_norm
from plain_pair import plain_pair
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap
from torch.utils._python_dispatch import TorchDispatchMode

import lipschitz_rnn as lr
from lipschitz_rnn.units.lipschitz import fused, resolvent
from lipschitz_rnn.units.lipschitz.construction import build
from lipschitz_rnn.units.lipschitz.contracting import ContractingPair
from lipschitz_rnn.units.lipschitz.resolvent import by_elimination, by_products, largest_norm

INVERSES: dict[str, Callable[[Tensor], Tensor]] = {
    "elimination": by_elimination,
    "products": lambda M: by_products(M).reshape(M.shape),
}


@pytest.fixture(params=list(INVERSES))
def inverse(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to invert, on the CPU: a GPU takes products."""
    monkeypatch.setattr(fused, "inverse", INVERSES[request.param])
    return str(request.param)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def shifted(kind: str, size: int, generator: torch.Generator) -> Tensor:
    """I + (K + BᵀB)/2, with K and B as large as a pair allows unless the name says otherwise."""
    K, B = (torch.randn(size, size, generator=generator, dtype=torch.float64) for _ in range(2))
    if kind == "mixed":
        K, B = (matrix * 10.0 ** (-8 * torch.rand(size, size, generator=generator)) for matrix in (K, B))
    elif kind == "one plane":  # all other directions have the smallest singular value, 1
        K = torch.outer(K[0], K[1])
    elif kind == "one direction":
        B = torch.outer(B[0], B[1])
    K = K - K.T
    rotation, feedback = {"tiny": (1e-8, 1e-8), "feedback": (0.0, 1e2), "one plane": (1e4, 0.0)}.get(kind, (1e4, 1e2))
    K, B = rotation * K / torch.linalg.matrix_norm(K), feedback * B / torch.linalg.matrix_norm(B)
    return torch.eye(size, dtype=torch.float64) + 0.5 * (K + B.T @ B)


@pytest.mark.parametrize("kind", ["dense", "mixed", "one plane", "one direction", "feedback", "tiny"])
@pytest.mark.parametrize("size", [2, 17, 96])
def test_products_invert_up_to_the_rounding_of_one_product(kind: str, size: int) -> None:
    M = shifted(kind, size, torch.Generator().manual_seed(size))
    assert torch.linalg.matrix_norm(M) <= largest_norm(size)
    X = by_products(M)[0]
    unit = torch.finfo(torch.float64).eps / 2
    residual = torch.linalg.matrix_norm(torch.eye(size, dtype=torch.float64) - M @ X)
    # Twice: for the product in the last step, and for the one in this test.
    assert residual <= 2 * (size + 2) * unit * torch.linalg.matrix_norm(M) * torch.linalg.matrix_norm(X)
    assert torch.linalg.matrix_norm(X, 2) <= 1 + 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_no_slopes_reach_the_factor_by_products(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "inverse", INVERSES["products"])
    for index in [index for index in range(36) if index % 3 != 1]:  # the midpoint rule always eliminates
        pair, rng = hostile_pair(index, dtype), np.random.default_rng(index)
        A, W = pair()
        assert A.isfinite().all()
        assert W.isfinite().all()
        assert worst_norm(pair, A, W, rng, starts=2) <= math.exp(-pair.rate * pair.step_size), index


@pytest.mark.parametrize("value", [1e-8, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parameters_that_are_all_tiny_or_all_huge(value: float, dtype: torch.dtype, inverse: str) -> None:
    pair = ContractingPair(12, step_size=0.5, rate=0.1, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in pair.parameters():
            parameter.copy_(value * torch.randn(parameter.shape, generator=generator))
        A, W = pair()
    assert worst_norm(pair, A, W, np.random.default_rng(0)) <= math.exp(-0.05)


def test_networks_in_one_call_equal_networks_alone(inverse: str) -> None:
    """Values and gradients; a network without numbers leaves the others alone."""
    pairs = [ContractingPair(5, step_size=0.3, nonlinearity="identity", dtype=torch.float64) for _ in range(4)]
    for index, pair in enumerate(pairs):
        make_hostile(pair, np.random.default_rng(index))
    with torch.no_grad():
        pairs[2].rotation[0, 1] = math.inf
    parameters, _ = stack_module_state(pairs)  # type: ignore[arg-type]
    A, W = vmap(lambda own: functional_call(pairs[0], own, ()))(parameters)
    (A.sum() + W.square().sum()).backward()
    for index, pair in enumerate(pairs):
        alone = pair()
        (alone[0].sum() + alone[1].square().sum()).backward()
        if index == 2:
            assert A[index].isnan().all()
            assert W[index].isnan().all()
            continue
        torch.testing.assert_close((A[index], W[index]), alone, rtol=1e-11, atol=1e-11)
        for name, parameter in pair.named_parameters():
            assert parameter.grad is not None
            scale = max(float(value.grad.abs().max()) for value in pair.parameters() if value.grad is not None)
            gradient = parameters[name].grad[index]
            torch.testing.assert_close(gradient, parameter.grad, rtol=1e-9, atol=1e-11 * scale, msg=name)


def test_one_parameter_of_each_network_may_be_mapped_alone(inverse: str) -> None:
    pair = ContractingPair(4, step_size=0.1, dtype=torch.float64)
    leaks = torch.randn(3, 4, dtype=torch.float64)
    A, _ = vmap(lambda leak: functional_call(pair, {"leak": leak}, ()))(leaks)
    for index, leak in enumerate(leaks):
        torch.testing.assert_close(A[index], functional_call(pair, {"leak": leak}, ())[0], rtol=1e-13, atol=1e-13)


def differentiable(integrator: str, nonlinearity: str, huge: float) -> tuple[Callable[..., tuple], list[Tensor]]:
    """A pair as a function of its parameters, with rotation and feedback times ``huge``."""
    options = {"integrator": integrator, "nonlinearity": nonlinearity, "alpha": -1.3, "dtype": torch.float64}
    pair = ContractingPair(3, step_size=0.3, rate=0.05, **options)
    names = [name for name, _ in pair.named_parameters()]
    generator = torch.Generator().manual_seed(4)

    def run(*values: Tensor) -> tuple[Tensor, ...]:
        own = dict(zip(names, values, strict=True))
        return functional_call(pair, own | {name: huge * own[name] for name in ("rotation", "feedback")}, ())

    values = [torch.randn(value.shape, generator=generator, dtype=torch.float64) for value in pair.parameters()]
    return run, [value.requires_grad_() for value in values]


@pytest.mark.parametrize(
    ("integrator", "nonlinearity", "huge"),
    [("euler", "tanh", 1.0), ("heun", "identity", 1.0), ("euler", "sigmoid", 1e6)],
)
def test_first_and_second_derivatives(integrator: str, nonlinearity: str, huge: float, inverse: str) -> None:
    run, values = differentiable(integrator, nonlinearity, huge)
    assert torch.autograd.gradcheck(run, values, atol=1e-4 if huge > 1 else 1e-6)
    if huge == 1.0:  # beyond the limits second differences are lost in rounding
        assert torch.autograd.gradgradcheck(run, values, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("integrator", ["euler", "midpoint"])
def test_second_derivatives_where_a_matrix_is_zero(integrator: str, dtype: torch.dtype) -> None:
    """As the rotation of a single unit always is: its norm has no second derivative, and the pair has one."""
    for size in (1, 3):
        pair = ContractingPair(size, step_size=0.1, integrator=integrator, dtype=dtype)
        with torch.no_grad():
            pair.rotation.zero_()
            pair.feedback.zero_()
        values = list(pair.parameters())
        first = torch.autograd.grad(sum(m.sin().sum() for m in pair()), values, create_graph=True)
        second = torch.autograd.grad(sum(value.square().sum() for value in first), values)
        assert all(bool(value.isfinite().all()) for value in second)
    pair = ContractingPair(1, step_size=0.1, integrator=integrator, dtype=torch.float64)
    given = [value.detach().requires_grad_() for value in pair.parameters()]
    assert torch.autograd.gradgradcheck(pair.build, given, atol=1e-5)


def test_the_own_gradient_is_the_derivative_of_the_formulas() -> None:
    """Of the same matrices, by PyTorch, for parameters of any size."""
    for index in [index for index in range(48) if index % 3 != 1]:
        pair = hostile_pair(index, torch.float64)
        parameters = [pair.rotation, pair.feedback, pair.leak, pair.restoring, pair.scale]
        numbers = pair._numbers()
        generator = torch.Generator().manual_seed(index)
        given = [torch.randn(pair.rotation.shape, generator=generator, dtype=torch.float64) for _ in range(2)]
        matrices = pair()
        own = torch.autograd.grad(matrices, parameters, given)
        # With a spread of 1 the metric is Euclidean and nothing depends on `scale`.
        formulas = build(numbers, *parameters)[:2]
        expected = torch.autograd.grad(formulas, parameters, given, allow_unused=True, materialize_grads=True)
        reach = max(float(matrix.detach().abs().max()) for matrix in matrices) * len(given[0]) ** 2
        for found, right, parameter in zip(own, expected, parameters, strict=True):
            # Of the change that a relative change of the parameter makes. The skew part of a huge symmetric matrix is
            # zero; there the gradient is of order 1, and right to its own rounding.
            size = 1.0 + float(parameter.detach().abs().max())
            allowed = 1e-10 * reach / size + 1e-13 * float(right.abs().max())
            assert float((found - right).abs().max()) <= allowed, index


def test_values_and_gradients_are_those_of_the_plain_formulas(inverse: str) -> None:
    """Which share no line with the construction, for parameters of any size in float32."""
    for index in [index for index in range(48) if index % 3 != 1]:
        pair = hostile_pair(index, torch.float32).double()
        parameters = [pair.rotation, pair.feedback, pair.leak, pair.restoring, pair.scale]
        generator = torch.Generator().manual_seed(index)
        given = [torch.randn(pair.rotation.shape, generator=generator, dtype=torch.float64) for _ in range(2)]
        found, expected = pair(), plain_pair(pair._numbers(), *parameters)
        for one, other in zip(found, expected, strict=True):
            assert (one - other).detach().abs().max() <= 1e-9 * other.detach().abs().max(), index
        own = torch.autograd.grad(found, parameters, given)
        right = torch.autograd.grad(expected, parameters, given, allow_unused=True, materialize_grads=True)
        reach = max(float(matrix.detach().abs().max()) for matrix in found) * len(given[0]) ** 2
        for gradient, other, parameter in zip(own, right, parameters, strict=True):
            size = 1.0 + float(parameter.detach().abs().max())  # the change by a relative change of the parameter
            allowed = 1e-9 * (reach / size + float(other.abs().max()))
            assert float((gradient - other).abs().max()) <= allowed, index


class Operators(TorchDispatchMode):
    """Counts what PyTorch computes with, without views."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not (function.is_view or function is torch.ops.aten.promote_types.default)
        return function(*args, **(kwargs or {}))


def test_a_training_step_starts_few_operations() -> None:
    """A GPU waits for the host while they are started: 49 and 57 before operations were merged."""
    pair = ContractingPair(8, step_size=0.03)
    with Operators() as forward:
        matrices = pair()
    given = [torch.ones_like(matrix) for matrix in matrices]
    with Operators() as backward:
        torch.autograd.grad(matrices, list(pair.parameters()), given)
    assert forward.count <= 44
    assert backward.count <= 44


@pytest.mark.parametrize("step", [1e-6, 1e5])
def test_no_finite_rotation_overflows(step: float) -> None:
    """Its unit depends on the step, and must not make it larger before it is limited."""
    pair = ContractingPair(3, step_size=step, rate=1e-6, dtype=torch.float64)
    with torch.no_grad():
        pair.rotation.copy_(torch.tensor([[0.0, 1.0, -1.0], [-1.0, 0.0, 1.0], [0.5, -1.0, 0.0]])).mul_(1.7e308)
    A, W = pair()
    (A.sum() + W.sum()).backward()
    assert A.isfinite().all()
    assert W.isfinite().all()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in pair.parameters())
    assert worst_norm(pair, A.detach(), W.detach(), np.random.default_rng(0)) <= math.exp(-1e-6 * step)


def test_only_one_of_the_matrices_is_used(inverse: str) -> None:
    run, values = differentiable("euler", "identity", 1.0)
    for used in (0, 1):
        found = torch.autograd.grad(run(*values)[used].square().sum(), values)
        both = torch.autograd.grad(
            sum(factor * matrix.square().sum() for factor, matrix in zip((1 - used, used), run(*values), strict=True)),
            values,
        )
        torch.testing.assert_close(found, both, rtol=1e-12, atol=1e-12)


def test_forward_mode_hessians_and_nested_transforms_agree() -> None:
    run, values = differentiable("euler", "identity", 1.0)
    values = [value.detach() for value in values]

    def loss(*own: Tensor) -> Tensor:
        A, W = run(*own)
        return A.square().sum() + W.sin().sum()

    tangents = tuple(torch.ones_like(value) for value in values)
    gradients = torch.func.grad(loss, tuple(range(5)))(*values)
    _, slope = torch.func.jvp(loss, tuple(values), tangents)
    torch.testing.assert_close(slope, sum(gradient.sum() for gradient in gradients))
    reverse = torch.autograd.functional.hessian(lambda leak: loss(*values[:2], leak, *values[3:]), values[2])
    forward = torch.func.hessian(lambda leak: loss(*values[:2], leak, *values[3:]))(values[2])
    torch.testing.assert_close(reverse, forward)
    many = vmap(torch.func.grad(loss, tuple(range(5))))(*(torch.stack((value, 2 * value)) for value in values))
    twice = torch.func.grad(loss, tuple(range(5)))(*(2 * value for value in values))
    for each, first, second in zip(many, gradients, twice, strict=True):
        torch.testing.assert_close(each, torch.stack((first, second)))


def test_autocast_changes_no_bit(inverse: str) -> None:
    pair = ContractingPair(6, step_size=0.2)
    A, W = pair()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again = pair()
        (again[0].sum() + again[1].sum()).backward()
    assert torch.equal(A, again[0])
    assert torch.equal(W, again[1])
    inside = [parameter.grad for parameter in pair.parameters()]
    assert all(
        torch.equal(one, other)  # type: ignore[arg-type]
        for one, other in zip(inside, torch.autograd.grad(A.sum() + W.sum(), list(pair.parameters())), strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("operator", [False, True], ids=["as on a CPU", "as on a GPU"])
def test_compiled_networks_have_the_same_matrices_and_gradients(
    operator: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.compiler.reset()
    pair = ContractingPair(5, step_size=0.2, nonlinearity="identity", dtype=torch.float64)
    parameters = list(pair.parameters())
    calls: list[Tensor] = []

    def recorded(M: Tensor) -> Tensor:
        calls.append(M)
        return INVERSES["products"](M)

    if operator:
        monkeypatch.setattr(fused, "traced_inverse", resolvent.inverse_operator)
        monkeypatch.setattr(resolvent, "inverse", recorded)
    compiled = torch.compile(pair, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(), pair(), rtol=1e-12, atol=1e-12)
    found, expected = (torch.autograd.grad(sum(m.sin().sum() for m in run()), parameters) for run in (compiled, pair))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert bool(calls) is operator


def test_the_operator_of_compiled_programs() -> None:
    M = torch.stack([shifted("tiny", 3, torch.Generator().manual_seed(seed)) for seed in range(2)]).requires_grad_()
    torch.library.opcheck(resolvent.inverse_operator, (M,))
    assert torch.autograd.gradcheck(resolvent.inverse_operator, (M,))
    assert torch.autograd.gradgradcheck(resolvent.inverse_operator, (M,))
    mapped = vmap(resolvent.inverse_operator, in_dims=2)(M.movedim(0, 2))
    torch.testing.assert_close(mapped, torch.linalg.inv(M))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_networks_on_a_gpu_equal_those_on_a_cpu_and_a_graph_replays_them() -> None:
    pairs = [ContractingPair(40, step_size=0.1) for _ in range(3)]
    for index, pair in enumerate(pairs[1:]):
        make_hostile(pair, np.random.default_rng(index))
    parameters, _ = stack_module_state(pairs)  # type: ignore[arg-type]
    moved = {name: value.detach().cuda().requires_grad_() for name, value in parameters.items()}

    def run(own: dict[str, Tensor]) -> list[Tensor]:
        A, W = vmap(lambda values: functional_call(pairs[0], values, ()))(own)
        return [A, W, *torch.autograd.grad(A.sum() + W.square().sum(), list(own.values()))]

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run(moved)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(moved)
    graph.replay()
    for found, right in zip(captured, run(parameters), strict=True):
        scale = float(right.detach().abs().max())
        torch.testing.assert_close(found.cpu(), right, rtol=1e-5, atol=1e-6 * scale)


def test_the_euclidean_metric_leaves_its_scale_alone(inverse: str) -> None:
    pair = ContractingPair(4, step_size=0.1, metric_spread=1.0)
    torch.nn.init.normal_(pair.scale)
    A, W = pair()
    (A.sum() + W.sum()).backward()
    assert pair.scale.grad is None or not pair.scale.grad.any()
    assert torch.equal(pair.metric()[0], torch.ones(4, dtype=torch.float64))


@pytest.mark.usefixtures("two_threads")
def test_wide_networks_are_inverted_together_in_several_threads() -> None:
    """MKL fails for such a batch in two threads, so each matrix has a call of its own."""
    M = torch.stack([shifted("dense", 160, torch.Generator().manual_seed(seed)) for seed in range(2)])
    X = by_elimination(M)
    assert (M @ X - torch.eye(160, dtype=torch.float64)).abs().max() < 1e-10


def test_a_layer_trains_by_its_fused_pair(inverse: str) -> None:
    """Against the same layer with matrices from the formulas."""
    layer = lr.LipschitzRNN(2, 6, stability="contracting", step_size=0.2).double()
    pair = layer.cell().hidden
    assert isinstance(pair, ContractingPair)
    x = torch.randn(9, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parameters = [pair.rotation, pair.feedback, pair.leak, pair.restoring, pair.scale]
    found = torch.autograd.grad(layer(x)[0].square().sum(), parameters)
    A, W = build(pair._numbers(), *parameters)[:2]
    cell = layer.cell()
    drive = x @ cell.weight_ih.T + cell.bias_ih
    states, _ = lr.lipschitz_scan(drive, A, W, step_size=0.2, backend="reference")
    torch.testing.assert_close(found, torch.autograd.grad(states.square().sum(), parameters), rtol=1e-8, atol=1e-10)
