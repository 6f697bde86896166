"""Philox-4x32-10: random numbers as a function of a key and a counter.

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Whoever knows the counter has the
number, in any order, on any device, and a backward pass draws again what the forward pass drew. Triton has the same
function; this one is for tensors.
"""

from __future__ import annotations

from torch import Tensor

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(key: tuple[Tensor, Tensor], counter: Words) -> Words:
    """Four words of 32 random bits, from two of the key and four of the counter.

    Words are int64 in [0, 2³²), and broadcast: what depends on few axes is computed for those alone.
    """
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(ROUNDS):
        # In 64 bits the product wraps around to a negative number, with the right bits.
        first, second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = _high(second) ^ c1 ^ k0, second & WORD, _high(first) ^ c3 ^ k1, first & WORD
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return c0, c1, c2, c3


def _high(product: Tensor) -> Tensor:
    return (product >> 32) & WORD
