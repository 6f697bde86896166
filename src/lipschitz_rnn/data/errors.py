"""The error of unusable series, which names the place (row, column, value) and the fix, and the warning of odd ones."""

from __future__ import annotations

import numpy as np

from lipschitz_rnn.tasks.base import DataError


class SeriesError(DataError, ValueError):
    """A file or an array of series cannot be used. The message names the row, the column, the value and the fix.

    A ValueError for Python code, a `DataError` (exit code 1) for the command line.
    """


class SeriesWarning(UserWarning):
    """Series can be used, but look as if something about them is not meant so. The message says what, and the fix."""


def shown(value: object, longest: int = 60) -> str:
    """A value for a message, shortened if it is long."""
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
