"""Errors of runs, with messages for the user."""

from __future__ import annotations


class RunError(RuntimeError):
    """A run cannot start or go on, or a file of it cannot be used; the message says why and what to do."""


class RunConflict(RunError):
    """The folder holds another run than the one asked for: a wrong command, not a failed run."""
