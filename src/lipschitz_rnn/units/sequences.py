"""Converts the input formats of a recurrent layer to (T, B, p) with lengths, and results back to that format."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lipschitz_rnn.ops.common.validation import (
    has_values,
    require_device,
    require_floating,
    require_lengths,
    require_tensor,
    require_timespans,
    shape_of,
)


@dataclass(frozen=True)
class Sequences:
    """Time-major inputs, with what is needed to return results in the format of the input.

    Attributes:
        inputs: (T, B, p).
        lengths: (B,), or None if all samples have T steps.
        timespans: (T, B) or None.
        packed: the input, if it was a ``PackedSequence``; samples are then in its sorted order.
        longest_time: the longest timespan; None if there are none, or values cannot be read.
        generator: for the noise of units in training; None means PyTorch's default generator.
    """

    inputs: Tensor
    lengths: Tensor | None
    timespans: Tensor | None
    batch_first: bool
    batched: bool
    packed: PackedSequence | None
    longest_time: float | None = None
    generator: torch.Generator | None = None

    @classmethod
    def read(
        cls,
        x: Tensor | PackedSequence,
        input_size: int,
        batch_first: bool,
        lengths: Tensor | None,
        timespans: Tensor | PackedSequence | None,
    ) -> Sequences:
        if isinstance(x, PackedSequence):
            return cls._from_packed(x, input_size, batch_first, lengths, timespans)
        require_tensor("input", x)
        order = "(B, T, p) or (T, p) with batch_first=True" if batch_first else "(T, B, p) or (T, p)"
        if x.dim() not in (2, 3):
            raise ValueError(f"input has shape {shape_of(x)}, {x.dim()} axes; it must be {order}")
        _require_features(x, input_size)
        batched = x.dim() == 3
        inputs = x.unsqueeze(1) if not batched else x.transpose(0, 1) if batch_first else x
        if inputs.shape[0] == 0:
            raise ValueError(f"input has shape {shape_of(x)}, a sequence of 0 steps; it must have at least 1")
        if lengths is not None:
            if not batched:
                raise ValueError("lengths was given with an unbatched input; truncate the sequence instead")
            steps, batch = inputs.shape[:2]
            if tuple(require_tensor("lengths", lengths).shape) != (batch,):
                raise ValueError(f"lengths has shape {shape_of(lengths)}; it must be ({batch},): one per sample")
            lengths = require_lengths(lengths, steps)
        spans = None if timespans is None else _time_major_spans(timespans, inputs, batch_first, batched, lengths)
        return cls(inputs, lengths, spans, batch_first, batched, None, _longest(spans))

    @classmethod
    def _from_packed(
        cls,
        x: PackedSequence,
        input_size: int,
        batch_first: bool,
        lengths: Tensor | None,
        timespans: Tensor | PackedSequence | None,
    ) -> Sequences:
        if lengths is not None:
            raise ValueError("lengths was given with a PackedSequence, which has its own lengths; omit one of them")
        _require_features(x.data, input_size)
        inputs, lengths = pad_packed_sequence(PackedSequence(x.data, x.batch_sizes))
        if isinstance(timespans, PackedSequence):
            timespans, own = pad_packed_sequence(timespans, batch_first=batch_first)
            _require_lengths_of(x, lengths, own)
        spans = None
        if timespans is not None:
            ends = lengths if x.unsorted_indices is None else lengths[x.unsorted_indices.to(lengths.device)]
            spans = _time_major_spans(timespans, inputs, batch_first, True, ends)
            if x.sorted_indices is not None:
                spans = spans.index_select(1, x.sorted_indices)
        return cls(inputs, lengths, spans, batch_first, True, x, _longest(spans))

    def reversed(self) -> Sequences:
        """With the timespans in the order of the backward direction; the inputs are unchanged."""
        if self.timespans is None:
            return self
        return replace(self, timespans=reverse(self.timespans, self.lengths))

    def read_state(self, hx: Tensor, count: int, hidden_size: int) -> Tensor:
        """hx as (layers × directions, B, N)."""
        require_tensor("hx", hx)
        B = self.inputs.shape[1]
        expected = (count, B, hidden_size) if self.batched else (count, hidden_size)
        if tuple(hx.shape) != expected:
            raise ValueError(
                f"hx has shape {shape_of(hx)}; it must be ({', '.join(map(str, expected))}): layers × directions, "
                + ("batch size, hidden size" if self.batched else "hidden size, since the input is unbatched")
            )
        if not self.batched:
            hx = hx.unsqueeze(1)
        if self.packed is not None and self.packed.sorted_indices is not None:
            hx = hx.index_select(1, self.packed.sorted_indices)
        return hx

    def write_output(self, output: Tensor) -> Tensor | PackedSequence:
        """(T, B, features) converted to the format of the input."""
        if self.packed is not None and self.lengths is not None:
            packed = pack_padded_sequence(output, self.lengths)
            return PackedSequence(
                packed.data, packed.batch_sizes, self.packed.sorted_indices, self.packed.unsorted_indices
            )
        if not self.batched:
            return output.squeeze(1)
        return output.transpose(0, 1).contiguous() if self.batch_first else output

    def write_state(self, h_n: Tensor) -> Tensor:
        """(layers × directions, B, N) in the sample order of the input."""
        if not self.batched:
            return h_n.squeeze(1)
        if self.packed is not None and self.packed.unsorted_indices is not None:
            return h_n.index_select(1, self.packed.unsorted_indices)
        return h_n


def longest_time(times: float | Tensor) -> float | None:
    """The longest time; None if values cannot be read, as in compiled code and under function transforms."""
    if not isinstance(times, Tensor):
        return None if torch.compiler.is_compiling() else times  # it may be symbolic
    return float(times.detach().max()) if times.numel() > 0 and has_values(times) else None


def reverse(sequence: Tensor, lengths: Tensor | None) -> Tensor:
    """(T, B, …) reversed in time, each sample within its own length; padding stays in place."""
    if lengths is None:
        return sequence.flip(0)
    T = sequence.shape[0]
    time = torch.arange(T, device=sequence.device)[:, None]
    ends = lengths.to(sequence.device)[None, :]
    index = torch.where(time < ends, ends - 1 - time, time)
    return sequence.gather(0, index.reshape(*index.shape, *[1] * (sequence.dim() - 2)).expand_as(sequence))


def _require_lengths_of(x: PackedSequence, lengths: Tensor, own: Tensor) -> None:
    """Check that packed timespans have the lengths of the input; ``lengths`` is in sorted order."""
    if not has_values(own):
        return
    if x.unsorted_indices is not None:
        lengths = lengths[x.unsorted_indices.cpu()]
    if len(own) != len(lengths):
        raise ValueError(f"timespans has {len(own)} packed sequences but the input has {len(lengths)}; they must agree")
    other = (own != lengths).nonzero()
    if len(other) > 0:
        k = int(other[0])
        raise ValueError(
            f"timespans has {int(own[k])} steps for sample {k} but the input has {int(lengths[k])}; pack both with the "
            "same lengths"
        )


def _require_features(x: Tensor, input_size: int) -> None:
    if x.shape[-1] != input_size:
        raise ValueError(
            f"input has {x.shape[-1]} features (shape {shape_of(x)}) but input_size is {input_size}; "
            "the last axis must be the features"
        )


def _longest(spans: Tensor | None) -> float | None:
    return None if spans is None else longest_time(spans)


def _without_padding(spans: Tensor, lengths: Tensor | None) -> Tensor:
    """Timespans (T, B), zero beyond the end of each sample."""
    if lengths is None:
        return spans
    steps = torch.arange(spans.shape[0], device=spans.device)[:, None]
    return spans.masked_fill(steps >= lengths.to(spans.device), 0.0)


def _time_major_spans(
    timespans: object, inputs: Tensor, batch_first: bool, batched: bool, lengths: Tensor | None
) -> Tensor:
    timespans = require_tensor("timespans", timespans)
    require_floating("timespans", timespans)
    T, B = inputs.shape[:2]
    expected = ((B, T) if batch_first else (T, B)) if batched else (T,)
    if tuple(timespans.shape) != expected:
        raise ValueError(
            f"timespans has shape {shape_of(timespans)}; it must have shape {expected}: the time since the "
            "previous sample, for each step" + (" and sample" if batched else "")
        )
    require_device("timespans", timespans, "input", inputs)
    spans = timespans.unsqueeze(1) if not batched else timespans.transpose(0, 1) if batch_first else timespans
    spans = _without_padding(spans, lengths)
    require_timespans(spans.transpose(0, 1) if batched and batch_first else spans.reshape(timespans.shape))
    return spans
