"""The call that every recurrent unit answers: that of `torch.nn.RNN`, with `lengths` in addition."""

from abc import ABC, abstractmethod

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lipschitz_rnn.ops.checks import require_lengths

State = tuple[Tensor, ...]
"""What a unit carries from step to step: (h,), (h, c), (y, z), ..."""


class Recurrent(nn.Module, ABC):
    """`output, h_n = unit(x, h_0=None, lengths=None)`: shapes and packing here, the recurrence in `run`.

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
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), got {dropout!r}")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.batch_first, self.dropout, self.bidirectional = batch_first, dropout, bidirectional
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
        if isinstance(x, PackedSequence):
            if lengths is not None:
                raise ValueError("a PackedSequence carries its own lengths: leave `lengths` out")
            return self._forward_packed(x, h_0)
        if x.dim() not in (2, 3) or x.shape[-1] != self.input_size:
            wanted = "(B, T, p)" if self.batch_first else "(T, B, p)"
            raise ValueError(f"x must be {wanted} or (T, p) with p = {self.input_size}, got {tuple(x.shape)}")
        batched = x.dim() == 3
        time_major = x.unsqueeze(1) if not batched else x.transpose(0, 1) if self.batch_first else x
        state = None if h_0 is None else self._checked_state(h_0, time_major.shape[1], batched)
        lengths = None if lengths is None else _checked_lengths(lengths, time_major, batched)
        output, last = self.run(time_major, state, lengths)
        if not batched:
            output, last = output.squeeze(1), tuple(part.squeeze(1) for part in last)
        elif self.batch_first:
            output = output.transpose(0, 1)
        return output, last if len(last) > 1 else last[0]

    def _forward_packed(
        self, packed: PackedSequence, h_0: Tensor | State | None
    ) -> tuple[PackedSequence, Tensor | State]:
        padded, lengths = pad_packed_sequence(packed)
        state = None if h_0 is None else self._checked_state(h_0, padded.shape[1], batched=True)
        output, last = self.run(padded, state, lengths.to(padded.device))
        if packed.sorted_indices is not None:
            output, lengths = output.index_select(1, packed.sorted_indices), lengths[packed.sorted_indices.cpu()]
        data = pack_padded_sequence(output, lengths).data
        again = PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        return again, last if len(last) > 1 else last[0]

    def _checked_state(self, h_0: Tensor | State, batch: int, batched: bool) -> State:
        parts = (h_0,) if isinstance(h_0, Tensor) else tuple(h_0)
        if not batched:
            parts = tuple(part.unsqueeze(1) for part in parts)
        rows = self.num_layers * self.num_directions
        wanted = [(rows, batch, width) for width in self.state_sizes()]
        if [tuple(part.shape) for part in parts] != wanted:
            got = [tuple(part.shape) for part in parts]
            raise ValueError(f"h_0 must have the shapes {wanted} (num_layers · directions, B, width), got {got}")
        return parts

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        for name, usual in (("num_layers", 1), ("batch_first", False), ("dropout", 0.0), ("bidirectional", False)):
            value = getattr(self, name)
            text += "" if value == usual else f", {name}={value}"
        return text


def _checked_lengths(lengths: Tensor, x: Tensor, batched: bool) -> Tensor:
    steps, batch = x.shape[:2]
    if not batched:
        raise ValueError("lengths need a batch: cut the one sequence to its length instead")
    if lengths.shape != (batch,):
        raise ValueError(f"lengths must be one number for each of {batch} sequences, got {tuple(lengths.shape)}")
    require_lengths(lengths, steps)
    return lengths.to(x.device)
