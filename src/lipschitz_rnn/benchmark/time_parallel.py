"""Contracting layers sequentially and in parallel over time: each result checked against its bound, then timed.

A training step is a forward and a backward pass from a given gradient of every state, as in the other tables of this
package. What a loss takes depends on the loss: the mean square of all states and its gradient are timed apart.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.table import Table
from torch import Tensor

from lipschitz_rnn.benchmark.timing import Times, time_calls
from lipschitz_rnn.ops import ScanBound
from lipschitz_rnn.ops.common.precision import float32_products
from lipschitz_rnn.stability.memory import memory_length
from lipschitz_rnn.training.environment import describe_environment
from lipschitz_rnn.training.reading import read_result
from lipschitz_rnn.training.runs import load_run
from lipschitz_rnn.units.lipschitz import LipschitzRNN

MEASURED_MEMORY = 65_536  # steps on which the fading is measured
PRECISION = "high"  # of a GPU's products that are free to choose: a contracting layer's states are exact in any case


@dataclass(frozen=True)
class Size:
    """What is run: T steps of B samples, forward or a training step with a given gradient of every state."""

    length: int
    batch: int
    training: bool

    def __str__(self) -> str:
        return f"T = {self.length:,}, B = {self.batch}, {'training step' if self.training else 'forward'}"


@dataclass
class Row:
    """One size of one layer.

    Attributes:
        tau: steps per factor e, as seen on the first steps of the input.
        factor: ρ, by which a step is proved to shrink a difference at least.
        difference: the largest Euclidean distance of a state to the sequential one.
        bound: what the call in parallel proved of it, apart from rounding.
        gradient_difference: of all parameters, relative to the norm of the sequential gradient; None forward.
        loss: the mean square of all states and its gradient, which no other time contains; None forward.
    """

    size: Size
    rate: float
    step_size: float
    tau: float
    factor: float
    tolerance: float
    sequential: Times
    parallel: Times
    plan: str
    largest: float
    difference: float
    bound: float
    gradient_difference: float | None
    loss: Times | None = None
    wrong: str = ""

    @property
    def speed_up(self) -> float:
        return self.sequential.median / self.parallel.median

    def to_dict(self) -> dict[str, Any]:
        numbers = (
            "rate",
            "step_size",
            "tau",
            "factor",
            "tolerance",
            "plan",
            "largest",
            "difference",
            "bound",
            "gradient_difference",
            "wrong",
        )
        return {
            "length": self.size.length,
            "batch": self.size.batch,
            "training": self.size.training,
            "sequential": self.sequential.to_dict(),
            "parallel": self.parallel.to_dict(),
            "loss": None if self.loss is None else self.loss.to_dict(),
            "speed_up": self.speed_up,
            **{name: getattr(self, name) for name in numbers},
        }


def usual_sizes(device: torch.device) -> list[Size]:
    if device.type == "cuda":
        return [Size(131_072, 8, False), Size(1_048_576, 8, True), Size(1_048_576, 1, False)]
    return [Size(100_000, 1, False), Size(100_000, 1, True)]


def measure_parallel(
    sizes: Sequence[Size],
    device: torch.device,
    *,
    hidden: int = 128,
    integrator: str = "euler",
    rates: Sequence[float] = (0.01, 1.0),
    step_size: float = 0.03,
    tolerance: float = 1e-6,
    weights: str | None = None,
    repeats: int = 5,
    note: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Layers with fresh weights, one for each rate, or a trained one, at every size.

    Args:
        weights: a trained contracting layer instead of fresh ones: a pretrained name, a file, or a run folder.
    """
    rows = []
    with chosen_precision(device):
        for layer in (
            [trained_layer(weights)] if weights is not None else _fresh_layers(hidden, integrator, rates, step_size)
        ):
            layer.tolerance = tolerance
            layer.to(device)
            for size in sizes:
                note(f"{weights or f'rate {layer.rate:g}'}, {size}")
                rows.append(measure_layer(layer, size, device, repeats))
    return rows


def chosen_precision(device: torch.device) -> AbstractContextManager[None]:
    return float32_products(PRECISION) if device.type == "cuda" else nullcontext()


def _fresh_layers(hidden: int, integrator: str, rates: Sequence[float], step_size: float) -> Iterator[LipschitzRNN]:
    for rate in rates:
        torch.manual_seed(0)
        yield LipschitzRNN(1, hidden, stability="contracting", rate=rate, step_size=step_size, integrator=integrator)


def trained_layer(weights: str | os.PathLike[str]) -> LipschitzRNN:
    """The contracting layer of a pretrained network, a weights file or a run folder: its best seed."""
    layer: Any
    if not Path(weights).is_dir():
        layer = LipschitzRNN.from_pretrained(os.fspath(weights))
    else:
        run = load_run(weights)
        result = read_result(weights, len(run.settings.members))
        scored = [(seed["validation"], k) for k, seed in enumerate(result["seeds"]) if seed["validation"] is not None]
        if not scored:
            raise ValueError(f"{weights} has no seed with a validation score; give a run that has learned something")
        layer = run.networks[(max if result["higher_is_better"] else min)(scored)[1]].unit
    if not isinstance(layer, LipschitzRNN) or layer.stability != "contracting":
        raise ValueError(
            f"{weights} is not a contracting layer, so nothing is proved of it in parallel; train one with "
            "-u stability=contracting"
        )
    return layer.eval()  # without the noise of training


def measure_layer(
    layer: LipschitzRNN,
    size: Size,
    device: torch.device,
    repeats: int,
    x: Tensor | None = None,
    *,
    sequential_repeats: int | None = None,
) -> Row:
    """One row, on the input x (T, B, p); noise if None.

    Args:
        repeats: timed calls in parallel, and sequentially unless ``sequential_repeats`` says otherwise.
    """
    if x is None:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(size.length, size.batch, layer.input_size, generator=generator)
    x = x.to(device)
    tau = memory_length(layer, x[:MEASURED_MEMORY]).tau
    given = given_gradient(layer, size, device) if size.training else None

    def call() -> tuple[Tensor, list[Tensor]]:
        if given is None:
            with torch.no_grad():
                return layer(x)[0], []
        output, _ = layer(x)
        return output.detach(), list(torch.autograd.grad(output, list(layer.parameters()), given))

    layer.parallel = None
    states, gradients = call()
    layer.parallel = "auto"
    found, others = call()
    bound = layer.bounds[0]
    proved, plan = layer.output_bound() if len(layer.bounds) > 1 else float(bound.states), _cut(bound)
    difference = float((found - states).norm(dim=-1).max())
    largest = float(states.norm(dim=-1).max())
    apart = sum(float((one - other).double().square().sum()) for one, other in zip(gradients, others, strict=True))
    norm = sum(float(one.double().square().sum()) for one in gradients)
    # Two computations in float32 differ by rounding too; a hundred units of it are a bug, not rounding.
    rounding = 2000 * torch.finfo(torch.float32).eps * largest
    wrong = "" if difference <= proved + rounding else f"{size}: {difference:.2g} off, {bound!r}"
    loss = _time_loss(states, device, repeats) if size.training else None
    del states, found
    layer.parallel = None
    sequential = time_calls(call, device, sequential_repeats or repeats, most_seconds=12.0)
    layer.parallel = "auto"
    parallel = time_calls(call, device, repeats, most_seconds=6.0)
    rate, factor = float(layer.rate or 0.0), math.exp(-float(layer.rate or 0.0) * layer.step_size)
    return Row(
        size, rate, layer.step_size, tau, factor, layer.tolerance, sequential, parallel, plan, largest, difference,
        proved, (apart / norm) ** 0.5 if norm > 0 else None, loss, wrong,
    )  # fmt: skip


def given_gradient(layer: LipschitzRNN, size: Size, device: torch.device) -> Tensor:
    """(T, B, N), between 0.5 and 1 as in ``workload.Data``: sums of these do not cancel."""
    shape = size.length, size.batch, layer.hidden_size * layer.num_directions
    dtype = next(layer.parameters()).dtype
    values = torch.rand(shape, device=device, dtype=dtype, generator=torch.Generator(device).manual_seed(2))
    return values.mul_(0.5).add_(0.5)


def _time_loss(states: Tensor, device: torch.device, repeats: int) -> Times:
    """A loss that reads every state, and its gradient by the states: what a step has beside the scan."""
    leaf = states.detach().requires_grad_()
    return time_calls(lambda: torch.autograd.grad(leaf.square().mean(), leaf), device, repeats, most_seconds=2.0)


def _cut(bound: ScanBound) -> str:
    if bound.sequential:
        return bound.sequential
    again = {0: "one after another", 2: f"{bound.warm_up:,} again"}
    return f"{bound.plan}, " + again.get(bound.passes, f"{bound.passes - 2} times, then {bound.warm_up:,} again")


def to_table(rows: Sequence[Row], device: torch.device) -> Table:
    place = describe_environment(device)["device"]
    gradients = f"; gradients at {PRECISION!r}" if device.type == "cuda" else ""
    title = f"Sequential and parallel over time, {place}{gradients}"
    caption = None
    if any(row.size.training for row in rows):
        caption = "Training steps start from a given gradient of every state; the loss is timed apart."
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, pad_edge=False, leading=1)
    table.add_column("layer and size")
    for heading in ("sequential\nms", "parallel\nms", "faster", "difference", "proved\nbound"):
        table.add_column(heading, justify="right", no_wrap=True)  # in 80 columns the first one gives way
    for row in rows:
        layer = f"rate {row.rate:g}, step {row.step_size:g}, ρ {row.factor:.7g}, "
        layer += f"τ seen {row.tau:.3g}, tolerance {row.tolerance:g}"
        if row.loss is not None:
            layer += f"\nmean square and its gradient: {1e3 * row.loss.median:.4g} ms more"
        off = f"{row.difference:.1e}"
        if row.gradient_difference is not None:
            off += f"\ngradients\n{row.gradient_difference:.1e}"
        table.add_row(
            f"{row.size}\n{layer}\n{row.plan}", f"{1e3 * row.sequential.median:.4g}",
            f"{1e3 * row.parallel.median:.4g}", f"{row.speed_up:.3g} ×", off,
            f"{row.bound:.1e}\nof {row.largest:.3g}",
        )  # fmt: skip
    return table


def to_document(rows: Sequence[Row], device: torch.device) -> dict[str, Any]:
    return {"environment": describe_environment(device), "parallel": [row.to_dict() for row in rows]}
