"""`--import MODULE`: tasks, units and models from outside the package, for every command that may need them."""

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
        help="Import this module first, for the tasks, units and models in it; repeat for more. "
        f"Modules in {ENVIRONMENT} are imported as well.",
        show_default=False,
        rich_help_panel=MACHINE,
    ),
]


def with_imports(command: Command) -> Command:
    """The command with the option `--import`."""

    @functools.wraps(command)
    def run(*args: Any, imports: list[str] | None = None, **kwargs: Any) -> None:
        import_modules(imports or ())
        command(*args, **kwargs)

    return with_options(run, command, {"imports": Imports})
