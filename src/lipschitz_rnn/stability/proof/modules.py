"""The modules of a model that state their recurrence, and what they state, checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from lipschitz_rnn.stability.proof.precision import HALF, overflows
from lipschitz_rnn.units.arguments import unit_name
from lipschitz_rnn.units.base import Recurrent
from lipschitz_rnn.units.cells import Cell, CellStack
from lipschitz_rnn.units.recurrence import (
    FeedbackMap,
    Recurrence,
    Statement,
    StatesRecurrences,
    UnstatedRecurrenceError,
    require_no_hooks,
)

_RECURRENT = (Recurrent, Cell, nn.RNNBase, nn.RNNCellBase)


def statements(model: nn.Module) -> Iterator[tuple[str, Statement]]:
    """What the modules of a model run, each with the name of its module; refused if others are recurrent too."""
    for prefix, module in stating_modules(model):
        try:
            found = _checked(module)
        except UnstatedRecurrenceError as error:
            raise UnstatedRecurrenceError(f"{prefix}: {error}" if prefix else str(error)) from None
        for item in found:
            yield prefix, item


def stating_modules(model: nn.Module) -> list[tuple[str, StatesRecurrences]]:
    """The outermost modules that state their recurrence, with their names; refused if others are recurrent too."""
    found: list[tuple[str, StatesRecurrences]] = []
    others: list[str] = []
    inside: set[int] = set()
    for path, module in model.named_modules():
        if id(module) in inside:
            continue
        name = ".".join(part for part in path.split(".") if part != "_orig_mod")
        if _is_compiled(module):  # torch.compile's wrapper: the module itself comes next, as its _orig_mod
            require_no_hooks(module)
            continue
        # Of the class, not of the instance: a wrapper that passes attributes on says nothing about what it runs.
        stating = _states(module)
        if isinstance(module, torch.jit.ScriptModule | torch.fx.GraphModule):
            raise UnstatedRecurrenceError(
                f"{name or 'the module itself'} is a {type(module).__name__}, whose code is not read here and may be "
                "recurrent; certify the model before it is scripted, traced or exported"
            )
        if stating or isinstance(module, _RECURRENT) or _is_quantized(module) or _has_hidden_matrices(module):
            inside |= {id(child) for child in module.modules()}
        if stating:
            found.append((name, module))  # type: ignore[arg-type]
        elif id(module) in inside:
            others.append(f"{name or 'the module itself'} ({_kind(module)})")
    if others:
        alone = "; pass a single LipschitzRNN to certify it alone" if found else ""
        raise UnstatedRecurrenceError(
            f"{', '.join(others)}: recurrent, but does not state its recurrence, so nothing can be certified about it; "
            "LipschitzRNN, ContractingPair and the units rnn, rnn-orth, irnn with one inner step, fastrnn, cornn, lru "
            f"and ren can be, and a GRU by certify_gru{alone}"
        )
    if not found:
        raise TypeError(
            f"{type(model).__name__} contains no module that states its recurrence; give a LipschitzRNN, a "
            "LipschitzRNNCell or a model with one, or a pair (A, W)"
        )
    return found


def _states(module: nn.Module) -> bool:
    """Whether the class states recurrences; of a stack of cells, whether the class of its cells does."""
    kind = type(module.cell()) if isinstance(module, CellStack) else type(module)
    return callable(getattr(kind, "stated_recurrences", None))


def _is_compiled(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__name__ == "OptimizedModule" and kind.__module__.startswith("torch._dynamo")


def _is_quantized(module: nn.Module) -> bool:
    """Whether a module is one of PyTorch's quantized recurrent ones, which are no `nn.RNNBase`."""
    places = {kind.__module__ for kind in type(module).__mro__}
    return any(place.startswith("torch.ao.nn.quantiz") and place.endswith(".rnn") for place in places)


def _has_hidden_matrices(module: nn.Module) -> bool:
    return callable(getattr(type(module), "hidden_matrices", None)) or callable(vars(module).get("hidden_matrices"))


def _kind(module: nn.Module) -> str:
    """What a module is: a unit by its name, or another module by its class and the cells in it."""
    if isinstance(module, Recurrent):
        return f"the unit {unit_name(module)!r}"
    cells = sorted({type(child).__name__ for child in module.modules() if isinstance(child, Cell)})
    return (
        f"{type(module).__name__} of {', '.join(cells)}"
        if cells and not isinstance(module, Cell)
        else type(module).__name__
    )


def _checked(module: StatesRecurrences) -> list[Statement]:
    """What a module states; refused if it is not a list of recurrences, as a statement may be anybody's code."""
    owner = type(module).__name__
    if "stated_recurrences" in vars(module):
        raise UnstatedRecurrenceError(
            f"stated_recurrences of this {owner} was replaced on the instance; define it in the class"
        )
    if isinstance(module, nn.Module):
        require_no_hooks(module)
        require_finite(module)
    stated = module.stated_recurrences()
    if not isinstance(stated, list | tuple) or not all(isinstance(item, Statement) for item in stated):
        shown = f"{type(stated).__name__} of {type(stated[0]).__name__}" if _has_items(stated) else repr(stated)[:80]
        raise UnstatedRecurrenceError(
            f"{owner}.stated_recurrences returned {shown}; it must return a list of Recurrence, one for each map"
        )
    if not stated:
        raise UnstatedRecurrenceError(
            f"{owner}.stated_recurrences returned nothing; it must return one Recurrence for each map that runs"
        )
    for item in stated:
        if isinstance(item, FeedbackMap):
            _require_settings(item, owner)
        else:
            _require_types(item, owner)
    return list(stated)


def require_held(model: nn.Module, precisions: Mapping[str, str]) -> None:
    """Raise if a weight overflows in the 16 bits in which the module of this name runs: infinite, it makes even zero
    inputs no numbers."""
    for path, module in stating_modules(model):
        precision = precisions.get(path, "")
        for name, values in _weights(module) if precision in HALF else ():  # type: ignore[arg-type]
            largest = 0.0 if values.is_meta or values.numel() == 0 else float(values.detach().abs().max())
            if overflows(largest, precision):
                raise ValueError(
                    f"{name} of this {type(module).__name__} has an entry of size {largest:.3g}, which {precision} "
                    "cannot hold; use float32"
                )


def require_finite(module: nn.Module) -> None:
    """Raise if a weight is no number, also one that no certificate reads: the states are no numbers then."""
    for name, values in _weights(module):
        bad = 0 if values.is_meta else int((~torch.isfinite(values)).sum())
        if bad:
            entries = "entry that is" if bad == 1 else "entries that are"
            raise ValueError(
                f"{name} of this {type(module).__name__} has {bad} {entries} not finite, so what it computes are no "
                "numbers; take weights from before training diverged (--which best), or train again with a smaller "
                "learning rate or with clipped gradients"
            )


@torch.no_grad()
def _weights(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """All parameters, and what parametrizations make of them."""
    yield from module.named_parameters()
    for path, child in module.named_modules():
        for name in getattr(child, "parametrizations", ()):
            yield f"{path}.{name}".removeprefix("."), getattr(child, name)


def _has_items(stated: object) -> bool:
    return isinstance(stated, list | tuple) and len(stated) > 0


def _require_settings(item: FeedbackMap, owner: str) -> None:
    """Everything but the matrices, which `Feedback` checks."""
    wrong = {
        "nonlinearity": (isinstance(item.nonlinearity, str), "a name"),
        "precision": (item.precision is None or isinstance(item.precision, str), "a name or None"),
        "name": (isinstance(item.name, str), "a word"),
        "reverse": (isinstance(item.reverse, bool), "True or False"),
        "hint": (
            item.hint is None
            or (
                isinstance(item.hint, tuple)
                and [isinstance(part, torch.Tensor) and part.dim() for part in item.hint] == [2, 1]
                and item.hint[0].shape == item.F.shape
            ),
            "a metric (N, N) and multipliers (m,), or None",
        ),
    }
    _raise_wrong(item, wrong, owner)


def _raise_wrong(item: Statement, wrong: dict[str, tuple[bool, str]], owner: str) -> None:
    for name, (good, allowed) in wrong.items():
        if not good:
            raise UnstatedRecurrenceError(
                f"{owner}.stated_recurrences gave {name}={repr(getattr(item, name))[:80]}; it must be {allowed}"
            )


def _require_types(item: Recurrence, owner: str) -> None:
    wrong = {
        "A": (isinstance(item.A, torch.Tensor), "a tensor"),
        "W": (isinstance(item.W, torch.Tensor), "a tensor"),
        "alpha": (_is_number(item.alpha), "a number"),
        "nonlinearity": (isinstance(item.nonlinearity, str), "a name"),
        "integrator": (isinstance(item.integrator, str), "a name"),
        "step_range": (
            isinstance(item.step_range, tuple) and len(item.step_range) == 2 and all(map(_is_number, item.step_range)),
            "a pair of numbers (shortest, longest)",
        ),
        "max_step": (
            item.max_step is None or (_is_number(item.max_step) and item.max_step > 0),
            "a positive number or None",
        ),
        "precision": (item.precision is None or isinstance(item.precision, str), "a name or None"),
        "name": (isinstance(item.name, str), "a word"),
        "hint": (
            item.hint is None
            or (
                isinstance(item.hint, tuple) and [isinstance(part, torch.Tensor) for part in item.hint] == [True, True]
            ),
            "a pair of tensors or None",
        ),
        "reverse": (isinstance(item.reverse, bool), "True or False"),
    }
    _raise_wrong(item, wrong, owner)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
