"""Options that are added to a command from outside, so that Typer sees them in its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

Command = Callable[..., None]


def with_options(run: Command, command: Command, options: Mapping[str, Any]) -> Command:
    """`run` with the parameters of `command` and, after them, these options: name -> annotation, None by default."""
    # Evaluated here: Typer would look up the names in the annotations in the module of `run`, not in the command's.
    signature = inspect.signature(command, eval_str=True).parameters.values()
    given = [each for each in signature if each.kind is not inspect.Parameter.VAR_KEYWORD]
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(name, kind, default=None, annotation=option) for name, option in options.items()]
    run.__signature__ = inspect.Signature([*given, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in (*given, *added)}
    return run
