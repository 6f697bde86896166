"""A classifier read as what a proof can use: matrices, steps, metrics and factors of every layer and direction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.common.validation import require_lengths, require_tensor
from lipschitz_rnn.ops.lipschitz.integrators import Tableau, get_integrator
from lipschitz_rnn.ops.lipschitz.nonlinearities import Nonlinearity, get_nonlinearity
from lipschitz_rnn.ops.lipschitz.substeps import count_substeps, substeps_of
from lipschitz_rnn.stability.proof.inputs import as_array
from lipschitz_rnn.stability.proof.modules import require_finite
from lipschitz_rnn.stability.proof.precision import as_precision, in_force, rounded
from lipschitz_rnn.stability.proof.rounding import Matrix
from lipschitz_rnn.stability.running.layers import require_sequential, running_precision
from lipschitz_rnn.units.arguments import unit_name
from lipschitz_rnn.units.base import Recurrent
from lipschitz_rnn.units.lipschitz.cell import LipschitzRNNCell
from lipschitz_rnn.units.lipschitz.layer import LipschitzRNN
from lipschitz_rnn.units.readout import NetworkInputs, StatedClassifier, require_plain_linear
from lipschitz_rnn.units.recurrence import (
    UnstatedRecurrenceError,
    repeatable_matrices,
    require_no_hooks,
    require_own_statement,
)


@dataclass(frozen=True)
class Part:
    """One layer in one direction: h⁺ = a step of ḣ = αA h + σ(W h + U x + b). Numbers are exact, in float64."""

    layer: int
    reverse: bool
    A: Matrix
    W: Matrix
    U: Matrix
    b: Matrix
    alpha: float
    sigma: Nonlinearity
    tableau: Tableau
    cell: LipschitzRNNCell

    @property
    def name(self) -> str:
        return f"layer {self.layer}" + (", reverse" if self.reverse else "")

    @property
    def size(self) -> int:
        return len(self.A)


@dataclass(frozen=True)
class Steps:
    """Every sample is ``counts`` steps of length ``lengths``, (T, B) each, float64."""

    lengths: Tensor
    counts: Tensor


@dataclass(frozen=True)
class Network:
    """The parts of a classifier by layer, and its head: scores = D h + c.

    ``precision`` is what it runs in, or ``exact``. Matrices are those that the kernels load then; ``rounded`` says
    whether these are others than the given ones, as in half precision.
    """

    stated: StatedClassifier
    layers: tuple[tuple[Part, ...], ...]
    D: Matrix
    c: Matrix
    precision: str
    rounded: bool

    @property
    def classes(self) -> int:
        return len(self.c)

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(part for layer in self.layers for part in layer)

    def steps_of(self, part: Part, timespans: Tensor | None, shape: tuple[int, int], device: torch.device) -> Steps:
        """The steps that the layer takes for these timespans (T, B), before they are put into its reading order."""
        cell = part.cell
        if timespans is None:
            step = float(cell.step_size)
            limit = cell.step_limit(step)
            count = 1 if limit is None or step <= limit else substeps_of(step, limit)
            full = torch.full(shape, step / count, dtype=torch.float64, device=device)
            return Steps(full, torch.full(shape, count, dtype=torch.int64, device=device))
        spans = cell.without_rounding(timespans)
        limit = cell.step_limit(spans)
        kept = torch.float64 if cell.weight_ih.dtype == torch.float64 else torch.float32  # in which the layer counts
        counts = torch.ones_like(spans, dtype=torch.int64) if limit is None else count_substeps(spans.to(kept), limit)
        return Steps(spans.double() / counts, counts)


def read_network(model: Any, precision: str | None = "exact") -> Network:
    """The stated classifier of a model, checked; refused with the reason where it cannot have a certified radius.

    ``precision``: None for what is in force here.
    """
    stated = model if isinstance(model, StatedClassifier) else _statement(model)
    unit, head = stated.unit, require_plain_linear(stated.head)
    require_no_hooks(head)
    if stated.readout not in ("last", "mean", "state"):
        raise ValueError(f'readout is {stated.readout!r}; it must be "last", "mean" or "state"')
    if not isinstance(unit, LipschitzRNN):
        called = unit_name(unit) if isinstance(unit, Recurrent) else type(unit).__name__
        raise UnstatedRecurrenceError(
            f"the unit is {called}; a radius is certified for LipschitzRNN, whose input enters as U x + "
            'b. Train one, best with unit_options={"stability": "contracting"}'
        )
    require_own_statement(unit)
    require_finite(unit)
    batch_first = stated.batch_first and stated.prepare is None  # what a model prepares, it passes on time-major
    if unit.batch_first != batch_first:
        raise ValueError(
            f"the unit has batch_first={unit.batch_first}, but is stated to read "
            f"{'(B, T, p)' if batch_first else '(T, B, p)'}; set batch_first of the unit or of the StatedClassifier"
        )
    recurrences = unit.stated_recurrences()
    precision = in_force(unit.cell().weight_ih) if precision is None else as_precision(precision).name
    if precision != "exact":
        require_sequential(unit)
    changed = False
    layers: list[tuple[Part, ...]] = []
    for layer in range(unit.num_layers):
        found = []
        for direction in range(unit.num_directions):
            item = recurrences[layer * unit.num_directions + direction]
            cell = unit.cell(layer, direction)
            maps = repeatable_matrices(partial(_input_map, cell), type(cell).__name__, "input weights")
            U, b = (as_array(given, f"{name} of layer {layer}") for name, given in zip(_INPUT_MAP, maps, strict=True))
            A, W = as_array(item.A, f"A of layer {layer}"), as_array(item.W, f"W of layer {layer}")
            if precision != "exact":
                kind = as_precision(running_precision(cell, precision)[0])
                loaded = [rounded(each, kind) for each in (A, W, U, b)]
                changed = changed or not (np.array_equal(A, loaded[0]) and np.array_equal(W, loaded[1]))
                A, W, U, b = loaded
            sigma, tableau = get_nonlinearity(item.nonlinearity), get_integrator(item.integrator)
            found.append(Part(layer, direction == 1, A, W, U, b, item.alpha, sigma, tableau, cell))
        layers.append(tuple(found))
    D = as_array(head.weight, "the head's weight")
    c = np.zeros(len(D)) if head.bias is None else as_array(head.bias, "the head's bias")
    own = unit.cell().weight_ih.dtype
    if precision != "exact" and torch.finfo(head.weight.dtype).eps > torch.finfo(own).eps:
        raise ValueError(
            f"the head is in {head.weight.dtype} and the unit in {own}, so the head rounds more than is counted; "
            f'convert the head to {own}, or ask for precision="exact"'
        )
    if D.shape[1] != sum(part.size for part in layers[-1]):
        raise ValueError(
            f"the head reads {D.shape[1]} values, but the last layer gives {sum(part.size for part in layers[-1])}; "
            "give the head that belongs to this unit"
        )
    return Network(stated, tuple(layers), D, c, precision, changed)


_INPUT_MAP = ("weight_ih", "bias_ih")


def _input_map(cell: LipschitzRNNCell) -> tuple[Tensor, Tensor]:
    """U and b, through whatever parametrizations they have."""
    U, b = (getattr(cell, name) for name in _INPUT_MAP)
    return U, U.new_zeros(len(U)) if b is None else b


def _statement(model: Any) -> StatedClassifier:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"cannot certify a radius for a {type(model).__name__}; give a SequenceModel, a SeriesModel, or "
            "lipschitz_rnn.stability.StatedClassifier(unit, head)"
            f"{'; of an estimator, one of its models_' if hasattr(model, 'models_') else ''}"
        )
    kind = type(model)
    if kind.__name__ == "OptimizedModule" and kind.__module__.startswith("torch._dynamo"):
        require_no_hooks(model)
        model, kind = model._orig_mod, type(model._orig_mod)
    if not callable(getattr(kind, "stated_classifier", None)) or "stated_classifier" in vars(model):
        raise UnstatedRecurrenceError(
            f"{kind.__name__} does not say what it reads from its unit; give "
            "lipschitz_rnn.stability.StatedClassifier(unit, head, readout) for what it computes, or define "
            "stated_classifier in its class"
        )
    require_no_hooks(model)
    stated: StatedClassifier = model.stated_classifier()  # type: ignore[operator]
    return stated


@dataclass(frozen=True)
class Samples:
    """A checked batch: time-major inputs without anything in the padding, and which steps are valid, (T, B)."""

    given: NetworkInputs
    valid: Tensor
    lengths: Tensor

    def part(self, chosen: slice) -> Samples:
        """Some of the samples."""
        given = self.given
        spans, error = given.timespans, given.error
        return Samples(
            NetworkInputs(
                given.inputs[:, chosen],
                None if spans is None else spans[:, chosen],
                None if error is None else error[:, chosen],
                given.scale,
                None if given.computed is None else given.computed[:, chosen],
                given.computed_relative,
            ),
            self.valid[:, chosen],
            self.lengths[chosen],
        )

    @property
    def shape(self) -> tuple[int, int]:
        return self.given.inputs.shape[0], self.given.inputs.shape[1]


def _require_resting(x: Tensor, spans: Tensor | None, valid: Tensor) -> None:
    """Raise unless a unit that reads on over the padding finds nothing there that the proof leaves out."""
    wrong = "" if not bool(x[~valid].any()) else "inputs"
    if spans is not None and bool(spans[~valid].any()):
        wrong = f"{wrong} and timespans".removeprefix(" and ")
    if wrong:
        raise ValueError(
            f"{wrong} are not zero in the padding, which the unit reads, as it is stated to get no lengths; set them "
            "to zero there, or state unit_takes_lengths=True of a model that passes the lengths on"
        )


def read_samples(network: Network, inputs: Tensor, times: Tensor | None, lengths: Tensor | None) -> Samples:
    """Inputs, timespans (raw times where the model prepares its inputs) and lengths, checked and made time-major."""
    stated = network.stated
    require_tensor("inputs", inputs)
    if inputs.dim() != 3 or not inputs.is_floating_point():
        raise ValueError(
            f"inputs have shape {tuple(inputs.shape)} and type {inputs.dtype}; they must be real values "
            f"{'(B, T, p)' if stated.batch_first else '(T, B, p)'}"
        )
    axis = 0 if stated.batch_first else 1
    B, T = inputs.shape[axis], inputs.shape[1 - axis]
    if B == 0 or T == 0:
        raise ValueError(f"inputs have shape {tuple(inputs.shape)}; give at least one sample and one step")
    if times is not None and tuple(require_tensor("timespans", times).shape) != tuple(inputs.shape[:2]):
        raise ValueError(
            f"timespans have shape {tuple(times.shape)}; they must be {tuple(inputs.shape[:2])}, as the inputs"
        )
    ends = torch.full((B,), T, device=inputs.device)
    if lengths is not None:
        if tuple(require_tensor("lengths", lengths).shape) != (B,):
            raise ValueError(f"lengths have shape {tuple(lengths.shape)}; they must be ({B},)")
        ends = require_lengths(lengths, T).to(inputs.device)
    valid = torch.arange(T, device=inputs.device)[:, None] < ends
    if stated.prepare is not None:
        given = stated.prepare(inputs, times, lengths)
    else:
        x, spans = (inputs.transpose(0, 1), times) if stated.batch_first else (inputs, times)
        if spans is not None and stated.batch_first:
            spans = spans.transpose(0, 1)
        reads_padding = stated.readout == "state" or network.stated.unit.num_directions == 2
        if reads_padding and not stated.unit_takes_lengths:
            _require_resting(x, spans, valid)
        # Inputs in another dtype than the network's are cast to it.
        own = network.layers[0][0].cell.weight_ih.dtype
        cast = 0.0 if inputs.dtype == own else 1.01 * 0.5 * torch.finfo(own).eps
        given = NetworkInputs(x.double(), spans, computed=cast * x.double().abs(), computed_relative=cast)
    x = given.inputs.masked_fill(~valid.unsqueeze(-1), 0.0)
    if not bool(torch.isfinite(x).all()):
        raise ValueError("inputs are not finite in some valid step; give finite numbers")
    expected = network.layers[0][0].U.shape[1]
    if x.shape[-1] != expected:
        raise ValueError(f"inputs have {x.shape[-1]} features; the network reads {expected}")
    spans = given.timespans
    if spans is not None:
        if not bool((torch.isfinite(spans) & (spans >= 0))[valid].all()):
            raise ValueError("timespans are negative or not finite in some valid step; give the times since the last")
        spans = spans.masked_fill(~valid, 0.0)
    error = None if given.error is None else given.error.masked_fill(~valid, 0.0)
    computed = None if given.computed is None else given.computed.masked_fill(~valid.unsqueeze(-1), 0.0)
    kept = NetworkInputs(x, spans, error, given.scale, computed, given.computed_relative)
    return Samples(kept, valid, ends)
