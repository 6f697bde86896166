"""The page of the robustness study, made from its records: the paper's third table and its figure on noise."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lipschitz_rnn.experiments.campaign import time_of
from lipschitz_rnn.experiments.figures import to_svg
from lipschitz_rnn.experiments.paper import ROBUSTNESS
from lipschitz_rnn.experiments.report.document import Block, Heading, Paragraph, Picture, Table
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.experiments.robustness_pictures import NAMES, draw_distances, draw_noise, warning
from lipschitz_rnn.experiments.scores import show_score

Network = Mapping[str, Any]  # what was measured of one network


@dataclass(frozen=True)
class Column:
    """One number of every network; `paper` is its name in the paper's table."""

    title: str
    read: Callable[[Network], float]
    paper: str
    percent: bool

    def show(self, values: Sequence[float]) -> str:
        """Mean ± standard deviation over the networks."""
        scale, digits = (100.0, 1) if self.percent else (1.0, 2)
        mean, spread = scale * statistics.fmean(values), scale * (statistics.stdev(values) if len(values) > 1 else 0.0)
        return f"{mean:.{digits}f} ± {spread:.{digits}f}"

    def best(self, values: Mapping[str, Sequence[float]]) -> list[str]:
        """Units from the most to the least robust in the mean."""
        return sorted(values, key=lambda unit: statistics.fmean(values[unit]), reverse=self.percent)


COLUMNS = (
    Column("PGD (%)", lambda n: n["pgd"]["accuracy"], "pgd", True),
    Column("DeepFool l2 (%)", lambda n: n["deepfool-l2"]["accuracy_within"], "deepfool_l2", True),
    Column("DeepFool l∞ (%)", lambda n: n["deepfool-linf"]["accuracy_within"], "deepfool_linf", True),
    Column("λ_max", lambda n: n["hessian"]["lambda_max"], "largest", False),
    Column("trace", lambda n: n["hessian"]["trace"], "trace", False),
    Column("λ_max / |λ_min|", lambda n: n["hessian"]["condition_number"], "condition", False),
)


def blocks(records: Sequence[Record]) -> list[Block]:
    """The whole page."""
    page: list[Block] = [Heading("Robustness to perturbed inputs and parameters", 1)]
    for kind in dict.fromkeys(record.kind for record in records):
        same = _in_order([record for record in records if record.kind == kind])
        page += _section(same, kind == "quick")
    return page


def summary(records: Sequence[Record]) -> list[Block]:
    """The table alone."""
    return [_table(_in_order([record for record in records if record.kind == "paper"] or records))]


def _in_order(records: Sequence[Record]) -> list[Record]:
    order = list(NAMES)
    return sorted(records, key=lambda record: order.index(record.settings["unit"]))


def _section(records: Sequence[Record], quick: bool) -> list[Block]:
    first, measured = records[0], _measured(records)
    name, note = ("robustness-quick", f" {warning(first)}") if quick else ("robustness", "")
    noise = f"Test accuracy under noise: mean over the networks of a unit, with the range over them.{note}"
    distances = f"Test accuracy that is left where DeepFool may go so far: mean and range over networks.{note}"
    section: list[Block] = [Paragraph(_introduction(records) + note)]
    if measured:
        section += [_table(records), Paragraph(_finding(records))]
    section.append(Picture(f"{name}-noise", to_svg(draw_noise(records)), noise))
    section += [Heading("How the networks were trained"), _training(records)]
    if measured:
        section += [Heading("What the attacks and the curvature were"), Paragraph(_method(first)), _details(records)]
        section.append(Picture(f"{name}-distances", to_svg(draw_distances(measured)), distances))
    return [*section, Paragraph(_origin(records))]


def _measured(records: Sequence[Record]) -> list[Record]:
    """Those of the table; the others stand in the figure."""
    return [record for record in records if record.settings["unit"] in ROBUSTNESS]


def _introduction(records: Sequence[Record]) -> str:
    targets = sorted({f"{record.measures['method']['target_loss']:.3g}" for record in records}, key=float)
    text = (
        "Accuracy under attack on the test split, and the Hessian of the training loss with respect to the parameters "
        "of the recurrent unit; mean ± standard deviation over seeds, the paper's number (for MNIST) in parentheses. "
        f"Every network is taken after the first epoch whose mean training loss is at most {' or '.join(targets)}, "
    )
    if len(targets) == 1:
        return text + "so that all are compared at about the same training loss."
    return text + "**so not all are compared at the same loss**: units were added one by one. Measure them together."


def _table(records: Sequence[Record]) -> Table:
    rows = []
    for record in _measured(records):
        networks, printed = record.measures["networks"], ROBUSTNESS[record.settings["unit"]]
        cells = [f"{c.show([c.read(n) for n in networks])} ({getattr(printed, c.paper):g})" for c in COLUMNS]
        asked = len(record.settings["seeds"])
        count = str(asked) if len(networks) == asked else f"{len(networks)} of {asked}"
        rows.append([NAMES[record.settings["unit"]], count, *cells])
    return Table(["unit", "networks", *(column.title for column in COLUMNS)], rows)


def _finding(records: Sequence[Record]) -> str:
    """Whether the paper's ordering holds, column by column."""
    ahead, behind = [], []
    for column in COLUMNS:
        values = {r.settings["unit"]: [column.read(n) for n in r.measures["networks"]] for r in _measured(records)}
        order = column.best(values)
        if "lipschitz" not in values or len(values) < 2:
            return "The units that the paper compares were not all measured."
        name = column.title.removesuffix(" (%)")
        if order[0] == "lipschitz":
            ahead.append(name)
        else:
            behind.append(f"{name} ({NAMES[order[0]]} is)")
    text = f"In the mean over seeds the Lipschitz unit is the most robust in {', '.join(ahead) or 'no column'}"
    text += f"; it is not in {', '.join(behind)}." if behind else ", as in the paper."
    return text


def _training(records: Sequence[Record]) -> Table:
    header = ["unit", "parameters", "training loss", "after epoch", "reached the target", "test accuracy", "time"]
    rows = []
    for record in records:
        taken = record.measures["taken"]
        losses = [network["loss"] for network in taken]
        epochs = [network["epoch"] + 1 for network in taken]
        accuracy = [network["accuracy"] for network in record.measures["networks"]]
        rows.append(
            [
                NAMES[record.settings["unit"]],
                f"{record.parameters:,}",
                f"{statistics.fmean(losses):.4f} ({min(losses):.4f} to {max(losses):.4f})",
                f"{min(epochs)} to {max(epochs)} of {record.settings['epochs']}",
                f"{sum(network['reached'] for network in taken)} of {len(taken)}",
                show_score(statistics.fmean(accuracy), True),
                time_of([record]),
            ]
        )
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
    header = [
        "unit",
        "clean (%)",
        "PGD, wide (%)",
        "DeepFool l2, no limit (%)",
        "mean size l2",
        "DeepFool l∞, no limit (%)",
    ]
    header += ["mean size l∞", "λ_min", "error of the trace"]
    rows = []
    for record in _measured(records):
        networks = record.measures["networks"]

        def mean(*path: str, networks: Sequence[Network] = networks) -> float:
            found = [_at(network, path) for network in networks]
            known = [value for value in found if value is not None]
            return statistics.fmean(known) if known else float("nan")

        rows.append(
            [
                NAMES[record.settings["unit"]],
                f"{100 * mean('pgd', 'clean_accuracy'):.1f}",
                f"{100 * mean('pgd-wide', 'accuracy'):.1f}",
                f"{100 * mean('deepfool-l2', 'accuracy'):.1f}",
                f"{mean('deepfool-l2', 'l2_successful'):.3f}",
                f"{100 * mean('deepfool-linf', 'accuracy'):.1f}",
                f"{mean('deepfool-linf', 'linf_successful'):.4f}",
                f"{mean('hessian', 'lambda_min'):.3f}",
                f"{mean('hessian', 'trace_error'):.2f}",
            ]
        )
    return Table(header, rows)


def _at(network: Network, path: Sequence[str]) -> Any:
    found: Any = network
    for name in path:
        found = found[name]
    return found


def _origin(records: Sequence[Record]) -> str:
    first = records[0]
    settings = first.settings
    rates: dict[float, list[str]] = {}
    for record in records:
        rates.setdefault(record.settings["learning_rate"], []).append(NAMES[record.settings["unit"]])
    shown = "; ".join(f"{rate:g} ({', '.join(units)})" for rate, units in rates.items())
    return (
        f"{settings['task']}, N = {settings['hidden_size']}, SGD with momentum {settings['momentum']:g}, rate "
        f"{shown}, gradient norms clipped at {settings['clip']:g}, seeds "
        f"{', '.join(map(str, settings['seeds']))}, on {first.environment.get('device', '?')}. "
        f"Made by `{first.command}`."
    )
