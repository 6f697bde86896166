"""The base class of all recurrent units: called like `torch.nn.RNN`, with lengths and timespans in addition."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from lipschitz_rnn.ops.common.deprecation import warn_user
from lipschitz_rnn.ops.common.dtypes import autocast_enabled, operand_dtype
from lipschitz_rnn.ops.common.validation import require_count, require_number, require_tensor
from lipschitz_rnn.units.arguments import renamed, require_parameter_dtype, true_or_false
from lipschitz_rnn.units.call_types import Call
from lipschitz_rnn.units.call_types import State as State
from lipschitz_rnn.units.catalogue import ROWS, name_of
from lipschitz_rnn.units.noise import require_generator
from lipschitz_rnn.units.sequences import Sequences, reverse
from lipschitz_rnn.units.stream import Stream, UnitStream


class Recurrent(nn.Module, ABC):
    """`output, h_n = unit(input, hx=None)`. Handles input formats, layers and directions.

    A subclass defines `run_layer`, which runs one layer in one direction, or overrides `run` to run all of them. A unit
    that integrates a differential equation sets `takes_timespans`.
    """

    takes_timespans: bool = False
    complex_state: bool = False
    complex_arithmetic: bool = False  # computes with complex numbers, though its state may be kept as real ones
    recipe: Mapping[str, Any]  # the arguments of `units.build`, which sets it
    positional_once: ClassVar[tuple[str, ...]] = ("lengths",)  # arguments that could once follow hx by position

    if TYPE_CHECKING:
        __call__: Call[Tensor | State]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        self.input_size = require_count("input_size", input_size)
        self.hidden_size = require_count("hidden_size", hidden_size)
        self.num_layers = require_count("num_layers", num_layers)
        self.batch_first, self.bidirectional = batch_first, bidirectional
        self.dropout = require_number("dropout", dropout, low=0.0, high=1.0)
        if self.dropout > 0.0 and num_layers == 1:
            warn_user(f"dropout is {self.dropout:g}, but it acts between layers: no effect with num_layers=1")
        self.output_size = hidden_size * self.num_directions

    @property
    def num_directions(self) -> int:
        return 2 if self.bidirectional else 1

    @abstractmethod
    def state_sizes(self) -> tuple[int, ...]:
        """Width of each state tensor of a layer: (N,) for a plain unit, (N, N) for an LSTM."""

    def clocks(self) -> tuple[int, ...]:
        """Places in h_n of times and counts, which 16 bits would round too much: autocast does not change them."""
        return ()

    def run_layer(
        self, layer: int, direction: int, x: Tensor, state: State | None, sequences: Sequences, need_output: bool
    ) -> tuple[Tensor | None, State]:
        """Run one layer in one direction over x (T, B, ·) and `sequences.timespans`, both already in reading order.

        Returns the outputs (T, B, ·), zero beyond `sequences.lengths` (may be None unless `need_output`), and the final
        state of each sample, a tuple of (B, ·).
        """
        raise NotImplementedError(f"{type(self).__name__} must define run_layer or run")

    def penalty(self) -> Tensor:
        """The regularisation term of the unit's paper, to be added to the loss; zero for most units."""
        return next(self.parameters()).new_zeros(())

    def stream(self, batch_size: int | None = None) -> Stream:
        """A copy of this unit that takes one time step per call: `stream(x_t)` with x_t (p,), or (B, p) for a batch."""
        return UnitStream(self, batch_size)

    def initial_state(self, batch: int) -> State:
        """The state used when hx is None: (layers · directions, B, width) each; zero for most units."""
        like, rows = next(self.parameters()), self.num_layers * self.num_directions
        return tuple(like.new_zeros(rows, batch, width) for width in self.state_sizes())

    def freeze(self) -> None:
        """Form the recurrent weights once for all later calls, in a copy that only computes.

        Its parameters must neither change nor be converted afterwards: those outside of these weights are still read.
        """

    @renamed(2, x="input", h_0="hx")
    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: Tensor | State | None = None,
        *,
        lengths: Tensor | None = None,
        timespans: Tensor | PackedSequence | None = None,
        need_output: bool = True,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor | PackedSequence | None, Tensor | State]:
        """Run over whole sequences.

        Args:
            input: (T, B, p); (B, T, p) with `batch_first`; (T, p) without a batch; or a `PackedSequence`.
            hx: the initial state, (layers · directions, B, N), or a tuple of such tensors if the unit has several
                states; without axis B for an unbatched input. None means the initial state of the unit's paper.
            lengths: (B,), the number of valid steps of each sample in a padded batch; an alternative to
                `PackedSequence`.
            timespans: (T, B), (B, T) with `batch_first`, or (T,): the time since the previous sample at each step. It
                replaces `step_size`. Units without continuous time reject it.
            need_output: if False, return None instead of the output, and save its memory where the scan supports it.
            generator: for the noise on the state in training (option `noise`); PyTorch's default generator if None.
                Dropout does not use it.

        Returns:
            The output of the last layer at every step, in the format of the input, with `output_size` features and zero
            beyond the end of a sample; and h_n, in the format of hx, the state of each sample after its last valid
            step. Under autocast both have its dtype, as in `nn.RNN`, except complex states, times and counts in h_n;
            float64 stays as it is.
        """
        if lengths is None and timespans is None and generator is None:
            quick = self.quick_call(input, hx, need_output)
            if quick is not None:
                return quick
        sequences = self.read(input, lengths, timespans)
        if generator is not None:
            require_generator(generator)
            sequences = replace(sequences, generator=generator)
        state = None if hx is None else self.read_state(hx, sequences)
        need_output = true_or_false("need_output", need_output, "False returns None instead of the output")
        output, last = self.run(sequences, state, need_output)
        if autocast_enabled(sequences.inputs.device):
            output, last = self._in_autocast_dtype(output, last)
        h_n = tuple(sequences.write_state(part) for part in last)
        written = sequences.write_output(output) if need_output and output is not None else None
        return written, h_n if len(h_n) > 1 else h_n[0]

    def quick_call(
        self, input: Tensor | PackedSequence, hx: Tensor | State | None, need_output: bool
    ) -> tuple[Tensor | None, Tensor | State] | None:
        """The results of `forward`, where a unit has a shorter way to them; otherwise None. Nothing is checked yet."""
        return None

    def read(
        self, input: Tensor | PackedSequence, lengths: Tensor | None, timespans: Tensor | PackedSequence | None
    ) -> Sequences:
        if timespans is not None and not self.takes_timespans:
            takers = ", ".join(row.name for row in ROWS if row.timespans)
            raise ValueError(
                f"timespans was given, but the unit {self.registered_name()!r} has no continuous time. Omit it, pass "
                f"the times as input features, or use a unit that takes timespans: {takers}"
            )
        sequences = Sequences.read(input, self.input_size, self.batch_first, lengths, timespans)
        require_parameter_dtype("input", sequences.inputs, next(self.parameters()))
        return sequences

    def read_state(self, hx: Tensor | State, sequences: Sequences) -> State:
        parts = tuple(hx) if isinstance(hx, tuple | list) else (require_tensor("hx", hx),)
        widths = self.state_sizes()
        if len(parts) != len(widths):
            raise ValueError(
                f"hx has {len(parts)} tensors; the unit {self.registered_name()!r} has {len(widths)} states, of widths "
                f"{widths}. Pass hx in the format of h_n"
            )
        rows, like = self.num_layers * self.num_directions, next(self.parameters())
        state = tuple(sequences.read_state(part, rows, width) for part, width in zip(parts, widths, strict=True))
        for part in state:
            if self.complex_state and not part.is_complex():
                raise TypeError(f"hx is {part.dtype}; the state of {self.registered_name()!r} is complex, as its h_n")
            require_parameter_dtype("hx", torch.view_as_real(part) if self.complex_state else part, like)
        return state

    def run(self, sequences: Sequences, state: State | None, need_output: bool) -> tuple[Tensor | None, State]:
        """Run all layers and directions, with dropout between layers: outputs (T, B, output_size) and final states."""
        x = sequences.inputs
        last: list[State] = []
        backwards = sequences.reversed() if self.bidirectional else sequences
        for layer in range(self.num_layers):
            top = layer == self.num_layers - 1
            outputs = []
            for direction in range(self.num_directions):
                start = None if state is None else tuple(part[len(last)] for part in state)
                seen, order = (reverse(x, sequences.lengths), backwards) if direction else (x, sequences)
                output, end = self.run_layer(layer, direction, seen, start, order, need_output or not top)
                if output is not None:
                    outputs.append(reverse(output, sequences.lengths) if direction else output)
                last.append(end)
            if not outputs:
                return None, _stacked(last)
            x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
            if self.dropout and not top:
                x = F.dropout(x, self.dropout, self.training)
        return x, _stacked(last)

    def _in_autocast_dtype(self, output: Tensor | None, last: State) -> tuple[Tensor | None, State]:
        """Results in the dtype of autocast, whichever kernel or loop computed them."""
        dtype, clocks = operand_dtype(next(self.parameters())), self.clocks()
        kept = [part.is_complex() or place in clocks for place, part in enumerate(last)]
        h_n = tuple(part if keep else part.to(dtype) for part, keep in zip(last, kept, strict=True))
        return None if output is None else output.to(dtype), h_n

    def registered_name(self) -> str:
        """The name of this unit in `units.build`, or its class name if it is not in the catalogue."""
        return name_of(type(self))

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        for name, usual in (("num_layers", 1), ("batch_first", False), ("dropout", 0.0), ("bidirectional", False)):
            value = getattr(self, name)
            text += "" if value == usual else f", {name}={value}"
        return text


def _stacked(last: list[State]) -> State:
    """The final states of all layers and directions, stacked; a single one is not copied."""
    if len(last) == 1:
        return tuple(part.unsqueeze(0) for part in last[0])
    return tuple(torch.stack(parts) for parts in zip(*last, strict=True))
