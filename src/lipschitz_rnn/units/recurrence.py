"""How a module states its own recurrence, so that it can be certified.

A certificate is about the map that actually runs, and only the module knows that map. A module that can be certified
therefore has a method ``stated_recurrences``, which returns one `Recurrence` or `FeedbackMap` for each map it runs.
Nothing is guessed from attributes: a module without the method is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Recurrence:
    """h⁺ = one explicit Runge–Kutta step of ḣ = αA h + σ(W h + u), with the input u held constant over the step.

    Attributes:
        A, W: (N, N), as the module passes them to the scan.
        alpha, nonlinearity, integrator: settings of the step.
        step_range: the shortest and the longest step the module takes when no timespans are given.
        max_step: longer timespans are split into equal steps of at most this length; None if they are not split.
        precision: the precision of the matrices if it is independent of autocast and of the float32 matmul setting,
            e.g. ``float32``; None if those decide.
        name: the part of the module; empty if there is only one.
        reverse: whether it reads the sequence backwards.
        hint: diagonals of a metric and of multipliers that may prove contraction. They are checked, never trusted.
    """

    A: Tensor
    W: Tensor
    alpha: float
    nonlinearity: str
    integrator: str
    step_range: tuple[float, float]
    max_step: float | None = None
    precision: str | None = None
    name: str = ""
    hint: tuple[Tensor, Tensor] | None = None
    reverse: bool = False


@dataclass(frozen=True)
class FeedbackMap:
    """h⁺ = F h + G σ(v) + …, v = C h + E σ(v) + …, where the dots depend on the input only.

    A map of its own, not a step of a differential equation: it has no step size to choose.

    Attributes:
        F, G, C, E: (N, N), (N, m), (m, N) and (m, m); E is strictly lower triangular, or None if it is zero.
        nonlinearity: σ.
        terms: for every entry of F, G, C and E the sum of the magnitudes whose rounding it carries, where that is not
            its own: more in a difference of large numbers, less where a 1 is not multiplied at all. None: its own.
        precision, name, reverse: as in `Recurrence`.
        hint: a metric (N, N) and multipliers (m,) that may prove contraction. They are checked, never trusted.
    """

    F: Tensor
    G: Tensor
    C: Tensor
    E: Tensor | None
    nonlinearity: str
    terms: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None] = (None, None, None, None)
    precision: str | None = None
    name: str = ""
    reverse: bool = False
    hint: tuple[Tensor, Tensor] | None = None


Statement = Recurrence | FeedbackMap


@runtime_checkable
class StatesRecurrences(Protocol):
    """A module that can be certified."""

    def stated_recurrences(self) -> Sequence[Statement]: ...


class UnstatedRecurrenceError(TypeError):
    """The stated recurrence of a module may differ from what it runs."""


_HARMLESS = frozenset(
    {"extra_repr", "reset_parameters", "flatten_parameters", "from_pretrained", "stream", "penalty", "registered_name"}
    | {"positional_once", "_abc_impl"}
)
_ALWAYS = frozenset({"forward", "__call__", "_call_impl", "__getattr__", "__getattribute__"})


def require_own_statement(module: nn.Module, statement: str = "stated_recurrences") -> None:
    """Raise if a subclass, an attribute of the instance or a hook may have changed what the module runs.

    A class that overrides anything defined by the stating class or its bases must state its recurrence itself. Hooks
    can replace the arguments and the result of a call, and there is no way to tell whether they do.
    """
    kind = type(module)
    mro = kind.__mro__
    stating = next(place for place, base in enumerate(mro) if statement in vars(base))
    own = [base for base in mro[stating:] if issubclass(base, nn.Module) and base is not nn.Module]
    defined = {name for base in own for name in vars(base) if not name.startswith("__")} - _HARMLESS | _ALWAYS
    for base in mro[:stating]:
        changed = sorted(defined & set(vars(base)))
        if changed:
            raise UnstatedRecurrenceError(
                f"{base.__name__} overrides {', '.join(changed)} of {mro[stating].__name__}, so the recurrence stated "
                f"by that class may not be the one that runs; define {statement} in {base.__name__} as well"
            )
    replaced = sorted(name for name in defined & set(vars(module)) if callable(getattr(kind, name, None)))
    if replaced:
        raise UnstatedRecurrenceError(
            f"{', '.join(replaced)} of this {kind.__name__} was replaced on the instance; certify the unchanged module"
        )
    require_no_hooks(module)


def forward_hooks(module: nn.Module) -> tuple[list[object], list[object]]:
    """What runs around a call of the module, and may change what it gives: hooks of its own, and of all modules."""
    everywhere = nn.modules.module
    own = (module._forward_pre_hooks, module._forward_hooks)
    of_all = (everywhere._global_forward_pre_hooks, everywhere._global_forward_hooks)
    return [hook for group in own for hook in group.values()], [hook for group in of_all for hook in group.values()]


def require_no_hooks(module: nn.Module) -> None:
    """Raise if the module has forward hooks, its own or global ones."""
    own, everywhere = forward_hooks(module)
    for where, found in ((f"this {type(module).__name__} has", own), ("all modules have", everywhere)):
        if found:
            names = ", ".join(sorted({getattr(hook, "__qualname__", type(hook).__name__) for hook in found}))
            raise UnstatedRecurrenceError(
                f"{where} forward hooks ({names}), which may change what is computed; remove them before certifying, "
                "or certify a copy without them"
            )


@torch.no_grad()
def repeatable_matrices(
    make: Callable[[], Iterable[Tensor]], owner: str, what: str = "hidden matrices"
) -> tuple[Tensor, ...]:
    """The matrices from ``make``. Raises if they are random, because a certificate is about fixed matrices.

    Random numbers are detected from the state of PyTorch's generators, other changes by calling twice. Differences of a
    few rounding errors are accepted, because some GPU routines do not add in a fixed order.
    """
    before = _generator_states()
    first, second = (tuple(tensor.detach() for tensor in make()) for _ in range(2))
    if any(tensor.is_meta for tensor in first):
        raise UnstatedRecurrenceError(
            f"this {owner} is on the meta device, so its matrices have no values; build it on a real device and load "
            "its weights first"
        )
    drawn = any(not torch.equal(a, b) for a, b in zip(before, _generator_states(), strict=False))
    if drawn or any(
        bool((a - b).abs().max() > 1e-5 * a.abs().max()) for a, b in zip(first, second, strict=True) if a.numel()
    ):
        raise UnstatedRecurrenceError(
            f"the {what} of this {owner} change from call to call (dropout on weights, power iterations); "
            "call eval() first, or certify one pair (A, W)"
        )
    return first


def _generator_states() -> list[Tensor]:
    """States of PyTorch's default generators, on the CPU and on every GPU in use."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [])]


def as_number(name: str, value: float | Tensor, owner: str) -> float:
    """A setting as a number. Raises for an ensemble, which has one value per member."""
    if isinstance(value, Tensor) and value.numel() != 1:
        raise UnstatedRecurrenceError(
            f"{name} of this {owner} has {value.numel()} values, one per member of an ensemble; certify the "
            "members one by one"
        )
    return float(value)
