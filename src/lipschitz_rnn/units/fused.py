"""Units with h⁺ = k h + tanh(W h + U x + b) as Euler steps of the fused scan: one kernel instead of T launches."""

from __future__ import annotations

import torch
from torch import Tensor

from lipschitz_rnn.ops import lipschitz_scan
from lipschitz_rnn.units.lipschitz.autocast import to_compute_dtype
from lipschitz_rnn.units.sequences import Sequences


def runs_fused(x: Tensor, backend: str) -> bool:
    """On a GPU, and anywhere if a backend is asked for. On a CPU the loop does half the arithmetic."""
    return x.is_cuda or backend != "auto"


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
) -> tuple[Tensor | None, Tensor]:
    """h⁺ = k h + s tanh(W h + U x + b), k = `kept` and s = `scale`, a number each: states (T, B, N), and the last.

    g = h / s obeys g⁺ = g + ((k − 1) g + tanh(s W g + U x + b)): a step of length 1 of the scan with A = (k − 1) I.
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
        lengths=sequences.lengths,
        backend=backend,
        input_weight=U,
        bias=b,
        need_output=need_output,
    )
    if scale is not None:
        states, last = None if states is None else states * scale.to(states.dtype), last * scale.to(last.dtype)
    return states, last
