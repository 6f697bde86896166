"""Errors become one clear line and an exit code: 2 for wrong usage, 1 for what failed, 130/143 for signals."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from lipschitz_rnn.tasks import DataError
from lipschitz_rnn.training import CheckpointError, Interrupted, RunError
from lipschitz_rnn.training.folder import RunConflict


def fail(message: str, code: int) -> typer.Exit:
    """Print `message` as an error; raise the result."""
    Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(message)}")
    return typer.Exit(code)


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose expected errors are told to the user, without a traceback."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except Interrupted as error:
            if os.environ.get("RANK", "0") != "0":  # rank 0 saved, and says so for all
                raise typer.Exit(error.exit_code) from None
            raise fail(str(error), error.exit_code) from None
        except (RunError, CheckpointError, DataError, ImportError) as error:
            raise fail(str(error), 2 if isinstance(error, RunConflict) else 1) from None
        except (ValueError, TypeError) as error:
            raise fail(str(error), 2) from None
        except OSError as error:
            raise fail(f"{error.filename or ''}: {error.strerror or error}".removeprefix(": "), 1) from None

    return run
