"""The page of the robustness study, made from its records: the paper's third table and its figure on noise."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from lipschitz_rnn.documents.blocks import Block, Heading, Paragraph, Picture, Table
from lipschitz_rnn.documents.numbers import show_score
from lipschitz_rnn.drawing import BLUE, GREEN, GREY, RED, draw_band, new_figure, to_svg
from lipschitz_rnn.experiments.pages.sections import time_of
from lipschitz_rnn.experiments.paper import ROBUSTNESS
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.experiments.study import QUICK, Study

STYLES = {
    "neural-ode": ("neural ODE", GREY), "antisymmetric": ("antisymmetric", BLUE), "lipschitz": ("Lipschitz", RED),
    "urnn": ("unitary", GREEN),
}  # fmt: skip


class Column(NamedTuple):
    """One number of every network: its keys in the record, its scale and digits, and its key in the paper's table."""

    title: str
    measure: str
    value: str
    scale: float
    digits: int
    paper: str = ""

    def show(self, record: Record) -> str:
        """The mean over networks; if the paper has a number, also the standard deviation and that number."""
        found = [network[self.measure][self.value] for network in record.measures["networks"]]
        values = [self.scale * value for value in found if value is not None] or [float("nan")]
        mean = f"{statistics.fmean(values):.{self.digits}f}"
        if not self.paper:
            return mean
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        return f"{mean} ± {deviation:.{self.digits}f} ({ROBUSTNESS[record.setup.unit][self.paper]:g})"


COLUMNS = (
    Column("PGD (%)", "pgd", "accuracy", 100.0, 1, "pgd"),
    Column("DeepFool l2 (%)", "deepfool-l2", "accuracy_within", 100.0, 1, "deepfool_l2"),
    Column("DeepFool l∞ (%)", "deepfool-linf", "accuracy_within", 100.0, 1, "deepfool_linf"),
    Column("λ_max", "hessian", "lambda_max", 1.0, 2, "largest"),
    Column("trace", "hessian", "trace", 1.0, 2, "trace"),
    Column("λ_max / |λ_min|", "hessian", "condition_number", 1.0, 2, "condition"),
)
DETAILS = (
    Column("clean (%)", "pgd", "clean_accuracy", 100.0, 1),
    Column("PGD, wide (%)", "pgd-wide", "accuracy", 100.0, 1),
    Column("DeepFool l2, no limit (%)", "deepfool-l2", "accuracy", 100.0, 1),
    Column("mean size l2", "deepfool-l2", "l2_successful", 1.0, 3),
    Column("DeepFool l∞, no limit (%)", "deepfool-linf", "accuracy", 100.0, 1),
    Column("mean size l∞", "deepfool-linf", "linf_successful", 1.0, 4),
    Column("λ_min", "hessian", "lambda_min", 1.0, 3),
    Column("error of the trace", "hessian", "trace_error", 1.0, 2),
)


def comparison(study: Study, records: Sequence[Record]) -> list[Block]:
    records = _in_order(records)
    measured = _measured(records)
    name = "robustness-quick" if records[0].kind == QUICK else "robustness"
    noise = "Test accuracy under noise: mean and range over the networks of a unit."
    distances = "Test accuracy under DeepFool against the largest allowed perturbation: mean and range over networks."
    found: list[Block] = [Paragraph(_target(records))]
    found += [_table(measured)] if measured else []
    found.append(Picture(f"{name}-noise", to_svg(draw_noise(records)), noise))
    found += [Heading("Training"), _training(records)]
    if measured:
        found += [Heading("Attacks and curvature"), Paragraph(_method(measured[0]))]
        found += [_details(measured), Picture(f"{name}-distances", to_svg(draw_distances(measured)), distances)]
    return [*found, Paragraph(_origin(records))]


def _in_order(records: Sequence[Record]) -> list[Record]:
    return sorted(records, key=lambda record: list(STYLES).index(record.setup.unit))


def _measured(records: Sequence[Record]) -> list[Record]:
    """The units of the table; the others are only in the figure."""
    return [record for record in records if record.setup.unit in ROBUSTNESS]


def _target(records: Sequence[Record]) -> str:
    targets = sorted({f"{record.measures['method']['target_loss']:.3g}" for record in records}, key=float)
    losses = " or ".join(targets)
    text = f"Every network is measured after the first epoch whose mean training loss is at most {losses}, "
    if len(targets) == 1:
        return text + "so all are compared at about the same training loss."
    return text + "**so not all are compared at the same loss**: units were added one by one. Measure them together."


def _table(records: Sequence[Record]) -> Table:
    rows = []
    for record in records:
        asked, found = len(record.setup.seeds), len(record.measures["networks"])
        count = str(asked) if found == asked else f"{found} of {asked}"
        rows.append([unit_name(record), count, *(column.show(record) for column in COLUMNS)])
    return Table(["unit", "networks", *(column.title for column in COLUMNS)], rows)


def _training(records: Sequence[Record]) -> Table:
    header = ["unit", "parameters", "training loss", "after epoch", "reached the target", "test accuracy", "time"]
    rows = []
    for record in records:
        taken = record.measures["taken"]
        losses, epochs = [network["loss"] for network in taken], [network["epoch"] + 1 for network in taken]
        accuracy = statistics.fmean(network["accuracy"] for network in record.measures["networks"])
        cells = [unit_name(record), f"{record.parameters:,}"]
        cells += [f"{statistics.fmean(losses):.4f} ({min(losses):.4f} to {max(losses):.4f})"]
        cells += [f"{min(epochs)} to {max(epochs)} of {record.setup.epochs}"]
        cells += [f"{sum(network['reached'] for network in taken)} of {len(taken)}"]
        rows.append([*cells, show_score(accuracy, True), time_of([record])])
    return Table(header, rows)


def _method(record: Record) -> str:
    method, network = record.measures["method"], record.measures["networks"][0]
    return (
        f"All attacks take {method['steps']} steps, and PGD has a step size of {method['step_size']:g}, as in the "
        f"paper, which gives no radius. In the table above, PGD stays within {method['radius_pgd']:g} of the image in "
        f"l∞, and a DeepFool perturbation counts if it is within {method['radius_l2']:g} in l2, or "
        f"{method['radius_linf']:g} in l∞. The table below has PGD as far as its steps reach "
        f"({network['pgd-wide']['radius']:.2g}), and DeepFool without a limit, with the mean size of successful "
        f"perturbations. Sizes are fractions of the pixel range; {network['pgd']['samples']:,} test samples. Hessian: "
        f"{network['hessian']['samples']:,} training samples. In the condition number λ_min is the most negative "
        "eigenvalue; the paper's numbers are consistent with that."
    )


def _details(records: Sequence[Record]) -> Table:
    rows = [[unit_name(record), *(column.show(record) for column in DETAILS)] for record in records]
    return Table(["unit", *(column.title for column in DETAILS)], rows)


def _origin(records: Sequence[Record]) -> str:
    first, values = records[0], records[0].setup
    rates: dict[float, list[str]] = {}
    for record in records:
        rates.setdefault(record.setup.learning_rate, []).append(unit_name(record))
    shown = "; ".join(f"{rate:g} ({', '.join(units)})" for rate, units in rates.items())
    return (
        f"{values.task}, N = {values.hidden_size}, SGD with momentum {values.momentum:g}, rate {shown}, gradient norms "
        f"clipped at {values.clip:g}, seeds {', '.join(map(str, values.seeds))}, on "
        f"{first.environment.get('device', '?')}. Made by `{first.command}`."
    )


def unit_name(record: Record) -> str:
    return STYLES[record.setup.unit][0]


def draw_noise(records: Sequence[Record]) -> Any:
    """One panel per kind of noise, as in the paper's figure."""
    kinds = list(records[0].measures["networks"][0]["noise"])
    figure, axes = new_figure(len(kinds))
    for axis, kind in zip(axes, kinds, strict=True):
        for record in records:
            curves = [network["noise"][kind] for network in record.measures["networks"]]
            _draw(axis, record, curves[0]["amounts"], curves)
        axis.set(xlabel="amount of noise", title=f"{kind.replace('-', ' ')} noise")
    return _finished(figure, axes, records)


def draw_distances(records: Sequence[Record]) -> Any:
    """One panel per norm: accuracy against the largest perturbation that DeepFool may make."""
    figure, axes = new_figure(2)
    for axis, norm, symbol in zip(axes, ("l2", "linf"), ("l2", "l∞"), strict=True):
        for record in records:
            curves = [network[f"deepfool-{norm}"]["within"] for network in record.measures["networks"]]
            _draw(axis, record, curves[0]["radii"], curves)
        axis.axvline(records[0].measures["method"][f"radius_{norm}"], color=GREY, linewidth=0.9, linestyle="--")
        axis.set(xlabel=f"largest perturbation in {symbol}", title=f"DeepFool, {symbol}")
    return _finished(figure, axes, records)


def _draw(axis: Any, record: Record, places: Sequence[float], curves: Sequence[Any]) -> None:
    """The mean over networks as a line, their range as a band."""
    columns = [[100 * value for value in column] for column in zip(*(c["accuracy"] for c in curves), strict=True)]
    name, colour = STYLES[record.setup.unit]
    draw_band(axis, places, columns, colour, name, mark="o")


def _finished(figure: Any, axes: Sequence[Any], records: Sequence[Record]) -> Any:
    for axis in axes:
        axis.set_ylabel("test accuracy (%)")
        axis.legend(frameon=False, fontsize=8)
    if records[0].kind == QUICK:
        figure.suptitle(f"Quick version, {records[0].why}", fontsize=9, color=GREY)
    return figure
