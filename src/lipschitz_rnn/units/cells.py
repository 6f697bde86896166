"""A cell is one layer's parameters and one step; `CellStack` makes a unit of it. The only loop over time is here."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.common.noise import StateNoise, draw_noise, steps_at_once
from lipschitz_rnn.ops.common.precision import full_products
from lipschitz_rnn.ops.common.validation import require_number
from lipschitz_rnn.units.base import Recurrent, State
from lipschitz_rnn.units.catalogue import ROWS, name_of
from lipschitz_rnn.units.noise import NOISE_OPTIONS, NoisyCell
from lipschitz_rnn.units.sequences import Sequences

Disturbance = Sequence[tuple[Tensor, Tensor]]
"""A factor and a summand for each state of a unit."""


class Cell(nn.Module, ABC):
    """One layer in one direction: h⁺ = step(input, h). States are tuples, (h,) for most cells.

    What does not depend on h is done once: `project` for the whole sequence, `weights` (exponentials, inverses,
    ...) once per forward. Parameters are real; complex matrices are put together from real parts, so that
    `.double()`, optimisers and parameter counts mean what they say.
    """

    input: nn.Linear
    takes_timespans: ClassVar[bool] = False
    _frozen: tuple[Any, ...] = ()  # the weights of a cell that no longer learns

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        self.output_size = hidden_size

    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size,)

    def initial_state(self, batch: int, inputs: Tensor) -> State:
        """The state before the first step, zero unless a unit learns it: (B, width) each."""
        return tuple(inputs.new_zeros(batch, width) for width in self.state_sizes())

    def project(self, x: Tensor) -> Tensor:
        """U x + b for all steps at once: (T, B, p) -> (T, B, ·)."""
        return self.input(x)

    @abstractmethod
    def weights(self) -> Any:
        """The hidden-to-hidden matrices under their constraint, handed to every step of one forward."""

    def step(self, inputs: Tensor, state: State, weights: Any) -> State:
        """One step; inputs is one time slice of `project`. The first state is what the cell gives out."""
        raise NotImplementedError(f"{type(self).__name__} has its own scan")

    def output(self, h: Tensor) -> Tensor:
        """What is given out of the first state, for all steps at once: real, (T, B, output_size)."""
        return h

    def penalty(self) -> Tensor | None:
        """The regulariser of the cell's paper, None where it has none."""
        return None

    def scan(
        self, inputs: Tensor, state: State, weights: Any, sequences: Sequences, need_output: bool = True
    ) -> tuple[Tensor | None, State]:
        """All steps: (T, B, ·) -> first states (T, B, N) and the last state. A finished sequence keeps its state."""
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
        """The loop over time; the new states of each step are disturbed as the next of `disturbances` says."""
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
        """One step over the times (B,); of cells that integrate a differential equation."""
        raise NotImplementedError(f"{type(self).__name__} has no continuous time")

    def run(
        self, x: Tensor, state: State | None, sequences: Sequences, need_output: bool
    ) -> tuple[Tensor | None, State]:
        """(T, B, p) -> outputs (T, B, output_size), zero past the end of a sequence, and the last state."""
        padding = None
        if sequences.lengths is not None:
            lengths = sequences.lengths.to(x.device)
            sequences = replace(sequences, lengths=lengths)
            padding = (torch.arange(len(x), device=x.device).unsqueeze(-1) >= lengths).unsqueeze(-1)
            x = x.masked_fill(padding, 0.0)  # so that not even NaN in the padding reaches a gradient
        if state is None:
            state = self.initial_state(x.shape[1], x)
        (weights,) = self._frozen or (self._formed_weights(x.device),)
        states, last = self.scan(self.project(x), state, weights, sequences, need_output)
        if states is None or not need_output:
            return None, last
        output = self.output(states)
        return output if padding is None else output.masked_fill(padding, 0.0), last

    def freeze(self) -> None:
        """Form the weights now, for all later steps: changes of the parameters no longer reach them."""
        self._frozen = (self._formed_weights(next(self.parameters()).device),)

    def _formed_weights(self, device: torch.device) -> Any:
        with _full_precision(device):
            return self.weights()


class TimedCell(Cell, NoisyCell):
    """A cell that integrates a differential equation: a step takes the time `step_size`, or that which it is given.

    In training it may add noise to its states. A class with a scan of its own adds it there and says `adds_noise`.
    """

    takes_timespans = True
    adds_noise: ClassVar[bool] = True
    stackable_options: tuple[str, ...] = NOISE_OPTIONS  # tensors in an ensemble whose members differ in them
    step_size: float

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.start_noise()

    def scan(
        self, inputs: Tensor, state: State, weights: Any, sequences: Sequences, need_output: bool = True
    ) -> tuple[Tensor | None, State]:
        noise = self.drawn_noise(sequences.generator, inputs)
        disturbances = None if noise is None else self._disturbances(noise, inputs, sequences)
        return self.scan_steps(inputs, state, weights, sequences, need_output, disturbances)

    def _disturbances(self, noise: StateNoise, inputs: Tensor, sequences: Sequences) -> Iterator[Disturbance]:
        """For every step: what each state is multiplied by, and what is added to it, (B, ·) each."""
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
        # In float32 at least: a time in 16 bits would be another time.
        wide = torch.float64 if state[0].dtype == torch.float64 else torch.float32
        new = self.step_over(time.to(wide).unsqueeze(-1), inputs, state, weights)
        return tuple(after.to(before.dtype) for after, before in zip(new, state, strict=True))

    def step_over(self, time: float | Tensor, inputs: Tensor, state: State, weights: Any) -> State:
        """One step of a length that is one number, or one for each sample, (B, 1)."""
        raise NotImplementedError(f"{type(self).__name__} has its own scan")


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """A constraint in bfloat16 would hold to two digits and in TF32 to three, and T steps multiply its error by T."""
    if torch.compiler.is_compiling():  # a compiled program multiplies as the settings say
        with _without_autocast(device):
            yield
        return
    with full_products(device), _without_autocast(device):
        yield


def _without_autocast(device: torch.device) -> AbstractContextManager[object]:
    available = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if available else nullcontext()


class CellStack(Recurrent):
    """Cells of one kind as a recurrent unit: layers on top of each other, both directions, dropout in between."""

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
        strengths = {"noise": noise, "multiplicative_noise": multiplicative_noise}
        strengths = {name: require_number(name, value, low=0.0) for name, value in strengths.items()}
        self.cells = nn.ModuleList()
        width = input_size
        for _ in range(num_layers):
            layer = [cell(width, hidden_size, **options) for _ in range(self.num_directions)]
            self.cells.extend(layer)
            width = sum(direction.output_size for direction in layer)
        for name, strength in strengths.items():
            if strength > 0.0:
                _require_noisy(name, strength, cell)
                for one in self.cells:
                    setattr(one, name, strength)
        self.output_size = width
        self.takes_timespans = cell.takes_timespans

    def cell(self, layer: int = 0, direction: int = 0) -> Cell:
        found = self.cells[layer * self.num_directions + direction]
        assert isinstance(found, Cell)
        return found

    def state_sizes(self) -> tuple[int, ...]:
        return self.cell().state_sizes()

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

    def freeze(self) -> None:
        for cell in self._cells():
            cell.freeze()

    def registered_name(self) -> str:
        return name_of(type(self.cell()))

    def _cells(self) -> list[Cell]:
        return [self.cell(layer, d) for layer in range(self.num_layers) for d in range(self.num_directions)]


def takes_noise(kind: type) -> bool:
    """Whether the scan of a class adds the noise that its cells may have: said by the class that defines that scan."""
    owner: type = next((base for base in kind.__mro__ if "scan" in vars(base)), object)
    return issubclass(kind, TimedCell) and bool(vars(owner).get("adds_noise", False))


def _require_noisy(name: str, value: float, kind: type[Cell]) -> None:
    if not takes_noise(kind):
        takers = ", ".join(row.name for row in ROWS if row.timespans)
        raise ValueError(
            f"{name} is {value:g}, but the unit {name_of(kind)!r} does not add noise to its state; {takers} do. "
            f"Leave {name} out"
        )
