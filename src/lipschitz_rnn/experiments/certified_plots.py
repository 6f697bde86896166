"""Pictures of certified accuracy. Every function returns a matplotlib figure and saves nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from lipschitz_rnn.drawing import new_figure
from lipschitz_rnn.experiments.certified import CertifiedCurve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARKS = {"pgd": "x", "deepfool": "+"}
_NORMS = {"l2": "l2 norm of the change", "linf": "largest change of a value", "step": "l2 norm of the change per step"}


def draw_certified(curves: Mapping[str, CertifiedCurve]) -> Figure:
    """Certified accuracy against the radius, a line for each network, and what attacks left, as marks above it."""
    if not curves:
        raise ValueError("curves is empty; give a mapping from names to certified curves")
    figure, (axis,) = new_figure(1, width=5.4, height=3.6)
    farthest = 1.5 * max(max(curve.radii) for curve in curves.values())
    for number, (name, curve) in enumerate(curves.items()):
        colour = f"C{number % 10}"
        radii, accuracy = _steps(curve, farthest)
        axis.step(radii, accuracy, where="post", color=colour, linewidth=1.6, label=f"{name}, certified")
        for attack, left in curve.attacked.items():
            shown = [100.0 * value for value in left]
            label = f"{name}, {attack} on {curve.attacked_samples}"
            axis.plot(curve.radii, shown, _MARKS.get(attack, "o"), color=colour, markersize=6, label=label)
    norm = next(iter(curves.values())).found.norm
    axis.set(xlabel=_NORMS[norm], ylabel="accuracy (%)", xlim=(0.0, farthest), ylim=(0.0, 102.0))
    axis.legend(fontsize=8)
    return figure


def _steps(curve: CertifiedCurve, farthest: float) -> tuple[list[float], list[float]]:
    """Where the certified accuracy falls, and to what, from radius 0."""
    held = (curve.found.prediction == curve.targets) & (curve.found.margin > 0)
    ends = torch.sort(curve.found.radius[held]).values
    seen = ends[ends < farthest].tolist()
    left = [100.0 * (len(ends) - place) / curve.samples for place in range(len(seen) + 1)]
    return [0.0, *seen, farthest], [*left, left[-1]]
