"""A diagonal linear state-space unit, run by a parallel scan over time: lru."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lipschitz_rnn.ops.common.validation import require_number
from lipschitz_rnn.ops.linear import linear_scan
from lipschitz_rnn.units.base import State
from lipschitz_rnn.units.cells import Cell
from lipschitz_rnn.units.recurrence import FeedbackMap, Statement, as_number, repeatable_matrices
from lipschitz_rnn.units.sequences import Sequences

Weights = tuple[Tensor, Tensor, Tensor]


def _expm1(real: Tensor, imaginary: Tensor) -> Tensor:
    """exp(z) − 1 without cancellation for small z."""
    sine = torch.sin(0.5 * imaginary)
    return torch.complex(
        torch.expm1(real) * torch.cos(imaginary) - 2.0 * sine * sine, torch.exp(real) * torch.sin(imaginary)
    )


class LRUCell(Cell):
    """h⁺ = λ ⊙ h + γ ⊙ B x with complex h, y = gelu(C (Re h, Im h) + D x + d), |λ| < 1: linear in the state.

    Orvieto et al., "Resurrecting recurrent neural networks for long sequences", ICML 2023: λ = exp(−exp(ν) + i exp(θ)),
    which starts uniform in the ring r_min ≤ |λ| ≤ r_max with phases up to `max_phase` (π: of real sequences, a larger
    phase is the mirror image of a smaller one), and γ = √(1 − |λ|²), which keeps h of the order of B x. Here γ always
    follows λ, where the paper starts it so and then learns it. The paper's blocks also have normalisation, gates and
    residual paths around this; here `num_layers` stacks the plain unit.

    A step of length Δ, as a multiple of `step_size` = 1, is h⁺ = λ^Δ h + (1 − λ^Δ) / (1 − λ) γ B x: exact for an input
    that is constant over the step, so Δ = 2 is two steps with the same input. All steps are computed in parallel.

    The state is (Re h, Im h), of width 2N, in at least float32 while it is computed; the output has width N. B starts
    normal with variance 1/(2p), C with 1/(2N), D like `nn.Linear`. Parameters 2N² + 3N p + 3N.
    """

    takes_timespans = True
    complex_arithmetic = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        r_min: float = 0.9,
        r_max: float = 0.999,
        max_phase: float = math.pi,
        step_size: float = 1.0,
    ) -> None:
        super().__init__(input_size, hidden_size)
        if not 0.0 <= r_min < r_max < 1.0:
            raise ValueError(f"r_min is {r_min!r} and r_max is {r_max!r}; they must satisfy 0 ≤ r_min < r_max < 1")
        if not 0.0 < max_phase <= 2.0 * math.pi:
            raise ValueError(f"max_phase is {max_phase!r}; it must be in (0, 2π]")
        if not require_number("step_size", step_size, low=0.0) > 0.0:
            raise ValueError(f"step_size is {step_size!r}; it must be positive")
        self.step_size = step_size
        squares = torch.empty(hidden_size).uniform_(r_min**2, r_max**2)
        self.decay = nn.Parameter((-0.5 * squares.log()).log())
        self.phase = nn.Parameter((max_phase * torch.rand(hidden_size)).clamp_min(1e-6).log())
        self.input = nn.Linear(input_size, 2 * hidden_size, bias=False)
        self.skip = nn.Linear(input_size, hidden_size)
        self.readout = nn.Parameter(torch.empty(hidden_size, 2 * hidden_size))
        nn.init.normal_(self.input.weight, std=1.0 / math.sqrt(2 * input_size))
        nn.init.normal_(self.readout, std=1.0 / math.sqrt(2 * hidden_size))

    def state_sizes(self) -> tuple[int, ...]:
        return (2 * self.hidden_size,)

    def project(self, x: Tensor) -> Tensor:
        """B x as (real, imaginary), and D x + d: (T, B, 3N)."""
        return torch.cat([self.input(x), self.skip(x)], -1)

    def weights(self) -> Weights:
        """The real and the imaginary part of log λ, and γ, in at least float32."""
        wide = torch.float64 if self.decay.dtype == torch.float64 else torch.float32
        rate, angle = -torch.exp(self.decay.to(wide)), torch.exp(self.phase.to(wide))
        return rate, angle, torch.sqrt(-torch.expm1(2.0 * rate))

    def scan(
        self, inputs: Tensor, state: State, weights: Weights, sequences: Sequences, need_output: bool = True
    ) -> tuple[Tensor | None, State]:
        """All steps at once; what is returned first are the outputs, not the states."""
        rate, angle, gain = weights
        size, start = self.hidden_size, _to_complex(state[0], rate.dtype)
        spans = self.step_size if sequences.timespans is None else sequences.timespans.to(rate.dtype).unsqueeze(-1)
        real, imaginary = rate * spans, angle * spans
        held = _expm1(real, imaginary) / _expm1(rate, angle)  # (λ^Δ − 1) / (λ − 1)
        factors = _expm1(real, imaginary) + 1.0
        driven = held * gain * _to_complex(inputs[..., : 2 * size], rate.dtype)
        if factors.dim() == 1:
            factors = factors[None, None]
        states = linear_scan(factors, driven, start)
        if sequences.lengths is None:
            last = states[-1]
        else:  # of a sequence without any step, the state is still the first
            index = sequences.lengths.view(1, -1, 1).expand(1, -1, size)
            last = torch.cat([start.unsqueeze(0), states]).gather(0, index).squeeze(0)
        end = (_to_real(last).to(state[0].dtype),)
        if not need_output:
            return None, end
        hidden = F.linear(_to_real(states).to(inputs.dtype), self.readout.to(inputs.dtype))
        return F.gelu(hidden + inputs[..., 2 * size :]), end

    def stated_recurrences(self) -> list[Statement]:
        """For `stability.certify`: (Re h, Im h) is turned and shrunk by λ, for steps of length `step_size`."""
        step = as_number("step_size", self.step_size, "LRU")
        rate, angle = repeatable_matrices(lambda: self.weights()[:2], type(self).__name__)
        exact_rate, exact_angle = step * rate.double(), step * angle.double()
        real = torch.diag(exact_rate.exp() * exact_angle.cos())
        imaginary = torch.diag(exact_rate.exp() * exact_angle.sin())
        # The kernels hold expm1(log λ) + 1: errors of log λ count in full, and those of a few operations near 1.
        off = torch.diag(8.0 + 4.0 * (exact_rate.abs() + exact_angle.abs()))
        F, terms = (_rotation(*parts) for parts in ((real, imaginary), (off, -off)))
        nothing = F.new_zeros(len(F), 1)
        dtype = str(rate.dtype).removeprefix("torch.")
        return [
            FeedbackMap(F, nothing, nothing.T, None, "tanh", terms=(terms.abs(), None, None, None), precision=dtype)
        ]

    def extra_repr(self) -> str:
        return f"step_size={self.step_size}"


def _rotation(real: Tensor, imaginary: Tensor) -> Tensor:
    """What a diagonal complex matrix does to (Re h, Im h)."""
    return torch.cat([torch.cat([real, -imaginary], -1), torch.cat([imaginary, real], -1)])


def _to_complex(values: Tensor, dtype: torch.dtype) -> Tensor:
    real, imaginary = values.to(dtype).chunk(2, -1)
    return torch.complex(real, imaginary)


def _to_real(values: Tensor) -> Tensor:
    return torch.cat([values.real, values.imag], -1)
