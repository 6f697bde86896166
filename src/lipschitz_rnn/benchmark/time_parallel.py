"""Contracting layers sequentially and in parallel over time: each result checked against its bound, then timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from lipschitz_rnn.benchmark.timing import Times, time_calls
from lipschitz_rnn.stability.memory import memory_length
from lipschitz_rnn.training.environment import describe_environment
from lipschitz_rnn.units.lipschitz import LipschitzRNN

MEASURED_MEMORY = 8192  # steps on which the fading is measured


@dataclass(frozen=True)
class Size:
    """What is run: T steps of B samples, forward or a training step whose loss reads every state."""

    length: int
    batch: int
    training: bool

    def __str__(self) -> str:
        return f"T = {self.length:,}, B = {self.batch}, {'training step' if self.training else 'forward'}"


@dataclass
class Row:
    """One size of one layer.

    Attributes:
        difference: the largest Euclidean distance of a state to the sequential one.
        bound: what the call in parallel proved of it, apart from rounding.
        gradient_difference: of all parameters, relative to the norm of the sequential gradient; None forward.
    """

    size: Size
    rate: float
    tau: float
    tolerance: float
    sequential: Times
    parallel: Times
    plan: str
    largest: float
    difference: float
    bound: float
    gradient_difference: float | None
    wrong: str = ""

    @property
    def speed_up(self) -> float:
        return self.sequential.median / self.parallel.median

    def to_dict(self) -> dict[str, Any]:
        numbers = ("rate", "tau", "tolerance", "plan", "largest", "difference", "bound", "gradient_difference", "wrong")
        return {
            "length": self.size.length,
            "batch": self.size.batch,
            "training": self.size.training,
            "sequential": self.sequential.to_dict(),
            "parallel": self.parallel.to_dict(),
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
        weights: a pretrained contracting layer of one feature, by its name or file, instead of fresh ones.
    """
    rows = []
    if weights is not None:
        layer = LipschitzRNN.from_pretrained(weights, tolerance=tolerance, device=device)
        for size in sizes:
            note(f"{weights}, {size}")
            rows.append(_row(layer, size, device, repeats))
        return rows
    for rate in rates:
        torch.manual_seed(0)
        layer = LipschitzRNN(
            1, hidden, stability="contracting", rate=rate, step_size=step_size, integrator=integrator,
            tolerance=tolerance, device=device,
        )  # fmt: skip
        for size in sizes:
            note(f"rate {rate:g}, {size}")
            rows.append(_row(layer, size, device, repeats))
    return rows


def _row(layer: LipschitzRNN, size: Size, device: torch.device, repeats: int) -> Row:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(size.length, size.batch, layer.input_size, generator=generator).to(device)
    tau = memory_length(layer, x[:MEASURED_MEMORY]).tau

    def call() -> tuple[Tensor, list[Tensor]]:
        if not size.training:
            with torch.no_grad():
                return layer(x)[0], []
        output, _ = layer(x)
        return output.detach(), list(torch.autograd.grad(output.square().mean(), list(layer.parameters())))

    layer.parallel = None
    states, gradients = call()
    layer.parallel = "auto"
    found, others = call()
    bound = layer.bounds[0]
    difference = float((found - states).norm(dim=-1).max())
    largest = float(states.norm(dim=-1).max())
    apart = sum(float((one - other).double().square().sum()) for one, other in zip(gradients, others, strict=True))
    norm = sum(float(one.double().square().sum()) for one in gradients)
    # Two computations in float32 differ by rounding too; a hundred units of it are a bug, not rounding.
    rounding = 2000 * torch.finfo(torch.float32).eps * largest
    wrong = "" if difference <= float(bound.states) + rounding else f"{size}: {difference:.2g} off, {bound!r}"
    proved, plan = float(bound.states), bound.sequential or f"{bound.plan}, {bound.warm_up} again"
    del states, found
    layer.parallel = None
    sequential = time_calls(call, device, repeats, most_seconds=12.0)
    layer.parallel = "auto"
    parallel = time_calls(call, device, repeats, most_seconds=6.0)
    return Row(
        size, float(layer.rate or 0.0), tau, layer.tolerance, sequential, parallel, plan, largest, difference, proved,
        (apart / norm) ** 0.5 if norm > 0 else None, wrong,
    )  # fmt: skip


def to_table(rows: Sequence[Row], device: torch.device) -> Table:
    table = Table(title=f"Sequential and parallel over time, {describe_environment(device)['device']}")
    for heading in ("size", "rate", "τ seen", "sequential ms", "parallel ms", "faster", "largest state"):
        table.add_column(heading, justify="left" if heading == "size" else "right")
    for heading in ("difference", "proved bound", "gradients", "cut"):
        table.add_column(heading, justify="right")
    for row in rows:
        gradients = "" if row.gradient_difference is None else f"{row.gradient_difference:.1e}"
        table.add_row(
            str(row.size), f"{row.rate:g}", f"{row.tau:.3g}", f"{1e3 * row.sequential.median:.4g}",
            f"{1e3 * row.parallel.median:.4g}", f"{row.speed_up:.3g} ×", f"{row.largest:.3g}",
            f"{row.difference:.1e}", f"{row.bound:.1e}", gradients, row.plan,
        )  # fmt: skip
    return table


def to_document(rows: Sequence[Row], device: torch.device) -> dict[str, Any]:
    return {"environment": describe_environment(device), "parallel": [row.to_dict() for row in rows]}
