"""Units with h⁺ = k h + s σ(W h + U x + b): as Euler steps of the fused scan, and as they state their map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops import lipschitz_scan
from lipschitz_rnn.units.cells import Cell
from lipschitz_rnn.units.lipschitz.autocast import to_compute_dtype
from lipschitz_rnn.units.lipschitz.settings import backend as check_backend
from lipschitz_rnn.units.recurrence import FeedbackMap, repeatable_matrices
from lipschitz_rnn.units.sequences import Sequences


def runs_fused(x: Tensor, backend: str) -> bool:
    """On a GPU, and anywhere if a backend is asked for. On a CPU the loop does half the arithmetic."""
    return x.is_cuda or backend != "auto"


def require_fused(backend: str, fused: bool, why: str) -> str:
    """A checked backend; an error if one is asked for by name and the steps run one by one, for the given reason."""
    if check_backend("backend", backend) != "auto" and not fused:
        raise ValueError(f"backend is {backend!r}, but {why}, so the steps run one by one; leave it 'auto'")
    return backend


def kept_map(
    cell: Cell, read: Callable[[Any], tuple[Tensor, Tensor | float, Tensor | float]], nonlinearity: str = "tanh"
) -> FeedbackMap:
    """The map of a cell with h⁺ = k h + s σ(W h + …); `read` takes W, k and s from the cell's weights."""

    def make() -> tuple[Tensor, Tensor, Tensor]:
        W, kept, scale = read(cell.current_weights(next(cell.parameters()).device))
        one = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
        return kept * one, scale * one, W

    F, G, C = repeatable_matrices(make, type(cell).__name__)
    # The fused scan holds k − 1 in place of k.
    return FeedbackMap(F, G, C, None, nonlinearity, terms=(F.abs() + torch.eye(len(F)).to(F), None, None, None))


def kept_scan(
    x: Tensor,
    W: Tensor,
    kept: float | Tensor,
    h0: Tensor,
    input_weight: Tensor,
    bias: Tensor,
    sequences: Sequences,
    backend: str,
    need_output: bool,
    scale: Tensor | None = None,
    nonlinearity: str = "tanh",
) -> tuple[Tensor | None, Tensor]:
    """h⁺ = k h + s σ(W h + U x + b), k = `kept` and s = `scale`, a number each: states (T, B, N), and the last.

    g = h / s obeys g⁺ = g + ((k − 1) g + σ(s W g + U x + b)): a step of length 1 of the scan with A = (k − 1) I.
    """
    A = (kept - 1.0) * torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
    if scale is not None:
        W, h0 = scale * W, h0 / scale
    inputs, A, W, h0, U, b = to_compute_dtype(x, A, W, h0, input_weight, bias)
    states, last = lipschitz_scan(
        inputs,
        A,
        W,
        h0,
        step_size=1.0,
        nonlinearity=nonlinearity,
        lengths=sequences.lengths,
        backend=backend,
        input_weight=U,
        bias=b,
        need_output=need_output,
    )
    if scale is not None:
        states, last = None if states is None else states * scale.to(states.dtype), last * scale.to(last.dtype)
    return states, last
