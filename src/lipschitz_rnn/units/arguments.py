"""Arguments of a call to a unit: their old names, and checks that several units share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.common.deprecation import deprecate, with_new_names
from lipschitz_rnn.ops.common.dtypes import autocast_enabled

Method = TypeVar("Method", bound=Callable[..., Any])


def renamed(positional: int, **names: str) -> Callable[[Method], Method]:
    """Let a method accept arguments as older programs pass them, with a DeprecationWarning.

    Args:
        positional: number of arguments that the method takes by position. Further ones are matched, in order, with the
            names in ``positional_once`` of the class.
        names: old="new" for each renamed keyword.
    """

    old = frozenset(names)

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **options: Any) -> Any:
            if len(args) > positional or not old.isdisjoint(options):
                args, options = _translated(self, args, options, positional, names)
            return method(self, *args, **options)

        return cast(Method, call)

    return decorate


def _translated(
    owner: Any, args: tuple[Any, ...], options: dict[str, Any], positional: int, names: dict[str, str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    once = getattr(owner, "positional_once", ())
    kind, extra = type(owner).__name__, args[positional:]
    if len(extra) > len(once):
        raise TypeError(f"{kind} takes {positional} positional arguments, got {len(args)}; pass the others by name")
    options = with_new_names(kind, options, names)
    for name, value in zip(once, extra, strict=False):
        if name in options:
            raise TypeError(f"{kind}: got {name} both by position and as {name}=; pass only {name}=")
        deprecate(f"{kind}: passing {name} by position is deprecated; pass {name}= instead")
        options[name] = value
    return args[:positional], options


def true_or_false(name: str, value: Any, hint: str = "") -> bool:
    if not isinstance(value, (bool, int)) or value not in (0, 1):
        raise TypeError(f"{name} is {value!r}; it must be True or False. {hint}".rstrip())
    return bool(value)


def require_parameter_dtype(name: str, tensor: Tensor, parameter: Tensor) -> None:
    """Check that a tensor is on the parameters' device and, unless autocast converts both, in their dtype."""
    if tensor.device != parameter.device:
        raise ValueError(
            f"{name} is on {tensor.device} but the parameters are on {parameter.device}; move one of them with .to()"
        )
    if parameter.is_complex():
        raise TypeError(f"the parameters are {parameter.dtype}; they must be real. Convert the module with .float()")
    if not tensor.is_floating_point():
        raise TypeError(f"{name} is {tensor.dtype}; it must be floating point. Convert it with .to({parameter.dtype})")
    double = torch.float64 in (tensor.dtype, parameter.dtype)  # which autocast does not convert
    if tensor.dtype != parameter.dtype and (double or not autocast_enabled(tensor.device)):
        raise TypeError(
            f"{name} is {tensor.dtype} but the parameters are {parameter.dtype}; "
            f"convert one of them, e.g. {name}.to({parameter.dtype})"
        )


def unit_name(unit: Any) -> str:
    """What a user calls a unit: its name in `units.build`, or its class."""
    named = getattr(unit, "registered_name", None)
    return str(named()) if callable(named) else type(unit).__name__


def require_time_major(unit: nn.Module, model: nn.Module) -> None:
    """Raise for a unit that would take the time axis of its model's inputs for the batch."""
    if getattr(unit, "batch_first", False):
        raise ValueError(
            f"the unit {unit_name(unit)} has batch_first=True, but a {type(model).__name__} calls it with "
            "(T, B, p); build it with batch_first=False"
        )
