"""The Lipschitz recurrent cell: the parameters of one layer, and a single step."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.common.dtypes import compute_dtype, state_dtype, without_autocast
from lipschitz_rnn.ops.common.tracing import exporting, exporting_to_onnx
from lipschitz_rnn.ops.common.validation import (
    require_number,
    require_shape,
    require_tensor,
    shape_of,
)
from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.ops.lipschitz.nonlinearities import get_nonlinearity
from lipschitz_rnn.ops.lipschitz.reference import integrate_step
from lipschitz_rnn.ops.lipschitz.scan import lipschitz_scan
from lipschitz_rnn.units.arguments import renamed, require_parameter_dtype, true_or_false
from lipschitz_rnn.units.lipschitz import settings
from lipschitz_rnn.units.lipschitz.autocast import result_dtype, to_compute_dtype
from lipschitz_rnn.units.lipschitz.contracting import ContractingPair
from lipschitz_rnn.units.lipschitz.dropin import refuse_torchscript, refuse_tracing
from lipschitz_rnn.units.lipschitz.gaps import GapWatch
from lipschitz_rnn.units.lipschitz.kept import kept_matrices
from lipschitz_rnn.units.lipschitz.parametrization import HiddenSetting, SymmetricSkewPair
from lipschitz_rnn.units.lipschitz.proved import proved_step
from lipschitz_rnn.units.lipschitz.rounding import held_dtype
from lipschitz_rnn.units.lipschitz.settings import describe
from lipschitz_rnn.units.lipschitz.step_times import StepTimes
from lipschitz_rnn.units.noise import NOISE_OPTIONS, NoisyCell, describe_noise, require_generator
from lipschitz_rnn.units.recurrence import (
    Recurrence,
    UnstatedRecurrenceError,
    as_number,
    repeatable_matrices,
    require_own_statement,
)
from lipschitz_rnn.units.sequences import longest_time


class LipschitzRNNCell(StepTimes, NoisyCell):
    r"""One step of ``ḣ = αA h + σ(W h + U x + b)``, for streaming and for your own loops.

    Args:
        input_size: p, the number of input features.
        hidden_size: N, the size of the state.
        bias: whether to use a bias b.
        beta, gamma: parameters of the symmetric-skew matrices; one number, or a pair (for A, for W).
        step_size: ε.
        alpha: factor on the linear term.
        integrator: ``euler``, ``midpoint`` (``rk2``), ``heun`` or ``rk4``.
        nonlinearity: ``tanh``, ``relu``, ``sigmoid`` or ``identity``.
        init_scale: the free matrices are initialised from N(0, (init_scale/N)²).
        stability: None for symmetric-skew matrices; ``"contracting"`` for matrices that make any two states under the
            same input approach each other, for all parameter values (beta and gamma are then not used).
        rate: the contraction rate per unit of time; 0.01 if None.
        metric_spread: of a contracting unit, how far the Euclidean distance of two states may grow on the way before
            contraction shrinks it; 30 if None. A larger one lets units drive others more strongly: it learns better.
        bounded_gain: of a contracting unit, also bound what a change of the inputs does to the state by a gain that
            does not grow with the length of the sequence (``gain()``); for Euler steps. See ``docs/stability.md``.
        max_step: longer steps are split into equal sub-steps of at most this length, with the input held constant.
        noise, multiplicative_noise: noise on the state after a step, in training; see :class:`LipschitzRNN`.

    Shapes: ``cell(input, hx)`` takes input (B, p) or (p,) and hx (B, N) or (N,), zeros if None. It returns the next hx.

    Under autocast or with 16-bit parameters the next hx has 16 bits, so your own loop would lose small steps; the layer
    and ``stream()`` do not. Run such a loop with float32 parameters and autocast off.

    Parameters: ``weight_ih`` U, (N, p); ``bias_ih`` b, (N,); ``hidden.M_A`` and ``hidden.M_W``, (N, N) each.
    """

    # Tensors in an ensemble whose members use different values.
    stackable_options = ("alpha", "step_size", *NOISE_OPTIONS)
    checks = settings.CELL_CHECKS
    fixed = ("input_size", "hidden_size", "bias")
    constructor_only = ("stability", "rate", "metric_spread", "bounded_gain", "init_scale")
    saved = (
        *("step_size", "alpha", "integrator", "nonlinearity", "max_step"),
        *("stability", "rate", "metric_spread", "bounded_gain"),
    )
    input_size: int
    hidden_size: int
    bias: bool
    step_size: float
    alpha: float
    integrator: str
    nonlinearity: str
    max_step: float | None
    beta, gamma = HiddenSetting("beta"), HiddenSetting("gamma")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        beta: float | tuple[float, float] = 0.75,
        gamma: float | tuple[float, float] = 0.001,
        step_size: float = 0.03,
        max_step: float | None = None,
        alpha: float = 1.0,
        integrator: str = "euler",
        nonlinearity: str = "tanh",
        init_scale: float = 0.1,
        stability: str | None = None,
        rate: float | None = None,
        metric_spread: float | None = None,
        bounded_gain: bool = False,
        noise: float = 0.0,
        multiplicative_noise: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        settings.require_dtype(dtype)
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        self.step_size, self.alpha, self.integrator, self.nonlinearity = step_size, alpha, integrator, nonlinearity
        self.hidden: nn.Module
        if stability is None:
            for name, given in (("rate", rate), ("metric_spread", metric_spread)):
                if given is not None:
                    raise ValueError(
                        f"{name} is {given}, but stability is None; omit {name} or pass stability='contracting'"
                    )
            if true_or_false("bounded_gain", bounded_gain):
                raise ValueError("bounded_gain needs stability='contracting'; pass that too, or omit it")
            self.hidden = SymmetricSkewPair(hidden_size, beta, gamma, init_scale, device, dtype)
        elif stability == "contracting":
            for name, value, default in (("beta", beta, 0.75), ("gamma", gamma, 0.001)):
                if value != default:
                    raise ValueError(
                        f"{name} is {value!r}, but a contracting unit does not use beta and gamma; omit them"
                    )
            self.hidden = ContractingPair(
                hidden_size,
                step_size=self.step_size,
                integrator=self.integrator,
                alpha=self.alpha,
                nonlinearity=self.nonlinearity,
                rate=0.01 if rate is None else require_number("rate", rate, low=0.0, open_low=True),
                init_scale=10.0 * require_number("init_scale", init_scale, low=0.0),  # divided by √N, not by N
                metric_spread=30.0
                if metric_spread is None
                else require_number("metric_spread", metric_spread, low=1.0),
                bounded_gain=true_or_false("bounded_gain", bounded_gain),
                device=device,
                dtype=dtype,
            )
        else:
            raise ValueError(f"stability is {stability!r}; choose None or 'contracting'")
        self.max_step = max_step
        self.start_noise(noise, multiplicative_noise)
        self._gaps = GapWatch()
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size, device=device, dtype=dtype))
        if bias:
            self.bias_ih = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        else:
            self.register_parameter("bias_ih", None)
        self._reset_input_map()

    def reset_parameters(self) -> None:
        """Initialise the input weights like ``nn.Linear``, and the hidden matrices from their own distribution."""
        self._reset_input_map()
        self.hidden.reset_parameters()  # type: ignore[operator]

    def _reset_input_map(self) -> None:
        bound = 1.0 / math.sqrt(self.input_size)
        for parameter in (self.weight_ih, self.bias_ih):
            if parameter is not None:
                nn.init.uniform_(parameter, -bound, bound)

    @property
    def contracting(self) -> bool:
        """Whether the matrices are proved to contract, so that they must not be rounded."""
        return isinstance(self.hidden, ContractingPair)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "hidden" and isinstance(value, ContractingPair):
            value.require_unit(self)
        super().__setattr__(name, value)

    @property
    def stability(self) -> str | None:
        """None or ``"contracting"``, as in the constructor."""
        return "contracting" if isinstance(self.hidden, ContractingPair) else None

    @property
    def rate(self) -> float | None:
        """The guaranteed contraction rate; None if the unit is not contracting."""
        return self.hidden.rate if isinstance(self.hidden, ContractingPair) else None

    @property
    def metric_spread(self) -> float | None:
        """The bound on the growth of Euclidean distances; None if the unit is not contracting."""
        return self.hidden.metric_spread if isinstance(self.hidden, ContractingPair) else None

    @property
    def bounded_gain(self) -> bool:
        """Whether a change of the inputs is proved to move the state by at most ``gain()`` times its l2 norm."""
        return isinstance(self.hidden, ContractingPair) and self.hidden.bounded_gain

    def gain(self) -> Tensor:
        """γ of a unit with ``bounded_gain``, a number in float64, differentiable: ‖δh‖_P ≤ γ‖δx‖₂ after any number of
        steps, with the metric P of ``hidden.metric()``. Where ``max_step`` divides steps into up to n, √n times that.
        """
        if not isinstance(self.hidden, ContractingPair):
            raise ValueError(
                "only a contracting unit has a gain; build it with stability='contracting', bounded_gain=True"
            )
        return self.hidden.gain(self.weight_ih)

    def require_possible(self, name: str, value: Any) -> None:
        super().require_possible(name, value)
        if not isinstance(self._modules.get("hidden"), ContractingPair):
            return
        if name == "max_step":
            if value is not None and value > self.step_size:
                raise ValueError(
                    f"max_step is {value:g}, but this contracting unit is proved for steps up to {self.step_size:g}; "
                    "choose a max_step of at most that"
                )
        elif name not in NOISE_OPTIONS and self.changes(name, value):  # evaluation, which is proved, adds no noise
            raise AttributeError(
                f"{name} cannot become {value!r}: this unit's proof of contraction depends on it. Build a new unit"
            )

    def hidden_matrices(self) -> tuple[Tensor, Tensor]:
        """A and W, (N, N) each, differentiable; at least float32 for a contracting unit."""
        if self.contracting and exporting() and exporting_to_onnx():
            raise NotImplementedError(
                "ONNX has no operator for the inverse that forms the matrices of a contracting unit; export a trained "
                "model with lipschitz_rnn.data.export_model or `lipschitz-rnn export`, which store A and W, or a "
                "module that stores them from hidden_matrices() as buffers and calls lipschitz_scan"
            )
        A, W = self.hidden(self.weight_ih) if self.bounded_gain else self.hidden()
        return A, W

    def stated_recurrences(self) -> list[Recurrence]:
        """The recurrence that this unit runs, for :func:`lipschitz_rnn.stability.certify`."""
        require_own_statement(self)
        owner = type(self).__name__
        if self.training and self.noisy:
            raise UnstatedRecurrenceError(
                f"this {owner} is in training mode, where it adds noise to its state ({describe_noise(self)[2:]}); "
                "call eval() first"
            )
        A, W = repeatable_matrices(self.hidden_matrices, owner)
        step, limit = as_number("step_size", self.step_size, owner), getattr(self, "max_step", None)
        contracting = isinstance(self.hidden, ContractingPair)
        return [
            Recurrence(
                A,
                W,
                alpha=as_number("alpha", self.alpha, owner),
                nonlinearity=self.nonlinearity,
                integrator=self.integrator,
                step_range=(step, step),
                max_step=None if limit is None else as_number("max_step", limit, owner),
                precision=str(A.dtype).removeprefix("torch.") if contracting else None,
                hint=self.hidden.metric() if contracting else None,  # type: ignore[operator]
            )
        ]

    @renamed(4, x="input", h="hx", dt="timespans")
    def forward(
        self,
        input: Tensor,
        hx: Tensor | None = None,
        timespans: float | Tensor | None = None,
        matrices: tuple[Tensor, Tensor] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The state after one step.

        Args:
            input: (B, p) or (p,).
            hx: (B, N) or (N,); zeros if None.
            timespans: the time since the previous sample, instead of ``step_size``; a number, or a tensor () or (B,).
            matrices: A and W from ``hidden_matrices()``, to compute them once for many steps.
            generator: for the noise in training; PyTorch's default generator if None.
        """
        refuse_tracing(self)
        self._check(input, hx, matrices)
        if matrices is None:
            use = kept_matrices(self)
            matrices = self.hidden_matrices() if use is None else (use.kept.A, use.kept.W)
        h = self.advance(input, hx, timespans, matrices)
        if self.training and self.noisy:
            if generator is not None:
                require_generator(generator)
            h = self.disturbed(h, timespans, generator)
        return h.to(result_dtype(self.weight_ih))

    def advance(
        self, x: Tensor, h: Tensor | None, timespans: float | Tensor | None, matrices: tuple[Tensor, Tensor]
    ) -> Tensor:
        """The next state in at least float32, so that a caller who keeps it loses no small steps to 16-bit rounding."""
        if self.contracting:
            return proved_step(self, x, h, timespans, matrices)
        A, W, U, b, x = to_compute_dtype(*matrices, self.weight_ih, self.bias_ih, x)
        wide = compute_dtype(A.dtype, A.device)
        A, W, U, x, b = A.to(wide), W.to(wide), U.to(wide), x.to(wide), None if b is None else b.to(wide)
        step: float | Tensor = self.step_size if timespans is None else self.read_step(timespans, x, state_dtype(wide))
        if timespans is not None:
            self.watch_gaps(longest_time(step), *matrices)
        limit = self.step_limit(step)
        with without_autocast(x.device):
            state = (A.new_zeros(*x.shape[:-1], self.hidden_size) if h is None else h).to(state_dtype(wide))
            u = nn.functional.linear(x, U, b)
            if limit is not None and (isinstance(step, Tensor) or step > limit):
                return self._substeps(state, u, A, W, step, limit)
            tableau, sigma = get_integrator(self.integrator), get_nonlinearity(self.nonlinearity)
            return integrate_step(state, u, A, W, step, self.alpha, tableau, sigma)

    def _check(self, x: Tensor, h: Tensor | None, matrices: tuple[Tensor, Tensor] | None) -> None:
        require_tensor("input", x)
        if x.dim() not in (1, 2) or x.shape[-1] != self.input_size:
            raise ValueError(
                f"input has shape {shape_of(x)}; it must be (B, {self.input_size}) or ({self.input_size},), "
                "one time step. For whole sequences use LipschitzRNN"
            )
        require_parameter_dtype("input", x, self.weight_ih)
        if h is not None:
            require_shape("hx", require_tensor("hx", h), (*x.shape[:-1], self.hidden_size), "batch size by hidden size")
            require_parameter_dtype("hx", h, self.weight_ih)
        if matrices is not None and not (isinstance(matrices, (tuple, list)) and len(matrices) == 2):
            raise TypeError(f"matrices is a {type(matrices).__name__}; pass the pair from hidden_matrices()")
        for name, matrix in zip(("A", "W"), matrices or (), strict=False):
            square = (self.hidden_size, self.hidden_size)
            require_shape(name, require_tensor(name, matrix), square, "as from hidden_matrices()")
            if self.contracting and matrix.dtype != (held := held_dtype(self.weight_ih.dtype)):
                raise TypeError(
                    f"{name} is {matrix.dtype}, but this contracting unit is proved for matrices in {held}; "
                    "pass the result of hidden_matrices() unchanged"
                )

    def _substeps(self, state: Tensor, u: Tensor, A: Tensor, W: Tensor, step: float | Tensor, limit: float) -> Tensor:
        """One step as several sub-steps, their number chosen per sample: a scan over a sequence of length 1."""
        alpha, shape = self.alpha, state.shape
        u, A, W = (tensor.to(state.dtype) for tensor in (u, A, W))  # the scan returns its state in the dtype of A
        if isinstance(alpha, Tensor):  # an ensemble with a different alpha per member
            A, alpha = alpha.to(A.dtype) * A, 1.0
        if isinstance(step, Tensor):
            step = step.expand(*shape[:-1], 1).reshape(1, -1)
        _, last = lipschitz_scan(
            u.reshape(1, -1, self.hidden_size),
            A,
            W,
            state.reshape(-1, self.hidden_size),
            step_size=step,
            alpha=alpha,
            integrator=self.integrator,
            nonlinearity=self.nonlinearity,
            backend="reference",
            need_output=False,
            max_step=limit,
        )
        return last.reshape(shape)

    def watch_gaps(self, longest: float | None, A: Tensor, W: Tensor) -> None:
        """Warn once about a time that is too long for one step; None means that the time cannot be read."""
        if longest is not None:
            self._gaps.check(self, longest, lambda: (self.alpha * A.detach(), W))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *args: Any) -> None:
        given = local_metadata.get("settings") or {}
        if given.get("stability") == "contracting":  # weights that were saved before the spread was
            local_metadata = {**local_metadata, "settings": {"metric_spread": 30.0, **given}}
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)
        self._gaps.reset()

    def __prepare_scriptable__(self) -> NoReturn:
        refuse_torchscript(self)

    def extra_repr(self) -> str:
        return describe(self)
