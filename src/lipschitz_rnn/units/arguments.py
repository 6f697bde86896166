"""Arguments of a call: the names that they had before, checks of them, and where a warning points."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import autocast_enabled

Method = TypeVar("Method", bound=Callable[..., Any])


def renamed(positional: int, **names: str) -> Callable[[Method], Method]:
    """Let a method take arguments as older programs pass them, with a DeprecationWarning.

    Args:
        positional: how many arguments the method takes by position. Further ones have the names that the class lists
            in ``positional_once``, in that order.
        names: old name -> the name of today.
    """

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **options: Any) -> Any:
            if len(args) > positional or (options and any(name in options for name in names)):
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
        raise TypeError(f"{kind} takes {positional} arguments by position, got {len(args)}; pass the others by name")
    by_name: dict[str, Any] = {}
    for new, value in zip(once, extra, strict=False):
        by_name[new] = value
        _deprecate(f"{kind}: {new} by position is deprecated; pass {new}=…")
    for name, value in options.items():
        new = names.get(name, name)
        if new in by_name or (new != name and new in options):
            raise TypeError(f"{name} and {new} were both given, two names of one argument; pass {new} alone")
        by_name[new] = value
        if new != name:
            _deprecate(f"{kind}: {name}= is deprecated; pass {new}=…")
    return args[:positional], by_name


def _deprecate(message: str) -> None:
    if not torch.compiler.is_compiling():
        warn_user(message, DeprecationWarning)


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn with the line that called into this package, however deep below it this is."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("lipschitz_rnn.", "torch.")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def true_or_false(name: str, value: Any, hint: str = "") -> bool:
    if not isinstance(value, (bool, int)) or value not in (0, 1):
        raise TypeError(f"{name} is {value!r}; it must be True or False. {hint}".rstrip())
    return bool(value)


def require_parameter_dtype(name: str, tensor: Tensor, parameter: Tensor) -> None:
    """Input and parameters agree in device, and in dtype unless autocast converts both."""
    if tensor.device != parameter.device:
        raise ValueError(
            f"{name} is on {tensor.device} but the parameters are on {parameter.device}; move one with .to()"
        )
    if not tensor.is_floating_point():
        raise TypeError(f"{name} is {tensor.dtype}; it must be floating point. Convert it with .to({parameter.dtype})")
    if tensor.dtype != parameter.dtype and not autocast_enabled(tensor.device):
        raise TypeError(
            f"{name} is {tensor.dtype} but the parameters are {parameter.dtype}; "
            f"convert one, e.g. {name}.to({parameter.dtype})"
        )
