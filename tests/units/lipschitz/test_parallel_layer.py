"""A layer in parallel over time: whom it serves, what it reports, and how it learns."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lipschitz_rnn as lr
from lipschitz_rnn.ops import Parallel
from lipschitz_rnn.ops.lipschitz.parallel import plan

WIDE = {"dtype": torch.float64}


def contracting(**options: Any) -> lr.LipschitzRNN:
    torch.manual_seed(0)
    given = {"stability": "contracting", "step_size": 0.1, "rate": 2.0, **WIDE} | options
    return lr.LipschitzRNN(3, 5, **given)


def both_ways(rnn: lr.LipschitzRNN, parallel: Any, **call: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Output, last state and gradients of the sequential call, then of the parallel one."""
    x = torch.randn(300, 2, 3, generator=torch.Generator().manual_seed(1), **WIDE).to(next(rnn.parameters()).dtype)
    found = []
    for setting in (None, parallel):
        rnn.parallel = setting
        output, h_n = rnn(x, **call)
        loss = output.sin().mean() + h_n.square().sum()
        found.append([output, h_n, *torch.autograd.grad(loss, list(rnn.parameters()), allow_unused=True)])
    return found[0], found[1]


@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 2, "bidirectional": True}, {"integrator": "midpoint"}, {"recompute_every": 16}],
    ids=["plain", "layers and directions", "midpoint", "recomputed"],
)
def test_layer_equals_the_sequential_one(options: dict[str, Any]) -> None:
    rnn = contracting(**options)
    sequential, parallel = both_ways(rnn, 4)
    for one, other in zip(sequential, parallel, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)
    assert len(rnn.bounds) == len(rnn.cells)
    assert all(bound.proved and bound.passes >= 2 for bound in rnn.bounds)


def test_lengths_and_timespans() -> None:
    rnn = contracting()
    spans = torch.rand(300, 2, generator=torch.Generator().manual_seed(2), **WIDE) * 0.1
    lengths = torch.tensor([300, 130])
    sequential, parallel = both_ways(rnn, 4, lengths=lengths, timespans=spans)
    for one, other in zip(sequential, parallel, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)
    assert rnn.bounds[0].passes >= 2


def test_autocast_keeps_the_proof() -> None:
    rnn = contracting(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        rnn.parallel = 4
        output, _ = rnn(torch.randn(300, 2, 3))
    assert output.dtype == torch.bfloat16
    assert rnn.bounds[0].proved
    assert float(rnn.bounds[0].relative) < 1e-4


def test_an_ordinary_layer_is_refused_with_the_reason() -> None:
    rnn = lr.LipschitzRNN(3, 5, parallel="auto")
    with pytest.raises(ValueError, match="known to contract"):
        rnn(torch.randn(50, 1, 3))


def test_on_request_it_runs_to_a_residual() -> None:
    rnn = lr.LipschitzRNN(3, 5, gamma=2.0, step_size=0.2, parallel=Parallel(3, proved=False), **WIDE)
    x = torch.randn(600, 1, 3, **WIDE)
    output, _ = rnn(x)
    assert not rnn.bounds[0].proved
    rnn.parallel = None
    torch.testing.assert_close(output, rnn(x)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.needs("cvxpy", "scipy")
def test_a_certificate_serves_until_the_parameters_change() -> None:
    torch.manual_seed(0)
    rnn = lr.LipschitzRNN(3, 4, gamma=2.0, step_size=0.1, **WIDE)
    rnn.attach_certificate(lr.stability.certify(rnn))
    sequential, parallel = both_ways(rnn, 4)
    torch.testing.assert_close(parallel, sequential, rtol=1e-5, atol=1e-5)
    assert rnn.bounds[0].proved
    x = torch.randn(50, 1, 3, **WIDE)
    with pytest.raises(ValueError, match=r"these are 0\.2"):
        rnn(x, timespans=torch.full((50, 1), 0.2, **WIDE))
    with torch.no_grad():
        rnn.cell().hidden.M_A[0, 1] += 1e-12  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"does not hold any more: its parameters changed"):
        rnn(x)
    rnn.attach_certificate(lr.stability.certify(rnn))
    rnn(x)
    rnn.step_size = 0.05
    with pytest.raises(ValueError, match="step_size changed"):
        rnn(x)
    rnn.step_size = 0.1
    rnn(x)
    rnn.attach_certificate(None)
    with pytest.raises(ValueError, match="known to contract"):
        rnn(x)


@pytest.fixture
def mkldnn_alone() -> Iterator[None]:
    """The setting of the CPU's products may differ from all others."""
    matmul = torch.backends.mkldnn.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    yield
    matmul.fp32_precision = before


@pytest.mark.needs("cvxpy", "scipy")
@pytest.mark.usefixtures("mkldnn_alone")
def test_a_certificate_for_finer_products_than_those_that_run_is_refused() -> None:
    """A pair that contracts with matrices of 11 bits, and rounded to 8 does not."""
    rnn = lr.LipschitzRNN(1, 4, step_size=0.1, nonlinearity="identity", beta=0.5, gamma=0.0, init_scale=0.0)
    with torch.no_grad():
        rnn.cell().hidden.M_A.copy_(-(1 + 0.9 * 2.0**-8) * torch.eye(4))  # type: ignore[union-attr]
        rnn.cell().hidden.M_W.copy_(torch.eye(4))  # type: ignore[union-attr]
    certificate = lr.stability.certify(rnn, precision="high")
    assert certificate.holds
    assert lr.stability.certify(rnn).precision == "medium"
    assert not lr.stability.certify(rnn).holds
    rnn.attach_certificate(certificate)
    rnn.parallel = 4
    with pytest.raises(ValueError, match="they run in medium here"):
        rnn(torch.ones(600, 1, 1))


@pytest.mark.needs("cvxpy", "scipy")
def test_certificates_of_something_else_are_refused() -> None:
    torch.manual_seed(0)
    rnn = lr.LipschitzRNN(3, 4, gamma=2.0, step_size=0.1, **WIDE)
    other = lr.LipschitzRNN(3, 4, gamma=2.0, step_size=0.1, **WIDE)
    with pytest.raises(ValueError, match="about another A"):
        rnn.attach_certificate(lr.stability.certify(other))
    with pytest.raises(ValueError, match="continuous dynamics"):
        rnn.attach_certificate(lr.stability.certify(rnn, continuous=True))
    with pytest.raises(ValueError, match="does not hold"):
        rnn.attach_certificate(lr.stability.certify(lr.LipschitzRNN(3, 4, gamma=0.0, **WIDE)))
    with pytest.raises(ValueError, match=r"2 recurrence"):
        rnn.attach_certificate(lr.stability.certify(contracting(num_layers=2)))


@pytest.mark.needs("cvxpy", "scipy")
def test_a_certificate_of_another_step_size_is_refused() -> None:
    torch.manual_seed(0)
    rnn = lr.LipschitzRNN(3, 4, gamma=2.0, step_size=0.1, parallel=4, **WIDE)
    shorter = lr.LipschitzRNN(3, 4, gamma=2.0, step_size=0.05, **WIDE)
    shorter.load_state_dict(dict(rnn.state_dict()))  # without the settings
    rnn.attach_certificate(lr.stability.certify(shorter))
    with pytest.raises(ValueError, match=r"proved for steps of 0 to 0\.05, but these are 0\.1; certify with"):
        rnn(torch.randn(50, 1, 3, **WIDE))


def test_noise_and_chunks_exclude_each_other() -> None:
    rnn = contracting(noise=0.1, parallel=4)
    x = torch.randn(300, 2, 3, **WIDE)
    with pytest.raises(ValueError, match="noise"):
        rnn(x)
    rnn.eval()(x)


@pytest.mark.parametrize(("name", "value"), [("parallel", 0), ("parallel", "much"), ("tolerance", 0.0)])
def test_settings_are_checked_when_they_are_set(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        contracting(**{name: value})


def test_full_bounds_cover_gradients_and_rounding() -> None:
    rnn = contracting(parallel=4)
    rnn.full_bounds = True
    output, _ = rnn(torch.randn(300, 2, 3, **WIDE))
    output.mean().backward()
    (bound,) = rnn.bounds
    assert bound.gradients is not None
    assert set(bound.gradients) == {"x", "A", "W", "hx", "input_weight", "bias", "step_size"}
    assert bound.complete is not None
    assert 0 < float(bound.complete) < 1e-4


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"integrator": "midpoint"}, {"nonlinearity": "relu"}])
def test_the_bound_of_a_stack_covers_its_output(options: dict[str, Any]) -> None:
    rnn = contracting(num_layers=3, rate=1.0, **options)
    x = torch.randn(300, 2, 3, **WIDE)
    with torch.no_grad():
        exact, _ = rnn(x)
        with pytest.raises(ValueError, match="nothing is proved"):
            rnn.output_bound()
        rnn.parallel = Parallel(4, warm_up=12, passes=2, fixed=True)
        output, _ = rnn(x)
    wrong = float((output - exact).norm(dim=-1).max())
    assert wrong > float(rnn.bounds[-1].states) / 1e3  # an error that shows
    assert wrong <= rnn.output_bound() < 1e5 * wrong


def test_training_in_parallel_ends_where_sequential_training_does() -> None:
    x = torch.randn(400, 4, 3, generator=torch.Generator().manual_seed(3), **WIDE)
    target = x.cumsum(0).sin()[..., :1]
    losses = []
    for parallel in (None, 4):
        rnn = contracting(rate=1.0)
        head = nn.Linear(5, 1, **WIDE)
        with torch.no_grad():
            head.weight.fill_(0.1), head.bias.zero_()
        rnn.parallel = parallel
        optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=0.01)
        for _ in range(15):
            optimizer.zero_grad()
            loss = (head(rnn(x)[0]) - target).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_copies_and_repr() -> None:
    rnn = contracting(parallel=4)
    rnn(torch.randn(300, 2, 3, **WIDE))
    assert "parallel=4" in repr(copy.deepcopy(rnn))
    assert "proved" in repr(rnn.bounds[0])


@pytest.mark.slow
def test_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """One graph without breaks, also where it chooses the chunks; the bound is there for the caller to check."""
    torch._dynamo.reset()
    monkeypatch.setattr(plan, "SHORTEST_CHUNK", {"cuda": 30, "cpu": 30})
    rnn = contracting()
    sequential, _ = both_ways(rnn, None)
    rnn.parallel = "auto"
    x = torch.randn(300, 2, 3, generator=torch.Generator().manual_seed(1), **WIDE)
    compiled = torch.compile(rnn, backend="aot_eager", fullgraph=True)
    output, h_n = compiled(x)
    loss = output.sin().mean() + h_n.square().sum()
    found = [output, h_n, *torch.autograd.grad(loss, list(rnn.parameters()), allow_unused=True)]
    for one, other in zip(sequential, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)
    assert 0 < float(rnn.bounds[0].relative) < 1e-5
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.needs("cvxpy", "scipy")
def test_a_certified_layer_compiles_and_its_program_notices_other_matrices() -> None:
    """The program compares the matrices whenever it runs: also those that change after it was compiled."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    rnn = lr.LipschitzRNN(3, 5, gamma=2.0, init_scale=0.5, step_size=0.1, **WIDE)  # type: ignore[arg-type]
    rnn.attach_certificate(lr.stability.certify(rnn))
    sequential, _ = both_ways(rnn, None)
    rnn.parallel = 4
    x = torch.randn(300, 2, 3, generator=torch.Generator().manual_seed(1), **WIDE)
    compiled = torch.compile(rnn, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        output, h_n = compiled(x)
        loss = output.sin().mean() + h_n.square().sum()
        found = [output, h_n, *torch.autograd.grad(loss, list(rnn.parameters()), allow_unused=True)]
        for one, other in zip(sequential, found, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)
        assert 0 < float(rnn.bounds[0].relative) < 1e-5
    with torch.no_grad():
        rnn.cell().hidden.M_A.mul_(1.0 + 1e-15)
        for grad in (False, True):
            with (
                torch.set_grad_enabled(grad),
                pytest.raises(ValueError, match="does not hold any more: its parameters"),
            ):
                compiled(x)
    torch._dynamo.reset()


@pytest.mark.full
@pytest.mark.needs("cvxpy", "scipy")
def test_a_compiled_program_notices_that_autocast_rounds_the_certified_matrices() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    rnn = lr.LipschitzRNN(3, 5, gamma=2.0, init_scale=0.5, step_size=0.1, parallel=4)
    rnn.attach_certificate(lr.stability.certify(rnn))
    compiled, x = torch.compile(rnn, backend="aot_eager", fullgraph=True), torch.randn(300, 2, 3)
    assert compiled(x)[0].shape == (300, 2, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ValueError, match="they run in bfloat16 here"):
        compiled(x)
    torch._dynamo.reset()


def test_a_layer_is_copied_after_a_call_under_torch_func() -> None:
    """Its bounds then hold tensors of a transform that is over."""
    rnn = contracting(parallel=4)
    x = torch.randn(40, 2, 3, **WIDE)
    torch.func.grad(lambda given: rnn(given)[0].sum())(x)
    for copied in (copy.deepcopy(rnn), pickle.loads(pickle.dumps(rnn))):
        assert copied.bounds == ()
        torch.testing.assert_close(copied(x)[0], rnn(x)[0])


def test_the_meta_device_gives_shapes() -> None:
    rnn = contracting(parallel=4, device="meta")
    output, _ = rnn(torch.empty(40, 2, 3, device="meta", **WIDE))
    assert output.shape == (40, 2, 5)
    assert "meta" in rnn.bounds[0].sequential


@pytest.mark.needs("cvxpy", "scipy")
def test_errors_of_lower_layers_are_carried_up_by_the_longest_step_of_the_certificate() -> None:
    """h⁺ = h + ε(U x − h) settles at U x for every step: an error of the lower layer reaches the output |U| times."""
    options = {"beta": 1.0, "gamma": (1.0, 0.0), "nonlinearity": "identity", "step_size": 0.05, "parallel": 4}
    rnn = lr.LipschitzRNN(1, 1, num_layers=2, tolerance=1e-2, **options, **WIDE)  # type: ignore[arg-type]
    rnn.attach_certificate(lr.stability.certify(rnn, step_size=(0.05, 0.5)))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 1, 1, generator=generator, **WIDE)
    rnn(x, timespans=torch.full((40, 1), 0.5, **WIDE))
    lower, upper = (float(bound.states) for bound in rnn.bounds)
    assert lower > 0
    assert rnn.output_bound() >= upper + float(rnn.cell(1).weight_ih.detach().abs()) * lower


def test_a_sequence_of_fewer_steps_than_chunks_runs_as_ever() -> None:
    rnn = contracting(parallel=4, num_layers=2)
    x = torch.randn(3, 2, 3, **WIDE)
    output, _ = rnn(x)
    assert all("one piece" in bound.sequential for bound in rnn.bounds)
    rnn.parallel = None
    assert torch.equal(output, rnn(x)[0])


@pytest.mark.parametrize("which", ["of the pair", "of all modules", "of all modules, before the call"])
def test_matrices_that_a_hook_may_change_are_refused(which: str) -> None:
    rnn, x = contracting(parallel=4), torch.randn(100, 1, 3, **WIDE)
    pair = rnn.cell().hidden

    def grow(module: nn.Module, given: Any, matrices: Any) -> Any:
        return (matrices[0] + torch.eye(5, **WIDE), matrices[1]) if module is pair else None

    if which == "of the pair":
        handle = pair.register_forward_hook(grow)
    elif which == "of all modules":
        handle = nn.modules.module.register_module_forward_hook(grow)
    else:
        handle = nn.modules.module.register_module_forward_pre_hook(lambda module, given: None)
    try:
        with pytest.raises(ValueError, match="changed after they are made, by a hook"):
            rnn(x)
    finally:
        handle.remove()
    assert rnn(x)[0].shape == (100, 1, 5)
