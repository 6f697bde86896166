"""The command line `lipschitz-rnn`: parsing and printing only."""

from __future__ import annotations

from typing import Annotated

import typer

from lipschitz_rnn._version import __version__
from lipschitz_rnn.commands.bench import bench
from lipschitz_rnn.commands.certify import certify
from lipschitz_rnn.commands.compare import compare
from lipschitz_rnn.commands.evaluate import evaluate
from lipschitz_rnn.commands.explore import explore
from lipschitz_rnn.commands.export import export
from lipschitz_rnn.commands.help import TidyCommand, TidyGroup
from lipschitz_rnn.commands.listings import tasks, units
from lipschitz_rnn.commands.predict import predict
from lipschitz_rnn.commands.quickstart import quickstart
from lipschitz_rnn.commands.report import report
from lipschitz_rnn.commands.reproduce import reproduce
from lipschitz_rnn.commands.robustness import robustness
from lipschitz_rnn.commands.sweep import sweep
from lipschitz_rnn.commands.threads import with_threads
from lipschitz_rnn.commands.train import train

app = typer.Typer(
    name="lipschitz-rnn",
    cls=TidyGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def lipschitz_rnn(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Train, certify and measure Lipschitz recurrent neural networks.

    New here? Run [bold]lipschitz-rnn quickstart[/]: it trains your first networks in a minute or two on a laptop.

    Exit codes: 0 success, 1 failure or missing file, 2 wrong usage, 3 not certified, 130 or 143 interrupted.
    """


app.command(rich_help_panel="Train", cls=TidyCommand)(quickstart)
app.command(rich_help_panel="Train", cls=TidyCommand)(train)
app.command(rich_help_panel="Train", cls=TidyCommand)(sweep)
app.command(rich_help_panel="Train", cls=TidyCommand)(evaluate)
app.command(rich_help_panel="Train", cls=TidyCommand)(report)
app.command(rich_help_panel="Train", cls=TidyCommand)(compare)
app.add_typer(reproduce, name="reproduce", rich_help_panel="Train")
app.command(rich_help_panel="Use", cls=TidyCommand)(predict)
app.command(rich_help_panel="Use", cls=TidyCommand)(export)
app.command(rich_help_panel="Understand", cls=TidyCommand)(with_threads(certify))
app.command(rich_help_panel="Understand", cls=TidyCommand)(with_threads(explore))
app.add_typer(robustness, name="robustness", rich_help_panel="Understand")
app.command(rich_help_panel="Understand", cls=TidyCommand)(bench)
app.command(rich_help_panel="Reference", cls=TidyCommand)(tasks)
app.command(rich_help_panel="Reference", cls=TidyCommand)(units)


def main() -> None:
    """Entry point of the installed command."""
    app()
