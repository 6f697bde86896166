"""Any unit as a loop of any length, for programs that leave Python."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lipschitz_rnn.data.model import SeriesModel
from lipschitz_rnn.data.stepping import frozen_copy, initial_state, pack, unpack
from lipschitz_rnn.units.library import LibraryUnit
from lipschitz_rnn.units.lipschitz import LipschitzRNN


class ScannedUnit(nn.Module):
    """A unit whose time loop is PyTorch's structured `scan` over its own single step, (T, B, p) to (T, B, N).

    `torch.export` would unroll a Python loop for one length; the scan stays a loop, and ONNX has an operator for it.
    """

    def __init__(self, model: SeriesModel) -> None:
        super().__init__()
        inner = model.unit.inner if isinstance(model.unit, LibraryUnit) else model.unit
        self.unit = _LibraryStep(inner) if isinstance(inner, nn.RNNBase) else model.unit
        self.takes_timespans = model.takes_timespans
        self._names = []
        for number, part in enumerate(initial_state(model)):
            self._names.append(f"start_{number}")
            self.register_buffer(self._names[-1], part.clone())

    def forward(self, x: Tensor, timespans: Tensor | None = None) -> tuple[Tensor, Tensor]:
        from torch._higher_order_ops.scan import scan

        like = [getattr(self, name) for name in self._names]
        start = pack(like).expand(x.shape[1], -1).clone()

        def advance(carried: Tensor, now: Any) -> tuple[Tensor, Tensor]:
            state: Any = unpack(carried, like)
            state = state if len(state) > 1 else state[0]
            if timespans is None:
                output, last = self.unit(now.unsqueeze(0), state)
            else:
                output, last = self.unit(now[0].unsqueeze(0), state, timespans=now[1].unsqueeze(0))
            return pack(last), output[0].clone()

        last, outputs = scan(advance, start, x if timespans is None else (x, timespans), dim=0)
        return outputs, last


class _LibraryStep(nn.Module):
    """One step of `nn.RNN`, `nn.LSTM` or `nn.GRU`, with PyTorch's own cells: a loop cannot hold those modules, which
    write to themselves."""

    def __init__(self, inner: nn.RNNBase) -> None:
        super().__init__()
        if inner.bidirectional or inner.batch_first or inner.proj_size:
            raise ValueError(f"{inner} cannot be exported; build it without bidirectional, batch_first and proj_size")
        self.several = isinstance(inner, nn.LSTM)
        kinds: dict[str, Any] = {"LSTM": nn.LSTMCell, "GRU": nn.GRUCell}
        self.cells = nn.ModuleList()
        for layer in range(inner.num_layers):
            width = inner.input_size if layer == 0 else inner.hidden_size
            if inner.mode in kinds:
                cell = kinds[inner.mode](width, inner.hidden_size, inner.bias)
            else:
                nonlinearity = "relu" if inner.mode == "RNN_RELU" else "tanh"
                cell = nn.RNNCell(width, inner.hidden_size, inner.bias, nonlinearity)
            for name in dict(cell.named_parameters()):
                setattr(cell, name, getattr(inner, f"{name}_l{layer}"))
            self.cells.append(cell)

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        parts, h, last = (state if self.several else (state,)), x[0], []
        for layer, cell in enumerate(self.cells):
            own = tuple(part[layer] for part in parts)
            new = cell(h, own if self.several else own[0])
            last.append(new if self.several else (new,))
            h = last[-1][0]
        stacked = tuple(torch.stack(part) for part in zip(*last, strict=True))
        return h.unsqueeze(0), stacked if self.several else stacked[0]


def for_export(model: SeriesModel) -> SeriesModel:
    """A copy that `torch.export` takes with any number of steps: matrices formed, no gradients."""
    own = frozen_copy(model)
    if isinstance(own.unit, LipschitzRNN):
        return own  # it has such a loop of its own
    with torch.no_grad():
        return SeriesModel(own.preprocessing, ScannedUnit(own), own.head, own.target).eval()
