"""One contract for all units: signature, output_size, penalty, stream, lengths, timespans, old names."""

import inspect
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lipschitz_rnn import units
from lipschitz_rnn.units.base import Recurrent
from lipschitz_rnn.units.stream import Stream

ALL = units.available()
TIMED = [name for name in ALL if units.info(name).timespans]
everywhere = pytest.mark.parametrize("name", ALL)
timed = pytest.mark.parametrize("name", TIMED)
integrating = pytest.mark.parametrize("name", [name for name in TIMED if name != "gru-d"])  # which decays and jumps
LENGTHS = torch.tensor([4, 7, 1, 5])


def parts(state: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def assert_same(left: Any, right: Any, tolerance: float = 1e-12) -> None:
    for a, b in zip(parts(left), parts(right), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def step_size_of(unit: Any) -> float:
    return float(unit.cell().step_size)


def set_step_size(unit: Any, value: float) -> None:
    for cell in [unit.cell(layer) for layer in range(unit.num_layers)]:
        cell.step_size = value


def irregular(unit: Any, *shape: int) -> Tensor:
    """Times around the unit's own step, up to it, so that every unit takes them."""
    generator = torch.Generator().manual_seed(3)
    return step_size_of(unit) * torch.rand(*shape, generator=generator, dtype=torch.float64)


def test_the_units_that_take_timespans() -> None:
    assert set(TIMED) == {
        *("lipschitz", "lipschitz-gated", "neural-ode", "antisymmetric", "antisymmetric-gated", "residual", "nais"),
        *("cornn", "lem", "gru-d", "lru"),
    }


@everywhere
def test_signature_and_what_every_unit_has(name: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    unit = build_unit(name, 3, 8, num_layers=2, bidirectional=True)
    assert isinstance(unit, Recurrent)
    signature = inspect.signature(unit.forward)
    assert list(signature.parameters) == ["input", "hx", "lengths", "timespans", "need_output", "generator"]
    kinds = [parameter.kind.name for parameter in signature.parameters.values()]
    assert kinds == ["POSITIONAL_OR_KEYWORD"] * 2 + ["KEYWORD_ONLY"] * 4
    output, h_n = unit(inputs(5, 4, 3))
    assert output.shape == (5, 4, unit.output_size)
    assert [part.shape[-1] for part in parts(h_n)] == list(unit.state_sizes())
    assert unit.penalty().shape == ()
    assert unit.penalty() >= 0
    assert unit.registered_name() == name
    assert unit.takes_timespans == units.info(name).timespans


@everywhere
def test_starts_at_its_initial_state(name: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    unit, x = build_unit(name, 3, 8, num_layers=2, bidirectional=True), inputs(5, 4, 3)
    start = unit.initial_state(4)
    assert_same(unit(x, start if len(start) > 1 else start[0])[0], unit(x)[0])


@everywhere
def test_without_output_the_last_state_is_the_same(
    name: str, build_unit: Callable, inputs: Callable[..., Tensor]
) -> None:
    unit, x = build_unit(name, 3, 8, num_layers=2), inputs(7, 4, 3)
    for options in ({}, {"lengths": LENGTHS}):
        output, h_n = unit(x, **options, need_output=False)
        assert output is None
        assert_same(h_n, unit(x, **options)[1])
    with pytest.raises(TypeError, match="need_output is 'no'"):
        unit(x, need_output="no")


@everywhere
@pytest.mark.parametrize("batch", [None, 4])
def test_a_stream_gives_what_the_whole_sequence_gives(
    name: str, batch: int | None, build_unit: Callable, inputs: Callable[..., Tensor]
) -> None:
    unit = build_unit(name, 3, 8, num_layers=2)
    x = inputs(6, 3) if batch is None else inputs(6, batch, 3)
    times = irregular(unit, *x.shape[:-1]) if name in TIMED else None
    for options in [{}] if times is None else [{}, {"timespans": times}]:
        output, h_n = unit(x, **options)
        _, half = unit(x[:3], **{key: value[:3] for key, value in options.items()})
        stream = unit.stream(batch)
        assert isinstance(stream, Stream)
        given = [stream(x_t, *(value[t] for value in options.values())) for t, x_t in enumerate(x)]
        assert_same(torch.stack(given), output.detach())
        assert_same(stream.state, tuple(part.detach() for part in parts(h_n)))
        stream.reset()
        assert_same(stream(x[0], *(value[0] for value in options.values())), output[0].detach())
        stream.state = half
        assert_same(stream(x[3], *(value[3] for value in options.values())), output[3].detach())


@everywhere
def test_a_stream_is_a_copy_that_nobody_else_writes_to(
    name: str, build_unit: Callable, inputs: Callable[..., Tensor]
) -> None:
    unit, x = build_unit(name, 3, 8), inputs(4, 2, 3).requires_grad_()
    expected, stream = unit(x)[0].detach(), unit.stream(2)
    with torch.no_grad():
        for parameter in unit.parameters():
            parameter.zero_()
    for x_t, right in zip(x, expected, strict=True):
        given = stream(x_t)
        assert_same(given, right)
        assert not given.requires_grad
        given.fill_(torch.nan)
        for part in parts(stream.state):
            part.fill_(torch.nan)


@everywhere
def test_what_a_stream_refuses(name: str, build_unit: Callable) -> None:
    with pytest.raises(ValueError, match=f"bidirectional is True.*{name}"):
        build_unit(name, 3, 8, bidirectional=True).stream()
    with pytest.raises(ValueError, match=r"input has shape \(2, 3\)"):
        build_unit(name, 3, 8).stream()(torch.zeros(2, 3, dtype=torch.float64))
    with pytest.raises(TypeError, match=r"input is torch.float32"):
        build_unit(name, 3, 8).stream()(torch.zeros(3))
    with pytest.raises(ValueError, match="batch_size is 0"):
        build_unit(name, 3, 8).stream(0)


@pytest.mark.parametrize("name", ["neural-ode", "antisymmetric", "lipschitz-gated", "lipschitz"])
def test_a_stream_in_16_bits_loses_no_small_steps(name: str) -> None:
    """Each step adds less than bfloat16 can add to the state: a state rounded at every step stands still."""
    unit = units.build(name, 3, 6, step_size=0.001)
    x = torch.full((1000, 3), 0.5)
    expected = unit(x)[1].detach()
    stream = unit.bfloat16().stream()
    for x_t in x.bfloat16():
        given = stream(x_t)
    assert given.dtype == torch.bfloat16
    assert (stream.state.float() - expected).norm() < 0.03 * expected.norm()


@pytest.mark.parametrize("name", [name for name in ALL if name not in TIMED])
def test_units_without_a_time_refuse_timespans_by_name(
    name: str, build_unit: Callable, inputs: Callable[..., Tensor]
) -> None:
    unit = build_unit(name, 3, 8)
    with pytest.raises(ValueError, match=rf"'{name}'.*neural-ode.*lipschitz.*cornn, lem"):
        unit(inputs(7, 4, 3), timespans=torch.ones(7, 4))
    with pytest.raises(ValueError, match=f"'{name}'"):
        unit.stream()(inputs(3), 0.1)


@timed
def test_equal_timespans_are_the_step_size(name: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    unit, x = build_unit(name, 3, 8, num_layers=2, bidirectional=True), inputs(7, 4, 3)
    spans = torch.full((7, 4), step_size_of(unit), dtype=torch.float64)
    assert_same(unit(x, timespans=spans)[0], unit(x)[0])
    assert_same(unit(x, timespans=spans)[1], unit(x)[1])
    single, x = units.build(name, 3, 8), x.float()
    assert_same(single(x, timespans=spans)[0], single(x)[0], 1e-5)


@timed
@pytest.mark.parametrize("autocast", [False, True])
def test_times_in_16_bits_change_no_dtype(name: str, autocast: bool) -> None:
    """The same dtypes as without times, and the same numbers but for the rounding of a few steps."""
    unit, x = units.build(name, 3, 8), torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(1))
    spans = torch.full((5, 4), step_size_of(unit))
    if not autocast:
        unit, x = unit.bfloat16(), x.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        plain, timed = unit(x), unit(x, timespans=spans)
    assert timed[0].dtype == plain[0].dtype
    assert [part.dtype for part in parts(timed[1])] == [part.dtype for part in parts(plain[1])]
    torch.testing.assert_close(timed[0].float(), plain[0].float(), rtol=0.05, atol=0.02)


@timed
def test_every_sample_takes_its_own_times(name: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    """Against a loop that sets `step_size` before each step of each sample, and needs no timespans."""
    unit, x = build_unit(name, 3, 8, num_layers=2), inputs(5, 3, 3)
    spans, usual = irregular(unit, 5, 3).clamp(min=1e-3), step_size_of(unit)
    output, h_n = unit(x, timespans=spans)
    for b in range(3):
        state, h = [], None
        for t in range(5):
            set_step_size(unit, float(spans[t, b]))
            y, h = unit(x[t : t + 1, b], h)
            state.append(y[0])
        assert_same(output[:, b], torch.stack(state))
        assert_same(tuple(part[:, b] for part in parts(h_n)), h)
    set_step_size(unit, usual)
    unit.batch_first = True
    assert_same(unit(x.transpose(0, 1), timespans=spans.T)[0], output.transpose(0, 1))


@integrating
def test_no_time_no_change(name: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    unit, x = build_unit(name, 3, 4), inputs(4, 2, 3)
    _, h = unit(x)
    _, still = unit(x, h, timespans=torch.zeros(4, 2, dtype=torch.float64))
    assert_same(still, h)


@timed
def test_a_gradient_by_time(name: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    unit, x = build_unit(name, 3, 4), inputs(4, 2, 3)
    spans = irregular(unit, 4, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda times: unit(x, timespans=times)[0], spans)


@timed
def test_times_go_with_lengths_and_packing(name: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    unit, x = build_unit(name, 3, 8, bidirectional=True), inputs(7, 4, 3)
    spans = irregular(unit, 7, 4)
    padding = torch.arange(7)[:, None] >= LENGTHS
    padded = spans.masked_fill(padding, 0.5 * step_size_of(unit)).requires_grad_()
    output, h_n = unit(x, lengths=LENGTHS, timespans=padded)
    output.square().sum().backward()
    assert (padded.grad[padding] == 0).all()
    for b, length in enumerate(LENGTHS.tolist()):
        alone, h_alone = unit(x[:length, b], timespans=spans[:length, b])
        assert_same(output[:length, b], alone)
        assert_same(tuple(part[:, b] for part in parts(h_n)), h_alone)
    packed, packed_times = (pack_padded_sequence(value, LENGTHS, enforce_sorted=False) for value in (x, spans))
    assert_same(pad_packed_sequence(unit(packed, timespans=packed_times)[0])[0], output)


@pytest.mark.parametrize("name", [name for name in TIMED if name not in ("gru-d", "lru")])  # lru is exact
def test_shorter_steps_converge(name: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    """n steps of 1/n of the time with the input held: the error falls as 1/n, the order of all these schemes."""
    unit, x = build_unit(name, 3, 8), inputs(3, 2, 3)
    spans = 0.5 * min(1.0, step_size_of(unit)) * (0.5 + irregular(unit, 3, 2) / step_size_of(unit))

    def last(n: int) -> Tensor:
        repeated, times = x.repeat_interleave(n, 0), spans.repeat_interleave(n, 0) / n
        return parts(unit(repeated, timespans=times, need_output=False)[1])[0].detach()

    limit = 2 * last(512) - last(256)  # Richardson: exact up to the square of the shortest step
    errors = [float((last(n) - limit).norm()) for n in (8, 16, 32)]
    assert errors[0] > 1e-9
    for coarse, fine in pairwise(errors):
        assert 1.8 < coarse / fine < 2.2


@timed
def test_ensembles_take_timespans(name: str, inputs: Callable[..., Tensor]) -> None:
    members = [units.build(name, 3, 8).double() for _ in range(2)]
    parameters, buffers = torch.func.stack_module_state(members)
    x = inputs(5, 4, 3)
    spans = irregular(members[0], 5, 4)

    def run(values: dict[str, Tensor], constants: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(members[0], (values, constants), (x,), {"timespans": spans})[0]

    outputs = torch.func.vmap(run)(parameters, buffers)
    for member, output in zip(members, outputs, strict=True):
        assert_same(output, member(x, timespans=spans)[0])


def test_times_that_a_unit_cannot_take(build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    x = inputs(5, 4, 3)
    with pytest.raises(ValueError, match=r"timespans reaches 1\.5"):
        build_unit("nais", 3, 8)(x, timespans=torch.full((5, 4), 1.5))
    with pytest.raises(ValueError, match="backend is 'reference'"):
        build_unit("cornn", 3, 8, backend="reference")(x, timespans=torch.full((5, 4), 0.1))
    with pytest.raises(ValueError, match=r"timespans has shape \(4, 5\)"):
        build_unit("lem", 3, 8)(x, timespans=torch.ones(4, 5))
    with pytest.raises(ValueError, match=r"timespans\[0, 0\] is -1.0"):
        build_unit("lem", 3, 8)(x, timespans=-torch.ones(5, 4))


@everywhere
def test_old_names_still_work_and_say_so(name: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    unit, x = build_unit(name, 3, 8), inputs(7, 4, 3)
    _, h = unit(x)
    for call, old in (
        (lambda: unit(x, h_0=h), "h_0="),
        (lambda: unit(x=x, hx=h), "x="),
    ):
        with pytest.warns(DeprecationWarning, match=old) as caught:
            assert_same(call()[0], unit(x, h)[0])
        assert caught[0].filename == __file__
    with pytest.raises(TypeError, match="h_0= and hx="):
        unit(x, h_0=h, hx=h)
    third, value = ("timespans", irregular(unit, 7, 4)) if name == "lipschitz" else ("lengths", LENGTHS)
    with pytest.warns(DeprecationWarning, match=third):
        assert_same(unit(x, h, value)[0], unit(x, h, **{third: value})[0])
    with pytest.raises(TypeError, match="2 positional arguments, got 7"):
        unit(x, h, value, value, value, value, value)
    if name in TIMED:
        with pytest.warns(DeprecationWarning, match="dt="):
            assert_same(unit.stream(4)(x[0], dt=0.01), unit.stream(4)(x[0], timespans=0.01))


def test_old_names_of_the_cell(inputs: Callable[..., Tensor]) -> None:
    cell = units.build("lipschitz", 3, 8).double().cell()
    x, h = inputs(4, 3), inputs(4, 8)
    with pytest.warns(DeprecationWarning, match="LipschitzRNNCell") as caught:
        old = cell(x=x, h=h, dt=0.1)
    assert len(caught) == 3
    assert_same(old, cell(x, h, 0.1))
