"""Plots of robustness measures. Every function returns a matplotlib figure and saves nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lipschitz_rnn.drawing import empty_figure
from lipschitz_rnn.robustness.density import Density
from lipschitz_rnn.robustness.noise import KINDS, NoiseCurve

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_noise(curves: Mapping[str, Sequence[NoiseCurve]]) -> Figure:
    """Accuracy against the amount of noise, a panel for each kind of noise and a line for each model.

    `curves` maps the name of a model to its curves; those of the same kind (networks from several seeds) are drawn
    as their mean, with a band from the smallest to the largest accuracy.
    """
    kinds = [kind for kind in KINDS if any(curve.kind == kind for each in curves.values() for curve in each)]
    if not kinds:
        raise ValueError("curves is empty; give a mapping from names to the results of noise_curve")
    figure, axes = empty_figure(len(kinds), width=4.5, height=3.4)
    for axis, kind in zip(axes, kinds, strict=True):
        for number, (name, each) in enumerate(curves.items()):
            own = [curve for curve in each if curve.kind == kind]
            if not own:
                continue
            if len({curve.amounts for curve in own}) > 1:
                raise ValueError(f"the curves of {name!r} have different amounts of {kind} noise; use the same for all")
            accuracy = 100.0 * np.concatenate([np.array(curve.accuracy) for curve in own], axis=1)
            color = f"C{number % 10}"
            axis.plot(own[0].amounts, accuracy.mean(1), "o-", markersize=3, color=color, label=name)
            axis.fill_between(own[0].amounts, accuracy.min(1), accuracy.max(1), alpha=0.2, color=color, linewidth=0)
        axis.set(xlabel="amount of noise", ylabel="accuracy (%)", title=f"{kind} noise")
        axis.legend()
    return figure


def draw_density(densities: Mapping[str, Density]) -> Figure:
    """The density of the Hessian's eigenvalues on a logarithmic scale, one line for each model."""
    if not densities:
        raise ValueError("densities is empty; give a mapping from names to the densities of hessian results")
    figure, axes = empty_figure(1, width=4.5, height=3.4)
    for name, density in densities.items():
        axes[0].semilogy(density.grid, np.maximum(density.values, 1e-10), linewidth=1, label=name)
    axes[0].set(xlabel="eigenvalue", ylabel="density", ylim=(1e-5, None))
    axes[0].legend()
    return figure
