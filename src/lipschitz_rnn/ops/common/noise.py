"""Noise on the state of a recurrence: h ← (1 + m √Δt u) h + a √Δt ξ after a step of length Δt.

u is uniform in [−1, 1] and ξ is standard normal, in float32 and independent for all networks, steps, samples and units.
They are functions of a seed and these indices (see ``philox``), so no noise is stored: every backend, every chunk and
the backward pass compute the same numbers. Two neighbouring units share the four words of one counter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.philox import philox
from lipschitz_rnn.ops.common.validation import require_device, require_number, seen_values, shape_of

SEEDS = 2**53  # seeds are integers below this, which float64 represents exactly
# Columns for each network, in float64: the seed, the indices of the first sample and step, and a and m per √time.
SEED, SAMPLE, STEP, ADDITIVE, MULTIPLICATIVE, COLUMNS = range(6)
CHUNK_ELEMENTS = 2**17  # drawn at once


@dataclass(frozen=True)
class StateNoise:
    """Noise on the state after each step: h ← (1 + m r u) h + a r ξ, r = √(length of the step / ``step_size``).

    u is uniform in [−1, 1] and ξ is standard normal, drawn for every network, step, sample and unit. Gradients treat
    the noise as constant.

    Attributes:
        seed: () or (S,), integers in [0, 2⁵³) in any dtype; the same seed gives the same noise.
        additive, multiplicative: a and m, at least 0.
        step_size: the step length to which a and m refer; the variance is proportional to the length of a step.
        first_sample, first_step: the indices of the first sample and step, if the call is part of a larger one.
    """

    seed: Tensor
    additive: float | Tensor = 0.0
    multiplicative: float | Tensor = 0.0
    step_size: float | Tensor = 1.0
    first_sample: int | Tensor = 0
    first_step: int = 0

    def rows(self, networks: tuple[int, ...], like: Tensor) -> Tensor:
        """(S, COLUMNS) or (COLUMNS,), as the scans take it."""
        if not isinstance(self.seed, Tensor):
            raise TypeError(f"the seed of the noise is {self.seed!r}; pass a torch.Tensor, e.g. torch.tensor(0)")
        if tuple(self.seed.shape) not in ((), networks):
            wanted = f"() or ({networks[0]},), one for each network" if networks else "()"
            raise ValueError(f"the seed of the noise has shape {shape_of(self.seed)}; it must be {wanted}")
        require_device("the seed of the noise", self.seed, "A", like)
        seed = self.seed.detach().to(torch.float64)
        for name in ("additive", "multiplicative", "step_size"):
            value = getattr(self, name)
            if isinstance(value, Tensor) and tuple(value.shape) not in ((), networks):
                wanted = f"a number or ({networks[0]},), one for each network" if networks else "a number"
                raise ValueError(f"{name} of the noise has shape {shape_of(value)}; it must be {wanted}")
        unit = root(self._number("step_size", self.step_size))
        a, m = (self._number(name, getattr(self, name)) / unit for name in ("additive", "multiplicative"))
        values = (seed, self.first_sample, self.first_step, a, m)
        columns = [value if isinstance(value, Tensor) else torch.full_like(seed, value) for value in values]
        return torch.stack([column.to(torch.float64).expand(networks) for column in columns], -1)

    @staticmethod
    def _number(name: str, value: float | Tensor) -> float | Tensor:
        """A checked number; or a tensor, in an ensemble whose members use different values."""
        if isinstance(value, Tensor):
            values = seen_values(value)
            if values is not None and values.device.type == "cpu":  # a GPU's numbers would have to be waited for
                for number in values.flatten().tolist():
                    require_number(name, number, low=0.0, open_low=name == "step_size")
            return value.detach().to(torch.float64)
        return require_number(name, value, low=0.0, open_low=name == "step_size")


def root(value: float | Tensor) -> float | Tensor:
    return value.sqrt() if isinstance(value, Tensor) else math.sqrt(value)


def shifted(noise: Tensor, steps: int) -> Tensor:
    """The noise of a call that begins so many steps later."""
    later = torch.zeros(COLUMNS, dtype=noise.dtype, device=noise.device)
    later[STEP] = steps
    return noise + later


def draw_noise(
    noise: Tensor, times: Tensor | float, shape: tuple[int, int, int], first: int = 0, part: int = 0
) -> tuple[Tensor, Tensor]:
    """1 + m √Δt u and a √Δt ξ for C steps from the ``first`` on: (S, C, B, N) each, in float32.

    Args:
        noise: (S, COLUMNS).
        times: Δt of these steps, a number or (S, C, B).
        shape: (C, B, N).
        part: which of several states of a unit this is.
    """
    words = _words(noise, shape, first, part)
    factor = 1.0 + strength(noise, MULTIPLICATIVE, times) * _uniform(words, shape[-1])
    return factor, strength(noise, ADDITIVE, times) * _normal(words, shape[-1])


def draw_factor(noise: Tensor, times: Tensor | float, shape: tuple[int, int, int], first: int = 0) -> Tensor:
    """Only the first of these, for the backward pass."""
    uniform = _uniform(_words(noise, shape, first, 0), shape[-1])
    return 1.0 + strength(noise, MULTIPLICATIVE, times) * uniform


def steps_at_once(networks: int, batch: int, units: int) -> int:
    """The number of steps whose noise is computed together."""
    return max(1, CHUNK_ELEMENTS // max(1, networks * batch * units))


def _words(noise: Tensor, shape: tuple[int, int, int], first: int, part: int) -> tuple[Tensor, ...]:
    """Four words for each pair of units, (S, C, B, ⌈N/2⌉)."""
    C, B, N = shape
    numbers = noise[:, :ADDITIVE].detach().to(torch.int64)[:, :, None, None, None]
    seed, sample, step = numbers.unbind(1)

    def count(size: int) -> Tensor:
        return torch.arange(size, device=noise.device)

    key = (seed & 0xFFFFFFFF, seed >> 32)
    counter = (count((N + 1) // 2), sample + count(B)[:, None], step + first + count(C)[:, None, None])
    return philox(key, (*counter, torch.full_like(seed, part)))


def _uniform(words: tuple[Tensor, ...], units: int) -> Tensor:
    """In [−1, 1]: the last two words as signed numbers."""
    pair = torch.stack(words[2:], -1).flatten(-2)[..., :units]
    return (pair - ((pair >> 31) << 32)).to(torch.float32) * 2.0**-31


def _normal(words: tuple[Tensor, ...], units: int) -> Tensor:
    """Box and Muller: radius from the first word, angle from the second, cosine and sine for the two units."""
    radius = torch.sqrt(-2.0 * torch.log(words[0].to(torch.float32) * 2.0**-32 + 2.0**-33))
    angle = words[1].to(torch.float32) * (2.0 * math.pi * 2.0**-32)
    return torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), -1).flatten(-2)[..., :units]


def strength(noise: Tensor, column: int, times: Tensor | float) -> Tensor:
    """a √Δt or m √Δt, by the ``column``: (S, 1, 1, 1) or (S, C, B, 1), in float32."""
    rate = noise[:, column, None, None].detach()
    if isinstance(times, Tensor):
        rate = rate * times.detach().to(torch.float64).sqrt()
    else:
        rate = rate * math.sqrt(times)
    return rate.unsqueeze(-1).to(torch.float32)
