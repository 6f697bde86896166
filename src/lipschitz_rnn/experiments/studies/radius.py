"""Networks that no small change can fool: certified accuracy against clean accuracy. Not in the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lipschitz_rnn.documents.blocks import Block, Heading, Paragraph, Picture, Table
from lipschitz_rnn.documents.numbers import show_score, spread
from lipschitz_rnn.drawing import PALETTE, legend_below, new_figure, to_svg
from lipschitz_rnn.experiments.campaign import Measures, Plan
from lipschitz_rnn.experiments.certified import Samples, certified_curve
from lipschitz_rnn.experiments.pages.sections import commands, learning, runs, settings
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.experiments.runner import load_task
from lipschitz_rnn.experiments.study import QUICK, Row, Study
from lipschitz_rnn.robustness.attacks.runner import require_foolbox
from lipschitz_rnn.stability.radius.radius import Method
from lipschitz_rnn.training.parallel import choose_device
from lipschitz_rnn.training.runs import load_run

RADII = (0.02, 0.05, 0.1, 0.2, 0.3)  # l2, pixels in [0, 1]
_SHOWN = (0.05, 0.1, 0.3)
_SWEPT = ("train_radius", "margin", "gain_penalty")
_LONG = ("ordered-mnist",)  # following the trajectories of 10,000 long samples would take hours


@dataclass(frozen=True)
class CertifiedAccuracy(Measures):
    """Certified accuracy of every network, and what PGD and DeepFool leave of some samples."""

    attacked: int = 100

    def configured(self, quick: bool, options: Mapping[str, Any]) -> CertifiedAccuracy:
        return CertifiedAccuracy(attacked=50) if quick else self

    def prepare(self) -> None:
        require_foolbox()

    def of_run(self, folder: Path, plan: Plan) -> Mapping[str, Any]:
        device = choose_device(plan.settings.device)
        samples = Samples.of_task(load_task(plan.settings).to(device))
        long = plan.settings.task in _LONG
        method: Method = "global" if long else "auto"
        if long:  # in float64 rounding takes nothing from a radius, and costs little to bound
            samples = replace(samples, inputs=samples.inputs.double())
        networks = []
        for network in load_run(folder).networks:
            network = network.to(device).to(samples.inputs.dtype)
            curve = certified_curve(network, samples, RADII, attacked=self.attacked, restarts=1, method=method)
            networks.append(curve.to_dict())
        return {"networks": networks}


def _trade_off(study: Study, records: Sequence[Record]) -> list[Block]:
    """For each task a table, and a picture of certified against clean accuracy."""
    page: list[Block] = []
    for task in dict.fromkeys(record.setup.task for record in records):
        own = [record for record in records if record.setup.task == task]
        attacked = own[0].measures["networks"][0]["attacked_samples"]
        text = (
            "Certified: the fraction of test samples whose class is right and proved to stay so under every change of "
            f"at most this l2 norm, {_arithmetic(own)}. PGD: the fraction of {attacked:,} test samples still "
            "classified correctly under an attack of that size, an upper bound on what can be certified of them. Means "
            "over the seeds. A bounded gain does not grow with the length of the sequence, by construction."
        )
        header = ["gain", "trained for", "margin", "gain penalty", "clean"]
        header += [f"certified {radius:g}" for radius in _SHOWN] + [f"PGD {radius:g}" for radius in _SHOWN]
        rows = [_line(record) for record in own]
        caption = "Certified against clean test accuracy (%), a dot for every seed; the line joins the means."
        if any(not _bounded_gain(record) for record in own):
            caption += " Hollow dots and dashed lines: the gain is not bounded."
        picture = Picture(f"{study.name}-{task}", to_svg(draw(own)), caption)
        page += [Heading(task), Paragraph(text), Table(header, rows), picture]
    return page


def _arithmetic(records: Sequence[Record]) -> str:
    """What the certified numbers speak about."""
    names = sorted({network["arithmetic"] for record in records for network in record.measures["networks"]})
    if names == ["exact"]:
        return "in exact arithmetic"
    return f"as computed in {', '.join(names)}, rounding included"


def _line(record: Record) -> list[str]:
    networks = record.measures["networks"]
    columns = [[network["clean_accuracy"] for network in networks]]
    for name in ("certified", "pgd"):
        columns += [[_at(network, radius)[name] for network in networks] for radius in _SHOWN]
    swept = [getattr(record.setup, name) for name in _SWEPT]
    bounded = "bounded" if _bounded_gain(record) else "not bounded"
    shown = [f"{value:g}" if value else "–" for value in swept]
    return [bounded, *shown, *(show_score(spread(c)[1], True) for c in columns)]


def _at(network: Mapping[str, Any], radius: float) -> Mapping[str, float]:
    found: Mapping[str, float] = next(row for row in network["curve"] if row["radius"] == radius)
    return found


def draw(records: Sequence[Record]) -> Any:
    """Certified against clean accuracy of one task."""
    figure, (axis,) = new_figure(1, width=5.4, height=3.8)
    for bounded in (False, True):
        own = [record for record in records if _bounded_gain(record) == bounded]
        _draw_kind(axis, sorted(own, key=lambda record: _mean(record, None)), bounded)
    axis.set(xlabel="clean test accuracy (%)", ylabel="certified test accuracy (%)", title=records[0].setup.task)
    axis.set_ylim(bottom=0.0)
    legend_below(figure)
    return figure


def _bounded_gain(record: Record) -> bool:
    return bool(record.setup.unit_options.get("bounded_gain"))


def _draw_kind(axis: Any, ordered: Sequence[Record], bounded: bool) -> None:
    """A bounded gain has solid lines and full dots."""
    look: dict[str, Any] = {"linestyle": "-"} if bounded else {"linestyle": "--", "markerfacecolor": "none"}
    for colour, radius in zip(PALETTE, _SHOWN if ordered else (), strict=False):
        for record in ordered:
            clean = [100 * network["clean_accuracy"] for network in record.measures["networks"]]
            proved = [100 * _at(network, radius)["certified"] for network in record.measures["networks"]]
            axis.plot(clean, proved, color=colour, **look | {"linestyle": "none"}, marker="o", markersize=4, alpha=0.6)
        means = [(100 * _mean(record, None), 100 * _mean(record, radius)) for record in ordered]
        label = f"l2 radius {radius:g}" + ("" if bounded else ", gain not bounded")
        axis.plot(*zip(*means, strict=True), color=colour, linewidth=1.3, label=label, **look)


def _mean(record: Record, radius: float | None) -> float:
    networks = record.measures["networks"]
    values = [n["clean_accuracy"] if radius is None else _at(n, radius)["certified"] for n in networks]
    return float(sum(values)) / len(values)


def _row(task: str, radius: float, group: str = "", why: str = "", bounded: bool = False, **changes: Any) -> Row:
    """A contracting network trained for a radius, and for a margin where its size says so in the label."""
    swept = {"train_radius": radius, **changes}
    sizes = [f"{name}-{value:g}" for name, value in changes.items() if name in _SWEPT]
    label = "-".join([*(["bounded"] if bounded else []), "radius", f"{radius:g}", *sizes])
    unit = {"stability": "contracting"} | ({"bounded_gain": True} if bounded else {})
    options = {"unit_options": unit, **swept}
    return Row(task, label=label, changes=options, group=group, why=why or "contracts, so that radii can be proved")


def _bounded(task: str, radii: Sequence[float], **changes: Any) -> tuple[Row, ...]:
    return tuple(_row(task, radius, bounded=True, **changes | (_RISING if radius else {})) for radius in radii)


# One seed, radius 0.005: 87.8 % of the test images right if the radius counts from the start, 97.7 % if it rises.
_RISING: dict[str, Any] = {"robust_ramp": 0.8}
_DIGITS: dict[str, Any] = {"hidden_size": 32, "learning_rate": 0.04, "epochs": 80}
_TRAINED = (0.0, 0.01, 0.02, 0.03, 0.05)

STUDY = Study(
    name="radius",
    title="Certified radius: what no attack can cross, and what it costs",
    about=(
        "Not in the paper. A contracting layer has a gain: no change of the input moves the scores by more than the "
        "gain times its size. Networks are trained with the scores of wrong classes raised by gain · radius, for "
        "several radii; afterwards every test image gets its own certified radius. The gain in training is a looser "
        "bound than the certificate's, so the radius that is certified is larger than the one trained for. Layers with "
        "a bounded gain have it in closed form: there the gain in training and the certified one are nearly the same."
    ),
    rows=(
        _row("ordered-mnist", 0.0),
        *_bounded("ordered-mnist", (0.02, 0.1, 0.2, 0.3)),
        *(_row("digits", radius, **_DIGITS) for radius in _TRAINED),
        _row("digits", 0.0, margin=10.0, gain_penalty=3e-4, **_DIGITS),
        *_bounded("digits", (0.0, 0.05, 0.1, 0.2, 0.3), **_DIGITS),
    ),
    quick=tuple(
        _row("digits", radius, QUICK, "few epochs and units", **_DIGITS | {"epochs": 25}) for radius in (0.0, 0.05)
    ),
    seeds=(0, 1, 2),
    sections=(commands, _trade_off, learning, settings, runs),
    measures=CertifiedAccuracy(),
)
