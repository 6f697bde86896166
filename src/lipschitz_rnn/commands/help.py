"""How `--help` looks: paragraphs that fill the line, no type names on switches, choices written out."""

from __future__ import annotations

import inspect
from typing import Any, get_args

from typer.core import TyperCommand, TyperGroup

_BY_TYPE = {"int": "N", "float": "NUMBER", "Path": "PATH"}


def fill_paragraphs(text: str) -> str:
    """Join the lines of a paragraph, so that the terminal wraps it; indented lines stay as they are."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(p if p.startswith("  ") else p.replace("\n", " ") for p in paragraphs)


def tidy(parameter: Any) -> None:
    """Give options a descriptive placeholder and switches none, and put choices into the help text."""
    if getattr(parameter, "is_flag", False):
        parameter.metavar = ""
        return
    if parameter.param_type_name != "option":
        parameter.display_type_rich = lambda ctx: None  # its name is the placeholder
        return
    name, choices = _kind(parameter)
    if choices and not all(word in (parameter.help or "") for word in choices):
        parameter.help = f"{parameter.help} One of {', '.join(choices[:-1])} or {choices[-1]}."
    if parameter.metavar is None:
        parameter.metavar = _BY_TYPE.get(name, str(parameter.name).upper())


def _kind(parameter: Any) -> tuple[str, list[str]]:
    """The name of an option's type, and its choices. Typer stored them elsewhere before version 0.29."""
    if not hasattr(parameter, "type_descriptor"):
        kind = parameter.type
        names = {"integer": "int", "integer range": "int", "float range": "float", "path": "Path"}
        return names.get(kind.name, kind.name), [str(each) for each in getattr(kind, "choices", ())]
    kind = parameter.type_descriptor.annotation
    return getattr(kind, "__name__", ""), [str(each) for each in get_args(kind) if isinstance(each, str)]


class _Tidy:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("help"):
            kwargs["help"] = fill_paragraphs(kwargs["help"])
        super().__init__(*args, **kwargs)

    def get_params(self, ctx: Any) -> Any:
        """Includes what Typer adds later: --help and shell completion."""
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            tidy(parameter)
        return parameters


class TidyCommand(_Tidy, TyperCommand):
    """A command with such a help page."""


class TidyGroup(_Tidy, TyperGroup):
    """A group of commands with such a help page."""
