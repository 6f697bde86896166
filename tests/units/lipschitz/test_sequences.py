"""Sequences of different length and with irregular times: every way to pass them gives the same numbers."""

import copy
from typing import Any

import pytest
import torch
from lipschitz_layers import layer, sequence
from problems import relative_error
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import lipschitz_rnn as lr

LENGTHS = {
    "sorted": [7, 5, 4, 1],
    "unsorted": [4, 7, 1, 5],
    "ties": [5, 7, 5, 7],
    "equal": [6, 6, 6, 6],
    "one": [7],
}
# (relative, absolute): exact up to the rounding of another batch size in the products.
PRECISION = {torch.float64: (1e-12, 1e-12), torch.float32: (1e-5, 1e-5)}


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    relative, absolute = PRECISION[dtype]
    return {"rtol": relative, "atol": absolute}


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_packed_equals_each_alone(
    lengths: list[int], bidirectional: bool, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """With initial states and times of their own, in two layers: values, last states and gradients."""
    rnn = layer(generator, num_layers=2, bidirectional=bidirectional).to(dtype)
    alone = copy.deepcopy(rnn)
    samples = [sequence(generator, length, 3).to(dtype) for length in lengths]
    times = [0.05 * sequence(generator, length).abs().to(dtype) for length in lengths]
    h_0 = sequence(generator, 2 * rnn.num_directions, len(lengths), 5).to(dtype)

    packed = pack_sequence(samples, enforce_sorted=False)
    output, h_n = rnn(packed, h_0, timespans=pack_sequence(times, enforce_sorted=False))
    assert isinstance(output, PackedSequence)
    states, found_lengths = pad_packed_sequence(output)
    assert found_lengths.tolist() == lengths
    states.square().sum().backward()

    total = torch.zeros((), dtype=dtype)
    for i, (sample, time) in enumerate(zip(samples, times, strict=True)):
        expected, last = alone(sample, h_0[:, i], timespans=time)
        torch.testing.assert_close(states[: lengths[i], i], expected, **tolerance(dtype))
        torch.testing.assert_close(h_n[:, i], last, **tolerance(dtype))
        total = total + expected.square().sum()
    total.backward()
    for one, other in zip(rnn.parameters(), alone.parameters(), strict=True):
        assert relative_error(one.grad, other.grad) < PRECISION[dtype][0]


@pytest.mark.parametrize("batch_first", [False, True])
def test_packed_with_padded_times(batch_first: bool, generator: torch.Generator) -> None:
    """Times may come padded, in the order of the batch; beyond a sample's end they are not looked at."""
    rnn = layer(generator, batch_first=batch_first)
    lengths = torch.tensor([4, 7, 1, 5])
    x, dt = sequence(generator, 7, 4, 3), 0.05 * sequence(generator, 7, 4).abs()
    if batch_first:
        x, dt = x.transpose(0, 1), dt.T
    packed = pack_padded_sequence(x, lengths, batch_first=batch_first, enforce_sorted=False)
    states, _ = pad_packed_sequence(rnn(packed, timespans=dt)[0], batch_first=batch_first)
    torch.testing.assert_close(states, rnn(x, timespans=dt, lengths=lengths)[0], **tolerance(torch.float64))


def test_enforce_sorted_packing(generator: torch.Generator) -> None:
    """A sequence packed in sorted order carries no permutation; results stay in its order."""
    rnn = layer(generator)
    x, lengths = sequence(generator, 7, 3, 3), torch.tensor([7, 4, 2])
    output, h_n = rnn(pack_padded_sequence(x, lengths))
    assert output.sorted_indices is None
    expected, last = rnn(x, lengths=lengths)
    torch.testing.assert_close(pad_packed_sequence(output)[0], expected, **tolerance(torch.float64))
    torch.testing.assert_close(h_n, last, **tolerance(torch.float64))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_lengths_and_nan_padding(bidirectional: bool, backend: str, generator: torch.Generator) -> None:
    """``lengths`` equals packing; the output beyond is zero; NaN there changes neither values nor gradients."""
    rnn = layer(generator, num_layers=2, bidirectional=bidirectional, backend=backend)
    x, lengths = sequence(generator, 7, 4, 3), torch.tensor([4, 7, 1, 5])
    padding = torch.arange(7)[:, None] >= lengths
    packed, last = rnn(pack_padded_sequence(x, lengths, enforce_sorted=False))
    results = []
    for fill in (0.0, torch.nan):
        again = copy.deepcopy(rnn)
        padded = x.masked_fill(padding[..., None], fill).requires_grad_()
        output, h_n = again(padded, lengths=lengths)
        assert output[padding].eq(0).all()
        torch.testing.assert_close(output, pad_packed_sequence(packed)[0], **tolerance(torch.float64))
        torch.testing.assert_close(h_n, last, **tolerance(torch.float64))
        (output.square().sum() + h_n.sin().sum()).backward()
        results.append([padded.grad, *(parameter.grad for parameter in again.parameters())])
    assert results[0][0][padding].eq(0).all()
    assert all(torch.equal(clean, dirty) for clean, dirty in zip(*results, strict=True))


@pytest.mark.parametrize("integrator", ["euler", "midpoint", "heun", "rk4"])
def test_constant_times_are_the_step_size(integrator: str, generator: torch.Generator) -> None:
    rnn = layer(generator, num_layers=2, bidirectional=True, integrator=integrator, step_size=0.2)
    x = sequence(generator, 6, 4, 3)
    output, h_n = rnn(x)
    timed, last = rnn(x, timespans=torch.full((6, 4), 0.2, dtype=torch.float64))
    torch.testing.assert_close(timed, output, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(last, h_n, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("integrator", ["euler", "midpoint", "heun", "rk4"])
def test_irregular_times_equal_the_cell_in_a_loop(integrator: str, generator: torch.Generator) -> None:
    rnn = layer(generator, integrator=integrator, alpha=0.8)
    x, dt, h = sequence(generator, 6, 4, 3), 0.05 * sequence(generator, 6, 4).abs(), sequence(generator, 4, 5)
    output, h_n = rnn(x, h[None], timespans=dt)
    cell = rnn.cell()
    for t in range(6):
        h = cell(x[t], h, timespans=dt[t])
        torch.testing.assert_close(h, output[t], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(h, h_n[0], rtol=1e-12, atol=1e-13)


def test_times_run_backwards_for_the_other_direction(generator: torch.Generator) -> None:
    """At each step the reversed unit uses the time that belongs to the sample it reads."""
    rnn = layer(generator, bidirectional=True)
    x, dt = sequence(generator, 6, 2, 3), 0.05 * sequence(generator, 6, 2).abs()
    output, _ = rnn(x, timespans=dt)
    backward = lr.LipschitzRNN(3, 5, dtype=torch.float64)
    backward.cells["l0"] = rnn.cell(0, 1)
    expected, _ = backward(x.flip(0), timespans=dt.flip(0))
    torch.testing.assert_close(output[..., 5:].flip(0), expected, rtol=1e-12, atol=1e-13)


def test_gradient_of_the_times(generator: torch.Generator) -> None:
    """Times may be learned."""
    rnn = layer(generator, 2, 3, integrator="midpoint")
    x = sequence(generator, 4, 2, 2)

    def last(dt: Tensor) -> Tensor:
        return rnn(x, timespans=dt.abs())[1]

    dt = 0.1 + sequence(generator, 4, 2).abs()
    assert torch.autograd.gradcheck(last, dt.requires_grad_())


def test_float32_times_with_float64_layer(generator: torch.Generator) -> None:
    rnn = layer(generator)
    x, dt = sequence(generator, 4, 2, 3), 0.05 * sequence(generator, 4, 2).abs().float()
    torch.testing.assert_close(rnn(x, timespans=dt)[0], rnn(x, timespans=dt.double())[0])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
@pytest.mark.parametrize("options", [{"max_step": 0.01}, {"stability": "contracting", "parallel": 3, "max_step": 0.03}])
def test_lengths_of_any_integer_type(dtype: torch.dtype, options: dict[str, Any]) -> None:
    """Counted in sub-steps they do not fit into a few bits."""
    torch.manual_seed(0)
    rnn = lr.LipschitzRNN(3, 8, step_size=0.5, **options)
    x, lengths = torch.randn(120, 3, 3), torch.tensor([120, 50, 7])
    for found, expected in zip(rnn(x, lengths=lengths.to(dtype)), rnn(x, lengths=lengths), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("batch_first", [False, True])
def test_padding_of_the_times_may_be_anything(batch_first: bool) -> None:
    """Differences of clocks that are padded with zeros are negative there."""
    clock, lengths = torch.tensor([[0.0, 0.0], [0.03, 0.05], [0.06, 0.0]]), torch.tensor([3, 2])
    spans = torch.diff(clock, dim=0, prepend=torch.zeros(1, 2))
    x, rnn = torch.randn(3, 2, 3), lr.LipschitzRNN(3, 8, batch_first=batch_first)

    def run(spans: Tensor) -> Tensor:
        return rnn(*turned(x), timespans=turned(spans)[0], lengths=lengths)[0]

    def turned(*tensors: Tensor) -> list[Tensor]:
        return [tensor.transpose(0, 1) if batch_first else tensor for tensor in tensors]

    expected = run(spans.clamp(min=0.0))
    assert torch.equal(run(spans), expected)
    spans[2, 1] = torch.nan
    assert torch.equal(run(spans), expected)
    packed = pack_padded_sequence(x.flip(1), lengths.flip(0), enforce_sorted=False)  # the shorter one first
    found = pad_packed_sequence(rnn(packed, timespans=turned(spans.flip(1))[0])[0])[0].flip(1)
    torch.testing.assert_close(found, turned(expected)[0])
    spans[1, 1] = -1.0
    place = r"timespans\[1, 1\] is -1\.0"
    with pytest.raises(ValueError, match=place):
        run(spans)
