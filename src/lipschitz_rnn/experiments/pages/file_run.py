"""The page of a run on somebody's own file: curves, scores over seeds, mistakes, calibration, and the certificate."""

from __future__ import annotations

import re
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lipschitz_rnn.data.metrics import PERCENT
from lipschitz_rnn.documents.blocks import Block, Commands, Heading, Paragraph, Picture, Table
from lipschitz_rnn.documents.files import write_files, write_page
from lipschitz_rnn.documents.html import to_html
from lipschitz_rnn.documents.numbers import show_score
from lipschitz_rnn.drawing import (
    BLUE,
    GREY,
    RED,
    draw_curves,
    new_figure,
    percent_limit,
    plain_log_ticks,
    read_panels,
    transparent_svg,
    whole_epochs,
)  # fmt: skip
from lipschitz_rnn.training.history import Run, read_run


def write_file_page(folder: Path, assessment: Mapping[str, Any]) -> Path:
    """Write report.html, report.md and figures/ into the run folder; returns the HTML file."""
    blocks = file_page(read_run(folder), assessment)
    page = folder / "report.html"
    title = f"{assessment['source']}: {', '.join(assessment['targets'])}"
    write_page(blocks, folder / "report.md")
    write_files({page: to_html(title, blocks).encode()})
    return page


def file_page(run: Run, assessment: Mapping[str, Any]) -> list[Block]:
    """All blocks of the page."""
    kind, source = assessment["kind"], assessment["source"]
    blocks: list[Block] = [Heading(f"{kind} {', '.join(assessment['targets'])} in {source}", 1)]
    blocks.append(Paragraph("\n".join(f"- {note}" for note in assessment["notes"])))
    blocks += [Heading("Scores on the test split"), scores_table(assessment)]
    blocks += [Heading("Learning curves"), _curves(run, scaled=assessment["classes"] is None)]
    if assessment["classes"] is not None:
        blocks += _class_blocks(assessment)
    else:
        blocks += [Heading("Predicted against true"), _pairs(assessment)]
    if assessment.get("coverage"):
        blocks += [Heading("Intervals"), Paragraph(_coverage(assessment["coverage"]))]
    if assessment.get("horizon"):
        blocks += [Heading("Free run"), _horizon(assessment["horizon"])]
    blocks += [Heading("Worst series"), _worst(assessment["worst"])]
    if assessment["certificate"] is not None:
        blocks += _certificate(assessment["certificate"], run.path)
    setup = run.settings
    shown = {"unit": setup.unit, "hidden size": setup.hidden_size, "epochs": setup.epochs, "patience": setup.patience}
    shown |= {"learning rate": setup.learning_rate, "batch size": setup.batch_size, "seeds": list(setup.seeds)}
    shown |= {f"unit option {name}": value for name, value in setup.unit_options.items()}
    shown |= {f"data option {name}": value for name, value in setup.task_options.items() if value not in (None, [])}
    blocks += [Heading("Settings"), Table(["setting", "value"], [[k, str(v)] for k, v in shown.items()], left=2)]
    return blocks


def _coverage(found: Mapping[str, Any]) -> str:
    ahead = f", up to {found['steps']} steps ahead" if found["steps"] > 1 else ""
    return (
        f"Intervals that should contain {100 * found['asked']:.0f} % of the true numbers, made from errors on the "
        f"validation split, contain {100 * found['found']:.1f} % of {found['count']:,} numbers of the test "
        f"split{ahead}. `lipschitz-rnn predict --interval 0.9` writes them. They assume that new series are like those "
        "of the validation split."
    )


def show_metric(name: str, values: Sequence[float | None]) -> str:
    """ "97.3 ± 0.8 %" over seeds; the spread is the standard deviation."""
    percent = name in PERCENT
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return show_score(known[0] if known else None, percent)
    mean, deviation = statistics.fmean(known), statistics.stdev(known)
    return f"{100 * mean:.2f} ± {100 * deviation:.2f} %" if percent else f"{mean:.4g} ± {deviation:.2g}"


def scores_table(assessment: Mapping[str, Any]) -> Table:
    """Every metric: over networks, of their mean prediction, and of the baseline."""
    several = assessment["ensemble"] is not None
    base = assessment["baseline"]
    header = ["metric", f"{len(assessment['networks'])} networks" if several else "test"]
    header += ["their mean prediction"] if several else []
    rows = []
    for name, values in assessment["metrics"].items():
        row = [name, show_metric(name, values)]
        row += [show_metric(name, [assessment["ensemble"][name]])] if several else []
        rows.append([*row, show_metric(name, [base["scores"].get(name)])])
    return Table([*header, base["name"]], rows)


def _curves(run: Run, scaled: bool) -> Picture:
    """`scaled`: the network was trained on scaled numbers, unlike the scores of the test split in the file's units."""
    figure, (left, right) = new_figure(2)
    training = run.training_losses()
    steps, losses = run.curve("validation", "loss")
    epochs = list(range(1, len(steps) + 1))
    if training:
        draw_curves(left, epochs[: len(training[0])], [curve[: len(epochs)] for curve in training], GREY, "training")
    draw_curves(left, epochs, losses, BLUE, "validation")
    units = " (in scaled units)" if scaled else ""
    left.set(xlabel="epoch", ylabel=f"loss{units}", yscale="log")
    plain_log_ticks(left)
    left.legend(frameon=False, fontsize=8)
    _, scores = run.curve("validation", run.metric)
    factor = 100.0 if run.percent else 1.0
    shown = [[None if value is None else factor * value for value in curve] for curve in scores]
    draw_curves(right, epochs, shown, BLUE, "validation")
    right.set(xlabel="epoch", ylabel=f"validation {run.metric}{' (%)' if run.percent else units}")
    if run.percent:
        percent_limit(right)
    for axis in (left, right):
        whole_epochs(axis)
    caption = "Loss and validation score by epoch" + ("; thin lines are single seeds." if len(scores) > 1 else ".")
    return Picture("learning", transparent_svg(figure), caption, read_panels(figure))


def _class_blocks(assessment: Mapping[str, Any]) -> list[Block]:
    classes, counts = assessment["classes"], assessment["confusion"]
    networks = len(assessment["networks"])
    several = f", summed over {networks} networks" if networks > 1 else ""
    rows = [
        [name, *map(str, row), show_score(_share(row, i), True)]
        for i, (name, row) in enumerate(zip(classes, counts, strict=True))
    ]
    table = Table(["true \\ predicted", *classes, "found"], rows)
    error = assessment["calibration_error"]
    text = f"Rows are true classes, columns predicted ones{several}."
    return [
        Heading("Confusion matrix"),
        Paragraph(text),
        table,
        Heading("Calibration"),
        _calibration(assessment["calibration"]),
        Paragraph(f"The expected calibration error is {100 * error:.1f} %."),
    ]


def _share(row: Sequence[int], index: int) -> float | None:
    return row[index] / sum(row) if sum(row) else None


def _calibration(bins: Sequence[Mapping[str, float]]) -> Picture:
    figure, (axis,) = new_figure(1)
    axis.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
    most = max(entry["count"] for entry in bins)
    sizes = [15 + 85 * entry["count"] / most for entry in bins]
    axis.scatter(
        [entry["confidence"] for entry in bins],
        [entry["accuracy"] for entry in bins],
        s=sizes,
        color=BLUE,
        clip_on=False,
    )
    axis.set(xlabel="probability of the predicted class", ylabel="share that was right", xlim=(0, 1.02), ylim=(0, 1.02))
    return Picture(
        "calibration", transparent_svg(figure), "Points on the line are well calibrated; larger ones hold more cases."
    )


def _pairs(assessment: Mapping[str, Any]) -> Picture:
    names = assessment["targets"][:3]
    figure, axes = new_figure(len(names))
    for column, (name, axis) in enumerate(zip(names, axes, strict=True)):
        true = [pair[0][column] for pair in assessment["pairs"]]
        found = [pair[1][column] for pair in assessment["pairs"]]
        low, high = min([*true, *found], default=0.0), max([*true, *found], default=1.0)
        axis.plot([low, high], [low, high], color=GREY, linewidth=1, linestyle=":")
        axis.scatter(true, found, s=7, color=BLUE, alpha=0.5, linewidths=0)
        axis.set(xlabel=f"true {name}", ylabel=f"predicted {name}")
    return Picture("predicted", transparent_svg(figure), "Test split; predictions are the mean over networks.")


def _horizon(horizon: Mapping[str, Any]) -> Picture:
    figure, (axis,) = new_figure(1)
    draw_curves(axis, horizon["steps"], horizon["rmse"], BLUE, "free run")
    axis.plot(horizon["steps"], horizon["persistence"], color=RED, linewidth=1.4, label="persistence")
    axis.set(xlabel="steps ahead", ylabel="RMSE")
    whole_epochs(axis)
    axis.legend(frameon=False, fontsize=8)
    caption = f"Error in {horizon['unit']}, when predictions are fed back as inputs."
    return Picture("free-run", transparent_svg(figure), caption, read_panels(figure))


def _worst(worst: Sequence[Mapping[str, Any]]) -> Table:
    measure = worst[0]["measure"] if worst else "score"
    rows = [[entry["series"], f"{entry['samples']:,}", f"{entry['score']:.4g}"] for entry in worst]
    return Table(["series", "samples", measure], rows)


def _certificate(certificate: Mapping[str, Any], folder: Path) -> list[Block]:
    verdict = {True: "Certified", False: "Not certified", None: ""}[certificate["holds"]]
    sentence = certificate["sentence"]
    text = sentence if sentence.startswith(verdict) else f"{verdict}. {sentence}"
    text += "" if text.endswith(".") else "."
    text = re.sub(r"(?<![\w.])-(?=\d)", "−", text)
    blocks: list[Block] = [Heading("Certificate of contraction"), Paragraph(text)]
    if certificate["next_step"]:
        blocks.append(Paragraph(f"What to try: {certificate['next_step']}."))
    return [
        *blocks,
        Paragraph("Ask again, with more time:"),
        Commands([f"lipschitz-rnn certify {shlex.quote(str(folder))} --time-limit 600"]),
    ]
