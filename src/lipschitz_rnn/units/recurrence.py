"""What a module says about its own recurrence, so that it can be certified.

A certificate is about the map that runs, and only the module itself knows that map. So a module that can be certified
has a method ``stated_recurrences``, which gives one `Recurrence` for every map it runs. Nothing is guessed from
attributes: a module without the method is refused.
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
        A, W: (N, N), as the module hands them to the scan.
        alpha, nonlinearity, integrator: of that step.
        step_range: the shortest and longest span the module runs with unless it is given timespans.
        max_step: a longer span is split into equal steps of at most this length; None if it never is.
        precision: what the matrices are rounded to whatever the settings around the module say, for example
            ``float32``; None if autocast and the precision of float32 products decide.
        name: which part of the module this is; empty if there is only one.
        reverse: whether it reads the sequence from its end, so that its time runs backwards.
        hint: diagonals of a metric and of multipliers that may prove contraction; they are checked, never trusted.
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


@runtime_checkable
class StatesRecurrences(Protocol):
    """A module that can be certified."""

    def stated_recurrences(self) -> Sequence[Recurrence]: ...


class UnstatedRecurrenceError(TypeError):
    """What a module runs is not what its statement would say."""


_HARMLESS = frozenset(
    {"extra_repr", "reset_parameters", "flatten_parameters", "from_pretrained", "stream", "penalty", "registered_name"}
    | {"positional_once", "_abc_impl"}
)
_ALWAYS = frozenset({"forward", "__call__", "_call_impl", "__getattr__", "__getattribute__"})


def require_own_statement(module: nn.Module) -> None:
    """Refuse to state the recurrence of a module that a subclass, an instance or a hook has changed.

    A class that redefines something that the stating class or its bases define must state its recurrence itself. Hooks
    see and may replace the arguments and the result of a call, and nobody can tell from outside whether they do.
    """
    kind = type(module)
    mro = kind.__mro__
    stating = next(place for place, base in enumerate(mro) if "stated_recurrences" in vars(base))
    own = [base for base in mro[stating:] if issubclass(base, nn.Module) and base is not nn.Module]
    defined = {name for base in own for name in vars(base) if not name.startswith("__")} - _HARMLESS | _ALWAYS
    for base in mro[:stating]:
        changed = sorted(defined & set(vars(base)))
        if changed:
            raise UnstatedRecurrenceError(
                f"{base.__name__} overrides {', '.join(changed)} of {mro[stating].__name__}, so the statement of that "
                f"class may not be true of it; define stated_recurrences in {base.__name__} as well"
            )
    replaced = sorted(name for name in defined & set(vars(module)) if callable(getattr(kind, name, None)))
    if replaced:
        raise UnstatedRecurrenceError(
            f"{', '.join(replaced)} of this {kind.__name__} was replaced on the instance; certify the unchanged module"
        )
    require_no_hooks(module)


def require_no_hooks(module: nn.Module) -> None:
    """Refuse a module with forward hooks, its own or those that PyTorch calls for all modules."""
    everywhere = nn.modules.module
    for where, hooks in (
        (f"this {type(module).__name__} has", (module._forward_pre_hooks, module._forward_hooks)),
        ("all modules have", (everywhere._global_forward_pre_hooks, everywhere._global_forward_hooks)),
    ):
        found = [hook for group in hooks for hook in group.values()]
        if found:
            names = ", ".join(sorted({getattr(hook, "__qualname__", type(hook).__name__) for hook in found}))
            raise UnstatedRecurrenceError(
                f"{where} forward hooks ({names}), which may change what is computed; remove them before certifying, "
                "or certify a copy without them"
            )


@torch.no_grad()
def repeatable_matrices(make: Callable[[], Iterable[Tensor]], owner: str) -> tuple[Tensor, Tensor]:
    """A and W from ``make``, refused if they are random: a certificate is about fixed matrices.

    Random numbers are noticed by the state of PyTorch's generators, whatever they were this time, and other changes by
    two calls. Some GPU routines add in another order each time, so a difference of a few roundings is let pass.
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
            f"the hidden matrices of this {owner} change from call to call (dropout on weights, power iterations); "
            "call eval() first, or certify one pair (A, W)"
        )
    A, W = first
    return A, W


def _generator_states() -> list[Tensor]:
    """Of PyTorch's own generators, on the CPU and on every GPU in use."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [])]


def as_number(name: str, value: float | Tensor, owner: str) -> float:
    """A setting as a plain number; an ensemble's, with one for each member, is refused."""
    if isinstance(value, Tensor) and value.numel() != 1:
        raise UnstatedRecurrenceError(
            f"{name} of this {owner} has {value.numel()} values, one for each member of an ensemble; certify them "
            "one by one"
        )
    return float(value)
