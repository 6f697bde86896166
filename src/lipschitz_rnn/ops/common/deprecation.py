"""Old names of arguments, still accepted with a warning that points at the caller's line."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def renamed_keywords(**names: str) -> Callable[[Function], Function]:
    """Let a function accept the old names of its keyword arguments, given as old="new"."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            if any(old in options for old in names):
                options = with_new_names(function.__name__, options, names)
            return function(*args, **options)

        return cast(Function, call)

    return decorate


def with_new_names(callee: str, options: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Keyword arguments under their current names; each old name warns. ``callee`` is what the warning names."""
    renamed: dict[str, Any] = {}
    for name, value in options.items():
        new = names.get(name, name)
        if new != name:
            if new in options:
                raise TypeError(f"{callee}: got both {name}= and {new}=, the old and the new name; pass only {new}=")
            deprecate(f"{callee}: {name}= is deprecated; pass {new}= instead")
        renamed[new] = value
    return renamed


def deprecate(message: str) -> None:
    if not torch.compiler.is_compiling():
        warn_user(message, DeprecationWarning)


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that points at the line that called into this package, however deep we are."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("lipschitz_rnn.", "torch.")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
