"""Turns errors into one line and an exit code: 2 for wrong usage, 1 for failures, 130 or 143 for signals."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, overload

import typer
from rich.console import Console
from rich.markup import escape

from lipschitz_rnn.tasks import DataError
from lipschitz_rnn.training import CheckpointError, Interrupted, RunError
from lipschitz_rnn.training.folder import RunConflict

TRACEBACK = "LIPSCHITZ_RNN_TRACEBACK"  # set it to see the traceback of an error
START_AGAIN = "to start over, run the same command again"
RESUME = "to continue, run the same command with --resume"
CONTINUE = "to continue, run the same command again"

# Depending on its version, Typer includes Click or uses the installed one.
CLICK_ERRORS: tuple[type, ...] = (typer.Exit, typer.Abort, BrokenPipeError)
CLICK_ERRORS += tuple(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

Command = Callable[..., None]


def fail(message: str, code: int) -> typer.Exit:
    """Print `message` as an error and return the exception to raise."""
    Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(_printable(message))}", highlight=False)
    return typer.Exit(code)


def _printable(text: str) -> str:
    """One line, with undecodable bytes and control characters escaped."""
    line = " ".join(text.split()) or "no message"
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in line)


@overload
def guarded(command: Command) -> Command: ...
@overload
def guarded(*, interrupted: str) -> Callable[[Command], Command]: ...
def guarded(
    command: Command | None = None, *, interrupted: str = START_AGAIN
) -> Command | Callable[[Command], Command]:
    """A command that reports its errors in one line; `interrupted` says how to continue after Ctrl-C."""
    if command is None:
        return functools.partial(_guard, interrupted=interrupted)
    return _guard(command, interrupted)


def _guard(command: Command, interrupted: str) -> Command:
    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (Exception, KeyboardInterrupt) as error:
            if os.environ.get(TRACEBACK):
                raise
            end = _report(error, interrupted)
            if end is None:
                raise
            raise end from None

    return run


def _report(error: BaseException, interrupted: str) -> typer.Exit | None:
    """The message and exit code of an error; None for what Typer and Click handle."""
    if isinstance(error, CLICK_ERRORS):
        return None
    if isinstance(error, Interrupted):  # rank 0 saved and reports it for all
        return fail(str(error), error.exit_code) if _is_first_process() else typer.Exit(error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        return fail(f"interrupted; {interrupted}", 130) if _is_first_process() else typer.Exit(130)
    if isinstance(error, RunError | CheckpointError | DataError | ImportError):
        return fail(str(error), 2 if isinstance(error, RunConflict) else 1)
    if isinstance(error, ValueError | TypeError | OverflowError):
        return fail(str(error), 2)
    if isinstance(error, OSError):
        return fail(f"{error.filename or ''}: {error.strerror or error}".removeprefix(": "), 1)
    if type(error).__name__ == "SafetensorError":
        return fail(f"not a valid .safetensors file: {error}; give another file", 1)
    if isinstance(error, MemoryError) or "allocate" in str(error) or "overflow" in str(error):
        return fail(
            f"the sizes are too large for this machine: {str(error) or 'out of memory'}; choose smaller ones", 1
        )
    where = f"set {TRACEBACK}=1 to see the traceback"
    return fail(f"{type(error).__name__}: {error}; {where}", 1)


def _is_first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"
