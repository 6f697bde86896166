"""How a classifier states what it reads from its unit, so that a radius can be certified for it.

A certified radius is about the whole map from inputs to class scores, and only the model knows that map. A model that
can have one has a method ``stated_classifier``. Nothing is guessed from attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor, nn

from lipschitz_rnn.units.recurrence import UnstatedRecurrenceError

Readout = Literal["last", "mean", "state"]


@dataclass(frozen=True)
class NetworkInputs:
    """What a unit reads, time-major, and how it depends on the values that a caller may change.

    Attributes:
        inputs: (T, B, p) float64, as exact as float64 allows.
        timespans: (T, B), or None for the unit's own step.
        error: (T, B), a bound on ‖inputs − exact inputs‖₂ from rounding in the preprocessing; None for none.
        scale: (p,) or (T, p): an input changes by at most this times a change of the value it comes from. Zero for
            inputs that nobody changes, such as flags. None: the inputs are the values.
        computed: (T, B, p), by how much the inputs that the running model computes may differ from the exact ones, and
            ``computed_relative``: by how much more for each unit of change of an input. None: by nothing.
    """

    inputs: Tensor
    timespans: Tensor | None = None
    error: Tensor | None = None
    scale: Tensor | None = None
    computed: Tensor | None = None
    computed_relative: float = 0.0


@dataclass(frozen=True)
class StatedClassifier:
    """scores = head(what is read of unit(inputs)), from zero first states.

    Attributes:
        unit: states its recurrences and is called like ``nn.RNN``.
        head: a linear map to one score per class.
        readout: ``last``, the output at the last valid step; ``mean``, the mean of the outputs over the valid steps;
            ``state``, the final states h_n of the last layer, both directions one after the other.
        unit_takes_lengths: whether the unit gets the lengths. If not, it reads on over padding, which is zero.
        batch_first: whether inputs, times and timespans come as (B, T, …).
        prepare: from what the caller gives (values, times, lengths) to what the unit reads; None: the inputs themselves
            and their timespans.
    """

    unit: nn.Module
    head: nn.Linear
    readout: Readout = "last"
    unit_takes_lengths: bool = False
    batch_first: bool = False
    prepare: Callable[[Tensor, Tensor | None, Tensor | None], NetworkInputs] | None = None


@runtime_checkable
class StatesClassifier(Protocol):
    """A model for which a radius can be certified."""

    def stated_classifier(self) -> StatedClassifier: ...


def require_plain_linear(head: Any) -> nn.Linear:
    """The head, if it is a linear layer and nothing else."""
    if type(head) is not nn.Linear:
        raise UnstatedRecurrenceError(
            f"the head is a {type(head).__name__}; only a plain nn.Linear is known to be linear. Replace it by one, "
            "with a parametrization removed by torch.nn.utils.parametrize.remove_parametrizations"
        )
    if set(vars(head)) & {"forward", "__call__"}:
        raise UnstatedRecurrenceError(
            "forward of the head was replaced on the instance, so what it computes is not known; give a plain nn.Linear"
        )
    return head
