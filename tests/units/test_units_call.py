"""The call of nn.RNN: forms of the input, states, lengths, layers, directions, wrong usage."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lipschitz_rnn import units

ALL = units.available()
everywhere = pytest.mark.parametrize("name", ALL)
LENGTHS = torch.tensor([4, 7, 1, 5])


def parts(state: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def assert_same(left: Any, right: Any) -> None:
    for a, b in zip(parts(left), parts(right), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@everywhere
def test_shapes(name: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    unit = build_unit(name, 3, 8, num_layers=2)
    output, h_n = unit(inputs(7, 4, 3))
    assert output.shape == (7, 4, unit.output_size)
    assert not output.is_complex()
    assert all(part.shape[:2] == (2, 4) for part in parts(h_n))
    assert unit.output_size in (8, 16)


@everywhere
def test_batch_first_and_no_batch(name: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    unit, x = build_unit(name, 3, 8), inputs(7, 4, 3)
    output, h_n = unit(x)
    unit.batch_first = True
    turned, h_turned = unit(x.transpose(0, 1))
    assert_same(turned, output.transpose(0, 1))
    assert_same(h_turned, h_n)
    alone, h_alone = unit(x[:, 1])
    assert_same(alone, output[:, 1])
    assert_same(h_alone, tuple(part[:, 1] for part in parts(h_n)))


@everywhere
def test_a_sequence_in_pieces_gives_the_same(name: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    unit, x = build_unit(name, 3, 8, num_layers=2), inputs(7, 4, 3)
    output, h_n = unit(x)
    first, h = unit(x[:3])
    second, h = unit(x[3:], h)
    assert_same(torch.cat([first, second]), output)
    assert_same(h, h_n)


@everywhere
def test_lengths_and_packing(name: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    """Each sequence as if it came alone, its padding without influence, whatever it holds."""
    unit, x = build_unit(name, 3, 8, num_layers=2, bidirectional=True), inputs(7, 4, 3)
    padding = torch.arange(7)[:, None] >= LENGTHS
    output, h_n = unit(x.masked_fill(padding[..., None], float("nan")), lengths=LENGTHS)
    for b, length in enumerate(LENGTHS.tolist()):
        alone, h_alone = unit(x[:length, b])
        assert_same(output[:length, b], alone)
        assert_same(tuple(part[:, b] for part in parts(h_n)), h_alone)
        assert (output[length:, b] == 0).all()
    packed, h_packed = unit(pack_padded_sequence(x, LENGTHS, enforce_sorted=False))
    assert_same(pad_packed_sequence(packed)[0], output)
    assert_same(h_packed, h_n)


@everywhere
def test_padding_gives_no_gradient(name: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    unit, x = build_unit(name, 3, 8), inputs(7, 4, 3)
    padding = (torch.arange(7)[:, None] >= LENGTHS)[..., None]
    x = x.masked_fill(padding, 1e3).requires_grad_()
    unit(x, lengths=LENGTHS)[0].square().sum().backward()
    assert (x.grad[padding.expand_as(x)] == 0).all()
    assert x.grad[~padding.expand_as(x)].abs().max() > 0
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in unit.parameters())


@everywhere
def test_directions(name: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    """The backward half sees the sequence from its end: what comes before a step does not reach it."""
    unit, x = build_unit(name, 3, 8, bidirectional=True), inputs(7, 4, 3)
    changed = torch.cat([x[:2] + 1.0, x[2:]])
    difference = (unit(x)[0] - unit(changed)[0]).abs().amax(1)
    forth, back = difference.split(unit.output_size // 2, -1)
    assert (forth.amax(-1) > 0).all()
    assert (back[:2].amax(-1) > 0).all()
    assert (back[2:] == 0).all()


@everywhere
def test_dropout_acts_between_layers_in_training_only(
    name: str, build_unit: Callable, inputs: Callable[..., Tensor]
) -> None:
    unit, x = build_unit(name, 3, 8, num_layers=2, dropout=0.5), inputs(7, 4, 3)
    assert not torch.equal(unit(x)[0], unit(x)[0])
    unit.eval()
    assert torch.equal(unit(x)[0], unit(x)[0])


@everywhere
def test_state_dict_carries_the_unit(name: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    """Saved and loaded it is the same function: what is random at the start is in the state."""
    unit, x = build_unit(name, 3, 8), inputs(7, 4, 3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        other = units.build(name, 3, 8).double()
    assert not torch.allclose(other(x)[0], unit(x)[0])
    other.load_state_dict(unit.state_dict())
    assert_same(other(x)[0], unit(x)[0])


def test_wrong_names_list_the_right_ones() -> None:
    with pytest.raises(ValueError, match=r"'exprn' \(did you mean 'exprnn'\?\).*rnn, lstm"):
        units.build("exprn", 1, 4)
    with pytest.raises(ValueError, match="cornn, lem"):
        units.info("transformer")


@everywhere
def test_unknown_options_are_refused_by_name(name: str) -> None:
    with pytest.raises(TypeError, match=f"'{name}'.*'warp'.*num_layers.*dtype"):
        units.build(name, 1, 4, warp=9)
    options = units.info(name).options()
    assert {"num_layers", "batch_first", "dropout", "bidirectional", "device", "dtype"} <= set(options)


@pytest.mark.parametrize(
    ("name", "options", "allowed"),
    [
        ("rnn", {"nonlinearity": "gelu"}, "relu"),
        ("exprnn", {"init": "zeros"}, "henaff"),
        ("exprnn", {"nonlinearity": "gelu"}, "modrelu, tanh, relu, leaky_relu, identity"),
        ("eurnn", {"hidden_size": 6, "fft": True}, "power of two"),
        ("eurnn", {"capacity": 0}, "hidden_size = 4"),
        ("kronecker", {"factors": (3, 2)}, "hidden_size = 4"),
        ("nnrnn", {"hidden_size": 5}, "even"),
        ("scornn", {"negative_ones": 2.0}, "[0, 1]"),
        ("soft-orth", {"margin": 1.0}, "[0, 1)"),
        ("spectral-rnn", {"reflectors": 9}, "hidden_size = 4"),
        ("dtriv", {"rebase_every": 0}, "at least 1"),
        ("nais", {"kappa": 0.5}, "(0, 0.5)"),
        ("nais", {"step_size": 1.5}, "at most 1"),
        ("irnn", {"inner_steps": 0}, "at least 1"),
        ("irnn", {"rank": 9}, "hidden_size = 4"),
        ("fastgrnn", {"hidden_rank": 9}, "hidden_size = 4"),
        ("fastgrnn", {"density": 0.0}, "(0, 1]"),
        ("srlstm", {"restart": 0}, "at least 1, or None"),
        ("antisymmetric", {"step_size": -1.0}, "positive"),
        ("lipschitz-gated", {"step_size": 0.0}, "positive"),
        ("lem", {"hidden_size": 0}, "at least 1"),
        ("lem", {"dropout": 1.5}, "[0, 1]"),
    ],
)
def test_bad_values_say_what_is_allowed(name: str, options: dict[str, Any], allowed: str) -> None:
    option, value = next(iter(options.items()))
    options = {"input_size": 2, "hidden_size": 4, **options}
    with pytest.raises(ValueError, match=re.escape(f"{option} is {value!r}") + ".*" + re.escape(allowed)):
        units.build(name, **options)


def test_bad_calls_say_what_is_allowed(build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    unit, x = build_unit("lem", 3, 8), inputs(7, 4, 3)
    with pytest.raises(ValueError, match="input_size is 3"):
        unit(inputs(7, 4, 2))
    with pytest.raises(ValueError, match=r"hx has 1 tensors.*2 states.*\(8, 8\)"):
        unit(x, inputs(1, 4, 8))
    with pytest.raises(ValueError, match="hx has shape"):
        unit(x, (inputs(1, 4, 8), inputs(1, 4, 7)))
    with pytest.raises(ValueError, match="lengths contains 8"):
        unit(x, lengths=torch.tensor([1, 2, 8, 1]))
    with pytest.raises(ValueError, match=r"lengths has shape \(2\)"):
        unit(x, lengths=torch.tensor([1, 2]))
    with pytest.warns(UserWarning, match="dropout is 0.5.*num_layers=1"):
        units.build("gru", 2, 4, dropout=0.5)


@pytest.mark.parametrize("layout", [{}, {"num_layers": 2, "bidirectional": True}])
def test_lstm_starts_with_the_forget_bias_that_is_asked_for(layout: dict[str, Any]) -> None:
    unit: Any = units.build("lstm", 2, 5, forget_bias=1.0, **layout)
    plain: Any = units.build("lstm", 2, 5, **layout)
    for place in [name.removeprefix("bias_ih_") for name, _ in unit.inner.named_parameters() if "bias_ih" in name]:
        both = getattr(unit.inner, f"bias_ih_{place}") + getattr(unit.inner, f"bias_hh_{place}")
        assert torch.equal(both[5:10], torch.ones(5))
        assert not (both[:5] == 1).any()
        assert not (getattr(plain.inner, f"bias_ih_{place}") == 1).any()
    with pytest.raises(ValueError, match=r"forget_bias is 1.0.*bias=False"):
        units.build("lstm", 2, 5, bias=False, forget_bias=1.0)
