"""Counter-based random numbers: the value at a position depends only on a key and the position.

So sample i has the same numbers at any time, in any batch and on any device, without storing them. The integers are
exact (32-bit arithmetic with wraparound), hence equal on all devices; only the last bit of `standard_normal` may
differ. The mixer is a xor-shift-multiply hash; it is for data, not for secrets.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipschitz_rnn.tasks.base import SPLITS, Split

_MULTIPLIER = 0x45D9F3B
_GOLDEN = 0x9E3779B9 - (1 << 32)  # 2³² / golden ratio as a signed 32-bit number


def _mix_(x: Tensor) -> Tensor:
    """Scramble int32 numbers in place, so that neighbours become unrelated."""
    for _ in range(2):
        x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(_MULTIPLIER)
    return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))


def sample_keys(indices: Tensor, seed: int, split: Split) -> Tensor:
    """A key for every sample of a split, int32 in the shape of `indices`; splits and seeds do not share keys."""
    base = torch.tensor([seed * len(SPLITS) + SPLITS.index(split)], dtype=torch.int64).to(torch.int32)
    base = _mix_(base.mul_(_GOLDEN))
    return _mix_(indices.to(torch.int32) ^ int(base))


def _bits(keys: Tensor, count: int) -> Tensor:
    """(..., count) unrelated int32 numbers for keys (...)."""
    positions = torch.arange(1, count + 1, dtype=torch.int32, device=keys.device).mul_(_GOLDEN)
    return _mix_(_mix_(positions) ^ keys.unsqueeze(-1))


def uniform(keys: Tensor, count: int) -> Tensor:
    """(..., count) float32 in [0, 1), multiples of 2⁻²⁴."""
    return (_bits(keys, count) >> 8).bitwise_and_(0xFFFFFF).to(torch.float32).mul_(2.0**-24)


def standard_normal(keys: Tensor, count: int) -> Tensor:
    """(..., count) float32 Gaussian numbers, by inverting the distribution function."""
    centred = uniform(keys, count).mul_(2.0).add_(2.0**-24 - 1.0)  # (2k + 1) / 2²⁴ − 1, never ±1
    return centred.erfinv_().mul_(math.sqrt(2.0))
