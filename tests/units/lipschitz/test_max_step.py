"""``max_step`` of layer, cell and stream: long gaps in several steps, wherever a layer runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from lipschitz_layers import layer, sequence
from scipy.integrate import solve_ivp
from torch import Tensor, nn
from torch.export import Dim
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import lipschitz_rnn as lr
from lipschitz_rnn.training.ensemble import Ensemble

STEPS, BATCH, LIMIT = 7, 3, 0.15


def gaps(generator: torch.Generator, steps: int = STEPS, batch: int = BATCH) -> Tensor:
    """Between 0 and thirteen times the limit; some are whole multiples of it."""
    spans = 2.0 * torch.rand(steps, batch, generator=generator, dtype=torch.float64)
    spans[0, 0], spans[1, 0], spans[2, 0] = 0.0, LIMIT, 3 * LIMIT
    return spans


def by_hand(rnn: lr.LipschitzRNN, x: Tensor, spans: Tensor) -> Tensor:
    """The states of a layer of one direction and depth without max_step: every sample alone, its rows written out."""
    outputs = []
    for b in range(x.shape[1]):
        counts = torch.tensor([max(1, math.ceil(span / LIMIT - 1e-9)) for span in spans[:, b].tolist()])
        rows = x[:, b : b + 1].repeat_interleave(counts, 0)
        output, _ = rnn(rows, timespans=(spans[:, b] / counts).repeat_interleave(counts)[:, None])
        outputs.append(output[counts.cumsum(0) - 1])
    return torch.cat(outputs, 1)


def pair(generator: torch.Generator, **options: Any) -> tuple[lr.LipschitzRNN, lr.LipschitzRNN]:
    """The same weights with and without max_step."""
    plain = layer(generator, **options)
    split = lr.LipschitzRNN(3, 5, dtype=torch.float64, max_step=LIMIT, **options)
    split.load_state_dict(dict(plain.state_dict()))
    return plain, split


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("integrator", ["euler", "midpoint", "heun", "rk4"])
def test_layer_cell_and_streams(integrator: str, backend: str, generator: torch.Generator) -> None:
    plain, split = pair(generator, integrator=integrator, backend=backend, alpha=0.7)
    x, spans = sequence(generator, STEPS, BATCH, 3), gaps(generator)
    expected = by_hand(plain, x, spans).detach()
    output, h_n = split(x, timespans=spans)
    close(output.detach(), expected)
    close(h_n[0].detach(), expected[-1])
    close(split(x, timespans=spans, need_output=False)[1], h_n)

    matrices, h, batched = split.hidden_matrices(), None, split.stream(BATCH)
    for sample, dt, right in zip(x, spans, expected, strict=True):
        h = split.cell()(sample, h, dt, matrices)
        close(h.detach(), right)
        close(batched(sample, dt), right)
    for b in range(BATCH):
        stream, h = split.stream(), None
        for sample, dt, right in zip(x[:, b], spans[:, b], expected[:, b], strict=True):
            close(stream(sample, dt), right)
            h = split.cell()(sample, h, float(dt))
            close(h.detach(), right)


def test_a_fixed_step_longer_than_max_step(generator: torch.Generator) -> None:
    plain, split = pair(generator, step_size=0.6)
    x, lengths = sequence(generator, STEPS, BATCH, 3), torch.tensor([7, 2, 5])
    expected = by_hand(plain, x, torch.full((STEPS, BATCH), 0.6, dtype=torch.float64)).detach()
    close(split(x)[0].detach(), expected)
    stream, batched, h = split.stream(), split.stream(BATCH), None
    for sample, right in zip(x, expected, strict=True):
        close(stream(sample[0]), right[0])
        close(batched(sample), right)
        h = split.cell()(sample, h)
        close(h.detach(), right)
    output, h_n = split(x, lengths=lengths)
    for b, length in enumerate(lengths.tolist()):
        close(h_n[0, b].detach(), expected[length - 1, b])
        assert not output[length:, b].any()


def test_batch_packed_padded_and_both_directions(generator: torch.Generator) -> None:
    """What a sample gives does not depend on its batch; the padding may hold anything."""
    rnn = layer(generator, num_layers=2, bidirectional=True, max_step=LIMIT)
    x, spans, lengths = sequence(generator, STEPS, BATCH, 3), gaps(generator), torch.tensor([7, 2, 5])
    x[2:, 1] = torch.nan
    output, h_n = rnn(x, timespans=spans, lengths=lengths)
    packed, last = rnn(pack_padded_sequence(x, lengths, enforce_sorted=False), timespans=spans)
    close(pad_packed_sequence(packed)[0], output)
    close(last, h_n)
    first = layer(generator, batch_first=True, max_step=LIMIT)
    close(first(x[:2].transpose(0, 1), timespans=spans[:2].T)[0][0], first(x[:2, 0], timespans=spans[:2, 0])[0])
    for b, length in enumerate(lengths.tolist()):
        alone, end = rnn(x[:length, b], timespans=spans[:length, b])
        close(output[:length, b], alone)
        close(h_n[:, b], end)


def test_gradients_of_parameters_and_times(generator: torch.Generator) -> None:
    plain, split = pair(generator, integrator="midpoint", recompute_every=2)
    x, spans = sequence(generator, STEPS, BATCH, 3), gaps(generator)
    times = [spans.clone().requires_grad_() for _ in range(2)]
    split(x, timespans=times[0])[0].square().sum().backward()
    by_hand(plain, x, times[1]).square().sum().backward()
    torch.testing.assert_close(times[0].grad, times[1].grad, rtol=1e-10, atol=1e-11)
    for one, other in zip(split.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-11)


def test_ensemble_by_vmap(generator: torch.Generator) -> None:
    members = [layer(generator, max_step=LIMIT) for _ in range(3)]
    parameters, buffers = stack_module_state(members)
    x, spans = sequence(generator, STEPS, BATCH, 3), torch.stack([gaps(generator) * s for s in (0.1, 1.0, 2.0)])

    def loss(parameters: Any, buffers: Any, spans: Tensor) -> Tensor:
        return functional_call(members[0], (parameters, buffers), (x,), {"timespans": spans})[0].square().sum()

    gradients = vmap(grad(loss))(parameters, buffers, spans)
    for s, member in enumerate(members):
        member(x, timespans=spans[s])[0].square().sum().backward()
        for name, parameter in member.named_parameters():
            torch.testing.assert_close(gradients[name][s], parameter.grad, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_precision_follows_that_of_the_layer(dtype: torch.dtype, generator: torch.Generator) -> None:
    exact = layer(generator, max_step=LIMIT)
    rnn = lr.LipschitzRNN(3, 5, max_step=LIMIT)
    rnn.load_state_dict(exact.state_dict())
    x, spans = sequence(generator, STEPS, BATCH, 3), gaps(generator)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        output, _ = rnn(x.float(), timespans=spans.float())
        one = rnn.cell()(x[1].float(), output[0].float(), spans[1].float())
    assert output.dtype == one.dtype == dtype
    tolerance = 10 * torch.finfo(dtype).eps
    expected = exact(x, timespans=spans)[0]
    torch.testing.assert_close(output.double(), expected, rtol=tolerance, atol=tolerance * expected.abs().max().item())
    torch.testing.assert_close(one, output[1], rtol=tolerance, atol=tolerance)


def exact_states(rnn: lr.LipschitzRNN, x: Tensor, span: float) -> Tensor:
    """SciPy's solution of the layer's equation for one series, the input held over each span."""
    (A, W), cell = rnn.hidden_matrices(), rnn.cell()
    A, W, U, b = (tensor.detach().double().numpy() for tensor in (A, W, cell.weight_ih, cell.bias_ih))
    h, states = np.zeros(len(A)), []
    for sample in x.double().numpy():
        u = U @ sample + b
        h = solve_ivp(lambda _, y, u=u: A @ y + np.tanh(W @ y + u), (0, span), h, rtol=1e-9, atol=1e-9).y[:, -1]
        states.append(h)
    return torch.from_numpy(np.stack(states))


def error_of(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize(
    ("integrator", "order", "largest"), [("euler", 1, 0.3), ("midpoint", 2, 3e-3), ("rk4", 4, 3e-6)]
)
def test_long_gaps_follow_the_differential_equation(
    integrator: str, order: int, largest: float, generator: torch.Generator
) -> None:
    """Gaps of 60, whose error falls with the limit as the method's order says."""
    torch.manual_seed(0)
    rnn = lr.LipschitzRNN(3, 16, integrator=integrator, dtype=torch.float64)
    x, errors = sequence(generator, 8, 3), []
    for limit in (4.0, 2.0):
        rnn.max_step = limit
        output, _ = rnn(x, timespans=torch.full((8,), 60.0, dtype=torch.float64))
        errors.append(error_of(output.detach(), exact_states(rnn, x, 60.0)))
    assert errors[1] < largest
    assert 0.7 < math.log2(errors[0] / errors[1]) / order < 1.5


def test_a_hundred_gaps_of_a_minute() -> None:
    """Euler steps of 60 take a fresh layer to 1e25; divided, it stays where its equation takes it."""
    torch.manual_seed(0)
    rnn, x = lr.LipschitzRNN(3, 64, max_step=0.5), torch.randn(100, 3)
    exact = exact_states(rnn, x, 60.0)
    output, _ = rnn(x, timespans=torch.full((100,), 60.0))
    assert output.isfinite().all()
    assert output.abs().max() < 10 * exact.abs().max()
    rnn.integrator = "rk4"
    assert error_of(rnn(x, timespans=torch.full((100,), 60.0))[0].detach(), exact) < 1e-3


class Gaps(nn.Module):
    """A layer, a head, and times as an input."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.rnn = layer(generator, max_step=LIMIT, **options).float()
        self.head = nn.Linear(10 if self.rnn.bidirectional else 5, 2)

    def forward(self, x: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
        output, h_n = self.rnn(x, timespans=dt)
        return self.head(output), h_n


class OneStep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = layer(torch.Generator().manual_seed(6), max_step=LIMIT).float().cell()

    def forward(self, x: Tensor, h: Tensor, dt: Tensor) -> Tensor:
        return self.cell(x, h, dt)


def run_file(path: Path, *inputs: Tensor) -> list[Tensor]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feed = {node.name: value.numpy() for node, value in zip(session.get_inputs(), inputs, strict=True)}
    return [torch.from_numpy(value) for value in session.run(None, feed)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"bidirectional": True, "integrator": "rk4"}, marks=pytest.mark.full)],
    ids=["euler", "both directions, rk4"],
)
def test_exported_and_onnx_of_any_shape_and_any_times(
    options: dict[str, Any], generator: torch.Generator, tmp_path: Path
) -> None:
    model, path = Gaps(**options).eval(), tmp_path / "gaps.onnx"
    example = (torch.zeros(5, 2, 3), torch.ones(5, 2))
    shapes = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC}, {0: Dim.DYNAMIC, 1: Dim.DYNAMIC})
    program = torch.export.export(model, example, dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "gaps.pt2")
    loaded = torch.export.load(tmp_path / "gaps.pt2").module()
    torch.onnx.export(program, (), path, verbose=False)
    for steps, batch in ((5, 2), (4, 3), (9, 1)):
        x, dt = sequence(generator, steps, batch, 3).float(), gaps(generator, steps, batch).float()
        expected = [value.detach() for value in model(x, dt)]
        for found in (loaded(x, dt), run_file(path, x, dt)):
            for value, right in zip(found, expected, strict=True):
                torch.testing.assert_close(value.detach(), right, rtol=1e-5, atol=1e-5)


@pytest.mark.full
def test_exported_step(generator: torch.Generator, tmp_path: Path) -> None:
    model, path = OneStep().eval(), tmp_path / "step.onnx"
    batch = {0: Dim.DYNAMIC}
    torch.onnx.export(
        model, (torch.zeros(2, 3), torch.zeros(2, 5), torch.ones(2)), path, dynamo=True,
        dynamic_shapes=(batch, batch, batch), verbose=False,
    )  # fmt: skip
    for size in (1, 4):
        x, h = sequence(generator, size, 3).float(), sequence(generator, size, 5).float()
        dt = 2.0 * torch.rand(size, generator=generator)
        (found,) = run_file(path, x, h, dt)
        torch.testing.assert_close(found, model(x, h, dt).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.full
def test_compiled_without_a_break(generator: torch.Generator) -> None:
    rnn = layer(generator, max_step=LIMIT)
    compiled = torch.compile(
        lambda x, dt: rnn(x, timespans=dt)[0].square().sum(), fullgraph=True, backend="aot_eager", dynamic=True
    )
    for steps, batch in ((5, 2), (6, 3)):
        x, dt = sequence(generator, steps, batch, 3), gaps(generator, steps, batch)
        compiled(x, dt).backward()
        found = [parameter.grad.clone() for parameter in rnn.parameters()]
        rnn.zero_grad()
        rnn(x, timespans=dt)[0].square().sum().backward()
        for one, parameter in zip(found, rnn.parameters(), strict=True):
            torch.testing.assert_close(one, parameter.grad, rtol=1e-11, atol=1e-12)
        rnn.zero_grad()


def contracting(**options: Any) -> lr.LipschitzRNN:
    torch.manual_seed(1)
    return lr.LipschitzRNN(3, 5, stability="contracting", rate=0.5, step_size=LIMIT, dtype=torch.float64, **options)


def test_a_contracting_layer_keeps_its_guarantee_over_gaps(generator: torch.Generator) -> None:
    """Each sub-step of r times the longest one gives the factor 1 − r(1 − ρ)."""
    rnn = contracting(max_step=LIMIT)
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.copy_(3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    x, spans = sequence(generator, STEPS, 1, 3), gaps(generator, batch=1)
    starts = sequence(generator, 2, 1, 1, 5)
    one, other = (torch.cat((start[0], rnn(x, start, timespans=spans)[0][:, 0])) for start in starts)
    metric, _ = rnn.cell().hidden.metric()
    distance = (((one - other) ** 2) * metric).sum(-1).sqrt()
    counts = (spans[:, 0] / LIMIT - 1e-9).ceil().clamp(min=1)
    factors = (1 - spans[:, 0] / counts / LIMIT * (1 - math.exp(-0.5 * LIMIT))) ** counts
    assert (distance[1:] <= distance[:-1] * factors * (1 + 1e-9) + 1e-14).all()


def test_a_contracting_layer_without_max_step_never_runs_beyond_its_proof(generator: torch.Generator) -> None:
    """It refuses where it sees the times, also under vmap; a compiled program, which does not, divides them."""
    rnn, split = contracting(), contracting(max_step=LIMIT)
    x, spans = sequence(generator, 4, 2, 3), torch.full((4, 2), 0.6, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"timespans reaches 0\.6, .* or pass max_step=0\.15"):
        rnn(x, timespans=spans)
    with pytest.raises(ValueError, match=r"timespans reaches 1\.2"):
        vmap(lambda scale: rnn(x, timespans=scale * spans)[1])(torch.tensor([0.1, 2.0]))
    compiled = torch.compile(lambda dt: rnn(x, timespans=dt)[0], fullgraph=True, backend="aot_eager")
    close(compiled(spans), split(x, timespans=spans)[0])
    program = torch.export.export(rnn, (x,), {"timespans": spans})
    close(program.module()(x, timespans=spans)[0], split(x, timespans=spans)[0])


def test_max_step_of_a_contracting_layer_lies_within_the_proof() -> None:
    with pytest.raises(ValueError, match=r"max_step is 1, but this contracting unit is proved for steps up to 0\.15"):
        contracting(max_step=1.0)
    rnn = contracting(max_step=0.1)
    with pytest.raises(ValueError, match=r"max_step is 0\.5"):
        rnn.max_step = 0.5
    rnn.max_step = None
    rnn.cell().max_step = LIMIT
    rnn.stream()(torch.zeros(3, dtype=torch.float64), 10.0)


def test_members_of_an_ensemble_that_differ_in_their_step(generator: torch.Generator) -> None:
    """The step is a tensor there, and each member takes its own number of sub-steps."""

    class Wrapped(nn.Module):
        def __init__(self, step_size: float) -> None:
            super().__init__()
            self.unit = layer(generator, max_step=LIMIT, step_size=step_size)

        def forward(self, x: Tensor, *_: Any) -> Any:
            return self.unit(x, timespans=None if x.shape[0] < STEPS else spans)

    spans = gaps(generator)
    models, x = [Wrapped(0.1), Wrapped(0.5)], sequence(generator, STEPS, BATCH, 3)
    ensemble = Ensemble(models, "cpu", "vmap")
    for length in (STEPS - 1, STEPS):  # steps of the members' own, and times
        expected = torch.stack([model(x[:length])[0] for model in models])
        close(ensemble(ensemble.values, x[:length], shared=True)[0], expected)
