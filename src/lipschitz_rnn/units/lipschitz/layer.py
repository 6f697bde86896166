"""``LipschitzRNN``: a layer to use in place of ``nn.RNN``, ``nn.GRU`` or ``nn.LSTM``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from lipschitz_rnn.ops.common.tracing import exporting
from lipschitz_rnn.ops.lipschitz.parallel.bounds import ScanBound
from lipschitz_rnn.ops.lipschitz.parallel.plan import Parallel
from lipschitz_rnn.ops.lipschitz.scan import lipschitz_scan
from lipschitz_rnn.units.base import Recurrent
from lipschitz_rnn.units.call_types import Call, State
from lipschitz_rnn.units.lipschitz import settings
from lipschitz_rnn.units.lipschitz.autocast import result_dtype, to_compute_dtype, to_proved_dtype
from lipschitz_rnn.units.lipschitz.cell import LipschitzRNNCell
from lipschitz_rnn.units.lipschitz.dropin import (
    find_weight,
    refuse_cell_state,
    refuse_projection,
    refuse_torchscript,
    refuse_tracing,
    set_weight,
)
from lipschitz_rnn.units.lipschitz.kept import can_run_twice, kept_matrices
from lipschitz_rnn.units.lipschitz.parallel import (
    attach_certificate,
    chunks_for,
    contraction_of,
    output_bound,
    refuse_directions,
)
from lipschitz_rnn.units.lipschitz.quick import quick_call
from lipschitz_rnn.units.lipschitz.settings import CellSetting, SettingsModule, describe_layer
from lipschitz_rnn.units.lipschitz.stream import LipschitzStream
from lipschitz_rnn.units.lipschitz.weight_hooks import set_weights
from lipschitz_rnn.units.recurrence import Recurrence, UnstatedRecurrenceError, require_own_statement
from lipschitz_rnn.units.sequences import Sequences


class LipschitzRNN(SettingsModule, Recurrent):
    r"""The Lipschitz recurrent network of Erichson et al. (ICLR 2021), called like ``nn.RNN``.

    Each layer integrates

        ḣ = αA h + σ(W h + U x + b),    A, W = (1−β)(M + Mᵀ) + β(M − Mᵀ) − γI,

    with explicit steps of size ε; A and W each have their own free matrix M.

    Args:
        input_size: p, the number of input features.
        hidden_size: N, the size of the state.
        num_layers: number of stacked layers.
        bias: whether to use a bias b.
        batch_first: input and output are (B, T, …) instead of (T, B, …).
        dropout: dropout probability between layers, in training.
        bidirectional: whether a second set of cells reads the sequence backwards.
        beta, gamma: one number, or a pair (for A, for W); β in [0, 1], γ at least 0.
        step_size: ε; replaced by ``timespans`` if they are passed to the call.
        alpha: factor on the linear term; 1 gives the paper's unit, 0 a neural ODE.
        integrator: ``euler``, ``midpoint`` (``rk2``), ``heun`` or ``rk4``.
        nonlinearity: ``tanh``, ``relu``, ``sigmoid`` or ``identity``.
        init_scale: both M are initialised from N(0, (init_scale/N)²).
        stability: None for the paper's matrices; ``"contracting"`` for matrices that make any two states under the same
            input approach each other, for all parameter values: see ``docs/theory.md``.
        rate: the contraction rate per unit of time; 0.01 if None.
        metric_spread: of a contracting layer, how far the Euclidean distance of two states may grow on the way before
            contraction shrinks it; 30 if None. A larger one lets units drive others more strongly: it learns better.
        bounded_gain: of a contracting layer, also bound what a change of the inputs does to the state by a gain that
            does not grow with the length of the sequence; for Euler steps. See ``docs/stability.md``.
        backend: ``auto``, ``reference``, ``cpu`` or ``triton``; see :func:`lipschitz_rnn.lipschitz_scan`.
        recompute_every: trade time for memory: keep only every k-th state for the backward pass and recompute the rest.
        max_step: longer timespans are split into equal sub-steps of at most this length, with the input held constant;
            the number of sub-steps is chosen per sample. At most ``step_size`` for a contracting layer.
        noise, multiplicative_noise: a and m in h ← (1 + m r u) h + a r ξ after each step, in training only. ξ is
            standard normal, u is uniform in [−1, 1], and r = √(length of the step / step_size), so 1 without
            ``timespans``. The seed comes from PyTorch's default generator, or from ``generator`` in the call.
        parallel: ``"auto"``, or a number of chunks: run parts of long sequences beside each other; shorter ones than
            that run as ever. For a contracting layer, or one with a certificate attached; ``bounds`` then says how far
            the last call may be from the sequential one. See ``docs/long-sequences.md``.
        tolerance: what that error may be at most, relative to the largest state; else the call runs sequentially.
        proj_size: must be 0, as in an ``nn.LSTM`` without projection.

    Shapes, with D = 2 if bidirectional else 1 (with ``batch_first``, B comes first in input and output):
        input: (T, B, p), (T, p) or a ``PackedSequence``; hx: (D·layers, B, N) or (D·layers, N).
        output: (T, B, D·N), (T, D·N) or a ``PackedSequence``; h_n: like hx.

    Parameters are named ``cells.l{k}.weight_ih``, ``.bias_ih``, ``.hidden.M_A``, ``.hidden.M_W``, with ``l{k}_reverse``
    for the backward direction. ``cell(k)`` is the cell of layer k, sharing its parameters; ``stream()`` takes one time
    step per call.

    Example:
        >>> rnn = LipschitzRNN(3, 64)
        >>> output, h_n = rnn(torch.randn(100, 8, 3))
        >>> output.shape, h_n.shape
        (torch.Size([100, 8, 64]), torch.Size([1, 8, 64]))
    """

    checks = settings.LAYER_CHECKS
    fixed = ("input_size", "hidden_size", "num_layers", "bias", "bidirectional")
    constructor_only = ("stability", "rate", "metric_spread", "bounded_gain", "init_scale", "proj_size")
    takes_timespans = True
    positional_once = ("timespans", "lengths", "need_output")
    bias: bool
    backend: str
    recompute_every: int | None
    parallel: Parallel | str | int | None = None
    tolerance: float = 1e-6
    full_bounds: bool = False  # also bound rounding and gradients in calls in parallel, which costs about one more scan

    if TYPE_CHECKING:
        __call__: Call[Tensor]

    # Stored only in the cells, so that the layer and the cells always agree.
    step_size = CellSetting[float]("step_size")
    alpha = CellSetting[float]("alpha")
    integrator = CellSetting[str]("integrator")
    nonlinearity = CellSetting[str]("nonlinearity")
    max_step = CellSetting["float | None"]("max_step")
    noise = CellSetting[float]("noise")
    multiplicative_noise = CellSetting[float]("multiplicative_noise")
    beta = CellSetting["float | tuple[float, float] | None"]("beta")
    gamma = CellSetting["float | tuple[float, float] | None"]("gamma")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        beta: float | tuple[float, float] = 0.75,
        gamma: float | tuple[float, float] = 0.001,
        step_size: float = 0.03,
        alpha: float = 1.0,
        integrator: str = "euler",
        nonlinearity: str = "tanh",
        init_scale: float = 0.1,
        stability: str | None = None,
        rate: float | None = None,
        metric_spread: float | None = None,
        bounded_gain: bool = False,
        backend: str = "auto",
        recompute_every: int | None = None,
        max_step: float | None = None,
        noise: float = 0.0,
        multiplicative_noise: float = 0.0,
        parallel: Parallel | str | int | None = None,
        tolerance: float = 1e-6,
        proj_size: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        refuse_projection(proj_size, hidden_size)
        super().__init__(input_size, hidden_size, num_layers, batch_first, dropout, bidirectional)
        self.bias, self.backend, self.recompute_every = bias, backend, recompute_every
        self.parallel, self.tolerance = parallel, tolerance
        self._bounds: list[ScanBound] = []
        self.cells = nn.ModuleDict()
        for layer in range(num_layers):
            for direction in range(self.num_directions):
                self.cells[_key(layer, direction)] = LipschitzRNNCell(
                    input_size if layer == 0 else hidden_size * self.num_directions,
                    hidden_size,
                    bias,
                    beta=beta,
                    gamma=gamma,
                    step_size=step_size,
                    alpha=alpha,
                    integrator=integrator,
                    nonlinearity=nonlinearity,
                    init_scale=init_scale,
                    stability=stability,
                    rate=rate,
                    metric_spread=metric_spread,
                    bounded_gain=bounded_gain,
                    max_step=max_step,
                    noise=noise,
                    multiplicative_noise=multiplicative_noise,
                    device=device,
                    dtype=dtype,
                )
        for cell in self.cells.values():
            cell._gaps.shared = self.cell()._gaps.shared  # type: ignore[union-attr]

    @classmethod
    def from_pretrained(cls, name: str, **options: Any) -> LipschitzRNN:
        """The recurrent layer of a pretrained network, by its name in this package or from a ``.safetensors`` file.

        ``options`` are the constructor options that do not change the network: ``batch_first``, ``dropout``,
        ``backend``, ``recompute_every``, ``noise``, ``multiplicative_noise``, ``parallel``, ``tolerance``, ``device``,
        ``dtype``, and a ``max_step`` of at least the step size. Others raise unless they equal the trained setting.
        """
        from lipschitz_rnn.units.lipschitz.pretrained import read_pretrained

        return read_pretrained(name).layer(cls, options)

    @property
    def proj_size(self) -> int:
        """Always 0: the state is not projected."""
        return 0

    @property
    def stability(self) -> str | None:
        """None or ``"contracting"``, as in the constructor."""
        return self.cell().stability

    @property
    def rate(self) -> float | None:
        """The guaranteed contraction rate; None if the layer is not contracting."""
        return self.cell().rate

    @property
    def metric_spread(self) -> float | None:
        """The bound on the growth of Euclidean distances; None if the layer is not contracting."""
        return self.cell().metric_spread

    @property
    def bounded_gain(self) -> bool:
        """Whether each layer bounds what a change of its inputs does to its state; see ``cell(k).gain()``."""
        return self.cell().bounded_gain

    def cell(self, layer: int = 0, direction: int = 0) -> LipschitzRNNCell:
        """The cell of one layer and direction; it shares the parameters of this module."""
        if not (0 <= layer < self.num_layers and 0 <= direction < self.num_directions):
            raise IndexError(
                f"there is no layer {layer} with direction {direction}; this module has {self.num_layers} layer(s) and "
                f"{self.num_directions} direction(s), counted from 0"
            )
        cell = self.cells[_key(layer, direction)]
        if not isinstance(cell, LipschitzRNNCell):
            raise TypeError(f"cells.{_key(layer, direction)} is a {type(cell).__name__}; it must be a LipschitzRNNCell")
        return cell

    @property
    def bounds(self) -> tuple[ScanBound, ...]:
        """What the last call in parallel reported, for every layer and direction: how far each may be from the
        sequential scan of its own input."""
        return tuple(self._bounds)

    def output_bound(self) -> float:
        """How far any output of the last call in parallel can be from the sequential one, in the Euclidean norm: the
        bounds of all layers, each carried through those above it. Ask before the parameters change: layers above carry
        what they are given with the weights that they have now."""
        return output_bound(self)

    def attach_certificate(self, certificate: Any) -> None:
        """Keep a certificate of this layer, from :func:`lipschitz_rnn.stability.certify`, so that ``parallel`` can use
        it; None removes it. Once the parameters have changed, calls in parallel raise until it is renewed."""
        attach_certificate(self, certificate)

    def stream(self, batch_size: int | None = None) -> LipschitzStream:
        """A copy of this layer that takes one time step per call: ``stream(x_t)`` with x_t (p,), or (B, p) for a batch.

        Later changes to the parameters do not affect it.
        """
        return LipschitzStream(self, batch_size)

    def hidden_matrices(self, layer: int = 0, direction: int = 0) -> tuple[Tensor, Tensor]:
        """A and W of one layer and direction, (N, N) each, differentiable."""
        return self.cell(layer, direction).hidden_matrices()

    def stated_recurrences(self) -> list[Recurrence]:
        """The recurrences of all layers and directions, as stated by their cells."""
        require_own_statement(self)
        if self.training and self.num_layers > 1 and self.dropout > 0:
            raise UnstatedRecurrenceError(
                f"dropout is {self.dropout:g} and this {type(self).__name__} is in training mode, so the inputs of its "
                "layers are random; call eval() first"
            )
        stated: list[Recurrence] = []
        for layer in range(self.num_layers):
            for direction in range(self.num_directions):
                name = f"layer {layer}" + (", reverse" if direction else "") if len(self.cells) > 1 else ""
                items = self.cell(layer, direction).stated_recurrences()
                stated += [replace(item, name=name, reverse=direction == 1) for item in items]
        return stated

    def reset_parameters(self) -> None:
        for cell in self.cells.values():
            cell.reset_parameters()  # type: ignore[operator]

    def flatten_parameters(self) -> None:
        """Does nothing; for compatibility with ``nn.RNN``."""

    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size,)

    def quick_call(
        self, input: Tensor | PackedSequence, hx: Tensor | State | None, need_output: bool
    ) -> tuple[Tensor | None, Tensor] | None:
        if torch.compiler.is_compiling() or type(self) is not LipschitzRNN:
            return None
        return quick_call(self, input, hx, need_output)

    def read(
        self, input: Tensor | PackedSequence, lengths: Tensor | None, timespans: Tensor | PackedSequence | None
    ) -> Sequences:
        refuse_tracing(self)
        return super().read(input, lengths, timespans)

    def read_state(self, hx: Tensor | State, sequences: Sequences) -> State:
        refuse_cell_state(hx)
        return super().read_state(hx, sequences)

    def run_layer(
        self, layer: int, direction: int, x: Tensor, state: State | None, sequences: Sequences, need_output: bool
    ) -> tuple[Tensor | None, State]:
        cell, timespans = self.cell(layer, direction), sequences.timespans
        set_weights(cell)
        h0 = None if state is None else state[0]
        if h0 is not None and exporting():
            h0 = h0.clone()  # the loop of an exported program does not accept a view
        step_size = cell.step_size if timespans is None else cell.without_rounding(timespans)
        limit = cell.step_limit(step_size)
        use, alpha = kept_matrices(cell, late=can_run_twice(self, cell)), cell.alpha
        A, W = cell.hidden_matrices() if use is None else (use.kept.A, use.kept.W)
        cell.watch_gaps(sequences.longest_time, A, W)
        in_parallel: dict[str, Any] = {}
        if self.parallel is not None:
            refuse_directions(self)
            in_parallel = {
                "parallel": chunks_for(self, x.shape[0]),
                "tolerance": self.tolerance,
                "bound": self._new_bound(layer, direction),
            }
            in_parallel["contraction"] = contraction_of(cell, A, W) if use is None else use.kept.contraction
        if isinstance(alpha, Tensor):  # an ensemble with a different alpha per member; the scan takes one number
            A, alpha = alpha.to(A.dtype) * A, 1.0
        convert = to_proved_dtype if cell.contracting else to_compute_dtype
        A, W, inputs, h0, U, b = convert(A, W, x, h0, cell.weight_ih, cell.bias_ih)
        states, last = lipschitz_scan(
            inputs,
            A,
            W,
            h0,
            step_size=step_size,
            alpha=alpha,
            integrator=cell.integrator,
            nonlinearity=cell.nonlinearity,
            lengths=sequences.lengths,
            backend=self.backend,
            input_weight=U,
            bias=b,
            need_output=need_output,
            recompute_every=self.recompute_every,
            exact_products=cell.contracting,
            max_step=limit,
            noise=cell.drawn_noise(sequences.generator, inputs),
            **in_parallel,
        )
        if use is not None and not use.confirmed():  # a parameter had changed
            del states, last
            return self.run_layer(layer, direction, x, state, sequences, need_output)
        if cell.contracting:
            dtype = result_dtype(cell.weight_ih)
            states, last = None if states is None else states.to(dtype), last.to(dtype)
        return states, (last,)

    def _new_bound(self, layer: int, direction: int) -> ScanBound:
        bound = ScanBound(complete=self.full_bounds, gradients=self.full_bounds)
        self._bounds = [*self._bounds[: layer * self.num_directions + direction], bound]
        return bound

    def __getstate__(self) -> dict[str, Any]:
        """A copy has not been called yet; the bounds of a call under torch.func cannot even be copied."""
        return {**vars(self), "_bounds": []}

    def __getattr__(self, name: str) -> Any:
        if name == "all_weights" or name.startswith(("weight_", "bias_")):
            return find_weight(self, name)
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not set_weight(self, name, value):
            super().__setattr__(name, value)

    def __prepare_scriptable__(self) -> NoReturn:
        refuse_torchscript(self)

    def extra_repr(self) -> str:
        return describe_layer(self)


def _key(layer: int, direction: int) -> str:
    return f"l{layer}_reverse" if direction else f"l{layer}"
