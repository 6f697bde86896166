"""The noise of the recurrences a second time, in Python's own numbers, one entry at a time.

Nothing here uses the package: it is what the package is measured against.
"""

from __future__ import annotations

import math

WORD = 2**32


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Philox-4x32-10, as its paper writes it: (R, L) → (hi(M·R) ⊕ key ⊕ L, lo(M·R)) in two halves, ten times."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, WORD)
        high1, low1 = divmod(0xCD9E8D57 * c2, WORD)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % WORD, (k1 + 0xBB67AE85) % WORD
    return c0, c1, c2, c3


def entry(seed: int, step: int, sample: int, unit: int, part: int = 0) -> tuple[float, float]:
    """u in [−1, 1] and ξ, standard normal, of one entry of a state."""
    words = philox((seed % WORD, seed // WORD), (unit // 2, sample, step, part))
    radius = math.sqrt(-2.0 * math.log((words[0] + 0.5) / WORD))
    angle = 2.0 * math.pi * words[1] / WORD
    word = words[2 + unit % 2]
    uniform = (word - WORD if word >= WORD // 2 else word) / (WORD // 2)
    return uniform, radius * (math.sin(angle) if unit % 2 else math.cos(angle))
