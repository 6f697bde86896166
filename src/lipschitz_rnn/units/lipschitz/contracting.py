"""Hidden matrices whose recurrence contracts for every value of the free parameters.

Proofs are in ``docs/theory.md``. In short, for the Euler map with slopes in [0, 1], step ε and factor ρ: let S be a
matrix whose symmetric part is at least BᵀB, H = (ε/2) S, and

    F = ρ (I − H)(I + H)⁻¹,   A = (F − I)/ε,   W = −diag(ω) F + ρ diag(√(ω(2/ε − ω))) √(2ε) B (I + H)⁻¹.

Then ‖I + εA + εDW‖ ≤ ρ for every diagonal 0 ≤ D ≤ I. The rotation S − Sᵀ is free, and BᵀB is the decay that the
feedback W needs, only in the directions it uses. A diagonal change of coordinates gives the metric.

For the midpoint map, the pair is built for half the step, and the map is bounded by its own inequality, whose
multipliers are learned. If that bound exceeds ρ, then S, BᵀB and ω are scaled down by a common factor.

A and W are computed in float64 and stored in at least float32, whatever the dtype of the parameters. ρ is reduced by
the rounding error that this can cause.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.common.dtypes import without_autocast
from lipschitz_rnn.ops.common.validation import require_tensor
from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.ops.lipschitz.nonlinearities import get_nonlinearity
from lipschitz_rnn.units.lipschitz.bounded_gain import intake, make_room
from lipschitz_rnn.units.lipschitz.construction import (
    RESTORING_RANGE,
    Numbers,
    free_parts,
    free_restoring,
    in_slopes,
    log_stretch,
    shifted_generator,
)
from lipschitz_rnn.units.lipschitz.fused import pair_matrices
from lipschitz_rnn.units.lipschitz.midpoint_scale import SlowedPair
from lipschitz_rnn.units.lipschitz.rounding import held_dtype, matrix_reserve, step_rounding
from lipschitz_rnn.units.recurrence import (
    Recurrence,
    UnstatedRecurrenceError,
    repeatable_matrices,
    require_own_statement,
)

SUPPORTED_INTEGRATORS = ("euler", "heun", "midpoint")
# The largest rate·step_size with a proof; a decay stronger than e⁻⁷ per step approaches float32 rounding.
_LARGEST_DECAY = {"euler": 7.0, "heun": 0.69, "midpoint": 0.25}
_FREE = ("rotation", "feedback", "leak", "restoring", "scale")
_PROVED = (
    *("hidden_size", "step_size", "alpha", "rate", "integrator", "nonlinearity"),
    *("slopes", "metric_spread", "bounded_gain"),
)
_LARGEST_SETTING = (
    1e6  # for step_size, alpha, their inverses and metric_spread: keeps A and W within the range of float32
)

_LEAST_GAIN = 2.0**-1000

# The start: ω per unit of time is drawn between these, evenly in its logarithm, and log t evenly within this share of
# what metric_spread allows. Chosen on validation data of sequential MNIST. The midpoint rule would be slowed by more.
_FIRST_RESTORING = {"euler": (0.05, 10.0), "heun": (0.05, 10.0), "midpoint": (0.05, 1.0)}
_FIRST_SPREAD = 0.87


def _logit(fraction: float) -> float:
    return math.log(fraction / (1.0 - fraction))


class ContractingPair(nn.Module):
    """Builds (A, W) from free parameters such that the recurrence contracts.

    Guarantee: for all finite parameter values, every step brings any two states under the same input closer,
    ‖h⁺ − h′⁺‖_P ≤ e^{−rate·ε} ‖h − h′‖_P with ε = ``step_size`` and the diagonal metric P of :meth:`metric`. It holds
    for the given integrator and for the matrices as this module returns them: float32, or float64 if the parameters
    are. The rounding error of a step is bounded by :meth:`step_rounding`. NaN, or infinite entries of ``rotation`` and
    ``feedback``, give NaN matrices; of other parameters infinity is the end of their range, where the proof holds too.
    A shorter step ε′ has the factor 1 − (ε′/ε)(1 − e^{−rate·ε}) in the same metric, so irregular sampling is covered as
    long as no timespan exceeds ``step_size``. The Euclidean distance never exceeds ``metric_spread`` times its initial
    value.

    Euler and Heun need no decay beyond ``rate``. The midpoint rule combines two evaluations of the slope, with
    signs, so it also keeps a learned amount of decay in reserve, initially ``dissipation``, and checks its own
    inequality: one factorization of size 2N, and a few more if the dynamics must be scaled down.

    Args:
        hidden_size: N.
        step_size: ε > 0, the largest step that may be taken.
        integrator: ``euler``, ``midpoint`` (``rk2``) or ``heun``.
        alpha: the factor of A in ḣ = αA h + σ(W h + u); nonzero.
        nonlinearity: a name known to ``lipschitz_rnn.ops.lipschitz.nonlinearities``.
        rate: λ > 0, the guaranteed rate per unit of time.
        init_scale: initial standard deviation of the free matrices, times √N.
        metric_spread: bound on the square root of the condition number of P; 1 keeps the Euclidean metric.
        dissipation: initial decay per unit of time that the midpoint rule keeps in reserve, in addition to ``rate``.
        bounded_gain: also keep ‖h⁺ − h′⁺‖²_P ≤ ‖h − h′‖²_P + γ²‖x − x′‖² for inputs x, x′ that enter with the weights
            U, so that a change of the inputs moves the state by at most γ times its l2 norm, however long the sequence
            is. γ is :meth:`gain`, and W depends on U: pass it to the call. For Euler steps, and slopes from 0.
    """

    def __init__(
        self,
        hidden_size: int,
        *,
        step_size: float,
        integrator: str = "euler",
        alpha: float = 1.0,
        nonlinearity: str = "tanh",
        rate: float = 0.01,
        init_scale: float = 1.0,
        metric_spread: float = 30.0,
        dissipation: float = 0.02,
        bounded_gain: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if hidden_size < 1:
            raise ValueError(f"hidden_size is {hidden_size}; it must be at least 1")
        if not (step_size > 0 and math.isfinite(step_size)):
            raise ValueError(f"step_size is {step_size}; it must be positive and finite")
        for name, value in (("step_size", step_size), ("alpha", alpha)):
            if value != 0 and math.isfinite(value) and not 1 / _LARGEST_SETTING <= abs(value) <= _LARGEST_SETTING:
                raise ValueError(
                    f"{name} is {value}; the contracting parametrization needs an absolute value from 1e-6 to 1e6, so "
                    "that A and W stay within the range of float32. Choose another unit of time"
                )
        if not (rate > 0 and math.isfinite(rate)):
            raise ValueError(f"rate is {rate}; it must be positive and finite, e.g. 0.01")
        if alpha == 0 or not math.isfinite(alpha):
            raise ValueError(
                f"alpha is {alpha}; it must be nonzero and finite, because contraction needs the linear term A"
            )
        if not 1 <= metric_spread <= _LARGEST_SETTING:
            raise ValueError(f"metric_spread is {metric_spread}; it must be from 1 to {_LARGEST_SETTING:g}")
        if not dissipation > 0:
            raise ValueError(f"dissipation is {dissipation}; it must be positive")
        self.integrator = get_integrator(integrator).name
        if self.integrator not in SUPPORTED_INTEGRATORS:
            allowed = ", ".join(SUPPORTED_INTEGRATORS)
            raise ValueError(f"integrator is {integrator!r}; contraction is proved only for {allowed}")
        self.hidden_size, self.step_size, self.alpha, self.rate = hidden_size, step_size, alpha, rate
        self.nonlinearity = nonlinearity
        largest = _LARGEST_DECAY[self.integrator]
        if rate * step_size > largest * (1 + 1e-15):  # 6.9 · 0.1 exceeds 0.69 by rounding
            raise ValueError(
                f"rate·step_size is {rate * step_size:.3g}; {self.integrator} is proved up to {largest}. Lower one"
            )
        self.slopes = get_nonlinearity(nonlinearity).slope_range
        self.init_scale, self.metric_spread, self.dissipation = init_scale, metric_spread, dissipation
        if bounded_gain and self.integrator != "euler":
            raise ValueError(
                f"bounded_gain is proved for integrator='euler', not for {self.integrator!r}; leave it out"
            )
        if bounded_gain and not (self.slopes[0] == 0.0 < self.slopes[1]):
            raise ValueError(
                f"bounded_gain is proved for slopes from 0, but those of {nonlinearity} are from {self.slopes[0]:g} to "
                f"{self.slopes[1]:g}; use tanh, relu or sigmoid, or leave it out"
            )
        self.bounded_gain = bounded_gain

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))

        self.rotation = parameter(hidden_size, hidden_size)
        self.feedback = parameter(hidden_size, hidden_size)
        self.leak = parameter(hidden_size)
        self.restoring = parameter(hidden_size)
        self.scale = parameter(hidden_size)
        if self.integrator == "midpoint":
            self.reserve = parameter(1)
            self.multipliers = parameter(2, hidden_size)
        if bounded_gain:
            self.input_share = parameter(1)
        self.reset_parameters()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _PROVED and name in self.__dict__ and self.__dict__[name] != value:
            raise AttributeError(
                f"{name} is {self.__dict__[name]!r} and cannot change: the proof depends on it. Build a new pair"
            )
        super().__setattr__(name, value)

    def require_unit(self, unit: Any) -> None:
        """Raise if the settings of a unit differ from those that this pair was built for."""
        for name in ("hidden_size", "step_size", "alpha", "integrator", "nonlinearity"):
            own, other = getattr(self, name), getattr(unit, name)
            if own != other:
                raise ValueError(
                    f"the pair is proved for {name}={own!r}, but the unit has {name}={other!r}; they must agree"
                )

    def reset_parameters(self) -> None:
        """Initialise with a hierarchy of units, random rotations, and restoring rates of all sizes.

        Under a Euclidean metric with ω = 1, a new network forgets in 50 steps of 0.03 and learns nothing from what came
        before (its gradient shrinks by 10⁷ in 784 steps). A spread metric lets each unit drive those below it strongly
        at no cost in contraction, and small ω keep what is read for the whole sequence.
        """
        size, step = self.hidden_size, self.step_size
        with torch.no_grad():
            self.rotation.normal_(0.0, self.init_scale / math.sqrt(size))
            self.feedback.normal_(0.0, 0.3 * min(self.init_scale, 1.0) / math.sqrt(size))
            self.leak.fill_(_logit(min(0.01 * step, 0.5)))  # 0.02 per unit of time
            low, high = (min(rate * step, 1.0) for rate in _FIRST_RESTORING[self.integrator])
            omega = torch.exp(
                torch.empty_like(self.restoring, dtype=torch.float64).uniform_(math.log(low), math.log(high))
            )
            self.restoring.copy_(torch.logit(omega / RESTORING_RANGE))
            self.scale.uniform_(-1.0, 1.0).mul_(_FIRST_SPREAD * 0.5 * math.log(self.metric_spread))
            if self.integrator == "midpoint":
                fraction = min(0.5, self.dissipation * step / self._spare(self._target()))
                self.reserve.fill_(_logit(fraction))
                self.multipliers.zero_()
            if self.bounded_gain:
                self.input_share.zero_()  # half of the room

    def forward(self, input_weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The pair (A, W), (N, N) each, in float64 if the parameters are, otherwise in float32.

        ``input_weight``: U, (N, p), with ``bounded_gain`` only.
        """
        self._require_input(input_weight)
        entering = () if input_weight is None else (input_weight,)
        return self.build(*[getattr(self, name) for name in self.free], *entering)

    @property
    def settings(self) -> tuple[Any, ...]:
        """What the matrices and their contraction depend on besides the free parameters; hashable."""
        return self._numbers(), self.integrator, self.rate

    @property
    def free(self) -> tuple[str, ...]:
        """The names of the free parameters, in the order of :meth:`build`."""
        if self.bounded_gain:
            return (*_FREE, "input_share")
        return _FREE if self.integrator != "midpoint" else (*_FREE, "reserve", "multipliers")

    def build(self, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        """The pair from parameters in the place of its own; with ``bounded_gain``, the input weights follow."""
        numbers = self._numbers()
        with without_autocast(parameters[0].device):
            if self.integrator != "midpoint":
                if not self.bounded_gain:
                    return pair_matrices(numbers, *parameters)
                *free, share, U = parameters
                A, W = pair_matrices(replace(numbers, dtype=torch.float64), *free)
                restoring, stretch = free_restoring(free[3]), log_stretch(numbers, free[4]).exp()
                W = make_room(numbers, A, W, restoring, intake(numbers, U, restoring, stretch, share))
                return A.to(numbers.dtype), W.to(numbers.dtype)
            slowed, scale = self._midpoint(numbers, *parameters)
            A, W = slowed(scale, log_stretch(numbers, parameters[4]).exp(), numbers.units)
            return in_slopes(numbers, A, W)

    def gain(self, input_weight: Tensor) -> Tensor:
        """γ of ``bounded_gain`` for these input weights, a number in float64, differentiable."""
        if not self.bounded_gain:
            raise ValueError("this pair has no gain of its own; build it with bounded_gain=True")
        self._require_input(input_weight)
        with without_autocast(self.rotation.device):
            restoring, target = free_restoring(self.restoring), self._target()
            exact = intake(self._numbers(), input_weight, restoring, self.stretch(), self.input_share).gain
            # What computing and rounding the matrices can add: docs/theory.md. And γ itself may underflow.
            return exact * math.sqrt(math.exp(-self.rate * self.step_size) / target) + _LEAST_GAIN

    def stretch(self, scale: Tensor | None = None) -> Tensor:
        """The square root of the metric's diagonal, (N,) in float64, differentiable; ``scale`` replaces the pair's."""
        return log_stretch(self._numbers(), self.scale if scale is None else scale).exp()

    @torch.no_grad()
    def metric(self) -> tuple[Tensor, Tensor]:
        """The certificate given by the construction: the diagonals of P, (N,), and of Λ.

        Λ is (N,) for Euler and Heun (the multiplier of the Euler map) and (2N,) for the two stages of the midpoint map.
        """
        numbers = self._numbers()
        metric = (2.0 * log_stretch(numbers, self.scale)).exp()
        if self.integrator != "midpoint":
            free = free_parts(numbers, self.rotation, self.feedback, self.leak, self.restoring)
            return metric, self.step_size**2 * metric / free.restoring
        slowed, scale = self._midpoint(numbers)
        stages = slowed.stage_multipliers(scale)
        return metric, self.step_size**2 * torch.cat([metric * stage for stage in stages])

    @torch.no_grad()
    def metric_root(self) -> Tensor:
        """The square root of P's diagonal, (N,): the metric alone, at no cost."""
        return self.stretch()

    @torch.no_grad()
    def step_rounding(self, state: float, drive: float = 0.0, *, input_size: int = 0) -> float:
        """δ: a bound on how far rounding in one step can move two states apart, in the norm of P.

        Two computed trajectories under the same input obey ‖Δ_t‖_P ≤ ρᵗ‖Δ_0‖_P + δ/(1 − ρ) with ρ = e^{−rate·ε}.

        Args:
            state: a bound on ‖h‖_P along both trajectories.
            drive: a bound on ‖|U||x| + |b|‖_P, with ``input_size`` products per sum.
        """
        if self.bounded_gain:
            raise ValueError("W depends on the input weights; ask rounding_bound(unit, inputs) about the whole unit")
        A, W = (matrix.double() for matrix in self())
        sigma, stretch = get_nonlinearity(self.nonlinearity), log_stretch(self._numbers(), self.scale).exp()
        norm = float(torch.linalg.vector_norm(stretch))
        lipschitz, rest = sigma.lipschitz, abs(float(sigma.function(torch.zeros(()))))
        held = (self.alpha * A).abs() + lipschitz * W.abs()
        gain = self.step_size * torch.linalg.matrix_norm(held * stretch.unsqueeze(1) / stretch, ord=2)
        return 2.0 * step_rounding(
            get_integrator(self.integrator),
            float(gain),
            state,
            self.step_size * (lipschitz * drive + rest * norm),
            terms=self.hidden_size + input_size + 1,
            ones=norm,
            dtype=held_dtype(self.rotation.dtype),
        )

    def stated_recurrences(self) -> list[Recurrence]:
        """The recurrence that this pair was built for."""
        require_own_statement(self)
        if self.bounded_gain:
            raise UnstatedRecurrenceError(
                "this pair has bounded_gain, so that W depends on the input weights of its unit; certify the unit"
            )
        A, W = repeatable_matrices(self, type(self).__name__)
        return [
            Recurrence(
                A,
                W,
                alpha=self.alpha,
                nonlinearity=self.nonlinearity,
                integrator=self.integrator,
                step_range=(self.step_size, self.step_size),
                precision=str(A.dtype).removeprefix("torch."),
                hint=self.metric(),
            )
        ]

    def _numbers(self) -> Numbers:
        """The constants of the construction, for the dtype that the parameters have now."""
        target = self._target()
        factor = math.sqrt(2.0 * self._spare(target)) if self.integrator == "heun" else target
        spread, dtype = 0.5 * math.log(self.metric_spread), held_dtype(self.rotation.dtype)
        return Numbers(self.step_size, factor, self.alpha, self.slopes, spread, dtype)

    def _require_input(self, input_weight: Tensor | None) -> None:
        if self.bounded_gain and input_weight is None:
            raise TypeError("with bounded_gain, W depends on the input weights U; pass them, (N, p)")
        if not self.bounded_gain and input_weight is not None:
            raise TypeError("input weights are used with bounded_gain only; leave them out")
        if input_weight is not None:
            require_tensor("input_weight", input_weight)
            if input_weight.dim() != 2 or len(input_weight) != self.hidden_size:
                raise ValueError(
                    f"input_weight has shape {tuple(input_weight.shape)}; it must be ({self.hidden_size}, p)"
                )

    def _target(self) -> float:
        """The contraction factor, minus what computing and rounding A and W can add to the norm of the map."""
        reserve = matrix_reserve(self.integrator, self.hidden_size, held_dtype(self.rotation.dtype))
        return math.exp(-self.rate * self.step_size) - reserve

    def _spare(self, target: float) -> float:
        """The part of the target that can be kept in reserve."""
        return target - (0.75 if self.integrator == "midpoint" else 0.5)

    def _midpoint(self, numbers: Numbers, *parameters: Tensor) -> tuple[SlowedPair, Tensor]:
        """The pair as a function of its scale, and the scale at which the midpoint map contracts enough.

        ``parameters`` as for :meth:`build`; the pair's own if there are none.
        """
        parameters = parameters or tuple([getattr(self, name) for name in self.free])
        target, parts = self._target(), free_parts(numbers, *parameters[:4])
        reserve, multipliers = parameters[5:]
        kept = self._spare(target) * (1e-4 + 0.9 * torch.sigmoid(reserve.double()).squeeze(0))
        decay = 0.5 - 0.5 * (1.0 - 4.0 * (1.0 - target + kept)).sqrt()
        identity = torch.eye(self.hidden_size, device=reserve.device, dtype=torch.float64)
        generator, multipliers = shifted_generator(numbers, parts) - identity, multipliers.double()
        slowed = SlowedPair(
            generator, parts.feedback, parts.restoring, 1.0 - 0.5 * decay, multipliers, self.step_size, target
        )
        scale = slowed.largest()
        return slowed, scale + 0.0 * torch.tanh(multipliers).sum()  # unused multipliers get a zero gradient
