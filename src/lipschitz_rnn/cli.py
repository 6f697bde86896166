"""The command line `lipschitz-rnn`: parsing and printing only."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from lipschitz_rnn._version import __version__
from lipschitz_rnn.commands.lazy import LazyCommand, LazyGroup


class Commands(LazyGroup):
    """Name, panel, and the first sentence of the help text, which is checked against the command in the tests."""

    lazy = (
        LazyCommand(
            "quickstart",
            "Train",
            "Train Lipschitz RNNs and LSTMs with about as many parameters on handwritten digits.",
        ),
        LazyCommand("train", "Train", "Train one unit on one task or on your own file, for one or many seeds at once."),
        LazyCommand(
            "sweep", "Train", "Train many configurations, choose on validation data, and test the winner once."
        ),
        LazyCommand("evaluate", "Train", "Score every trained network of a run on one split of the data."),
        LazyCommand(
            "report", "Train", "Write a page about runs: report.html, a single file, and report.md with figures."
        ),
        LazyCommand(
            "compare",
            "Train",
            "Compare runs: units by tasks, with intervals, paired tests, ranks, cost and learning curves.",
        ),
        LazyCommand("reproduce", "Train", "Repeat the paper's studies and write tables and figures."),
        LazyCommand("predict", "Use", "Predict the series of a file with a trained model, and write a table."),
        LazyCommand(
            "export",
            "Use",
            "Write a trained model as one file that takes raw values: scaling, times, missing values and head are "
            "inside.",
        ),
        LazyCommand(
            "certify",
            "Understand",
            "Prove that any two trajectories of a network under the same input approach each other.",
        ),
        LazyCommand(
            "explore", "Understand", "Write one HTML file to play with a Lipschitz RNN, and open it in the browser."
        ),
        LazyCommand(
            "robustness",
            "Understand",
            "Measure loss curvature, adversarial attacks and noise for trained networks.",
        ),
        LazyCommand(
            "bench",
            "Understand",
            "Compare speed with a plain loop, torch.compile and PyTorch's LSTM, GRU and RNN.",
        ),
        LazyCommand(
            "tasks",
            "Reference",
            "List the tasks with size, length and metric, or show the options and source of one.",
            module="listings",
        ),
        LazyCommand(
            "units",
            "Reference",
            "List the recurrent units with equation, constraint, paper and timespans, or show the options of one.",
            module="listings",
        ),
    )


app = typer.Typer(
    name="lipschitz-rnn",
    cls=Commands,
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


def main() -> None:
    """Entry point of the installed command."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # a ± that a log in ASCII cannot hold must not end a run with an error
    app()
