"""The linear scan in parallel over time, by PyTorch's own operations: what the kernel must agree with."""

from __future__ import annotations

import torch
from torch import Tensor


def reference(factors: Tensor, added: Tensor, start: Tensor) -> Tensor:
    """h_t = f_t h_{t−1} + a_t for all t, differentiable any number of times; see ``linear_scan``."""
    first = factors[:1] * start.unsqueeze(0) + added[:1]
    return from_zero(factors, torch.cat([first, added[1:]]))


def from_zero(factors: Tensor, added: Tensor) -> Tensor:
    """h_t = f_t h_{t−1} + a_t for all t with h before the first step zero, in about 2 log₂ T parallel operations.

    factors: (T, …), or (1, …) if all steps have the same; added: (T, …). Neighbouring steps are joined to one,
    h_{t+1} = (f_{t+1} f_t) h_{t−1} + (f_{t+1} a_t + a_{t+1}), the half as long sequence is solved in the same way, and
    the states between are filled in. This takes O(T) work, and a product of factors never leaves their range.
    """
    steps = len(added)
    if steps == 1:
        return added
    pairs, same = steps // 2, len(factors) == 1
    first, second = added[: 2 * pairs : 2], added[1::2]
    late = factors if same else factors[1::2]
    joined = late * factors if same else late * factors[: 2 * pairs : 2]
    odd = from_zero(joined, late * first + second)
    between = (factors if same else factors[2::2]) * odd[: (steps - 1) // 2] + added[2::2]
    even = torch.cat([added[:1], between])
    mixed = torch.stack([even[:pairs], odd], 1).flatten(0, 1)
    return mixed if steps % 2 == 0 else torch.cat([mixed, even[pairs:]])
