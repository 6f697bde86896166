"""Plots of the paper's stability studies. Every function returns a matplotlib figure and saves nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lipschitz_rnn.drawing import BLUE, GREEN, GREY, RED, legend_below, new_figure
from lipschitz_rnn.stability.studies.paper import (
    PENDULUM_SETTINGS,
    FittedPendulum,
    Lemma2,
    SpectrumAgainstBeta,
    fit_pendulum,
    measure_lemma2,
    spectrum_against_beta,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPECTRUM_SIZES = (64, 128)  # N of the paper's figure


def draw_pendulum(fits: Sequence[FittedPendulum] | None = None) -> Figure:
    """Figure 1: vector fields of two-dimensional units fitted to a pendulum, with trajectories and the equilibrium."""
    fits = [fit_pendulum(beta, gamma) for beta, gamma in PENDULUM_SETTINGS] if fits is None else fits
    figure, axes = new_figure(len(fits), width=3.8, height=3.6, across=2)
    ticks = np.linspace(-2.0, 2.0, 11)
    grid = np.stack(np.meshgrid(ticks, ticks), axis=-1)
    for axis, fit in zip(axes, fits, strict=True):
        field = fit.field(grid)
        axis.quiver(grid[..., 0], grid[..., 1], field[..., 0], field[..., 1], color="0.7", angles="xy")
        for start, colour in (((1.0, 0.0), BLUE), ((0.0, 1.5), RED), ((-1.8, 0.0), GREEN)):
            path = fit.trajectory(start)
            axis.plot(path[:, 0], path[:, 1], linewidth=1, color=colour)
        axis.plot(*fit.equilibrium, "k*", markersize=10)
        axis.set(xlim=(-2, 2), ylim=(-2, 2), xlabel="h₁", ylabel="h₂", aspect="equal")
        axis.set_title(f"β = {fit.beta:g}, γ = {fit.gamma:g}: largest real part {_signed(fit.growth)}", fontsize=9)
    return figure


def _signed(value: float) -> str:
    """Two digits, with a sign unless it is zero."""
    return f"{value:+.2g}".replace("-", "−") if abs(value) > 1e-9 else "0"


def draw_spectrum_against_beta(studies: Mapping[int, SpectrumAgainstBeta] | None = None) -> Figure:
    """Extreme real parts of the eigenvalues against β, by N; dashed: the corrected bound of Proposition 1."""
    studies = {size: spectrum_against_beta(size) for size in SPECTRUM_SIZES} if studies is None else studies
    figure, axes = new_figure(len(studies))
    for axis, (size, study) in zip(axes, studies.items(), strict=True):
        axis.plot(study.betas, study.real_max.T, color=RED, linewidth=1, label="largest")
        axis.plot(study.betas, study.real_min.T, color=BLUE, linewidth=1, label="smallest")
        for bound in (study.lower_bound, study.upper_bound):
            axis.plot(study.betas, bound.T, color=GREY, linestyle="--", linewidth=0.7, label="bound")
        axis.set(xlabel="β", ylabel="real part", title=f"N = {size}")
    legend_below(figure)
    return figure


def draw_spectrum_over_training(histories: Mapping[float, Sequence[Mapping[str, float]]]) -> Figure:
    """Largest real parts of the eigenvalues of A and W over training, one panel for each β.

    ``histories`` maps β to one :func:`lipschitz_rnn.stability.track` dictionary per epoch.
    """
    if not histories:
        raise ValueError("histories is empty; give a mapping from β to the tracked spectra of its epochs")
    figure, axes = new_figure(len(histories))
    for axis, (beta, epochs) in zip(axes, histories.items(), strict=True):
        names = [name for name in (epochs[0] if epochs else {}) if name.endswith("real_max")]
        if not names:
            raise ValueError(f"the history for β = {beta:g} holds no tracked spectra (keys that end in real_max)")
        for name in names:
            axis.plot(range(len(epochs)), [epoch[name] for epoch in epochs], label=name.removesuffix(".real_max"))
        axis.axhline(0.0, color=GREY, linewidth=0.7)
        axis.set(xlabel="epoch", ylabel="largest real part", title=f"β = {beta:g}")
        axis.legend(frameon=False, fontsize=8)
    return figure


def draw_lemma2(study: Lemma2 | None = None) -> Figure:
    """The change of the symmetric parts' eigenvalues in one gradient step against 1 − β, and the line of slope 2."""
    study = measure_lemma2() if study is None else study
    figure, axes = new_figure(1)
    distance = 1 - study.betas
    slope_two = study.change[-1] * (distance / distance[-1]) ** 2
    axes[0].loglog(distance, study.change, color=BLUE, marker="o", label=f"measured, slope {study.slope:.2f}")
    axes[0].loglog(distance, slope_two, color=GREY, linestyle="--", label="slope 2")
    # One tick at every measured point: the default ticks of a short logarithmic axis overlap.
    axes[0].set_xticks(distance, [f"{value:.4g}" for value in distance])
    axes[0].set_xticks([], minor=True)
    axes[0].set(xlabel="1 − β", ylabel="change of the eigenvalues")
    axes[0].legend(frameon=False, fontsize=8)
    return figure
