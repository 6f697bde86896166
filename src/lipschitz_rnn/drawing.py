"""The only place that imports matplotlib: an empty figure with a row of axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def empty_figure(columns: int, width: float, height: float) -> tuple[Figure, Any]:
    """A figure of ``columns`` axes, each ``width`` by ``height`` inches, and the axes as an array."""
    try:
        # Figures made without pyplot need no display and are freed like any other object.
        from matplotlib.figure import Figure as MatplotlibFigure
    except ImportError as error:
        raise ImportError(
            'pictures need matplotlib, which is not installed; install it by: pip install "lipschitz-rnn[experiments]"'
        ) from error
    figure = MatplotlibFigure(figsize=(width * columns, height), layout="constrained")
    return figure, np.atleast_1d(figure.subplots(1, columns))
