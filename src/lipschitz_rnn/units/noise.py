"""Noise on the state of a continuous unit in training, after Lim, Erichson, Hodgkinson, Mahoney, "Noisy recurrent
neural networks", NeurIPS 2021. `ops.common.noise` defines the noise; a cell holds its strengths and draws a seed for
every call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.common.noise import SEEDS, StateNoise, draw_noise

NOISE_OPTIONS = ("noise", "multiplicative_noise")


class NoisyCell(nn.Module):
    """A cell with noise on its state after each step in training: h ← (1 + m r u) h + a r ξ, r = √(Δt / step_size).

    Attributes:
        noise, multiplicative_noise: a and m; tensors in an ensemble whose members use different values.
        noise_seed: (2,), the seed of the next call and the index of its first sample. An ensemble sets it for its
            members; if it is None, the cell draws a seed.
    """

    noise: float | Tensor
    multiplicative_noise: float | Tensor
    noise_seed: Tensor | None
    step_size: float | Tensor

    def start_noise(self, noise: float = 0.0, multiplicative_noise: float = 0.0) -> None:
        """To be called by the constructor."""
        self.noise, self.multiplicative_noise = noise, multiplicative_noise
        self.register_buffer("noise_seed", None, persistent=False)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if "noise_seed" not in self._buffers:  # pickled by a version without noise
            self.start_noise()

    @property
    def noisy(self) -> bool:
        """Whether training adds noise."""
        a, m = self.noise, self.multiplicative_noise
        return isinstance(a, Tensor) or isinstance(m, Tensor) or a > 0.0 or m > 0.0

    def drawn_noise(self, generator: torch.Generator | None, like: Tensor) -> StateNoise | None:
        """The noise of one call, on the device of ``like``; None in evaluation mode and without noise."""
        if not self.training or not self.noisy:
            return None
        strengths = (self.noise, self.multiplicative_noise, self.step_size)
        if self.noise_seed is None:
            return StateNoise(draw_seed(generator, like.device), *strengths)
        seed, first_sample = self.noise_seed.unbind(-1)
        return StateNoise(seed, *strengths, first_sample)

    def disturbed(self, h: Tensor, times: float | Tensor | None, generator: torch.Generator | None) -> Tensor:
        """A state, (B, N) or (N,), after the noise of one step."""
        noise = self.drawn_noise(generator, h)
        if noise is None:
            return h
        batch, units = h.shape[:-1].numel(), h.shape[-1]
        time = self.step_size if times is None else times
        if isinstance(time, Tensor):
            time = time.expand(h.shape[:-1]).reshape(1, 1, batch)
        factor, added = draw_noise(noise.rows((), h).unsqueeze(0), time, (1, batch, units))
        return h * factor.reshape(h.shape).to(h.dtype) + added.reshape(h.shape).to(h.dtype)


def describe_noise(unit: Any) -> str:
    """For `repr`."""
    named = [(name, getattr(unit, name)) for name in NOISE_OPTIONS]
    return "".join(f", {name}={value:g}" for name, value in named if not isinstance(value, Tensor) and value > 0.0)


def draw_seed(generator: torch.Generator | None, device: torch.device) -> Tensor:
    """A seed, () in float64, from the given generator or PyTorch's default one for the device."""
    if generator is None:
        return torch.randint(SEEDS, (), dtype=torch.float64, device=device)
    return torch.randint(SEEDS, (), dtype=torch.float64, device=generator.device, generator=generator).to(device)


def require_generator(generator: Any) -> None:
    if not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator is a {type(generator).__name__}; pass a torch.Generator, e.g. torch.Generator().manual_seed(0)"
        )
