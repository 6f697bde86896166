"""The contestants: this package at each precision, the reference loop, and PyTorch's own layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from lipschitz_rnn.benchmark.jobs import (
    Build,
    Job,
    cell_steps,
    compiled_loop,
    graphed_layer,
    layer_with,
    lstm_cell_steps,
    peer,
    scan_with,
    stream_steps,
)
from lipschitz_rnn.benchmark.precision import BFLOAT16, FLOAT16, FLOAT32, MEDIUM, TF32, Precision
from lipschitz_rnn.benchmark.workload import Data


@dataclass(frozen=True)
class Contestant:
    """A row of the table.

    Attributes:
        ours: whether its errors must pass the check; peers only report theirs.
        exact: builds the computation that defines its true result, in float64.
        compiles: whether its first call compiles something.
        graphed: whether it already runs from a CUDA graph, which holds its memory permanently.
    """

    name: str
    precision: Precision
    build: Build
    exact: Build
    ours: bool = False
    compiles: bool = False
    graphed: bool = False

    @property
    def key(self) -> str:
        return f"{self.name} [{self.precision.name}]"

    def job(self, data: Data) -> Job:
        return self.build(data, self.precision.dtype)


def contestants_for(device: torch.device, *, compile_loop: bool = True, streaming: bool = False) -> list[Contestant]:
    """All rows for a device; ``streaming`` adds units that take one sample of a sequence at a time."""
    on_gpu = device.type == "cuda"
    fast = "triton" if on_gpu else "cpu"
    fastest = BFLOAT16 if on_gpu else FLOAT32
    ours = (BFLOAT16, FLOAT16, MEDIUM, TF32, FLOAT32) if on_gpu else (FLOAT32,)
    peers = (BFLOAT16, FLOAT16, TF32, FLOAT32) if on_gpu else (FLOAT32,)  # cuDNN is fast in float16, not in bfloat16
    rows = [reference_loop(FLOAT32)]
    rows += [Contestant(f"{fast} backend", each, scan_with(fast), scan_with("reference"), ours=True) for each in ours]
    for precision in (BFLOAT16, FLOAT16) if on_gpu else (FLOAT32,):
        rows.append(Contestant("LipschitzRNN layer", precision, layer_with("auto"), layer_with("reference"), ours=True))
    if on_gpu:
        row = ("LipschitzRNN, graphed", fastest, graphed_layer, layer_with("reference"))
        rows.append(Contestant(*row, ours=True, graphed=True))
    if streaming:
        rows.append(Contestant("LipschitzRNN.stream", FLOAT32, stream_steps, layer_with("reference"), ours=True))
        rows.append(Contestant("LipschitzRNNCell", FLOAT32, cell_steps, layer_with("reference"), ours=True))
        rows.append(Contestant("nn.LSTMCell", FLOAT32, lstm_cell_steps, lstm_cell_steps))
    for name, kind in (("nn.LSTM", nn.LSTM), ("nn.GRU", nn.GRU), ("nn.RNN", nn.RNN)):
        rows += [Contestant(name, each, peer(kind), peer(kind)) for each in peers]
    if compile_loop:
        precision = TF32 if on_gpu else FLOAT32
        rows.append(Contestant("torch.compile", precision, compiled_loop, scan_with("reference"), compiles=True))
    return rows


def choose(rows: Sequence[Contestant], texts: Sequence[str]) -> list[Contestant]:
    """The rows whose key contains one of the texts, in any case; all of them without texts."""
    for text in texts:
        if not any(text.lower() in row.key.lower() for row in rows):
            raise ValueError(f"no row matches {text!r}; the rows are {', '.join(row.key for row in rows)}")
    return [row for row in rows if not texts or any(text.lower() in row.key.lower() for text in texts)]


def reference_loop(precision: Precision) -> Contestant:
    return Contestant("reference loop", precision, scan_with("reference"), scan_with("reference"))
