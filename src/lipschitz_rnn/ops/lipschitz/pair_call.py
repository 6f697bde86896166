"""One kind of call of a layer with symmetric-skew matrices, as the backends are told of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lipschitz_rnn.ops.lipschitz.problem import Scheme


@dataclass(frozen=True)
class PairCall:
    """What a call depends on besides the numbers in its tensors.

    Attributes:
        sizes: (T, B, p, N).
        x_strides: of the input, (T, B, p).
        M_strides: two of M_A, then two of M_W.
        maps: f and γ of A, then of W.
        dtype: of the scan; parameters, and the gradients of all but the input, are in ``own_dtype``.
        starts, bias: whether there is an initial state, and a bias.
        keep, save: whether the caller wants the states, and whether a backward pass may follow.
        batch_first: whether the states, and their gradient, are (B, T, N).
    """

    sizes: tuple[int, int, int, int]
    x_strides: tuple[int, ...]
    M_strides: tuple[int, int, int, int]
    maps: tuple[float, float, float, float]
    scheme: Scheme
    dtype: torch.dtype
    own_dtype: torch.dtype
    device: torch.device
    starts: bool
    bias: bool
    keep: bool
    save: bool
    batch_first: bool

    @property
    def fused(self) -> bool:
        """Inputs of one feature are multiplied by U inside the kernels."""
        return self.sizes[2] == 1

    @property
    def stages(self) -> int:
        return len(self.scheme.tableau)

    def written(self, states: Tensor) -> Tensor:
        """States (T, B, N), out of the tape, as the caller wants them: contiguous, and in memory of their own where the
        backward pass needs the tape, because the caller may change them."""
        states = states.transpose(0, 1) if self.batch_first else states
        return states.clone(memory_format=torch.contiguous_format) if self.save else states.contiguous()

    @property
    def drive_strides(self) -> tuple[int, ...]:
        """Of what the kernels read, with the axis of networks: the input, or u = U x + b in its own memory."""
        _, B, _, N = self.sizes
        return (0, *self.x_strides) if self.fused else (0, B * N, N, 1)
