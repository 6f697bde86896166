"""What `certify` cannot read it refuses: hidden recurrences, random calls, and weights that float16 cannot hold."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import lipschitz_rnn as lr
from lipschitz_rnn.stability import certify, certify_gru
from lipschitz_rnn.units.recurrence import UnstatedRecurrenceError


class Model(nn.Module):
    """A contracting layer, and something above it."""

    def __init__(self, above: nn.Module) -> None:
        super().__init__()
        self.rnn = lr.LipschitzRNN(2, 4, stability="contracting")
        self.above = above

    def forward(self, x: Tensor) -> Tensor:
        return self.above(self.rnn(x)[0])  # type: ignore[no-any-return]


def test_a_quantized_recurrence_is_still_one() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that quantization moves to another package
        model = torch.ao.quantization.quantize_dynamic(Model(nn.LSTM(4, 4)).eval(), {nn.LSTM})
    assert not isinstance(model.above, nn.RNNBase)
    with pytest.raises(UnstatedRecurrenceError, match=r"above \(LSTM\): recurrent"):
        certify(model)


def test_a_scripted_module_may_hide_one() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = Model(torch.jit.script(nn.RNN(4, 4)))
    with pytest.raises(UnstatedRecurrenceError, match=r"above is a RecursiveScriptModule, .*before it is scripted"):
        certify(model)
    assert certify(Model(nn.Linear(4, 4))).holds


def test_so_may_an_exported_one() -> None:
    program = torch.export.export(nn.GRUCell(4, 4), (torch.zeros(1, 4),)).module()
    with pytest.raises(UnstatedRecurrenceError, match=r"above is a GraphModule, .*or exported"):
        certify(Model(program))


def test_the_module_that_draws_random_numbers_decides() -> None:
    """Its training mode, not that of the unit around it."""
    plain = lr.units.build("rnn", 2, 8, num_layers=2, dropout=0.5).eval()
    plain.inner.train()
    with pytest.raises(UnstatedRecurrenceError, match=r"dropout is 0\.5"):
        certify(plain)
    noisy = lr.units.build("cornn", 2, 8, noise=0.5, step_size=0.1).eval()
    noisy.cell().train()
    with pytest.raises(UnstatedRecurrenceError, match="adds noise"):
        certify(noisy)


@pytest.mark.parametrize("unit", ["lipschitz", "rnn", "fastrnn"])
def test_input_weights_that_float16_cannot_hold(unit: str) -> None:
    model = lr.units.build(unit, 2, 4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(0.01 if "ih" not in name else 1.0)
            if parameter.shape == (4, 2):
                parameter.fill_(1e6)
    certify(model)
    with pytest.raises(ValueError, match=r"1e\+06, which float16 cannot hold"):
        certify(model, precision="float16")
    with torch.autocast("cpu", torch.float16), pytest.raises(ValueError, match="float16 cannot hold"):
        certify(model)


def test_input_weights_that_bfloat16_cannot_hold() -> None:
    rnn = lr.LipschitzRNN(2, 4, gamma=2.0)
    with torch.no_grad():
        rnn.cell().weight_ih.fill_(3.4e38)
    with pytest.raises(ValueError, match=r"3\.4e\+38, which bfloat16 cannot hold"):
        certify(rnn, precision="bfloat16")


def test_a_contracting_layer_does_not_run_in_float16() -> None:
    rnn = lr.LipschitzRNN(2, 4, stability="contracting")
    with torch.no_grad():
        rnn.cell().weight_ih.fill_(1e6)
    with torch.autocast("cpu", torch.float16):
        assert rnn(torch.zeros(3, 1, 2))[1].isfinite().all()
        assert certify(rnn).holds


def test_a_gru_in_float16() -> None:
    gru = nn.GRU(2, 4)
    with torch.no_grad():
        gru.weight_ih_l0.fill_(1e6)
    with pytest.raises(ValueError, match="largest weight of this GRU is 1e\\+06"):
        certify_gru(gru, 1e-7, precision="float16")
