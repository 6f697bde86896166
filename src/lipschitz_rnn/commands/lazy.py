"""Commands that are imported when they run: `--version` and `--help` need not wait for the import of PyTorch."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar, Self

import typer
from typer.core import TyperCommand

from lipschitz_rnn.commands.help import TidyCommand, TidyGroup


class LazyCommand(TyperCommand):
    """Stands in the list of commands for the function or group `name` of a module; `load` imports it."""

    def __init__(self, name: str, panel: str, summary: str, module: str | None = None) -> None:
        super().__init__(name, help=summary, rich_markup_mode="rich", rich_help_panel=panel)
        self.module = f"lipschitz_rnn.commands.{module or name}"

    def load(self) -> Any:
        assert self.name is not None
        target = getattr(importlib.import_module(self.module), self.name)
        holder = typer.Typer(rich_markup_mode="rich")
        if isinstance(target, typer.Typer):
            holder.add_typer(target, name=self.name)
        else:
            holder.command(self.name, cls=TidyCommand)(target)
        return typer.main.get_group(holder).commands[self.name]


class LazyGroup(TidyGroup):
    """A group with `lazy` commands beside the ones that are registered."""

    lazy: ClassVar[tuple[LazyCommand, ...]] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands = {**{str(command.name): command for command in self.lazy}, **self.commands}

    def load_all(self) -> Self:
        """Replace what stands for a command by the command, to look at all of them."""
        self.commands = {
            name: command.load() if isinstance(command, LazyCommand) else command
            for name, command in self.commands.items()
        }
        return self

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that runs; the list in `--help` shows the ones that stand for them."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, LazyCommand) else command, rest
