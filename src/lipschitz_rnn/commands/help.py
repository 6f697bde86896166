"""How `--help` looks: paragraphs that fill the line, no type names on switches, choices written out.

And how a wrong value is reported: with the value.
"""

from __future__ import annotations

import inspect
from typing import Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup

# Depending on its version, Typer includes Click or uses the installed one.
USAGE_ERROR: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "UsageError")
LONGEST = 60  # of a wrong value, as an error shows it
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


def name_value(error: typer.BadParameter) -> None:
    """Put the value into the message: since version 0.29 Typer leaves it out where Pydantic checks it."""
    found: list[Any] = getattr(error.__cause__, "errors", list)()
    given = str(found[0]["input"]) if found else ""
    error.message = error.message.removeprefix("Value error, ")
    if given and given not in error.message:
        shown = repr(given if len(given) <= LONGEST else given[:LONGEST] + "…")
        error.message = f"{shown}; {error.message.replace('Input should', 'it should', 1)}"


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

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().parse_args(ctx, args)  # type: ignore[misc]
        except typer.BadParameter as error:
            name_value(error)
            raise


class TidyCommand(_Tidy, TyperCommand):
    """A command with such a help page."""


class TidyGroup(_Tidy, TyperGroup):
    """A group of commands with such a help page, which lists them for a name that is none."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except USAGE_ERROR as error:
            if "No such command" in error.message:
                error.message += f" The commands are {', '.join(self.commands)}."
            raise
