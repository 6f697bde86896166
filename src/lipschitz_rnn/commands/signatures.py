"""Adds options to the signature of a command, where Typer reads them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_args

Command = Callable[..., None]
_KEYWORD = inspect.Parameter.KEYWORD_ONLY  # as Typer calls a command


def with_options(run: Command, command: Command, options: Mapping[str, Any], instead_of: str | None = None) -> Command:
    """`run` with the parameters of `command` plus `options`, name -> annotation. Defaults: switches off, others None.

    The options come last, or in place of the parameter `instead_of`.
    """
    # Evaluated here: Typer would resolve the annotations in the module of `run`, not in the command's.
    given = list(inspect.signature(command, eval_str=True).parameters.values())
    place = next((i for i, each in enumerate(given) if each.name == instead_of), len(given))
    added = [
        inspect.Parameter(name, _KEYWORD, default=False if get_args(option)[0] is bool else None, annotation=option)
        for name, option in options.items()
    ]
    merged = [each.replace(kind=_KEYWORD) for each in (*given[:place], *added, *given[place + 1 :])]
    run.__signature__ = inspect.Signature(merged)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in merged}
    return run
