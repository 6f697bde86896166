"""The parallel scan on a GPU: the same results by other kernels and strides, and ten million steps."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import lipschitz_rnn as lr
from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops import Contraction, ContradictedFactorError, Parallel, ScanBound

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="the CPU's part of this is in test_parallel_scan.py"),
]
STEPS = 4096


def layer(features: int = 1, hidden: int = 64, **options: Any) -> lr.LipschitzRNN:
    torch.manual_seed(0)
    given = {"stability": "contracting", "rate": 1.0, "step_size": 0.1, "device": "cuda"} | options
    return lr.LipschitzRNN(features, hidden, **given)


def results(rnn: lr.LipschitzRNN, x: Tensor, parallel: Any, **call: Any) -> list[Tensor]:
    rnn.parallel = parallel
    output, h_n = rnn(x, **call)
    loss = output.float().sin().mean() + h_n.square().sum()
    return [output.detach(), h_n.detach(), *torch.autograd.grad(loss, list(rnn.parameters()))]


def assert_same(rnn: lr.LipschitzRNN, x: Tensor, parallel: Any = "auto", tolerance: float = 1e-4, **call: Any) -> None:
    expected, found = (results(rnn, x, setting, **call) for setting in (None, parallel))
    assert all(bound.passes >= 2 and bound.proved for bound in rnn.bounds)
    scale = max(float(gradient.norm()) for gradient in expected[2:])
    for one, other in zip(expected[:2], found[:2], strict=True):
        torch.testing.assert_close(other, one, rtol=tolerance, atol=tolerance)
    for one, other in zip(expected[2:], found[2:], strict=True):
        assert float((one - other).norm()) <= 10 * tolerance * scale


@pytest.mark.parametrize("hidden", [20, 64, 128, 200])
@pytest.mark.parametrize(("batch", "features"), [(1, 1), (3, 1), (2, 5)])
def test_equals_the_sequential_scan(hidden: int, batch: int, features: int) -> None:
    assert_same(layer(features, hidden), torch.randn(STEPS, batch, features, device="cuda"))


@pytest.mark.parametrize(
    "options",
    [
        {"recompute_every": 100}, {"integrator": "midpoint"}, {"integrator": "heun"}, {"dtype": torch.float64},
        {"num_layers": 2, "bidirectional": True}, {"batch_first": True},
    ],
    ids=str,
)  # fmt: skip
def test_options(options: dict[str, Any]) -> None:
    slow = options.get("integrator") == "heun" or options.get("dtype") == torch.float64  # loops in Python
    rnn, steps = layer(hidden=32, **options), 512 if slow else STEPS
    x = torch.randn(steps, 2, 1, device="cuda", dtype=options.get("dtype", torch.float32))
    assert_same(rnn, x.transpose(0, 1) if rnn.batch_first else x, 4 if slow else "auto")


def test_lengths_times_and_autocast() -> None:
    rnn, x = layer(hidden=32), torch.randn(STEPS, 2, 1, device="cuda")
    spans = torch.rand(STEPS, 2, device="cuda") * 0.1
    assert_same(rnn, x, lengths=torch.tensor([STEPS, 1700]), timespans=spans)
    with torch.autocast("cuda", torch.bfloat16):
        assert_same(rnn, x, tolerance=1e-2)


def test_a_factor_that_is_too_small_is_caught() -> None:
    rnn, x = layer(rate=0.01), torch.randn(STEPS, 1, 1, device="cuda")
    with torch.no_grad():
        cell = rnn.cell()
        A, W = cell.hidden_matrices()
        planted = Contraction(0.5, cell.hidden.metric_root(), 0.1)  # type: ignore[union-attr]
        with pytest.raises(ContradictedFactorError):
            lipschitz_scan(x @ cell.weight_ih.mT, A, W, step_size=0.1, parallel="auto", contraction=planted)


def test_ten_million_steps_train() -> None:
    rnn = layer(hidden=128, recompute_every=512, parallel="auto", rate=0.1)
    x = torch.randn(10_000_000, 1, 1, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    _, last = rnn(x, need_output=False)
    last.square().sum().backward()
    assert rnn.bounds[0].passes >= 2
    assert torch.cuda.max_memory_allocated() - before < 8e9  # all states alone are 5 GB, with σ and κ, d 20
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in rnn.parameters())


@pytest.mark.parametrize("full", [False, True], ids=["diagonal metric", "full metric"])
def test_cuda_graph_with_fixed_passes(full: bool) -> None:
    """Nothing waits while the graph is captured; its bound is checked outside."""
    cell = layer(hidden=32).cell()
    with torch.no_grad():
        (A, W), root = cell.hidden_matrices(), cell.hidden.metric_root()  # type: ignore[union-attr]
    known = Contraction(math.exp(-0.1), torch.diag(root) if full else root, 0.1)
    u = torch.randn(STEPS, 1, 32, device="cuda")
    settings = Parallel(16, passes=2, warm_up=200, fixed=True)
    leaves: list[Tensor] = []

    def call() -> tuple[Tensor, ScanBound, tuple[Tensor, ...]]:
        bound = ScanBound()
        states, _ = lipschitz_scan(*leaves, step_size=0.1, parallel=settings, contraction=known, bound=bound)
        assert states is not None
        return states.detach(), bound, torch.autograd.grad(states.square().mean(), leaves)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # a leaf belongs to the stream on which it is first used
        leaves += [tensor.detach().clone().requires_grad_() for tensor in (u, A, W)]
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        states, bound, gradients = call()
    with torch.no_grad():
        leaves[0].normal_()
    graph.replay()
    torch.cuda.synchronize()
    fresh = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    expected, _ = lipschitz_scan(*fresh, step_size=0.1)
    assert expected is not None
    difference = float((states - expected.detach()).norm(dim=-1).max())
    assert difference <= float(bound.states) + 1e-4
    assert float(bound.relative) < 1e-3
    for found, exact in zip(gradients, torch.autograd.grad(expected.square().mean(), fresh), strict=True):
        assert float((found - exact).norm()) <= 1e-3 * float(exact.norm())


def test_a_call_waits_for_the_gpu_only_to_decide() -> None:
    """Once per comparison of two passes and per bound; every other wait would be hidden in an operation."""
    rnn, x = layer(hidden=128), torch.randn(32_768, 1, 1, device="cuda")
    rnn.parallel = "auto"
    with torch.no_grad():
        rnn(x)  # compiles
        torch.cuda.synchronize()
        kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds, acc_events=True) as profile:
            rnn(x)
    waits = {event.key: event.count for event in profile.key_averages() if "Synchronize" in event.key}
    stops = rnn.bounds[0].warm_up // 256 + 1
    assert sum(waits.values()) <= stops + 8, waits  # the profiler's own wait at its end is among them
