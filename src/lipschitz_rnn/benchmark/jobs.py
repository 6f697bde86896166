"""What is measured: the computations of this package, of its layers and cells, and of PyTorch's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lipschitz_rnn.benchmark import compiled
from lipschitz_rnn.benchmark.workload import BETA, GAMMA, Data
from lipschitz_rnn.ops.lipschitz.scan import lipschitz_scan
from lipschitz_rnn.units.lipschitz import LipschitzRNN, LipschitzRNNCell


@dataclass(frozen=True)
class Job:
    """One contestant's computation, ready to run.

    Attributes:
        states: computes the states that the loss reads, (S, B, N) or (S, T, B, N).
        weights: the weights whose gradients a training step computes.
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
Unit = TypeVar("Unit", bound=nn.Module)


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
                need_output=everything,
            )
            return last if kept is None else kept

        return Job(states, weights, data.cotangent(dtype))

    return build


@cache
def layer_with(backend: str) -> Build:
    """The layer as a user calls it, with matrices formed from its parameters; several networks run one by one."""

    def build(data: Data, dtype: torch.dtype) -> Job:
        work = data.workload
        layers = [_ours(LipschitzRNN, data, dtype, s, backend=backend) for s in range(work.networks)]
        return _module_job(data, [_Readout(layer, work.readout) for layer in layers], dtype)

    return build


def graphed_layer(data: Data, dtype: torch.dtype) -> Job:
    """The layer captured in two CUDA graphs, forward and backward, with PyTorch's function for any module."""
    work = data.workload
    x = data.x.to(dtype)
    layers = [_Readout(_ours(LipschitzRNN, data, dtype, s), work.readout) for s in range(work.networks)]
    for layer in layers:
        torch.cuda.make_graphed_callables(layer, (x[0],))  # changes the module itself
    return _module_job(data, layers, dtype)


@cache
def peer(kind: Callable[..., nn.Module]) -> Build:
    """One of PyTorch's layers; several networks run one by one, since none of them takes an ensemble."""

    def build(data: Data, dtype: torch.dtype) -> Job:
        work = data.workload
        layers: list[nn.Module] = []
        for _ in range(work.networks):
            layer: nn.Module = kind(work.features, work.hidden, device="meta", dtype=dtype)
            layers.append(_Readout(_filled(layer, _peer_weights(layer, data), data.device), work.readout))
        return _module_job(data, layers, dtype)

    return build


def compiled_loop(data: Data, dtype: torch.dtype) -> Job:
    weights = _leaves((*data.matrices, data.U, data.b), dtype)
    return Job(compiled.loop(data.workload, data.x.to(dtype), weights), weights, data.cotangent(dtype))


def stream_steps(data: Data, dtype: torch.dtype) -> Job:
    """One sample after another as they arrive, through ``LipschitzRNN.stream``; forward only."""
    work = data.workload
    layer = _ours(LipschitzRNN, data, dtype)
    alone = work.batch == 1
    samples = (data.x[0, :, 0] if alone else data.x[0]).to(dtype).unbind(0)

    def states() -> Tensor:
        stream = layer.stream(None if alone else work.batch)
        return _read_out(data, [stream(sample).view(work.batch, -1) for sample in samples])

    return Job(states, tuple(layer.parameters()), data.cotangent(dtype))


def cell_steps(data: Data, dtype: torch.dtype) -> Job:
    """One sample after another through ``LipschitzRNNCell``, as a stream delivers them."""
    cell = _ours(LipschitzRNNCell, data, dtype)
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


def _ours(kind: Callable[..., Unit], data: Data, dtype: torch.dtype, network: int = 0, **options: Any) -> Unit:
    """A layer or cell of this package with the weights of one network."""
    work = data.workload
    # On the device "meta" no global random numbers are drawn for weights that are replaced anyway.
    options |= {"device": "meta", "dtype": dtype, "step_size": work.step_size, "integrator": work.integrator}
    unit = kind(work.features, work.hidden, beta=BETA, gamma=GAMMA, **options)
    return _filled(unit, [values[network] for values in (data.U, data.b, data.M_A, data.M_W)], data.device)


def _leaves(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(tensor.to(dtype, copy=True).requires_grad_() for tensor in tensors)


def _peer_weights(layer: nn.Module, data: Data) -> list[Tensor]:
    """As PyTorch initialises them, but from a separate generator: the same for every precision."""
    bound = 1.0 / math.sqrt(data.workload.hidden)
    generator = torch.Generator().manual_seed(data.workload.seed + 1)
    shapes = [parameter.shape for parameter in layer.parameters()]
    return [((2.0 * torch.rand(shape, generator=generator) - 1.0) * bound).bfloat16() for shape in shapes]


def _filled(layer: Unit, values: Sequence[Tensor], device: torch.device) -> Unit:
    layer.to_empty(device=device)
    with torch.no_grad():
        for parameter, value in zip(layer.parameters(), values, strict=True):
            parameter.copy_(value)
    return layer


class _Readout(nn.Module):
    """Returns what the loss reads from a layer: every state, (1, T, B, N), or the last one, (1, B, N).

    A copy, and its gradient, would take longer than some of the launches that a short call consists of. So a graphed
    layer's states lie in the memory that its next call overwrites.
    """

    def __init__(self, layer: nn.Module, readout: str) -> None:
        super().__init__()
        self.layer, self.everything = layer, readout == "all"

    def forward(self, x: Tensor) -> Tensor:
        options = {"need_output": self.everything} if isinstance(self.layer, LipschitzRNN) else {}
        output, last = self.layer(x, **options)
        last = last[0] if isinstance(last, tuple) else last  # an LSTM has a cell state too
        return output.unsqueeze(0) if self.everything else last


def _module_job(data: Data, layers: Sequence[nn.Module], dtype: torch.dtype) -> Job:
    inputs = data.x.to(dtype).unbind(0)

    def states() -> Tensor:
        found = [layer(x) for layer, x in zip(layers, inputs, strict=True)]
        return found[0] if len(found) == 1 else torch.cat(found)

    weights = tuple(parameter for layer in layers for parameter in layer.parameters())
    return Job(states, weights, data.cotangent(dtype))
