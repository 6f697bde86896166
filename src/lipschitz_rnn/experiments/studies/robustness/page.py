"""The page of the robustness study, made from its records: the paper's third table and its figure on noise."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from lipschitz_rnn.documents.blocks import Block, Heading, Paragraph, Picture, Table
from lipschitz_rnn.documents.numbers import show_score
from lipschitz_rnn.drawing import to_svg
from lipschitz_rnn.experiments.pages.sections import time_of
from lipschitz_rnn.experiments.paper import ROBUSTNESS
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.experiments.studies.robustness.pictures import LOOKS, draw_distances, draw_noise, unit_name
from lipschitz_rnn.experiments.study import QUICK, Study


class Column(NamedTuple):
    """One number of every network; `paper` is its name in the paper's table, the larger the better in percent."""

    title: str
    measure: str
    value: str
    paper: str
    percent: bool

    def read(self, record: Record) -> list[float]:
        return [network[self.measure][self.value] for network in record.measures["networks"]]

    def show(self, record: Record) -> str:
        """Mean ± standard deviation over the networks, and the paper's number."""
        values, (scale, digits) = self.read(record), (100.0, 1) if self.percent else (1.0, 2)
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        printed = getattr(ROBUSTNESS[record.setup.unit], self.paper)
        return f"{scale * statistics.fmean(values):.{digits}f} ± {scale * deviation:.{digits}f} ({printed:g})"


COLUMNS = (
    Column("PGD (%)", "pgd", "accuracy", "pgd", True),
    Column("DeepFool l2 (%)", "deepfool-l2", "accuracy_within", "deepfool_l2", True),
    Column("DeepFool l∞ (%)", "deepfool-linf", "accuracy_within", "deepfool_linf", True),
    Column("λ_max", "hessian", "lambda_max", "largest", False),
    Column("trace", "hessian", "trace", "trace", False),
    Column("λ_max / |λ_min|", "hessian", "condition_number", "condition", False),
)
# Title, what was measured, number of it, factor and digits.
DETAILS = (
    ("clean (%)", "pgd", "clean_accuracy", 100.0, 1),
    ("PGD, wide (%)", "pgd-wide", "accuracy", 100.0, 1),
    ("DeepFool l2, no limit (%)", "deepfool-l2", "accuracy", 100.0, 1),
    ("mean size l2", "deepfool-l2", "l2_successful", 1.0, 3),
    ("DeepFool l∞, no limit (%)", "deepfool-linf", "accuracy", 100.0, 1),
    ("mean size l∞", "deepfool-linf", "linf_successful", 1.0, 4),
    ("λ_min", "hessian", "lambda_min", 1.0, 3),
    ("error of the trace", "hessian", "trace_error", 1.0, 2),
)


def comparison(study: Study, records: Sequence[Record]) -> list[Block]:
    records = _in_order(records)
    measured = _measured(records)
    name = "robustness-quick" if records[0].kind == QUICK else "robustness"
    noise = "Test accuracy under noise: mean over the networks of a unit, with the range over them."
    distances = "Test accuracy that is left where DeepFool may go so far: mean and range over networks."
    found: list[Block] = [Paragraph(_target(records))]
    found += [_table(measured), Paragraph(_finding(measured))] if measured else []
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


def _finding(records: Sequence[Record]) -> str:
    """Whether the paper's ordering holds, column by column."""
    if len(records) < 2 or not any(record.setup.unit == "lipschitz" for record in records):
        return "The units that the paper compares were not all measured."
    ahead, behind = [], []
    for column in COLUMNS:
        means = {statistics.fmean(column.read(record)): record for record in reversed(records)}
        best = means[(max if column.percent else min)(means)]
        name = column.title.removesuffix(" (%)")
        if best.setup.unit == "lipschitz":
            ahead.append(name)
        else:
            behind.append(f"{name} ({unit_name(best)} is)")
    text = f"In the mean over seeds the Lipschitz unit is the most robust in {', '.join(ahead) or 'no column'}"
    return text + (f"; it is not in {', '.join(behind)}." if behind else ", as in the paper.")


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
    rows = [
        [unit_name(record), *(f"{scale * _mean(record, *path):.{digits}f}" for _, *path, scale, digits in DETAILS)]
        for record in records
    ]
    return Table(["unit", *(title for title, *_ in DETAILS)], rows)


def _mean(record: Record, measure: Any, value: Any) -> float:
    found = [network[measure][value] for network in record.measures["networks"]]
    known = [number for number in found if number is not None]
    return statistics.fmean(known) if known else float("nan")


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
