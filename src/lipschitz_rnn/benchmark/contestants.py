"""Who is measured: this package at each precision, the reference loop, and PyTorch's own layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from lipschitz_rnn.benchmark import compiled
from lipschitz_rnn.benchmark.precision import BFLOAT16, FLOAT32, MEDIUM, TF32, Precision
from lipschitz_rnn.benchmark.workload import BETA, GAMMA, Data
from lipschitz_rnn.ops.scan import lipschitz_scan
from lipschitz_rnn.units.lipschitz import LipschitzRNN, LipschitzRNNCell


@dataclass(frozen=True)
class Job:
    """One contestant's computation, ready to run.

    Attributes:
        states: computes what a loss looks at, (S, B, N) or (S, T, B, N).
        weights: whose gradients a training step asks for.
        cotangent: gradient of the loss with respect to the states.
    """

    states: Callable[[], Tensor]
    weights: tuple[Tensor, ...]
    cotangent: Tensor

    def forward(self) -> Tensor:
        with torch.no_grad():
            return self.states()

    def training(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Forward and backward: the states and the gradients of all weights."""
        states = self.states()
        return states.detach(), torch.autograd.grad(states, self.weights, self.cotangent)


Build = Callable[[Data, torch.dtype], Job]


@dataclass(frozen=True)
class Contestant:
    """A row of the table.

    Attributes:
        ours: whether it must pass the check of its errors; peers only report theirs.
        exact: builds what defines its true result, called with float64.
        compiles: whether a compiler works for some time when it first runs.
    """

    name: str
    precision: Precision
    build: Build
    exact: Build
    ours: bool = False
    compiles: bool = False

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
    ours = (BFLOAT16, MEDIUM, TF32, FLOAT32) if on_gpu else (FLOAT32,)
    peers = (BFLOAT16, TF32, FLOAT32) if on_gpu else (FLOAT32,)
    rows = [reference_loop(FLOAT32)]
    rows += [Contestant(f"{fast} backend", each, scan_with(fast), scan_with("reference"), ours=True) for each in ours]
    rows.append(Contestant("LipschitzRNN layer", fastest, layer_with("auto"), layer_with("reference"), ours=True))
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


def reference_loop(precision: Precision) -> Contestant:
    return Contestant("reference loop", precision, scan_with("reference"), scan_with("reference"))


@cache
def scan_with(backend: str) -> Build:
    """``lipschitz_scan`` on matrices A and W; all networks in one call."""

    def build(data: Data, dtype: torch.dtype) -> Job:
        work = data.workload
        A, W, U, b = weights = _leaves((*data.matrices, data.U, data.b), dtype)
        x, everything = data.x.to(dtype), work.readout == "all"

        def states() -> Tensor:
            kept, last = lipschitz_scan(
                x,
                A,
                W,
                step_size=work.step_size,
                integrator=work.integrator,
                backend=backend,
                input_weight=U,
                bias=b,
                all_states=everything,
            )
            return last if kept is None else kept

        return Job(states, weights, data.cotangent(dtype))

    return build


@cache
def layer_with(backend: str) -> Build:
    """The layer as a user calls it, matrices formed from their parameters; several networks one after another."""

    def build(data: Data, dtype: torch.dtype) -> Job:
        work = data.workload
        layers: list[nn.Module] = []
        for s in range(work.networks):
            layer = LipschitzRNN(work.features, work.hidden, backend=backend, **_layer_options(data, dtype))
            layers.append(_filled(layer, (data.U[s], data.b[s], data.M_A[s], data.M_W[s]), data.device))
        return _module_job(data, layers, dtype)

    return build


@cache
def peer(kind: Callable[..., nn.Module]) -> Build:
    """One of PyTorch's layers; several networks one after another, since none of them takes an ensemble."""

    def build(data: Data, dtype: torch.dtype) -> Job:
        work = data.workload
        layers: list[nn.Module] = []
        for _ in range(work.networks):
            layer: nn.Module = kind(work.features, work.hidden, device="meta", dtype=dtype)
            layers.append(_filled(layer, _peer_weights(layer, data), data.device))
        return _module_job(data, layers, dtype)

    return build


def compiled_loop(data: Data, dtype: torch.dtype) -> Job:
    weights = _leaves((*data.matrices, data.U, data.b), dtype)
    return Job(compiled.loop(data.workload, data.x.to(dtype), weights), weights, data.cotangent(dtype))


def stream_steps(data: Data, dtype: torch.dtype) -> Job:
    """One sample after another as they arrive, through ``LipschitzRNN.stream``; forward only."""
    work = data.workload
    layer = LipschitzRNN(work.features, work.hidden, **_layer_options(data, dtype))
    _filled(layer, (data.U[0], data.b[0], data.M_A[0], data.M_W[0]), data.device)
    alone = work.batch == 1
    samples = (data.x[0, :, 0] if alone else data.x[0]).to(dtype).unbind(0)

    def states() -> Tensor:
        stream = layer.stream(None if alone else work.batch)
        return _read_out(data, [stream(sample).view(work.batch, -1) for sample in samples])

    return Job(states, tuple(layer.parameters()), data.cotangent(dtype))


def cell_steps(data: Data, dtype: torch.dtype) -> Job:
    """One sample after another through ``LipschitzRNNCell``, as a stream delivers them."""
    work = data.workload
    cell = LipschitzRNNCell(work.features, work.hidden, **_layer_options(data, dtype))
    _filled(cell, (data.U[0], data.b[0], data.M_A[0], data.M_W[0]), data.device)
    samples = data.x[0].to(dtype).unbind(0)

    def states() -> Tensor:
        matrices, h, kept = cell.hidden_matrices(), None, []
        for sample in samples:
            h = cell(sample, h, matrices=matrices)
            kept.append(h)
        return _read_out(data, kept)

    return Job(states, tuple(cell.parameters()), data.cotangent(dtype))


def lstm_cell_steps(data: Data, dtype: torch.dtype) -> Job:
    work = data.workload
    cell: nn.Module = nn.LSTMCell(work.features, work.hidden, device="meta", dtype=dtype)
    _filled(cell, _peer_weights(cell, data), data.device)
    samples = data.x[0].to(dtype).unbind(0)

    def states() -> Tensor:
        pair, kept = None, []
        for sample in samples:
            pair = cell(sample, pair)
            kept.append(pair[0])
        return _read_out(data, kept)

    return Job(states, tuple(cell.parameters()), data.cotangent(dtype))


def _read_out(data: Data, kept: list[Tensor]) -> Tensor:
    return (torch.stack(kept) if data.workload.readout == "all" else kept[-1]).unsqueeze(0)


def _layer_options(data: Data, dtype: torch.dtype) -> dict[str, Any]:
    work = data.workload
    # On the device "meta" no global random number is drawn for weights that are replaced anyway.
    place = {"device": "meta", "dtype": dtype}
    return {"beta": BETA, "gamma": GAMMA, "step_size": work.step_size, "integrator": work.integrator, **place}


def _leaves(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(tensor.to(dtype, copy=True).requires_grad_() for tensor in tensors)


def _peer_weights(layer: nn.Module, data: Data) -> list[Tensor]:
    """As PyTorch initialises them, from a generator of their own: the same for every precision."""
    bound = 1.0 / math.sqrt(data.workload.hidden)
    generator = torch.Generator().manual_seed(data.workload.seed + 1)
    shapes = [parameter.shape for parameter in layer.parameters()]
    return [((2.0 * torch.rand(shape, generator=generator) - 1.0) * bound).bfloat16() for shape in shapes]


def _filled(layer: nn.Module, values: Sequence[Tensor], device: torch.device) -> nn.Module:
    layer.to_empty(device=device)
    with torch.no_grad():
        for parameter, value in zip(layer.parameters(), values, strict=True):
            parameter.copy_(value)
    return layer


def _module_job(data: Data, layers: Sequence[nn.Module], dtype: torch.dtype) -> Job:
    inputs, everything = data.x.to(dtype).unbind(0), data.workload.readout == "all"

    def states() -> Tensor:
        read = []
        for layer, x in zip(layers, inputs, strict=True):
            output, last = layer(x) if not isinstance(layer, LipschitzRNN) else layer(x, need_output=everything)
            last = last[0] if isinstance(last, tuple) else last  # an LSTM has a cell state too
            read.append(output if everything else last[0])
        return torch.stack(read)

    weights = tuple(parameter for layer in layers for parameter in layer.parameters())
    return Job(states, weights, data.cotangent(dtype))
