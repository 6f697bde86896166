"""Hidden matrices whose recurrence contracts for every value of the free parameters.

Proofs are in ``docs/stability.md``. In short, for the Euler map with slopes in [0, 1], step ε and factor ρ: let S be
any matrix with a symmetric part of at least BᵀB, H = (ε/2) S, and

    F = ρ (I − H)(I + H)⁻¹,   A = (F − I)/ε,   W = −diag(ω) F + ρ diag(√(ω(2/ε − ω))) √(2ε) B (I + H)⁻¹.

Then ‖I + εA + εDW‖ ≤ ρ for every diagonal 0 ≤ D ≤ I. So S − Sᵀ turns states without cost, BᵀB is the decay that the
feedback W needs, and only in the directions that it uses. A diagonal change of coordinates gives the metric.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.integrators import get_integrator
from lipschitz_rnn.ops.nonlinearities import get_nonlinearity

SUPPORTED_INTEGRATORS = ("euler", "heun", "midpoint")


def _logit(share: float) -> float:
    return math.log(share / (1.0 - share))


class ContractingPair(nn.Module):
    """Builds (A, W) from free parameters so that the map that runs contracts.

    Guarantee: for all parameter values, any two states under the same input are brought together by every step,
    ‖h⁺ − h′⁺‖_P ≤ e^{−rate·ε} ‖h − h′‖_P with ε = ``step_size`` and the diagonal metric P of :meth:`metric`, for the
    given integrator. A shorter step ε′ gives the factor 1 − (ε′/ε)(1 − e^{−rate·ε}) in the same metric, so irregular
    samples are covered as long as no timespan exceeds ``step_size``. In the Euclidean norm the distance never exceeds
    ``metric_spread`` times the first one.

    Euler and Heun spend only ``rate``; the midpoint rule evaluates the slope twice and combines the two with signs, so
    it also spends a learned amount of decay, starting at ``dissipation``, that bounds how fast its dynamics may be.

    Args:
        hidden_size: N.
        step_size: ε > 0, the largest step that will be taken.
        integrator: ``euler``, ``midpoint`` (``rk2``) or ``heun``.
        alpha: the factor of A in ḣ = αA h + σ(W h + u); not 0.
        nonlinearity: a name known to ``lipschitz_rnn.ops.nonlinearities``.
        rate: λ > 0, the guaranteed rate per unit of time.
        init_scale: standard deviation of the free matrices, times √N.
        metric_spread: bound on the square root of the condition number of P; 1 keeps the Euclidean metric.
        dissipation: decay per unit of time that the midpoint rule starts with in addition to ``rate``.
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
        dissipation: float = 0.2,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if hidden_size < 1:
            raise ValueError(f"hidden_size is {hidden_size}; give a positive number of units")
        if not (step_size > 0 and math.isfinite(step_size)):
            raise ValueError(f"step_size is {step_size}; give a positive, finite step")
        if not (rate > 0 and math.isfinite(rate)):
            raise ValueError(f"rate is {rate}; a contracting pair needs a positive, finite rate (for example 0.01)")
        if alpha == 0 or not math.isfinite(alpha):
            raise ValueError(
                f"alpha is {alpha}; without the linear term A nothing can be made to contract: use alpha != 0"
            )
        if metric_spread < 1:
            raise ValueError(f"metric_spread is {metric_spread}; give at least 1")
        if not dissipation > 0:
            raise ValueError(f"dissipation is {dissipation}; give a positive number")
        self.integrator = get_integrator(integrator).name
        if self.integrator not in SUPPORTED_INTEGRATORS:
            allowed = ", ".join(SUPPORTED_INTEGRATORS)
            raise ValueError(f"integrator is {integrator!r}; the contracting parametrization is proved for {allowed}")
        self.hidden_size, self.step_size, self.alpha, self.rate = hidden_size, step_size, alpha, rate
        self.nonlinearity = nonlinearity
        if dtype in (torch.float16, torch.bfloat16):
            raise ValueError(
                f"dtype is {dtype}; rounding to it undoes the guarantee: use float32 or float64 (autocast may follow)"
            )
        if self.integrator != "euler" and rate * step_size > 0.69:
            raise ValueError(
                f"rate·step_size is {rate * step_size:.3g}; {self.integrator} is proved below 0.69: lower one of them"
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
            self.spending = parameter(1)
        self.reset_parameters()

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
                self.spending.fill_(_logit(share))

    def forward(self) -> tuple[Tensor, Tensor]:
        """The pair (A, W), each (N, N), in the dtype of the parameters."""
        factor, generator, feedback, restoring = self._ingredients()
        step = self.step_size
        half = 0.5 * step * generator
        identity = torch.eye(self.hidden_size, device=half.device, dtype=half.dtype)
        # Rows of [I − H; √(2ε) B] times (I + H)⁻¹: an isometry, which is the whole proof.
        resolvent = torch.linalg.solve(identity + half, torch.cat((identity - half, feedback)), left=False)
        turned, fed = resolvent[: self.hidden_size], resolvent[self.hidden_size :]
        F = factor * turned
        gain = (restoring * (2.0 / step - restoring)).sqrt() * math.sqrt(2.0 * step)
        sector_A = (F - identity) / step
        sector_W = factor * gain.unsqueeze(1) * fed - restoring.unsqueeze(1) * F
        stretch = self._stretch()
        change = stretch.unsqueeze(0) / stretch.unsqueeze(1)
        low, high = self.slopes
        W = sector_W * change / ((high - low) or 1.0)
        A = (sector_A * change - low * W) / self.alpha
        return A.to(self.rotation.dtype), W.to(self.rotation.dtype)

    @torch.no_grad()
    def metric(self) -> tuple[Tensor, Tensor]:
        """The certificate that comes with the construction: the diagonals of P and of the Euler map's multiplier Λ."""
        _, _, _, restoring = self._ingredients()
        metric = self._stretch().square()
        return metric, self.step_size * metric / restoring

    def _stretch(self) -> Tensor:
        """The square root of P's diagonal, within [1/√spread, √spread]."""
        bound = 0.5 * math.log(self.metric_spread)
        if bound == 0.0:
            return torch.ones_like(self.scale, dtype=torch.float64)
        return torch.exp(bound * torch.tanh(self.scale.double() / bound))

    def _target(self) -> float:
        """The map's factor, less what rounding A and W to the parameters' dtype can add to the norm of the map.

        In float64 that is next to nothing; what is taken instead leaves room for the rounding of a check and, for the
        midpoint rule, whose multipliers are not known in closed form, for the accuracy with which a check finds them.
        """
        rounding = 16.0 * math.sqrt(self.hidden_size) * torch.finfo(self.rotation.dtype).eps
        room = 1e-6 if self.integrator == "midpoint" else 1e-9
        return math.exp(-self.rate * self.step_size) - max(rounding, room)

    @staticmethod
    def _spare(target: float) -> float:
        """½ + ½c² + spent ≤ target leaves c² ≥ 0 as long as less than this is spent."""
        return target - 0.5

    def _ingredients(self) -> tuple[Tensor | float, Tensor, Tensor, Tensor]:
        """(factor c of the Euler map, S, B, ω), in float64: only the result is rounded to the parameters' dtype."""
        rotation, feedback = self.rotation.double(), self.feedback.double()
        fastest = 2.0 / self.step_size
        # ω keeps away from the ends of (0, 2/ε), where the multiplier degenerates and rounding would be amplified.
        restoring = fastest * (0.001 + 0.949 * torch.sigmoid(self.restoring.double()))
        leak = fastest * torch.sigmoid(self.leak.double())
        generator = 0.5 * (rotation - rotation.T) + feedback.T @ feedback + torch.diag(leak)
        target = self._target()
        if self.integrator == "euler":
            return target, generator, feedback, restoring
        if self.integrator == "heun":
            return math.sqrt(2.0 * self._spare(target)), generator, feedback, restoring
        return self._slowed(target, generator, feedback, restoring)

    def _slowed(
        self, target: float, generator: Tensor, feedback: Tensor, restoring: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Slow the dynamics down (S, BᵀB and ω by one common number) until the midpoint rule's two slopes may differ.

        The midpoint map is ½I + ½(I + εK₂)² + ½ε²K₂(D₁ − D₂)W with ‖I + εK₂‖ ≤ c, so its norm is at most
        ½ + ½c² + spent as soon as ½ε²(‖A‖ + ‖W‖)‖W‖ ≤ spent; c follows from the target.
        """
        spent = self._spare(target) * torch.sigmoid(self.spending.double()).squeeze(0)
        factor = (2.0 * (self._spare(target) - spent)).clamp_min(0.0).sqrt()
        strongest = restoring.max()
        W_bound = strongest + 2.0 * strongest.sqrt() * torch.linalg.matrix_norm(feedback, 2)
        quadratic = (torch.linalg.matrix_norm(generator, 2) + W_bound) * W_bound
        linear = (1.0 - factor) / self.step_size * W_bound
        allowed = 2.0 * spent / self.step_size**2
        # The positive root of quadratic·s² + linear·s = allowed, in the form that does not cancel.
        slower = 2.0 * allowed / (linear + (linear.square() + 4.0 * quadratic * allowed).sqrt())
        slower = slower.clamp_max(1.0)
        return factor, slower * generator, slower.sqrt() * feedback, slower * restoring
