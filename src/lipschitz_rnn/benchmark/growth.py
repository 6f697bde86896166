"""How the cost grows with N, T and S over the whole range, for this package and cuDNN: a cliff would show as a step.

Unlike ``scaling``, which varies the sizes of one workload a little, this goes to sizes at which float64 would take
hours. So every point is checked on its first steps, with the kernels that are then timed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from lipschitz_rnn.benchmark.accuracy import Judge
from lipschitz_rnn.benchmark.contestants import Contestant
from lipschitz_rnn.benchmark.jobs import peer, scan_with
from lipschitz_rnn.benchmark.precision import BFLOAT16, FLOAT16, FLOAT32
from lipschitz_rnn.benchmark.timing import time_calls
from lipschitz_rnn.benchmark.workload import Data, Workload
from lipschitz_rnn.drawing import BLUE, GREY, RED, legend_below, new_figure
from lipschitz_rnn.training.environment import describe_environment

CHECKED_STEPS = 24
LONG = 1.0  # seconds; a call that takes longer is timed once
AXES = {"hidden": "hidden size N", "length": "steps T", "networks": "networks S"}
BASES = {"hidden": 2, "length": 10, "networks": 2}  # of the logarithmic axes; lengths have too many powers of two
LADDERS = {
    "hidden": (16, 32, 64, 128, 192, 256, 384, 512, 640, 768, 832, 896, 1024, 1536, 2048),
    "length": (256, 1024, 8192, 65536, 1048576),
    "networks": (1, 2, 4, 8, 16, 32, 64),
}
ON_CPU = {"hidden": (16, 32, 64, 128, 256), "length": (64, 256, 1024), "networks": (1, 2, 4)}
QUICK = {"hidden": (4, 8), "length": (3, 6), "networks": (1, 2)}
COLOURS = (RED, BLUE, GREY)


@dataclass
class Growth:
    """Seconds of a training step along one axis; NaN where there is none, and then ``notes`` say why."""

    axis: str
    base: Workload
    values: list[int] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def steepest(self, key: str) -> tuple[int, int, float] | None:
        """The neighbouring values between which the cost grows with the highest power of the size, and that power."""
        line = [(v, s) for v, s in zip(self.values, self.seconds[key], strict=True) if math.isfinite(s)]
        powers = [(v, w, math.log(t / s) / math.log(w / v)) for (v, s), (w, t) in pairwise(line)]
        return max(powers, key=lambda power: power[2], default=None)

    def to_dict(self) -> dict[str, Any]:
        lines = {key: [s if math.isfinite(s) else None for s in line] for key, line in self.seconds.items()}
        steepest = {key: self.steepest(key) for key in self.seconds}
        found = {"base": self.base.to_dict(), "values": self.values, "seconds": lines}
        return found | {"steepest": steepest, "notes": self.notes, "wrong": self.wrong}


def drawn_contestants(device: torch.device) -> list[Contestant]:
    """This package and PyTorch's RNN and LSTM, each in its fastest type."""
    ours, others = (BFLOAT16, FLOAT16) if device.type == "cuda" else (FLOAT32, FLOAT32)
    fast = "triton" if device.type == "cuda" else "cpu"
    return [
        Contestant(f"{fast} backend", ours, scan_with(fast), scan_with("reference"), ours=True),
        Contestant("nn.RNN", others, peer(nn.RNN), peer(nn.RNN)),
        Contestant("nn.LSTM", others, peer(nn.LSTM), peer(nn.LSTM)),
    ]


def measure_growth(
    work: Workload,
    device: torch.device,
    *,
    quick: bool = False,
    most_seconds: float = 120.0,
    note: Callable[[str], None] = lambda text: None,
) -> list[Growth]:
    """One line per contestant along each axis, the other sizes as in ``work``; long sequences have a batch of 8.

    After ``most_seconds`` no further point is begun; the notes name those that are missing.
    """
    started, found = time.monotonic(), []
    ladders = QUICK if quick else LADDERS if device.type == "cuda" else ON_CPU
    for axis, values in ladders.items():
        base = replace(work, batch=min(work.batch, 8)) if axis == "length" else work
        growth = Growth(axis, base)
        found.append(growth)
        for value in values:
            if time.monotonic() - started > most_seconds:
                growth.notes.append(f"{AXES[axis]} = {value} and more: not measured, {most_seconds:g} s were over")
                break
            note(f"growth: {AXES[axis]} = {value}")
            sizes: dict[str, Any] = {axis: value}
            _measure_point(growth, replace(base, **sizes), device, quick)
    return found


def _measure_point(growth: Growth, work: Workload, device: torch.device, quick: bool) -> None:
    growth.values.append(getattr(work, growth.axis))
    short = Data(replace(work, length=min(CHECKED_STEPS, work.length)), device)
    judge, data = Judge(short, backward=True), Data(work, device)
    for row in drawn_contestants(device):
        line = growth.seconds.setdefault(row.key, [])
        place = f"{row.key} at {work.sizes()}"
        try:
            if row.ours:
                errors, limit = judge.errors(row, row.job(short)), judge.limit(row)
                if not errors.within(limit):
                    growth.wrong.append(f"{place}: differs from float64 by {errors}; rounding explains at most {limit}")
                    line.append(math.nan)
                    continue
            line.append(_seconds(row, data, device, quick))
        except Exception as error:  # such as memory, or a length that cuDNN refuses
            line.append(math.nan)
            text = next(iter(str(error).strip().splitlines()), "no message")
            (growth.wrong if row.ours else growth.notes).append(f"{place}: {type(error).__name__}: {text}")
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _seconds(row: Contestant, data: Data, device: torch.device, quick: bool) -> float:
    with row.precision.active():
        job = row.job(data)
        first = time.monotonic()
        job.training()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        long = time.monotonic() - first > LONG and data.workload.length > CHECKED_STEPS
        return time_calls(job.training, device, 1 if quick or long else 7, 1.0).median


def growth_to_dict(lines: Sequence[Growth], device: torch.device) -> dict[str, Any]:
    environment = {key: value for key, value in describe_environment(device).items() if key != "command"}
    return {"growth": {line.axis: line.to_dict() for line in lines}, "environment": environment, "device": str(device)}


def draw_growth(lines: Sequence[Growth], title: str) -> Any:
    """Time of a training step against each size, both logarithmic; dotted lines are proportional to the size."""
    figure, axes = new_figure(len(lines), 3.8, 3.6)
    for axis, line in zip(axes, lines, strict=True):
        for (key, seconds), colour in zip(line.seconds.items(), COLOURS, strict=False):
            axis.plot(line.values, [1e3 * s for s in seconds], color=colour, marker="o", markersize=3, label=key)
        ours = next((1e3 * s for s in next(iter(line.seconds.values()), []) if math.isfinite(s)), None)
        if ours is not None and len(line.values) > 1:
            growing = [ours * v / line.values[0] for v in line.values]
            axis.plot(line.values, growing, color=GREY, linestyle=":", lw=1.2, label="proportional")
        axis.set(yscale="log", xlabel=AXES[line.axis])
        axis.set_xscale("log", base=BASES[line.axis])
        if BASES[line.axis] == 2:
            axis.xaxis.get_major_locator().set_params(numticks=99)  # all powers of two
            axis.xaxis.set_major_formatter("{x:g}")
        axis.set_title(_held(line), fontsize=10)
    axes[0].set_ylabel("ms, forward + backward")
    legend_below(figure)
    figure.suptitle(title)
    return figure


def _held(line: Growth) -> str:
    """The sizes that do not vary along the axis."""
    sizes = {"B": line.base.batch, "T": line.base.length, "N": line.base.hidden, "S": line.base.networks}
    return ", ".join(f"{name} = {size:,}" for name, size in sizes.items() if not AXES[line.axis].endswith(name))
