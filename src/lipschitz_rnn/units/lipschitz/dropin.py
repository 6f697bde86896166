"""Attributes and arguments of ``nn.RNN`` and ``nn.LSTM``: supported where possible, else an error with a remedy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

if TYPE_CHECKING:
    from lipschitz_rnn.units.lipschitz.layer import LipschitzRNN

_WEIGHT = re.compile(r"(weight|bias)_(ih|hh|hr)_l(\d+)(_reverse)?")


def find_weight(layer: LipschitzRNN, name: str) -> Tensor | None:
    """U and b under the names of ``nn.RNN``. Its other weights raise an AttributeError that names the replacement.

    A name that ``nn.RNN`` does not have raises the usual error of a module.
    """
    found = _WEIGHT.fullmatch(name)
    if found is None:
        if name == "all_weights":
            raise AttributeError("LipschitzRNN has no all_weights; named_parameters() lists its parameters")
        raise AttributeError(f"{type(layer).__name__!r} object has no attribute {name!r}")
    kind, place, number, reverse = found[1], found[2], int(found[3]), found[4]
    arguments = f"layer={number}, direction=1" if reverse else f"layer={number}"
    if place == "hr":
        raise AttributeError(f"LipschitzRNN has no {name}: it does not project its state. Put an nn.Linear after it")
    if number >= layer.num_layers or (reverse and not layer.bidirectional):
        raise AttributeError(
            f"LipschitzRNN has no {name}: it has {layer.num_layers} layer(s) and {layer.num_directions} direction(s)"
        )
    if place == "ih":
        cell = layer.cell(number, 1 if reverse else 0)
        return cell.weight_ih if kind == "weight" else cell.bias_ih
    if kind == "bias":
        raise AttributeError(f"LipschitzRNN has no {name}: its only bias is {name.replace('hh', 'ih')}")
    raise AttributeError(
        f"LipschitzRNN has no {name}: it has A and W instead, hidden_matrices({arguments}), computed from the free "
        f"parameters in cell({arguments}).hidden"
    )


def set_weight(layer: LipschitzRNN, name: str, value: Any) -> bool:
    """Set U or b under its name in ``nn.RNN`` and return True; False for other names. Other weights raise."""
    found = _WEIGHT.fullmatch(name)
    if found is None:
        return False
    old = find_weight(layer, name)
    if isinstance(value, Tensor) and old is not None and value.shape != old.shape:
        raise ValueError(f"{name} has shape {tuple(value.shape)}; it must be {tuple(old.shape)}")
    setattr(layer.cell(int(found[3]), 1 if found[4] else 0), f"{found[1]}_ih", value)
    return True


def refuse_cell_state(hx: Any) -> None:
    if isinstance(hx, (tuple, list)):
        raise TypeError(
            f"hx is a {type(hx).__name__}, like the (h_0, c_0) of an LSTM, but this layer has no cell state; "
            "pass only the first entry, hx[0]"
        )


def refuse_projection(proj_size: int, hidden_size: int) -> None:
    if proj_size != 0:
        raise ValueError(
            f"proj_size is {proj_size!r}; this layer does not project its state. "
            f"Omit it, and put nn.Linear({hidden_size}, {proj_size!r}) after the layer"
        )


def refuse_tracing(module: object) -> None:
    """``torch.jit.trace`` would unroll the loop and fix the sizes to those of the example."""
    if torch.jit.is_tracing():  # type: ignore[attr-defined]
        refuse_torchscript(module)


def refuse_torchscript(module: object) -> NoReturn:
    raise TypeError(
        f"{type(module).__name__} does not run in TorchScript (torch.jit.script, torch.jit.trace, or torch.onnx.export "
        "with dynamo=False), which is deprecated. Use torch.export.export for a program without this package, "
        "torch.onnx.export(..., dynamo=True) for ONNX, or torch.compile for speed"
    )
