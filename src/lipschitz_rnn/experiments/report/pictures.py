"""Pictures of runs: all of them in one, how each group learned, and what its matrices did meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lipschitz_rnn.documents.blocks import Picture
from lipschitz_rnn.drawing import (
    BLUE,
    GREEN,
    GREY,
    RED,
    draw_curves,
    new_figure,
    transparent_svg,
    whole_epochs,
)  # fmt: skip
from lipschitz_rnn.experiments.report.groups import Group
from lipschitz_rnn.experiments.spectra import real_part_names
from lipschitz_rnn.training.history import Run


def learning_curves(group: Group, name: str) -> Picture | None:
    """Training loss and validation metric by epoch, with the paper's number as a dashed line."""
    if not any(run.of_kind("validation") for run in group.runs):
        return None
    figure, (left, right) = new_figure(2)
    for index, run in enumerate(group.runs):
        per_epoch = run.steps_per_epoch()
        steps, losses = run.curve("train", "loss")
        draw_curves(left, [step / per_epoch for step in steps], losses, GREEN, "training loss" if index == 0 else "")
        epochs, scaled = _validation(run)
        draw_curves(right, epochs, scaled, BLUE, "validation" if index == 0 else "")
    run = group.runs[0]
    left.set(xlabel="epoch", ylabel="training loss", yscale="log")
    right.set(xlabel="epoch", ylabel=f"validation {run.metric}{' (%)' if run.percent else ''}")
    if group.cell is not None:
        right.axhline(group.cell.printed, color=GREY, linestyle="--", linewidth=1.0, label="the paper's test result")
    right.legend(frameon=False, fontsize=8)
    for axis in (left, right):
        whole_epochs(axis)
    return Picture(
        f"{name}-learning", transparent_svg(figure), "Learning curves: thin lines are seeds, strong lines their mean."
    )


def joint_curves(groups: Sequence[Group], name: str) -> list[Picture]:
    """The validation curves of several groups in one picture, for each task that more than one group learned."""
    by_task: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        if any(run.of_kind("validation") for run in group.runs):
            by_task.setdefault((group.settings.task, group.runs[0].metric), []).append(group)
    together = {key: found for key, found in by_task.items() if len(found) > 1}
    return [_joint(task, found, f"{name}-{index}") for index, ((task, _), found) in enumerate(together.items(), 1)]


def _joint(task: str, groups: Sequence[Group], name: str) -> Picture:
    figure, (axis,) = new_figure(1, width=7.2, height=3.8)
    for number, group in enumerate(groups):
        # Ten colours, then the same ones dashed.
        colour, line = f"C{number % 10}", ("-", "--", ":")[number // 10 % 3]
        for index, run in enumerate(group.runs):
            epochs, curves = _validation(run)
            draw_curves(axis, epochs, curves, colour, group.title if index == 0 else "", line)
    run = groups[0].runs[0]
    axis.set(xlabel="epoch", ylabel=f"validation {run.metric}{' (%)' if run.percent else ''}")
    axis.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    whole_epochs(axis)
    return Picture(name, transparent_svg(figure), f"All runs on {task}: thin lines are seeds, strong lines their mean.")


def _validation(run: Run) -> tuple[list[float], list[list[float | None]]]:
    """Epochs and, for every seed, the validation metric, in percent where it is a fraction."""
    steps, values = run.curve("validation", run.metric)
    scale = 100.0 if run.percent else 1.0
    scaled = [[None if value is None else scale * value for value in curve] for curve in values]
    return [step / run.steps_per_epoch() for step in steps], scaled


def draw_tracks(axis: Any, run: Run, labelled: bool = True) -> None:
    """max Re λ of A and W by epoch."""
    for matrix, colour in (("A", RED), ("W", BLUE)):
        for index, name in enumerate(real_part_names(run.of_kind("probe"), matrix)):
            steps, values = run.curve("probe", name)
            epochs = [step / run.steps_per_epoch() for step in steps]
            draw_curves(axis, epochs, values, colour, f"max Re λ({matrix})" if labelled and index == 0 else "")


def eigenvalue_tracks(group: Group, name: str) -> Picture | None:
    """Largest real parts of the eigenvalues of A and W after every epoch; None for units without such matrices."""
    runs = [run for run in group.runs if real_part_names(run.of_kind("probe"), "A")]
    if not runs:
        return None
    figure, (axis,) = new_figure(1)
    for run in runs:
        draw_tracks(axis, run, labelled=run is runs[0])
    axis.axhline(0.0, color=GREY, linewidth=0.9)
    axis.set(xlabel="epoch", ylabel="largest real part")
    axis.legend(frameon=False, fontsize=8)
    whole_epochs(axis)
    caption = "Eigenvalue tracks: the largest real parts of A and W after every epoch."
    return Picture(f"{name}-eigenvalues", transparent_svg(figure), caption)
