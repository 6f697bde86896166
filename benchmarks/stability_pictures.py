"""Draw the pictures of docs/stability.md, a minute on one CPU core.

    python benchmarks/stability_pictures.py              # writes docs/images/stability-*.svg

Forgetting: the distance of two runs of a layer that start apart, under the same input, and what a certificate says
about it. Steps: the rate that is proved for one pair of matrices at each step size. Rounding: how far float32 is from
exact arithmetic, and the two bounds on it. Gain: how strongly a change of the input can move the scores, against the
length of the sequence.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lipschitz_rnn as lr
from lipschitz_rnn.drawing import BLUE, GREEN, GREY, PURPLE, RED, compact_svg, legend_below, new_figure, plain_log_ticks
from lipschitz_rnn.stability import StatedClassifier, certified_radius, certify, rounding_bound
from lipschitz_rnn.storage import atomic_write

FOLDER = Path(__file__).parents[1] / "docs" / "images"


def draw_forgetting(steps: int = 400) -> Any:
    """Two runs from states far apart: the free layer and nais keep a difference, the contracting ones do not."""
    figure, (left, right) = new_figure(2, width=4.4, height=3.3)
    for axis, size, title in ((left, 1.0, "usual inputs"), (right, 100.0, "inputs a hundred times larger")):
        for label, colour, unit in _units():
            torch.manual_seed(1)
            x, first = size * torch.randn(steps, 1, 4, dtype=torch.float64), torch.randn(1, 1, 24, dtype=torch.float64)
            with torch.no_grad():
                paths = [torch.cat((h, unit(x, h)[0]))[:, 0] for h in (first, -first)]
            difference = (paths[0] - paths[1]).numpy()
            lengths = np.linalg.norm(difference, axis=1)
            axis.plot(np.maximum(lengths / lengths[0], 1e-17), color=colour, linewidth=1.6, label=label)
            certificate = certify(unit)
            if certificate.holds:
                claim = certificate.overshoot * certificate.factor ** np.arange(steps + 1)
                axis.plot(claim, color=colour, linewidth=1.0, linestyle="--")
        axis.set(yscale="log", ylim=(1e-12, 1e2), xlabel="step", title=title)
    left.set_ylabel("distance of two runs, relative")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=8, ncols=4, loc="outside lower center")
    return figure


def _units() -> list[tuple[str, str, Any]]:
    torch.manual_seed(0)
    contracting = {"stability": "contracting", "rate": 0.4, "step_size": 0.1, "init_scale": 1.0}
    return [
        ("free layer", GREY, lr.LipschitzRNN(4, 24, step_size=0.1, init_scale=3.0).double()),
        ("nais", RED, lr.units.build("nais", 4, 24, step_size=0.1).double()),
        ("contracting layer", BLUE, lr.LipschitzRNN(4, 24, **contracting).double()),  # type: ignore[arg-type]
        ("ren", GREEN, lr.units.build("ren", 4, 24, factor=0.97).double()),
    ]


def draw_steps() -> Any:
    """The proved rate against the step, and the rate of the slowest slope pattern, which no proof can exceed."""
    rng = np.random.default_rng(3)
    X, Y = rng.normal(size=(2, 12, 12)) / np.sqrt(12)
    A, W = X - X.T - 0.8 * np.eye(12), 0.7 * Y - 0.3 * np.eye(12)
    figure, (axis,) = new_figure(1, width=6.0, height=3.3)
    steps = np.geomspace(0.02, 1.2, 16)
    for integrator, colour in (("euler", BLUE), ("midpoint", GREEN), ("heun", PURPLE)):
        found = [certify((A, W), step_size=float(step), integrator=integrator, solver="structured") for step in steps]
        axis.plot(steps, [max(one.rate, 0.0) if one.holds else np.nan for one in found], color=colour, label=integrator)
        axis.plot(steps, [one.upper_bound for one in found], color=colour, linewidth=0.9, linestyle=":")
    continuous = certify((A, W)).rate
    axis.axhline(continuous, color=GREY, linewidth=1.0, linestyle="--")
    axis.text(3.3, continuous + 0.01, "the differential equation", color=GREY, fontsize=8, ha="right")
    axis.set(
        xscale="log",
        xlabel="step size",
        ylabel="rate per unit of time",
        xlim=(0.018, 3.5),
        ylim=(0.0, 1.6 * continuous),
    )
    axis.legend(frameon=False, fontsize=8, title="proved (dotted: at most)", title_fontsize=8)
    return figure


def draw_rounding(steps: int = 600) -> Any:
    """What float32 was off by, the bound from measured steps, and the bound that holds for every kernel."""
    figure, axes = new_figure(2, width=4.4, height=3.3)
    for axis, rate in zip(axes, (0.02, 0.5), strict=True):
        torch.manual_seed(1)
        layer = lr.LipschitzRNN(2, 32, stability="contracting", rate=rate, step_size=0.1)
        certificate = certify(layer, rate=0.9 * rate)
        assert certificate.factor is not None
        assert certificate.metric is not None
        x = torch.randn(steps, 1, 2)
        bounds = [rounding_bound(layer, x, certificate=certificate, measured=kind) for kind in (True, False)]
        with torch.no_grad():
            computed = layer(x)[0].double()
            cell = layer.cell()
            A, W, U, b = (t.double() for t in (*cell.hidden_matrices(), cell.weight_ih, cell.bias_ih))
            exact, _ = lr.lipschitz_scan(x.double(), A, W, None, 0.1, input_weight=U, bias=b, backend="reference")
        off = (computed - exact)[:, 0].numpy()
        seen = np.sqrt(np.einsum("ti,ij,tj->t", off, certificate.metric, off))
        axis.plot(seen, color=BLUE, linewidth=1.2, label="seen, against float64")
        for bound, colour, label in zip(
            bounds, (GREEN, RED), ("bound, measured steps", "bound, any kernel"), strict=True
        ):
            axis.plot(bound.states[:, 0], color=colour, linewidth=1.4, label=label)  # type: ignore[union-attr]
        memory = 1.0 / (1.0 - certificate.factor)
        axis.set(yscale="log", ylim=(1e-8, 1e-1), xlabel="step", title=f"1/(1 − ρ) = {memory:.0f} steps")
    axes[0].set_ylabel("‖computed − exact‖ in the metric")
    axes[1].legend(frameon=False, fontsize=8)
    return figure


def draw_gain(lengths: tuple[int, ...] = (25, 50, 100, 200, 400, 800)) -> Any:
    """Proved gains with and without a bounded gain, and the steepest slope of a score difference at random inputs."""
    figure, axes = new_figure(2, width=4.4, height=3.3)
    for axis, layers in zip(axes, (1, 2), strict=True):
        for bounded, colour, label in ((False, RED, "contracting"), (True, BLUE, "with a bounded gain")):
            torch.manual_seed(0)
            options = {"stability": "contracting", "rate": 0.001, "step_size": 0.03, "metric_spread": 100.0}
            unit = lr.LipschitzRNN(1, 16, layers, bounded_gain=bounded, **options).double().eval()  # type: ignore[arg-type]
            network = StatedClassifier(unit, torch.nn.Linear(16, 2).double())
            proved, seen = [], []
            for length in lengths:
                x = torch.rand(length, 16, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
                proved.append(float(certified_radius(network, x, method="global", precision="exact").gain.max()))
                x.requires_grad_()
                scores = network.head(unit(x)[0][-1])
                (slope,) = torch.autograd.grad((scores[:, 0] - scores[:, 1]).sum(), x)
                seen.append(float(slope.norm(dim=(0, 2)).max()))
            axis.plot(lengths, proved, color=colour, linewidth=1.6, label=f"{label}: proved")
            axis.plot(lengths, seen, color=colour, linewidth=1.2, linestyle=":", label=f"{label}: seen")
        title = "one layer" if layers == 1 else "two layers"
        axis.set(xscale="log", yscale="log", xlabel="length of the sequence", title=title)
        axis.xaxis.minorticks_off()
        plain_log_ticks(axis)
        axis.set_xticks(lengths, [f"{length}" for length in lengths])
    axes[0].set_ylabel("gain from the input to the scores, l2")
    legend_below(figure)
    return figure


PICTURES: dict[str, Callable[[], Any]] = {
    "stability-forgetting": draw_forgetting,
    "stability-steps": draw_steps,
    "stability-rounding": draw_rounding,
    "stability-gain": draw_gain,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FOLDER)
    folder = parser.parse_args().out
    for name, draw in PICTURES.items():
        atomic_write(folder / f"{name}.svg", compact_svg(draw()))
        print(folder / f"{name}.svg")


if __name__ == "__main__":
    main()
