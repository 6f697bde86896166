"""`--import MODULE`: makes tasks, units and models from outside the package available to a command."""

from __future__ import annotations

import functools
from typing import Annotated, Any

import typer

from lipschitz_rnn.commands.signatures import Command, with_options
from lipschitz_rnn.commands.threads import MACHINE
from lipschitz_rnn.plugins import ENVIRONMENT, import_modules

Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import this module first, to use its tasks, units and models; repeat for more. "
        f"Modules in {ENVIRONMENT} are imported as well.",
        show_default=False,
        rich_help_panel=MACHINE,
    ),
]


def with_imports(command: Command) -> Command:
    """Add the option `--import` to a command."""

    @functools.wraps(command)
    def run(*args: Any, imports: list[str] | None = None, **kwargs: Any) -> None:
        import_modules(imports or ())
        command(*args, **kwargs)

    return with_options(run, command, {"imports": Imports})
