"""The call that every recurrent unit answers: that of `torch.nn.RNN`, with `lengths` in addition."""

import warnings
from abc import ABC, abstractmethod

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from lipschitz_rnn.ops.common.validation import require_lengths
from lipschitz_rnn.units.lipschitz.sequences import Sequences

State = tuple[Tensor, ...]
"""What a unit carries from step to step: (h,), (h, c), (y, z), ..."""


class Recurrent(nn.Module, ABC):
    """`output, h_n = unit(x, h_0=None, lengths=None)`: the forms of a sequence here, the recurrence in `run`.

    x:       (T, B, input_size); (B, T, input_size) with `batch_first`; (T, input_size) without a batch; or a
             PackedSequence.
    h_0:     (num_layers · directions, B, width), or a tuple of such when the unit carries more than one state;
             None starts where the unit's paper starts. Without a batch the axis B is left out.
    lengths: (B,) valid steps of each sequence, None when all steps count. Outputs past the end are zero and h_n is
             the state after the last valid step.
    output:  like x, with `output_size` values a step (twice as many when `bidirectional`); h_n: like h_0.
    """

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
        for name, value in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), got {dropout!r}")
        if dropout > 0.0 and num_layers == 1:
            warnings.warn("dropout acts between layers, so it has no effect with num_layers=1", stacklevel=2)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.batch_first, self.dropout, self.bidirectional = batch_first, float(dropout), bidirectional
        self.num_directions = 2 if bidirectional else 1
        self.output_size = hidden_size * self.num_directions

    @abstractmethod
    def state_sizes(self) -> tuple[int, ...]:
        """Width of each state a layer carries: (N,) for a plain unit, (N, N) for an LSTM."""

    @abstractmethod
    def run(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """(T, B, input_size) and the states of all layers -> outputs (T, B, output_size) and the last states."""

    def penalty(self) -> Tensor:
        """What the unit's paper adds to the loss to keep a soft constraint; zero for most units."""
        return next(self.parameters()).new_zeros(())

    def forward(
        self, x: Tensor | PackedSequence, h_0: Tensor | State | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor | PackedSequence, Tensor | State]:
        sequences = Sequences.read(x, self.input_size, self.batch_first, lengths, timespans=None)
        steps, batch = sequences.inputs.shape[:2]
        lengths = sequences.lengths
        if lengths is not None:
            if lengths.shape != (batch,):
                raise ValueError(
                    f"lengths has shape {tuple(lengths.shape)}; it must be ({batch},), one for each sample"
                )
            require_lengths(lengths, steps)
            lengths = lengths.to(sequences.inputs.device)
        state = None if h_0 is None else self._read_state(h_0, sequences)
        output, last = self.run(sequences.inputs, state, lengths)
        h_n = tuple(sequences.write_state(part) for part in last)
        return sequences.write_output(output), h_n if len(h_n) > 1 else h_n[0]

    def _read_state(self, h_0: Tensor | State, sequences: Sequences) -> State:
        parts = (h_0,) if isinstance(h_0, Tensor) else tuple(h_0)
        widths = self.state_sizes()
        if len(parts) != len(widths):
            raise ValueError(f"h_0 has {len(parts)} parts; this unit carries {len(widths)} of widths {widths}")
        rows = self.num_layers * self.num_directions
        read = [sequences.read_state(part, rows, width) for part, width in zip(parts, widths, strict=True)]
        return tuple(part for part in read if part is not None)

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        for name, usual in (("num_layers", 1), ("batch_first", False), ("dropout", 0.0), ("bidirectional", False)):
            value = getattr(self, name)
            text += "" if value == usual else f", {name}={value}"
        return text
