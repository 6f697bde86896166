"""A cell has the parameters and the step of one layer; `CellStack` builds a unit from cells. Contains the time loop."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from lipschitz_rnn.ops.common.dtypes import autocast_enabled
from lipschitz_rnn.ops.common.noise import StateNoise, draw_noise, steps_at_once
from lipschitz_rnn.ops.common.precision import full_products
from lipschitz_rnn.ops.common.validation import require_number
from lipschitz_rnn.units.base import Recurrent, State
from lipschitz_rnn.units.catalogue import name_of
from lipschitz_rnn.units.noise import NOISE_OPTIONS, NoisyCell, describe_noise
from lipschitz_rnn.units.recurrence import Statement, UnstatedRecurrenceError, require_own_statement
from lipschitz_rnn.units.sequences import Sequences

Disturbance = Sequence[tuple[Tensor, Tensor]]
"""A factor and a summand for each state of a unit."""


class Cell(nn.Module, ABC):
    """One layer in one direction: h⁺ = step(input, h). States are tuples, (h,) for most cells.

    Everything that does not depend on h is computed once per forward pass: `project` for the whole sequence, and
    `weights` (exponentials, inverses, ...). Parameters are real; complex matrices are assembled from real and
    imaginary parts, so that `.double()`, optimisers and parameter counts work as usual.
    """

    input: nn.Linear
    takes_timespans: ClassVar[bool] = False
    complex_state: ClassVar[bool] = False
    complex_arithmetic: ClassVar[bool] = False
    clocks: ClassVar[tuple[int, ...]] = ()  # which of its states are times or counts
    _frozen_as: TreeSpec | None = None  # how the frozen weights, which are buffers, form the result of `weights`

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        self.output_size = hidden_size

    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size,)

    def initial_state(self, batch: int, inputs: Tensor) -> State:
        """The state before the first step, (B, width) each; zero unless the unit learns it."""
        return tuple(inputs.new_zeros(batch, width) for width in self.state_sizes())

    def project(self, x: Tensor) -> Tensor:
        """U x + b for all steps at once: (T, B, p) -> (T, B, ·)."""
        return self.input(x)

    @abstractmethod
    def weights(self) -> Any:
        """The constrained hidden-to-hidden matrices, passed to every step of a forward pass."""

    def step(self, inputs: Tensor, state: State, weights: Any) -> State:
        """One step; `inputs` is one time slice of `project`. The output is computed from the first state."""
        raise NotImplementedError(f"{type(self).__name__} must define step or scan")

    def output(self, h: Tensor) -> Tensor:
        """The output from the first state, for all steps at once: real, (T, B, output_size)."""
        return h

    def penalty(self) -> Tensor | None:
        """The regularisation term of the cell's paper, or None."""
        return None

    def scan(
        self, inputs: Tensor, state: State, weights: Any, sequences: Sequences, need_output: bool = True
    ) -> tuple[Tensor | None, State]:
        """All steps: (T, B, ·) -> first states (T, B, N), final state. A sequence keeps its state after its end."""
        return self.scan_steps(inputs, state, weights, sequences, need_output)

    def scan_steps(
        self,
        inputs: Tensor,
        state: State,
        weights: Any,
        sequences: Sequences,
        need_output: bool = True,
        disturbances: Iterator[Disturbance] | None = None,
    ) -> tuple[Tensor | None, State]:
        """The loop over time. With `disturbances`, the next of them is applied to the new states of each step."""
        history = []
        for t, now in enumerate(inputs.unbind(0)):
            if sequences.timespans is None:
                new = self.step(now, state, weights)
            else:
                new = self.advance(now, state, weights, sequences.timespans[t])
            if disturbances is not None:
                drawn = zip(new, next(disturbances), strict=True)
                new = tuple((part * factor + added).to(part.dtype) for part, (factor, added) in drawn)
            if sequences.lengths is not None:
                running = (t < sequences.lengths).unsqueeze(-1)
                new = tuple(torch.where(running, after, before) for after, before in zip(new, state, strict=True))
            state = new
            if need_output:
                history.append(state[0])
        return torch.stack(history) if need_output else None, state

    def advance(self, inputs: Tensor, state: State, weights: Any, time: Tensor) -> State:
        """One step of length `time`, (B,). Only for cells that integrate a differential equation."""
        raise NotImplementedError(f"{type(self).__name__} has no continuous time; it cannot take timespans")

    def run(
        self, x: Tensor, state: State | None, sequences: Sequences, need_output: bool
    ) -> tuple[Tensor | None, State]:
        """(T, B, p) -> outputs (T, B, output_size), zero beyond the end of a sequence, and the final state."""
        padding = None
        if sequences.lengths is not None:
            lengths = sequences.lengths.to(x.device)
            sequences = replace(sequences, lengths=lengths)
            padding = (torch.arange(len(x), device=x.device).unsqueeze(-1) >= lengths).unsqueeze(-1)
            x = x.masked_fill(padding, 0.0)  # so that NaN in the padding cannot reach a gradient
        if state is None:
            state = self.initial_state(x.shape[1], x)
        if autocast_enabled(x.device):  # 16 bits, which x and hx may then have, would lose small steps
            like = next(self.parameters())
            state = tuple(part if part.is_complex() else part.to(like.dtype) for part in state)
        weights = self.current_weights(x.device)
        states, last = self.scan(self.project(x), state, weights, sequences, need_output)
        if states is None or not need_output:
            return None, last
        output = self.output(states)
        return output if padding is None else output.masked_fill(padding, 0.0), last

    def freeze(self) -> None:
        """Form the recurrent weights once for all later calls, in a copy that only computes.

        Its parameters must neither change nor be converted afterwards: those outside of these weights are still read.
        """
        leaves, self._frozen_as = tree_flatten(self._formed_weights(next(self.parameters()).device))
        for number, leaf in enumerate(leaves):
            name = f"_frozen_{number}"
            if isinstance(leaf, Tensor):
                # Buffers, for export; copies, because what the loop of an exported program reads must share no memory.
                self.register_buffer(name, leaf.detach().clone(), persistent=False)
            else:
                setattr(self, name, leaf)

    def current_weights(self, device: torch.device) -> Any:
        """What a forward pass uses: the frozen weights, if there are any, or those of the parameters now."""
        return self._formed_weights(device) if self._frozen_as is None else self._frozen_weights()

    def _frozen_weights(self) -> Any:
        assert self._frozen_as is not None
        leaves = [getattr(self, f"_frozen_{number}") for number in range(self._frozen_as.num_leaves)]
        return tree_unflatten(leaves, self._frozen_as)

    def _formed_weights(self, device: torch.device) -> Any:
        with _full_precision(device):
            return self.weights()


class TimedCell(Cell, NoisyCell):
    """A cell that integrates a differential equation, with steps of length `step_size` or of given lengths.

    It can add noise to its states in training. A subclass with its own `scan` must add the noise there, and sets
    `adds_noise = True` to say so.
    """

    takes_timespans = True
    adds_noise: ClassVar[bool] = True
    stackable_options: tuple[str, ...] = NOISE_OPTIONS  # tensors in an ensemble whose members use different values
    step_size: float

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.start_noise()

    def extra_repr(self) -> str:
        return f"step_size={self.step_size}{describe_noise(self)}"

    def scan(
        self, inputs: Tensor, state: State, weights: Any, sequences: Sequences, need_output: bool = True
    ) -> tuple[Tensor | None, State]:
        noise = self.drawn_noise(sequences.generator, inputs)
        disturbances = None if noise is None else self._disturbances(noise, inputs, sequences)
        return self.scan_steps(inputs, state, weights, sequences, need_output, disturbances)

    def _disturbances(self, noise: StateNoise, inputs: Tensor, sequences: Sequences) -> Iterator[Disturbance]:
        """For every step, a factor and a summand for each state, (B, ·) each."""
        rows, (T, B) = noise.rows((), inputs).unsqueeze(0), inputs.shape[:2]
        widths = self.state_sizes()
        chunk = steps_at_once(1, B, sum(widths))
        times = self.step_size if sequences.timespans is None else sequences.timespans
        if isinstance(times, Tensor):
            times = times.expand(T, B)
        for first in range(0, T, chunk):
            count = min(chunk, T - first)
            spans = times[None, first : first + count] if isinstance(times, Tensor) else times
            drawn = [draw_noise(rows, spans, (count, B, width), first, part) for part, width in enumerate(widths)]
            for c in range(count):
                yield [(factor[0, c], added[0, c]) for factor, added in drawn]

    def step(self, inputs: Tensor, state: State, weights: Any) -> State:
        return self.step_over(self.step_size, inputs, state, weights)

    def advance(self, inputs: Tensor, state: State, weights: Any, time: Tensor) -> State:
        # At least float32: 16 bits would round the time too much.
        wide = torch.float64 if state[0].dtype == torch.float64 else torch.float32
        new = self.step_over(time.to(wide).unsqueeze(-1), inputs, state, weights)
        return tuple(after.to(before.dtype) for after, before in zip(new, state, strict=True))

    def step_over(self, time: float | Tensor, inputs: Tensor, state: State, weights: Any) -> State:
        """One step of length `time`: a number, or one per sample, (B, 1)."""
        raise NotImplementedError(f"{type(self).__name__} must define step_over or scan")


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """A constraint holds to two digits in bfloat16 and to three in TF32, and T steps multiply that error by T."""
    if torch.compiler.is_compiling():  # compiled code follows the global precision setting
        with _without_autocast(device):
            yield
        return
    with full_products(device), _without_autocast(device):
        yield


def _without_autocast(device: torch.device) -> AbstractContextManager[object]:
    available = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if available else nullcontext()


class CellStack(Recurrent):
    """A recurrent unit built from cells of one class: stacked layers, directions, and dropout between layers."""

    def __init__(
        self,
        cell: type[Cell],
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        noise: float = 0.0,
        multiplicative_noise: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, batch_first, dropout, bidirectional)
        self.cells = nn.ModuleList()
        width = input_size
        for _ in range(num_layers):
            layer = [cell(width, hidden_size, **options) for _ in range(self.num_directions)]
            self.cells.extend(layer)
            width = sum(direction.output_size for direction in layer)
        self.noise, self.multiplicative_noise = noise, multiplicative_noise
        self.output_size = width
        self.takes_timespans, self.complex_state = cell.takes_timespans, cell.complex_state
        self.complex_arithmetic = cell.complex_state or cell.complex_arithmetic

    @property
    def noise(self) -> float | Tensor:
        """Strength of the additive noise on the state in training; can be set."""
        return self._strength("noise")

    @noise.setter
    def noise(self, value: float) -> None:
        self._set_strength("noise", value)

    @property
    def multiplicative_noise(self) -> float | Tensor:
        """Strength of the multiplicative noise on the state in training; can be set."""
        return self._strength("multiplicative_noise")

    @multiplicative_noise.setter
    def multiplicative_noise(self, value: float) -> None:
        self._set_strength("multiplicative_noise", value)

    def _strength(self, name: str) -> float | Tensor:
        strength: float | Tensor = getattr(self.cell(), name, 0.0)
        return strength

    def _set_strength(self, name: str, value: float) -> None:
        strength = require_number(name, value, low=0.0)
        if strength > 0.0:
            _require_noisy(name, strength, type(self.cell()))
        for cell in self._cells():
            if takes_noise(type(cell)):
                setattr(cell, name, strength)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuses options of the cells, which would be stored here without any effect."""
        known = name in self.__dict__ or hasattr(type(self), name)
        if not known and len(self.__dict__.get("_modules", {}).get("cells", ())) > 0:
            options = signature(type(self.cell())).parameters
            if name in options and name not in ("input_size", "hidden_size"):
                raise AttributeError(
                    f"{name} of a unit {self.registered_name()!r} is set when it is built: "
                    f"units.build({self.registered_name()!r}, …, {name}={value!r})"
                )
        super().__setattr__(name, value)

    def cell(self, layer: int = 0, direction: int = 0) -> Cell:
        found = self.cells[layer * self.num_directions + direction]
        assert isinstance(found, Cell)
        return found

    def state_sizes(self) -> tuple[int, ...]:
        return self.cell().state_sizes()

    def clocks(self) -> tuple[int, ...]:
        return self.cell().clocks

    def penalty(self) -> Tensor:
        terms = [cell.penalty() for cell in self._cells()]
        return sum((term for term in terms if term is not None), super().penalty())

    def run_layer(
        self, layer: int, direction: int, x: Tensor, state: State | None, sequences: Sequences, need_output: bool
    ) -> tuple[Tensor | None, State]:
        return self.cell(layer, direction).run(x, state, sequences, need_output)

    def initial_state(self, batch: int) -> State:
        starts = [cell.initial_state(batch, next(cell.parameters())) for cell in self._cells()]
        return tuple(torch.stack(parts) for parts in zip(*starts, strict=True))

    def stated_recurrences(self) -> list[Statement]:
        """For `stability.certify`: the maps of all layers and directions, if its cells state theirs."""
        require_own_statement(self)
        if self.training and self.num_layers > 1 and self.dropout > 0:
            raise UnstatedRecurrenceError(
                f"dropout is {self.dropout:g} and this unit is in training mode, so the inputs of its layers are "
                "random; call eval() first"
            )
        stated: list[Statement] = []
        for place, cell in enumerate(self._cells()):
            if not callable(getattr(type(cell), "stated_recurrences", None)):
                raise UnstatedRecurrenceError(
                    f"the unit {self.registered_name()} does not state its recurrence, so nothing can be certified "
                    "about it"
                )
            require_own_statement(cell)
            if cell.training and getattr(cell, "noisy", False):
                raise UnstatedRecurrenceError(
                    f"this {self.registered_name()} is in training mode, where it adds noise to its state; call "
                    "eval() first"
                )
            layer, direction = divmod(place, self.num_directions)
            name = f"layer {layer}" + (", reverse" if direction else "") if len(self.cells) > 1 else ""
            items: list[Statement] = cell.stated_recurrences()  # type: ignore[operator]
            stated += [replace(item, name=name, reverse=direction == 1) for item in items]
        return stated

    def freeze(self) -> None:
        for cell in self._cells():
            cell.freeze()

    def registered_name(self) -> str:
        return name_of(type(self.cell()))

    def _cells(self) -> list[Cell]:
        return [self.cell(layer, d) for layer in range(self.num_layers) for d in range(self.num_directions)]


def takes_noise(kind: type) -> bool:
    """Whether the scan of a class adds noise, as declared by the class that defines the scan."""
    owner: type = next((base for base in kind.__mro__ if "scan" in vars(base)), object)
    return issubclass(kind, TimedCell) and bool(vars(owner).get("adds_noise", False))


def _require_noisy(name: str, value: float, kind: type[Cell]) -> None:
    if not takes_noise(kind):
        from lipschitz_rnn.units.registry import UNITS

        takers = ", ".join(name for name in UNITS if "noise" in UNITS[name].options())
        raise ValueError(
            f"{name} is {value:g}, but the unit {name_of(kind)!r} does not add noise to its state; {takers} do. "
            f"Leave {name} out"
        )
