"""The contracting parametrization for every parameter value: huge, tiny, mixed, of any dtype, or no number at all."""

import copy
import io
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hostile_contraction import hostile_layer, hostile_pair, hostile_settings, make_hostile, norms, pair_of, worst_norm

import lipschitz_rnn as lr
from lipschitz_rnn.ops.lipschitz import dispatch, substeps_compiled
from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.ops.lipschitz.nonlinearities import get_nonlinearity
from lipschitz_rnn.ops.lipschitz.reference import integrate_step
from lipschitz_rnn.stability import certify
from lipschitz_rnn.units.lipschitz.contracting import ContractingPair
from lipschitz_rnn.units.lipschitz.rounding import matrix_reserve

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def require_norm(pair: ContractingPair, rng: np.random.Generator, starts: int = 4) -> None:
    with torch.no_grad():
        A, W = pair()
    assert A.isfinite().all()
    assert W.isfinite().all()
    assert worst_norm(pair, A, W, rng, starts) <= math.exp(-pair.rate * pair.step_size)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_slopes_reach_the_factor(dtype: torch.dtype) -> None:
    for index in range(36):
        require_norm(hostile_pair(index, dtype), np.random.default_rng(index))


@pytest.mark.full
@pytest.mark.parametrize("size", [None, 32, 64, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_slopes_reach_the_factor_at_all_sizes(dtype: torch.dtype, size: int | None) -> None:
    for index in range(24 if size == 128 else 200):
        rng = np.random.default_rng(index)
        settings = hostile_settings(index, rng)
        pair = ContractingPair(**{**settings, "hidden_size": size or settings["hidden_size"]}, dtype=dtype)
        make_hostile(pair, rng)
        require_norm(pair, rng, starts=1 if size == 128 else 4)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hostile_parameters_are_certified(dtype: torch.dtype) -> None:
    """At a factor that is larger by three times what is kept back: certify bounds the rounding of A and W once more."""
    for index in range(24):
        pair = hostile_pair(index, dtype)
        factor = math.exp(-pair.rate * pair.step_size)
        reserve = matrix_reserve(pair.integrator, pair.hidden_size, torch.float32)
        certificate = certify(pair, rate=-math.log(factor + 3 * reserve) / pair.step_size)
        assert certificate.holds, f"draw {index}: {certificate.sentence()}"


def test_rotations_and_feedback_are_scaled_back_only_beyond_the_limit() -> None:
    """Norms per step of up to 1e4 are left alone, bit for bit; twice a parameter beyond it gives the same matrices."""
    pair = ContractingPair(6, step_size=0.2, rate=0.05, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for norm, same in ((0.49, False), (0.999, False), (1.001, True), (1e30, True)):
            K = torch.randn(6, 6, generator=generator, dtype=torch.float64)
            pair.rotation.copy_(K * (norm * 1e4 / torch.linalg.matrix_norm(0.1 * (K - K.T))))
            before = pair()
            pair.rotation.mul_(2.0)
            # Of the rotation by almost π only the rest is left: relative to I + εA, not to A.
            changed = max(float((new - old).abs().max()) for new, old in zip(pair(), before, strict=True))
            assert (changed < 1e-9) is same, norm


@pytest.mark.parametrize("integrator", ["euler", "midpoint", "heun"])
def test_gradients_are_finite_and_right_beyond_the_limit(integrator: str) -> None:
    pair = ContractingPair(3, step_size=0.3, integrator=integrator, rate=0.05, dtype=torch.float64)
    with torch.no_grad():
        pair.rotation.mul_(1e6)
    names = [name for name, _ in pair.named_parameters()]

    def build(*parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scaled = dict(zip(names, parameters, strict=True))
        scaled["rotation"] = 1e6 * scaled["rotation"]  # so that a difference quotient moves all of them alike
        return torch.func.functional_call(pair, scaled, ())

    generator = torch.Generator().manual_seed(4)
    values = [
        (value / (1e6 if name == "rotation" else 1) + 0.1 * torch.randn(value.shape, generator=generator)).double()
        for name, value in pair.named_parameters()
    ]
    assert torch.autograd.gradcheck(build, [value.detach().requires_grad_() for value in values], atol=1e-4)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("integrator", ["euler", "midpoint", "heun"])
def test_what_is_no_number_gives_no_number(integrator: str, value: float) -> None:
    """Neither an error nor a hang, and never a finite matrix that looks like a proof."""
    for name in ("rotation", "feedback"):
        pair = ContractingPair(4, step_size=0.1, integrator=integrator)
        with torch.no_grad():
            getattr(pair, name)[1, 2] = value
        A, W = pair()
        assert A.isnan().any()
        assert W.isnan().any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("integrator", ["euler", "midpoint", "heun"])
def test_one_step_stays_within_its_stated_rounding(integrator: str, dtype: torch.dtype) -> None:
    """The error of a step, measured against float64, is below δ/2, and δ is no more than a worst case."""
    generator, ratios = torch.Generator().manual_seed(1), []
    for index, nonlinearity in enumerate(("identity", "tanh", "relu", "sigmoid")):
        pair = ContractingPair(32, step_size=0.2, integrator=integrator, nonlinearity=nonlinearity, dtype=dtype)
        with torch.no_grad():
            pair.rotation.mul_(10.0)
            pair.scale.normal_(0.0, 1.0, generator=generator)
            A, W = pair()
            metric, _ = pair.metric()
            h = (1 + index) * torch.randn(200, 32, generator=generator, dtype=A.dtype)
            u = torch.randn(200, 32, generator=generator, dtype=A.dtype)
            rule, sigma = get_integrator(integrator), get_nonlinearity(nonlinearity)
            found = integrate_step(h, u, A, W, 0.2, 1.0, rule, sigma)
            if A.dtype == torch.float64:  # against itself in another order of the sums
                order = torch.randperm(32, generator=generator)
                inverse = order.argsort()
                permuted = [matrix[order][:, order] for matrix in (A, W)]
                exact = integrate_step(h[:, order], u[:, order], *permuted, 0.2, 1.0, rule, sigma)[:, inverse]
            else:
                exact = integrate_step(*(tensor.double() for tensor in (h, u, A, W)), 0.2, 1.0, rule, sigma)
            error = float(norms(found.double() - exact, metric).max())
            delta = pair.step_rounding(float(norms(h, metric).max()), float(norms(u, metric).max()))
        ratios.append(2 * error / delta)
    assert max(ratios) <= 1.0
    assert max(ratios) > 3e-4


def test_any_weights_may_be_loaded_rounded_or_quantised() -> None:
    """Parameters are free: a state dict of another precision, or one rounded to 8 bits, keeps the guarantee."""
    source = hostile_layer(0, torch.float32)
    for index, change in enumerate(
        (torch.Tensor.bfloat16, torch.Tensor.half, lambda value: value.to(torch.float8_e5m2))
    ):
        layer = copy.deepcopy(source)
        with torch.no_grad():
            state = {name: change(value).float().nan_to_num() for name, value in source.state_dict().items()}
        layer.load_state_dict(state)
        require_norm(pair_of(layer), np.random.default_rng(index))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch moves this function to another package
        quantised = torch.ao.quantization.quantize_dynamic(copy.deepcopy(source), dtype=torch.qint8)
    assert type(quantised.cell().hidden) is ContractingPair
    for name, parameter in source.named_parameters():
        assert torch.equal(dict(quantised.named_parameters())[name], parameter), name


@pytest.mark.slow
def test_an_exported_program_computes_in_float64_and_divides_long_times() -> None:
    """What float32 products are worth where it runs is not known when it is exported."""
    torch.manual_seed(0)
    layer = lr.LipschitzRNN(2, 6, stability="contracting", step_size=0.1, nonlinearity="identity").eval()
    with torch.no_grad():
        pair_of(layer).rotation.mul_(100)
    x, dt = torch.randn(20, 2, 2), torch.full((20, 2), 0.1)
    program = torch.export.export(layer, (x,), {"timespans": dt})
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer).module()
    torch.set_float32_matmul_precision("medium")
    try:
        output, _ = loaded(x, timespans=dt)
    finally:
        torch.set_float32_matmul_precision("highest")
    expected, _ = layer(x, timespans=dt)
    assert output.dtype == torch.float32
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    names = ("matmul", "addmm")
    products = [node for graph in graphs for node in graph.nodes if any(name in str(node.target) for name in names)]
    assert len(products) == 5  # BᵀB, B(I + H)⁻¹, U x, and those of a step
    assert all(node.meta["val"].dtype == torch.float64 for node in products)
    layer.max_step = 0.1
    torch.testing.assert_close(loaded(x, timespans=2 * dt)[0], layer(x, timespans=2 * dt)[0], rtol=1e-5, atol=1e-5)


def test_the_midpoint_rule_cannot_be_exported_and_says_what_can() -> None:
    layer = lr.LipschitzRNN(2, 6, stability="contracting", step_size=0.1, integrator="midpoint").eval()
    with pytest.raises(NotImplementedError, match="integrator='euler' or 'heun'"):
        torch.export.export(layer, (torch.zeros(3, 2, 2),))


def test_times_are_cut_to_the_proved_step() -> None:
    """A time that rounding put just beyond the step is taken as the step."""
    layer = lr.LipschitzRNN(2, 6, stability="contracting", step_size=0.1)
    x, long = torch.ones(3, 2, 2), torch.full((3, 2), 0.1 * (1 + 5e-7))
    assert torch.equal(layer(x, timespans=long)[0], layer(x, timespans=torch.full((3, 2), 0.1))[0])
    assert torch.equal(layer.cell()(x[0], timespans=0.1 * (1 + 5e-7)), layer.cell()(x[0], timespans=0.1))
    assert torch.equal(layer.cell()(x[0], timespans=0.0), torch.zeros(2, 6))


@pytest.mark.slow
def test_sub_steps_of_a_compiled_program_keep_exact_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many sub-steps there are is seen inside an operator only, which must be told as well."""
    asked: list[bool] = []

    def run(problem: Any, *args: Any) -> Any:
        asked.append(problem.scheme.exact_products)
        return dispatch.run(problem, *args)

    monkeypatch.setattr(substeps_compiled, "run", run)
    layer = lr.LipschitzRNN(2, 6, stability="contracting", step_size=0.1, max_step=0.1)
    x, dt = torch.ones(5, 2, 2), torch.full((5, 2), 0.35)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, timespans=dt)[0], layer(x, timespans=dt)[0])
    assert asked
    assert all(asked)
