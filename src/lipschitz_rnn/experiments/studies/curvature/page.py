"""The page on the Hessian against training loss: where the printed numbers appear, a table, and a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from lipschitz_rnn.documents.blocks import Block, Heading, Paragraph, Picture, Table
from lipschitz_rnn.drawing import GREY, draw_band, mean_of, new_figure, plain_log_ticks, to_svg
from lipschitz_rnn.experiments.paper import ROBUSTNESS
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.experiments.studies.robustness.page import STYLES, unit_name
from lipschitz_rnn.experiments.study import QUICK, Study

Point = Mapping[str, Any]


class Quantity(NamedTuple):
    """A number of the Hessian: how it is called, taken from a point and shown, and its key in the paper's table."""

    title: str
    value: Callable[[Point], float]
    digits: int
    paper: str


def _ratio(point: Point) -> float:
    return point["lambda_max"] / abs(point["lambda_min"]) if point["lambda_min"] else math.nan


QUANTITIES = (
    Quantity("λ_max", lambda point: point["lambda_max"], 2, "largest"),
    Quantity("trace", lambda point: point["trace"], 1, "trace"),
    Quantity("λ_max / |λ_min|", _ratio, 1, "condition"),
)


def against_loss(study: Study, records: Sequence[Record]) -> list[Block]:
    records = sorted(records, key=lambda record: list(ROBUSTNESS).index(record.setup.unit))
    name = "curvature-quick" if records[0].kind == QUICK else "curvature"
    caption = (
        "Largest eigenvalue and trace of the Hessian against training loss, from early in training on the left to late "
        "on the right: mean and range over seeds."
    )
    caption += "" if records[0].kind == QUICK else " Dashed: the numbers that the paper prints."
    if not any(curve(record, QUANTITIES[0]) for record in records):
        highest = max(loss for record in records for loss in record.measures["grid"]["losses"])
        text = f"No network came down to a training loss of {highest:g}, the highest of the grid: nothing was measured."
        return [Paragraph(text), Paragraph(_method(records[0]))]
    page: list[Block] = []
    if records[0].kind != QUICK:
        page += [Paragraph(where_printed(records, quantity)) for quantity in QUANTITIES[:2]]
    page += [Picture(name, to_svg(draw(records)), caption)]
    for quantity in QUANTITIES:
        page += [Heading(quantity.title), _table(records, quantity)]
    return [*page, Paragraph(_method(records[0]))]


def curve(record: Record, quantity: Quantity) -> list[tuple[float, float, list[float]]]:
    """For every loss of the grid that a network reached: that loss, the networks' mean loss, and their values."""
    points = [point for network in record.measures["networks"] for point in network]
    found = []
    for loss in record.measures["grid"]["losses"]:
        own = [point for point in points if point["at"] == loss]
        if own:
            mean = mean_of([point["train_loss"] for point in own])
            found.append((loss, mean, [quantity.value(point) for point in own]))
    return found


def crossings(places: Sequence[float], values: Sequence[float], level: float) -> list[float]:
    """The places at which a curve passes a level, on straight lines between logarithms."""
    found = []
    pairs = [(x, y) for x, y in zip(places, values, strict=True) if x > 0.0 and y > 0.0]
    for (left, before), (right, after) in pairwise(pairs):
        if before != after and (before - level) * (after - level) <= 0.0 and before != level:
            share = math.log(level / before) / math.log(after / before)
            found.append(math.exp(math.log(left) + share * math.log(right / left)))
    return found


def where_printed(records: Sequence[Record], quantity: Quantity) -> str:
    """At which training loss each unit has the number that the paper prints for it."""
    parts = []
    for record in records:
        known = curve(record, quantity)
        printed = ROBUSTNESS[record.setup.unit][quantity.paper]
        places, means = [mean for _, mean, _ in known], [mean_of(values) for *_, values in known]
        losses = " and ".join(f"{place:.2g}" for place in crossings(places, means, printed))
        if losses:
            parts.append(f"{unit_name(record)} has the printed {printed:g} at a loss of {losses}")
        elif not known:
            parts.append(f"{unit_name(record)} reached none of the losses")
        else:
            lowest = f"{min(means):.{quantity.digits}f} and {max(means):.{quantity.digits}f}"
            span = f"training losses from {max(places):.2g} down to {min(places):.2g}"
            parts.append(f"{unit_name(record)} never has the printed {printed:g}, but between {lowest} at {span}")
    text = "; ".join(parts)
    return f"**{quantity.title}.** {text[0].upper()}{text[1:]}."


def _table(records: Sequence[Record], quantity: Quantity) -> Table:
    """One row for every loss, one column for every unit; fewer networks than seeds are counted."""
    known = {unit_name(record): {loss: values for loss, _, values in curve(record, quantity)} for record in records}
    seeds = {unit_name(record): len(record.setup.seeds) for record in records}

    def show(unit: str, loss: float) -> str:
        values = known[unit].get(loss, [])
        if not values:
            return "–"
        digits = quantity.digits
        spread = f" ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else ""
        count = f", {len(values)} of {seeds[unit]}" if len(values) < seeds[unit] else ""
        return f"{mean_of(values):.{digits}f}{spread}{count}"

    losses = [loss for loss in records[0].measures["grid"]["losses"] if any(loss in each for each in known.values())]
    rows = [[f"{loss:g}", *(show(unit, loss) for unit in known)] for loss in losses]
    if records[0].kind != QUICK:
        rows.append(["the paper", *(f"{ROBUSTNESS[record.setup.unit][quantity.paper]:g}" for record in records)])
    return Table(["training loss, at most", *known], rows)


def _method(record: Record) -> str:
    grid = record.measures["grid"]
    values = record.setup
    return (
        f"Mean over the networks that reached the loss (smallest to largest); a dash: none did. Hessian over "
        f"{grid['samples']:,} training samples, eigenvalues to {grid['tolerance']:g}, trace by {grid['probes']} random "
        f"vectors outside a Krylov space of {grid['lanczos']}. λ_min is the most negative eigenvalue. Trained on "
        f"{values.task}: N = {values.hidden_size}, SGD with momentum {values.momentum:g} and rate "
        f"{values.learning_rate:g}, {values.schedule} schedule, {values.epochs} epochs; {record.why}."
    )


def draw(records: Sequence[Record]) -> Any:
    """λ_max and trace on logarithmic axes, one curve a unit."""
    figure, axes = new_figure(2)
    for axis, quantity in zip(axes, QUANTITIES[:2], strict=True):
        for record in records:
            name, colour = STYLES[record.setup.unit]
            known = curve(record, quantity)
            draw_band(axis, [mean for _, mean, _ in known], [values for *_, values in known], colour, name, mark="o")
            if record.kind != QUICK:
                printed = ROBUSTNESS[record.setup.unit][quantity.paper]
                axis.axhline(printed, color=colour, linewidth=0.9, linestyle="--")
        axis.set(xscale="log", yscale="log", xlabel="training loss", ylabel=quantity.title)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_major_formatter("{x:g}")
        plain_log_ticks(axis)
        axis.invert_xaxis()
        axis.legend(frameon=False, fontsize=8)
    if records[0].kind == QUICK:
        figure.suptitle(f"Quick version, {records[0].why}", fontsize=9, color=GREY)
    return figure
