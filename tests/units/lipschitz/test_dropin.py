"""In the place of ``nn.RNN`` and ``nn.LSTM``: the same arguments and names, or an answer that says what to do."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lipschitz_rnn as lr

X = torch.zeros(4, 2, 3)
STATE = torch.ones(4, 2, 5)


def deep() -> lr.LipschitzRNN:
    return lr.LipschitzRNN(3, 5, 2, True, False, 0.1, True)


def test_the_positional_arguments_of_an_lstm() -> None:
    rnn, lstm = lr.LipschitzRNN(3, 5, 2, True, True, 0.1, True), nn.LSTM(3, 5, 2, True, True, 0.1, True)
    for name in ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional"):
        assert getattr(rnn, name) == getattr(lstm, name)
    assert rnn(X)[0].shape == lstm(X)[0].shape
    assert lr.LipschitzRNN(3, 5, proj_size=0)(X)[0].shape == (4, 2, 5)


def test_the_initial_state_under_all_its_names() -> None:
    rnn = deep().eval()
    expected = rnn(X, STATE)[0]
    assert not torch.equal(expected, rnn(X)[0])
    assert torch.equal(rnn(X, hx=STATE)[0], expected)
    with pytest.warns(DeprecationWarning, match="h_0="):
        assert torch.equal(rnn(X, h_0=STATE)[0], expected)
    assert torch.equal(rnn(input=X, hx=STATE)[0], expected)


def test_input_weights_and_bias_under_the_names_of_nn_rnn() -> None:
    rnn = deep()
    assert rnn.weight_ih_l0 is rnn.cell().weight_ih
    assert rnn.weight_ih_l1_reverse is rnn.cell(1, 1).weight_ih
    assert rnn.bias_ih_l1 is rnn.cell(1).bias_ih
    assert lr.LipschitzRNN(3, 5, bias=False).bias_ih_l0 is None
    assert not any(name.startswith("weight") for name in rnn.state_dict())


def test_input_weights_and_bias_are_set_under_the_names_of_nn_rnn() -> None:
    rnn = deep()
    names = list(rnn.state_dict())
    weight, bias = nn.Parameter(torch.ones(5, 10)), nn.Parameter(torch.ones(5))
    rnn.weight_ih_l1_reverse, rnn.bias_ih_l0 = weight, bias
    assert rnn.cell(1, 1).weight_ih is weight
    assert rnn.cell().bias_ih is bias
    assert rnn.proj_size == 0
    with pytest.raises(TypeError, match="cannot assign"):
        rnn.weight_ih_l0 = torch.ones(5, 3)
    with pytest.raises(ValueError, match=re.escape("weight_ih_l0 has shape (20, 3); it must be (5, 3)")):
        rnn.weight_ih_l0 = nn.Parameter(torch.ones(20, 3))
    assert list(rnn.state_dict()) == names


ANSWERS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: deep().weight_hh_l0, AttributeError, "no weight_hh_l0: it has A and W instead, hidden_matrices(layer=0)"),
    (lambda: deep().weight_hh_l1_reverse, AttributeError, "hidden_matrices(layer=1, direction=1)"),
    (lambda: deep().bias_hh_l1, AttributeError, "bias_ih_l1"),
    (lambda: deep().weight_hr_l0, AttributeError, "does not project its state"),
    (lambda: setattr(deep(), "weight_hh_l0", nn.Parameter(X)), AttributeError, "hidden_matrices(layer=0)"),
    (lambda: setattr(deep(), "weight_hr_l0", X), AttributeError, "has no weight_hr_l0: it does not project its state"),
    (lambda: setattr(deep(), "bias_ih_l7", X), AttributeError, "has no bias_ih_l7: it has 2 layer(s)"),
    (lambda: deep().weight_ih_l2, AttributeError, "2 layer(s) and 2 direction(s)"),
    (lambda: lr.LipschitzRNN(3, 5).weight_ih_l0_reverse, AttributeError, "1 layer(s) and 1 direction(s)"),
    (lambda: deep().all_weights, AttributeError, "named_parameters() lists its parameters"),
    (lambda: deep().weight_of_gold, AttributeError, "'LipschitzRNN' object has no attribute 'weight_of_gold'"),
    (lambda: deep().gold, AttributeError, "'LipschitzRNN' object has no attribute 'gold'"),
    (lambda: lr.LipschitzRNN(3, 5, proj_size=2), ValueError, "nn.Linear(5, 2)"),
    (lambda: lr.LipschitzRNN(3, 5, 1, "tanh"), TypeError, "bias is 'tanh'; it must be True or False"),
    (lambda: deep()(X, (STATE, STATE)), TypeError, "pass only the first entry, hx[0]"),
    (lambda: deep()(X, hx=(STATE, STATE)), TypeError, "hx is a tuple, like the (h_0, c_0) of an LSTM"),
    (lambda: deep()(X, h_0=STATE, hx=STATE), TypeError, "both h_0= and hx="),
    (lambda: deep()(X, STATE, hx=STATE), TypeError, "multiple values for argument 'hx'"),
    (lambda: torch.jit.script(deep()), TypeError, "LipschitzRNN does not run in TorchScript"),
    (lambda: torch.jit.script(nn.Sequential(nn.Linear(3, 3), deep())), TypeError, "Use torch.export.export"),
    (lambda: torch.jit.script(deep().cell()), TypeError, "LipschitzRNNCell does not run in TorchScript"),
    (lambda: torch.jit.trace(deep(), X), TypeError, "torch.onnx.export(..., dynamo=True) for ONNX"),
    (lambda: torch.jit.trace(deep().cell(), X[0]), TypeError, "does not run in TorchScript"),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TorchScript
@pytest.mark.parametrize(("ask", "error", "message"), ANSWERS, ids=[case[-1][:40] for case in ANSWERS])
def test_what_is_not_there_has_an_answer(ask: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        ask()
    assert not hasattr(deep(), "weight_hh_l0")
