"""encoder ▶ recurrent unit ▶ head: the default model for every task."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn

from lipschitz_rnn import units
from lipschitz_rnn.training.settings import Settings
from lipschitz_rnn.training.times import require_timed
from lipschitz_rnn.units.arguments import require_time_major, unit_name
from lipschitz_rnn.units.base import Recurrent
from lipschitz_rnn.units.readout import StatedClassifier, require_plain_linear
from lipschitz_rnn.units.recurrence import UnstatedRecurrenceError, require_no_hooks, require_own_statement


class Shapes(Protocol):
    """What a model must know about a task; a `Task` has it, and so does its record in a run folder."""

    input_size: int
    output_size: int
    vocabulary: int | None
    readout: Literal["last", "all"]


_Sequence = TypeVar("_Sequence", Tensor, Tensor | None)
_Model = TypeVar("_Model", bound=nn.Module)
State = Any  # the state of a unit: a tensor (layers, B, N), a tuple of such tensors, or None for zeros


class SequenceModel(nn.Module):
    """An embedding if the inputs are tokens, a unit called like `nn.RNN`, and a linear head.

    The head reads the last valid state ("last": outputs (B, q)) or every state ("all": outputs (T, B, q)).
    """

    def __init__(self, unit: nn.Module, head: nn.Linear, readout: str, embedding: nn.Embedding | None = None) -> None:
        super().__init__()
        require_time_major(unit, self)
        self.embedding = embedding
        self.unit = unit
        self.head = head
        self.readout = readout

    def forward(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        state: State = None,
        keep: Tensor | None = None,
        timespans: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """inputs: (T, B, p), or (T, B) tokens; lengths: (B,); keep: dropout factors in the shape that the head reads,
        with p more in the last axis for embedded tokens if those are dropped too; timespans: (T, B), the time since
        the previous sample, for units that take them.

        The recurrence is causal, so padding after the last valid step changes nothing that is read.
        """
        if lengths is not None:  # NaN in the padding would otherwise reach the gradients, and bad times raise
            inputs, timespans = _without_padding(inputs, lengths), _without_padding(timespans, lengths)
        x = inputs if self.embedding is None else self.embedding(inputs)
        expected = read_size(self)
        if keep is not None and expected is not None and keep.shape[-1] > expected:
            keep, of_tokens = keep.split((expected, x.shape[-1]), -1)
            x = x * of_tokens
        options: dict[str, Any] = {}
        if timespans is not None:
            require_timed(self)
            options["timespans"] = timespans
        if self.readout == "last" and lengths is None and _ends_in_its_state(self.unit):
            # A copy of all states, (T, B, N), would be written only to be thrown away.
            _, state = self.unit(x, state, need_output=False, **options)
            return self._read(state[0][-1] if isinstance(state, tuple) else state[-1], keep), state
        result = self.unit(x, **options) if state is None else self.unit(x, state, **options)
        if not (isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[0], Tensor)):
            raise TypeError(f"the unit {unit_name(self.unit)} must return (output, h_n), as nn.RNN does")
        hidden, state = result
        if expected is not None and hidden.shape[-1] != expected:
            raise ValueError(
                f"the unit {unit_name(self.unit)} gives out {hidden.shape[-1]} values at a step, but its "
                f"output_size, which is its hidden size unless it says so, is {expected}; set output_size"
            )
        if self.readout == "last":
            # Of a unit of somebody's own, the state may be something else than the output.
            known = isinstance(self.unit, Recurrent | nn.RNNBase)
            hidden = _last(hidden, state if known else None, lengths)
        return self._read(hidden, keep), state

    def _read(self, hidden: Tensor, keep: Tensor | None) -> Tensor:
        outputs: Tensor = self.head(hidden if keep is None else hidden * keep)
        return outputs

    @property
    def takes_timespans(self) -> bool:
        """Whether the unit takes the times between samples."""
        return bool(getattr(self.unit, "takes_timespans", False))

    def stated_classifier(self) -> StatedClassifier:
        """For `stability.certified_radius`: the unit's output at the last valid step, through the linear head."""
        require_own_statement(self, "stated_classifier")
        if self.embedding is not None:
            raise UnstatedRecurrenceError(
                "the inputs of this model are tokens, which change by whole tokens and not by small amounts; a radius "
                "needs real inputs"
            )
        if self.readout != "last":
            raise UnstatedRecurrenceError(
                f"this model reads {self.readout!r} and gives scores at every step; a radius is certified for readout "
                '"last", one class per sequence'
            )
        head = require_plain_linear(self.head)
        require_no_hooks(head)
        return StatedClassifier(self.unit, head)

    def score_gains(self, steps: int) -> Tensor:
        """(q, q), differentiable: how far the difference of two scores can move for a change of the input of l2 norm 1.

        For a contracting unit, by its guaranteed factor; see `training.robust`.
        """
        from lipschitz_rnn.training.robust import score_gains

        return score_gains(self.unit, self.head, steps)

    def penalty(self) -> Tensor:
        """The term that the unit's paper adds to the loss for a soft constraint; zero for most units."""
        own = getattr(self.unit, "penalty", None)
        return self.head.weight.new_zeros(()) if own is None else own()


def _without_padding(sequence: _Sequence, lengths: Tensor) -> _Sequence:
    """(T, B, …) with zeros after the last valid step of each sample; None stays None."""
    if sequence is None:
        return sequence
    beyond = torch.arange(sequence.shape[0], device=sequence.device)[:, None] >= lengths.to(sequence.device)
    return sequence.masked_fill(beyond.reshape(*beyond.shape, *(1,) * (sequence.dim() - 2)), 0)


def _ends_in_its_state(unit: nn.Module) -> bool:
    """Whether the last output of a unit is its state, and the unit can leave out the others."""
    if not isinstance(unit, Recurrent) or type(unit).forward is not Recurrent.forward or unit.complex_state:
        return False
    return not unit.bidirectional and unit.output_size == unit.state_sizes()[0]


def _last(hidden: Tensor, state: State, lengths: Tensor | None) -> Tensor:
    """The state after the last valid step, (B, N)."""
    if lengths is not None:
        last = (lengths - 1).view(1, -1, 1).expand(1, -1, hidden.shape[-1])
        return hidden.gather(0, last).squeeze(0)
    # The final state avoids a (T, B, N) gradient that is zero except in the last step. It equals the last output if the
    # widths are equal: then the output concatenates neither two directions nor the parts of complex numbers.
    first = state[0] if isinstance(state, tuple) else state
    if isinstance(first, Tensor) and first.dim() == 3 and first.shape[-1] == hidden.shape[-1]:
        return first[-1]
    return hidden[-1]


def build_model(settings: Settings, task: Shapes, seed: int) -> SequenceModel:
    """A new network, initialised only from `seed`; the state of the global generator does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # inside the fork: modules initialise from the global generator
        return _assemble(settings, task)


_NOT_OPTIONS = {
    "input_size": "which follows from the task; leave it out",
    "hidden_size": "which is a setting (hidden_size, --hidden-size); train each size in a separate run",
    "device": "which is a setting (device, --device)",
    "dtype": 'which follows from the precision; set precision="float64" (--precision float64) for float64',
}


def _assemble(settings: Settings, task: Shapes) -> SequenceModel:
    embedding = None if task.vocabulary is None else nn.Embedding(task.vocabulary, task.input_size)
    options: dict[str, Any] = dict(settings.unit_options)
    options |= {key: tuple(value) for key, value in options.items() if isinstance(value, list)}
    for name, remedy in _NOT_OPTIONS.items():
        if name in options:
            raise ValueError(f"unit_options set {name!r}, {remedy}")
    if settings.num_layers != 1:
        if options.get("num_layers", settings.num_layers) != settings.num_layers:
            raise ValueError(
                f"num_layers is {settings.num_layers}, but unit_options set it to {options['num_layers']}; give it once"
            )
        options["num_layers"] = settings.num_layers
    if options.get("bidirectional") or options.get("batch_first"):
        raise ValueError(
            "unit_options set bidirectional or batch_first; training is time-major and in one direction: leave them out"
        )
    unit = units.build(settings.unit, task.input_size, settings.hidden_size, **options)
    head = nn.Linear(unit.output_size, task.output_size)  # type: ignore[arg-type]
    model = SequenceModel(unit, head, task.readout, embedding)
    return in_precision(model, settings)


def in_precision(model: _Model, settings: Settings) -> _Model:
    """The model with parameters in float64 if the settings say so; other precisions are about products alone."""
    return model.double() if settings.precision == "float64" else model


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def read_size(model: nn.Module) -> int | None:
    """How many values the model's head reads: 2N for a complex state or two directions. None if unknown."""
    head = getattr(model, "head", None)
    return head.in_features if isinstance(head, nn.Linear) else None


def draws_random_numbers(model: nn.Module) -> bool:
    """Whether a forward pass in training draws from the global generator, as dropout between layers does."""
    rates = (getattr(module, name, 0.0) for module in model.modules() for name in ("dropout", "zoneout"))
    layers = (module.p for module in model.modules() if isinstance(module, nn.modules.dropout._DropoutNd))
    return any(isinstance(rate, float) and rate > 0.0 for rate in (*rates, *layers))
