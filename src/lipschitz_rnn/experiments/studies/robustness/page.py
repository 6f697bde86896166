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

LOOKS = {
    "neural-ode": ("neural ODE", GREY), "antisymmetric": ("antisymmetric", BLUE), "lipschitz": ("Lipschitz", RED),
    "urnn": ("unitary", GREEN),
}  # fmt: skip


class Column(NamedTuple):
    """One number of every network: where it stands in the record, its factor and digits, the paper's name for it."""

    title: str
    measure: str
    value: str
    scale: float
    digits: int
    paper: str = ""

    def show(self, record: Record) -> str:
        """The mean over networks; beside the paper's number also the standard deviation."""
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
    noise = "Test accuracy under noise: mean over the networks of a unit, with the range over them."
    distances = "Test accuracy that is left where DeepFool may go so far: mean and range over networks."
    found: list[Block] = [Paragraph(_target(records))]
    found += [_table(measured)] if measured else []
    found.append(Picture(f"{name}-noise", to_svg(draw_noise(records)), noise))
    found += [Heading("How the networks were trained"), _training(records)]
    if measured:
        found += [Heading("What the attacks and the curvature were"), Paragraph(_method(measured[0]))]
        found += [_details(measured), Picture(f"{name}-distances", to_svg(draw_distances(measured)), distances)]
    return [*found, Paragraph(_origin(records))]


def _in_order(records: Sequence[Record]) -> list[Record]:
    return sorted(records, key=lambda record: list(LOOKS).index(record.setup.unit))


def _measured(records: Sequence[Record]) -> list[Record]:
    """Those of the table; the others stand in the figure."""
    return [record for record in records if record.setup.unit in ROBUSTNESS]


def _target(records: Sequence[Record]) -> str:
    targets = sorted({f"{record.measures['method']['target_loss']:.3g}" for record in records}, key=float)
    losses = " or ".join(targets)
    text = f"Every network is taken after the first epoch whose mean training loss is at most {losses}, "
    if len(targets) == 1:
        return text + "so that all are compared at about the same training loss."
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
        f"All attacks take {method['steps']} steps, those of PGD {method['step_size']:g} wide, as in the paper, which "
        f"names no radius. In the table above PGD stays within {method['radius_pgd']:g} of the image in l∞, and a "
        f"perturbation of DeepFool counts if it is within {method['radius_l2']:g} in l2, or {method['radius_linf']:g} "
        f"in l∞. Below: PGD as far as its steps reach ({network['pgd-wide']['radius']:.2g}), and DeepFool without a "
        "limit with the mean size of what fooled. Sizes are shares of the range of a pixel; "
        f"{network['pgd']['samples']:,} test samples. Hessian: {network['hessian']['samples']:,} training samples; the "
        "paper's condition number fits the most negative eigenvalue as λ_min, and so does ours."
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
    return LOOKS[record.setup.unit][0]


def draw_noise(records: Sequence[Record]) -> Any:
    """One panel for each kind of noise, as in the paper's figure."""
    kinds = list(records[0].measures["networks"][0]["noise"])
    figure, axes = new_figure(len(kinds))
    for axis, kind in zip(axes, kinds, strict=True):
        for record in records:
            curves = [network["noise"][kind] for network in record.measures["networks"]]
            _draw(axis, record, curves[0]["amounts"], curves)
        axis.set(xlabel="amount of noise", title=f"{kind.replace('-', ' ')} noise")
    return _finished(figure, axes, records)


def draw_distances(records: Sequence[Record]) -> Any:
    """One panel for each norm: what is left when DeepFool may change an image so much."""
    figure, axes = new_figure(2)
    for axis, norm, symbol in zip(axes, ("l2", "linf"), ("l2", "l∞"), strict=True):
        for record in records:
            curves = [network[f"deepfool-{norm}"]["within"] for network in record.measures["networks"]]
            _draw(axis, record, curves[0]["radii"], curves)
        axis.axvline(records[0].measures["method"][f"radius_{norm}"], color=GREY, linewidth=0.9, linestyle="--")
        axis.set(xlabel=f"largest perturbation in {symbol}", title=f"DeepFool, {symbol}")
    return _finished(figure, axes, records)


def _draw(axis: Any, record: Record, places: Sequence[float], curves: Sequence[Any]) -> None:
    """The mean over networks as a line, all of them within the band."""
    columns = [[100 * value for value in column] for column in zip(*(c["accuracy"] for c in curves), strict=True)]
    name, colour = LOOKS[record.setup.unit]
    draw_band(axis, places, columns, colour, name, mark="o")


def _finished(figure: Any, axes: Sequence[Any], records: Sequence[Record]) -> Any:
    for axis in axes:
        axis.set_ylabel("test accuracy (%)")
        axis.legend(frameon=False, fontsize=8)
    if records[0].kind == QUICK:
        figure.suptitle(f"Quick version, {records[0].why}", fontsize=9, color=GREY)
    return figure
