"""Pictures of runs: learning curves and eigenvalues. Matplotlib is imported when a picture is drawn."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from lipschitz_rnn.drawing import empty_figure
from lipschitz_rnn.experiments.spectra import hidden_matrices

RED, BLUE, GREY, GREEN = "#c8553d", "#2d6a9f", "#8a8a8a", "#3a7d44"


def new_figure(columns: int, width: float = 4.6, height: float = 3.4) -> tuple[Any, list[Any]]:
    """A figure with a row of axes, without touching matplotlib's global state."""
    figure, row = empty_figure(columns, width, height)
    axes = list(row)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25, linewidth=0.6)
    return figure, axes


def to_svg(figure: Any) -> bytes:
    """The same figure gives the same bytes: no date, and names inside that follow from what is drawn."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "lipschitz-rnn"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def draw_curves(
    axis: Any,
    epochs: Sequence[float],
    curves: Sequence[Sequence[float | None]],
    colour: str,
    label: str,
    line: str = "-",
) -> None:
    """Every seed as a thin line, and their mean as a strong one."""
    values = [[float("nan") if value is None else value for value in curve] for curve in curves]
    mark = "o" if len(epochs) == 1 else ""
    if len(values) > 1:
        for curve in values:
            axis.plot(epochs, curve, color=colour, alpha=0.25, linewidth=0.8, linestyle=line, marker=mark)
    means = [_mean([curve[i] for curve in values]) for i in range(len(epochs))]
    axis.plot(epochs, means, color=colour, linewidth=1.8, linestyle=line, label=label, marker=mark)


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if value == value]
    return sum(finite) / len(finite) if finite else float("nan")


def draw_eigenvalues(axis: Any, model: nn.Module) -> None:
    """Eigenvalues of A and W in the complex plane, with the imaginary axis that they should stay left of."""
    import torch

    pair = hidden_matrices(model)
    if pair is None:
        raise ValueError(f"{type(model).__name__} has no matrices A and W to draw eigenvalues of")
    for name, matrix, colour in zip(("A", "W"), pair, (RED, BLUE), strict=True):
        values: Tensor = torch.linalg.eigvals(matrix)
        axis.scatter(
            values.real, values.imag, s=14, color=colour, alpha=0.75, label=f"eigenvalues of {name}", linewidths=0
        )
    axis.axvline(0.0, color=GREY, linewidth=0.9)
    axis.set(xlabel="real part", ylabel="imaginary part")
    axis.legend(frameon=False, fontsize=8)
