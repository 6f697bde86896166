"""Errors of runs, with messages for the user."""

from __future__ import annotations


class RunError(RuntimeError):
    """A run cannot start or continue, or one of its files cannot be used; the message says why and what to do."""


class RunConflict(RunError):
    """The folder holds a different run: a wrong command, not a failed run."""


class RunInUse(RunError):
    """Another process trains in the folder."""
