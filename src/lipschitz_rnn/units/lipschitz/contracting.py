"""Hidden matrices whose recurrence contracts for every value of the free parameters.

Proofs are in ``docs/theory.md``. In short, for the Euler map with slopes in [0, 1], step ε and factor ρ: let S be
any matrix with a symmetric part of at least BᵀB, H = (ε/2) S, and

    F = ρ (I − H)(I + H)⁻¹,   A = (F − I)/ε,   W = −diag(ω) F + ρ diag(√(ω(2/ε − ω))) √(2ε) B (I + H)⁻¹.

Then ‖I + εA + εDW‖ ≤ ρ for every diagonal 0 ≤ D ≤ I. So S − Sᵀ turns states without cost, BᵀB is the decay that the
feedback W needs, and only in the directions that it uses. A diagonal change of coordinates gives the metric.

For the midpoint map such a pair is built for half the step, and the map is bounded by the inequality with multipliers
of its own, which are learned. Where that bound exceeds ρ, S, BᵀB and ω are slowed down by one common number.

A and W are computed in float64 and held in float32 at least, whatever the dtype of the parameters, which are free to
be rounded. ρ is lowered by what this can cost.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.common.dtypes import without_autocast
from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.ops.lipschitz.nonlinearities import get_nonlinearity
from lipschitz_rnn.units.lipschitz.midpoint_level import largest_share, midpoint_level
from lipschitz_rnn.units.lipschitz.rounding import LARGEST_NORM, held_dtype, matrix_reserve, step_rounding, within
from lipschitz_rnn.units.recurrence import Recurrence, repeatable_matrices, require_own_statement

SUPPORTED_INTEGRATORS = ("euler", "heun", "midpoint")
# rate·step_size up to which each is proved; a stronger decay than e⁻⁷ in one step comes near the rounding of float32.
_LARGEST_DECAY = {"euler": 7.0, "heun": 0.69, "midpoint": 0.25}
_PROVED = ("hidden_size", "step_size", "alpha", "rate", "integrator", "nonlinearity", "slopes", "metric_spread")
_LARGEST_SETTING = 1e6  # step_size, alpha, their inverses and metric_spread: A and W stay within float32's range


def _logit(share: float) -> float:
    return math.log(share / (1.0 - share))


class ContractingPair(nn.Module):
    """Builds (A, W) from free parameters so that the map that runs contracts.

    Guarantee: for all finite parameter values, any two states under the same input are brought together by every step,
    ‖h⁺ − h′⁺‖_P ≤ e^{−rate·ε} ‖h − h′‖_P with ε = ``step_size`` and the diagonal metric P of :meth:`metric`, for the
    given integrator and the matrices as this module gives them: in float32, or in float64 if the parameters are. What
    the arithmetic of a step adds is bounded by :meth:`step_rounding`. Parameters that are infinite or NaN give
    matrices of NaN. A shorter step ε′ gives the factor 1 − (ε′/ε)(1 − e^{−rate·ε}) in the same metric, so irregular
    samples are covered as long as no timespan exceeds ``step_size``. In the Euclidean norm the distance never exceeds
    ``metric_spread`` times the first one.

    Euler and Heun spend only ``rate``; the midpoint rule evaluates the slope twice and combines the two with signs, so
    it also keeps a learned amount of decay in reserve, starting at ``dissipation``, and checks its own inequality: one
    factorization of size 2N, and some more whenever the dynamics must be slowed down.

    Args:
        hidden_size: N.
        step_size: ε > 0, the largest step that will be taken.
        integrator: ``euler``, ``midpoint`` (``rk2``) or ``heun``.
        alpha: the factor of A in ḣ = αA h + σ(W h + u); not 0.
        nonlinearity: a name known to ``lipschitz_rnn.ops.lipschitz.nonlinearities``.
        rate: λ > 0, the guaranteed rate per unit of time.
        init_scale: standard deviation of the free matrices, times √N.
        metric_spread: bound on the square root of the condition number of P; 1 keeps the Euclidean metric.
        dissipation: decay per unit of time that the midpoint rule keeps in reserve at the start, beside ``rate``.
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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if hidden_size < 1:
            raise ValueError(f"hidden_size is {hidden_size}; give a positive number of units")
        if not (step_size > 0 and math.isfinite(step_size)):
            raise ValueError(f"step_size is {step_size}; give a positive, finite step")
        for name, value in (("step_size", step_size), ("alpha", alpha)):
            if value != 0 and math.isfinite(value) and not 1 / _LARGEST_SETTING <= abs(value) <= _LARGEST_SETTING:
                raise ValueError(
                    f"{name} is {value}; the contracting parametrization takes 1e-6 to 1e6 in size, so that A and W "
                    "stay within the range of float32: choose another unit of time"
                )
        if not (rate > 0 and math.isfinite(rate)):
            raise ValueError(f"rate is {rate}; a contracting pair needs a positive, finite rate (for example 0.01)")
        if alpha == 0 or not math.isfinite(alpha):
            raise ValueError(
                f"alpha is {alpha}; without the linear term A nothing can be made to contract: use alpha != 0"
            )
        if not 1 <= metric_spread <= _LARGEST_SETTING:
            raise ValueError(f"metric_spread is {metric_spread}; give a number from 1 to {_LARGEST_SETTING:g}")
        if not dissipation > 0:
            raise ValueError(f"dissipation is {dissipation}; give a positive number")
        self.integrator = get_integrator(integrator).name
        if self.integrator not in SUPPORTED_INTEGRATORS:
            allowed = ", ".join(SUPPORTED_INTEGRATORS)
            raise ValueError(f"integrator is {integrator!r}; the contracting parametrization is proved for {allowed}")
        self.hidden_size, self.step_size, self.alpha, self.rate = hidden_size, step_size, alpha, rate
        self.nonlinearity = nonlinearity
        largest = _LARGEST_DECAY[self.integrator]
        if rate * step_size > largest:
            raise ValueError(
                f"rate·step_size is {rate * step_size:.3g}; {self.integrator} is proved up to {largest}: lower either"
            )
        self.slopes = get_nonlinearity(nonlinearity).slope_range
        self.init_scale, self.metric_spread, self.dissipation = init_scale, metric_spread, dissipation

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
        self.reset_parameters()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _PROVED and name in self.__dict__ and self.__dict__[name] != value:
            raise AttributeError(
                f"{name} is {self.__dict__[name]!r} and part of this pair's proof of contraction; build a new pair"
            )
        super().__setattr__(name, value)

    def require_unit(self, unit: Any) -> None:
        """Raise where a unit would run this pair in a step for which it was not built."""
        for name in ("hidden_size", "step_size", "alpha", "integrator", "nonlinearity"):
            own, other = getattr(self, name), getattr(unit, name)
            if own != other:
                raise ValueError(
                    f"the pair is proved for {name}={own!r}, but the unit has {name}={other!r}; build both alike"
                )

    def reset_parameters(self) -> None:
        """Start with random rotations and feedback, almost no leak, and the Euclidean metric."""
        deviation = self.init_scale / math.sqrt(self.hidden_size)
        with torch.no_grad():
            self.rotation.normal_(0.0, deviation)
            self.feedback.normal_(0.0, 0.3 * deviation)
            # The leak starts at 0.02 and ω near 1 per unit of time, or lower if the step is very long.
            self.leak.fill_(_logit(min(0.01 * self.step_size, 0.5)))
            self.restoring.fill_(_logit(min(0.5 * self.step_size, 0.5)))
            self.scale.zero_()
            if self.integrator == "midpoint":
                share = min(0.5, self.dissipation * self.step_size / self._spare(self._target()))
                self.reserve.fill_(_logit(share))
                self.multipliers.zero_()

    def forward(self) -> tuple[Tensor, Tensor]:
        """The pair (A, W), each (N, N), in float32, or in float64 if the parameters are: never in less."""
        step, dtype = self.step_size, held_dtype(self.rotation.dtype)
        with without_autocast(self.rotation.device):
            step_A, step_W, _ = self._euclidean()
            sector_A, sector_W = step_A / step, step_W / step
            stretch = self._stretch()
            change = stretch.unsqueeze(0) / stretch.unsqueeze(1)
            low, high = self.slopes
            W = sector_W * change / ((high - low) or 1.0)
            A = (sector_A * change - low * W) / self.alpha
            return A.to(dtype), W.to(dtype)

    @torch.no_grad()
    def metric(self) -> tuple[Tensor, Tensor]:
        """The certificate that comes with the construction: the diagonals of P (N,) and of Λ.

        Λ is (N,) for Euler and Heun, the multiplier of the Euler map, and (2N,) for the two stages of the midpoint map.
        """
        _, _, restoring = self._euclidean()
        metric = self._stretch().square()
        if self.integrator != "midpoint":
            return metric, self.step_size**2 * metric / restoring
        return metric, self.step_size**2 * torch.cat([metric * stage for stage in self._stage_multipliers(restoring)])

    @torch.no_grad()
    def step_rounding(self, state: float, drive: float = 0.0, *, input_size: int = 0) -> float:
        """δ: how far the arithmetic of one step can move two states apart, in the norm of P.

        Two computed trajectories under the same input obey ‖Δ_t‖_P ≤ ρᵗ‖Δ_0‖_P + δ/(1 − ρ) with ρ = e^{−rate·ε}.

        Args:
            state: a bound on ‖h‖_P along both of them.
            drive: a bound on ‖|U||x| + |b|‖_P, for sums of ``input_size`` products each.
        """
        A, W = (matrix.double() for matrix in self())
        sigma, stretch = get_nonlinearity(self.nonlinearity), self._stretch()
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
        """The map that this pair was built for."""
        require_own_statement(self)
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

    def _stretch(self) -> Tensor:
        """The square root of P's diagonal, within [1/√spread, √spread]."""
        bound = 0.5 * math.log(self.metric_spread)
        if bound == 0.0:
            return torch.ones_like(self.scale, dtype=torch.float64)
        return torch.exp(bound * torch.tanh(self.scale.double() / bound))

    def _target(self) -> float:
        """The map's factor, less what computing A and W and rounding them can add to the norm of the map."""
        reserve = matrix_reserve(self.integrator, self.hidden_size, held_dtype(self.rotation.dtype))
        return math.exp(-self.rate * self.step_size) - reserve

    def _spare(self, target: float) -> float:
        """How much of the target could be kept in reserve."""
        return target - (0.75 if self.integrator == "midpoint" else 0.5)

    def _euclidean(self) -> tuple[Tensor, Tensor, Tensor]:
        """εA, εW and εω for slopes in [0, 1] and the Euclidean metric, in float64: only the result is rounded."""
        step = self.step_size
        # Halved first, so that the difference of the largest numbers is finite.
        rotation, feedback = 0.5 * self.rotation.double(), self.feedback.double()
        rotation = step * within(rotation - rotation.T, LARGEST_NORM / step)
        feedback = math.sqrt(step) * within(feedback, math.sqrt(LARGEST_NORM / step))
        # εω keeps away from the ends of (0, 2), where the multiplier degenerates and rounding would be amplified.
        restoring = 2.0 * (0.001 + 0.949 * torch.sigmoid(self.restoring.double()))
        leak = 2.0 * torch.sigmoid(self.leak.double())
        generator = rotation + feedback.T @ feedback + torch.diag(leak)
        target = self._target()
        if self.integrator == "euler":
            return *_euler_pair(target, generator, feedback, restoring), restoring
        if self.integrator == "heun":
            return *_euler_pair(math.sqrt(2.0 * self._spare(target)), generator, feedback, restoring), restoring
        kept = self._spare(target) * (1e-4 + 0.9 * torch.sigmoid(self.reserve.double()).squeeze(0))
        decay = 0.5 - 0.5 * (1.0 - 4.0 * (1.0 - target + kept)).sqrt()

        def slowed(share: Tensor) -> tuple[Tensor, Tensor]:
            # Euler steps of half the length contract: rotations cost less than with whole ones, and with the midpoint
            # map of the whole step that covers all shorter steps.
            half = 0.5 * share
            step_A, step_W = _euler_pair(1.0 - 0.5 * decay, half * generator, half.sqrt() * feedback, half * restoring)
            return 2.0 * step_A, 2.0 * step_W

        def excess(share: Tensor) -> Tensor:
            return midpoint_level(*slowed(share), *self._stage_multipliers(share * restoring)) - target**2

        share = largest_share(excess, generator)
        share = share + 0.0 * torch.tanh(self.multipliers.double()).sum()  # idle multipliers have a gradient too: zero
        return *slowed(share), share * restoring

    def _stage_multipliers(self, restoring: Tensor) -> tuple[Tensor, Tensor]:
        """M₁ > ¼ and M₂ of the midpoint inequality, around what the best ones of trained networks depend on εω like."""
        first, second = torch.tanh(self.multipliers.double())
        return 0.25 + 0.1 * torch.exp(2.0 * first) / restoring.sqrt(), 0.95 * 1.5**second / restoring


def _euler_pair(
    factor: Tensor | float, generator: Tensor, feedback: Tensor, restoring: Tensor
) -> tuple[Tensor, Tensor]:
    """εA and εW whose Euler map is shorter than ``factor`` for all slopes, from εS, √ε B and εω."""
    half = 0.5 * generator
    identity = torch.eye(len(half), device=half.device, dtype=half.dtype)
    # Rows of [I − H; √(2ε) B] times (I + H)⁻¹: an isometry, which is the whole proof.
    # I + H is regular for all finite parameters. Without the check no GPU has to wait, and others give NaN everywhere.
    resolvent, _ = torch.linalg.solve_ex(identity + half, torch.cat((identity - half, feedback)), left=False)
    turned, fed = factor * resolvent[: len(half)], factor * resolvent[len(half) :]
    gain = (2.0 * restoring * (2.0 - restoring)).sqrt()
    return turned - identity, gain.unsqueeze(1) * fed - restoring.unsqueeze(1) * turned
