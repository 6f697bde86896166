"""``torch.compile`` without graph breaks, and without a new program for every shape."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from lipschitz_layers import layer, sequence
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import lipschitz_rnn as lr

SHAPES = ((7, 2), (9, 3), (5, 4), (20, 6), (3, 2), (40, 7))

pytestmark = pytest.mark.slow


class Model(nn.Module):
    """A model that contains the layer, with irregular times and lengths."""

    def __init__(self, generator: torch.Generator, **options: Any) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 3, dtype=torch.float64)
        self.rnn = layer(generator, **options)

    def forward(self, x: Tensor, dt: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        output, h_n = self.rnn(self.embed(x).relu(), timespans=dt, lengths=lengths)
        return output.square().mean() + h_n.sin().sum()


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("options", "timed", "backend"),
    [({}, False, "auto"), ({"integrator": "midpoint"}, True, "auto"), ({}, False, "reference")],
    ids=["plain", "times and lengths", "reference"],
)
def test_full_graph_and_few_programs(
    options: dict[str, str], timed: bool, backend: str, generator: torch.Generator
) -> None:
    """One program for the first shape, one for all others; loss and gradients equal the eager ones."""
    model = Model(generator, backend=backend, **options)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for T, B in SHAPES:
        x = sequence(generator, T, B, 3)
        dt = 0.05 * sequence(generator, T, B).abs() if timed else None
        lengths = torch.randint(1, T + 1, (B,), generator=generator) if timed else None
        found = []
        for function in (model, compiled):
            model.zero_grad()
            loss = function(x, dt, lengths)
            loss.backward()
            found.append([loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
        for eager, graph in zip(*found, strict=True):
            torch.testing.assert_close(graph, eager, rtol=1e-10, atol=1e-11)
    assert counter.frame_count <= 2


def test_the_loop_over_time_is_not_unrolled(generator: torch.Generator) -> None:
    """The program holds one operator per layer and direction, however long the sequence."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(Model(generator, num_layers=2), backend=counter, fullgraph=True)
    compiled(sequence(generator, 300, 2, 3))
    scans = [node for graph in counter.graphs for node in graph.graph.nodes if "autograd_function" in str(node.target)]
    assert len(scans) == 2
    assert sum(len(graph.graph.nodes) for graph in counter.graphs) < 150


@pytest.mark.full
def test_asked_to_be_dynamic(generator: torch.Generator) -> None:
    """Then sizes are symbols from the start, and step size and α with them."""
    model = Model(generator, alpha=0.7)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    counts = []
    for T, B in ((7, 2), (9, 3), (20, 6)):
        x = sequence(generator, T, B, 3)
        torch.testing.assert_close(compiled(x), model(x))
        counts.append(counter.frame_count)
    assert counts[0] == counts[-1]  # no further shape asked for a further program


def test_inference_mode(generator: torch.Generator) -> None:
    model = Model(generator)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    x = sequence(generator, 6, 2, 3)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("options", [{}, {"max_step": 0.1}, {"stability": "contracting", "max_step": 0.01}], ids=str)
def test_a_cell_with_a_time_that_varies(options: dict[str, Any], generator: torch.Generator) -> None:
    """From the second number on it is a symbol to the compiler: one more program, for long times and short ones."""
    cell = layer(generator, **options).cell()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(cell, backend=counter, fullgraph=True)
    x, h = sequence(generator, 2, 3), sequence(generator, 2, 5)
    for dt in (0.01, 0.02, 0.05, 0.2, 0.15):
        torch.testing.assert_close(compiled(x, h, dt), cell(x, h, dt), rtol=1e-12, atol=1e-13)
    assert counter.frame_count == 2


@pytest.mark.parametrize("slowed", [pytest.param(False, marks=pytest.mark.full), True])
def test_a_contracting_midpoint_layer_compiles_as_one_graph(slowed: bool) -> None:
    """Its matrices come from a search that no graph can hold; with its gradients, it is an operator of its own."""
    torch.manual_seed(0)
    layer = lr.LipschitzRNN(2, 5, stability="contracting", integrator="midpoint", step_size=0.3).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_((1.5 if slowed else 0.0) * torch.randn(parameter.shape, dtype=torch.float64))
    x = torch.randn(6, 3, 2, dtype=torch.float64)

    def gradients(run: Any) -> list[Tensor]:
        output, _ = run(x)
        found = torch.autograd.grad(output.square().sum(), list(layer.parameters()), allow_unused=True)
        return [output, *(torch.zeros(()) if own is None else own for own in found)]

    torch._dynamo.reset()
    compiled = gradients(torch.compile(layer, backend="aot_eager", fullgraph=True))
    for own, expected in zip(compiled, gradients(layer), strict=True):
        torch.testing.assert_close(own, expected)
    scale = layer.cell().hidden._midpoint(layer.cell().hidden._numbers())[1]  # type: ignore[operator, union-attr]
    assert (float(scale.detach()) < 1.0) == slowed


@pytest.mark.parametrize("options", [{}, {"max_step": 0.01}, {"stability": "contracting"}])
def test_negative_times_are_no_numbers(options: dict[str, Any]) -> None:
    """A compiled program cannot raise, and must not integrate backwards."""
    torch._dynamo.reset()
    compiled = torch.compile(lr.LipschitzRNN(3, 4, **options), backend="aot_eager")
    times = torch.full((10, 2), 0.01)
    times[4, 0] = -0.01
    _, h_n = compiled(torch.randn(10, 2, 3), timespans=times)
    assert h_n[0, 0].isnan().all()
    assert h_n[0, 1].isfinite().all()
