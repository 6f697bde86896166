"""The ablation study: what it would run, what its page says, and one small study from the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from lipschitz_rnn.cli import app
from lipschitz_rnn.documents.blocks import to_markdown
from lipschitz_rnn.experiments.pages.sections import blocks
from lipschitz_rnn.experiments.pages.sweeps import read_curves
from lipschitz_rnn.experiments.results import Record, read_records
from lipschitz_rnn.experiments.studies.ablation import STUDY, VALUES


def test_the_study_sweeps_both_options_on_both_tasks_with_the_papers_settings() -> None:
    plans = {plan.name: plan.settings for plan in STUDY.plans()}
    assert list(plans) == ["ordered-mnist/alpha", "ordered-mnist/beta", "permuted-mnist/alpha", "permuted-mnist/beta"]
    first, last = plans["ordered-mnist/alpha"], plans["permuted-mnist/beta"]
    assert (first.unit_options["beta"], plans["permuted-mnist/alpha"].unit_options["beta"]) == (0.65, 0.8)
    assert [variant["alpha"] for variant in first.variants] == [0, 0.2, 0.4, 0.6, 0.8, 1, 1.2, 1.4, 1.6, 1.8, 2]
    assert (last.variants[0], last.variants[-1]) == ({"beta": 0.5}, {"beta": 1.0})
    assert last.unit_options["alpha"] == 1.0
    assert all(settings.unit_options["gamma"] == 0.001 for settings in plans.values())
    assert (first.learning_rate, last.learning_rate, first.epochs, first.decay_epochs) == (0.003, 0.0035, 100, (90,))
    assert len(first.members) == 33


def test_fewer_epochs_move_the_decay_and_stand_in_the_command() -> None:
    (plan,) = STUDY.plans(["ordered-mnist/beta"], seeds=(0, 1, 2, 3), changes={"epochs": 20, "precision": "high"})
    assert plan.settings.decay_epochs == (18,)
    assert (
        plan.command
        == "lipschitz-rnn reproduce ablation --only ordered-mnist/beta --seeds 0-3 --epochs 20 --precision high"
    )
    assert plan.why == "20 epochs, not the paper's 100"
    assert {plan.why for plan in STUDY.plans()} == {""}


def test_a_sweep_is_split_where_memory_asks_for_it() -> None:
    plans = STUDY.plans(["permuted-mnist/alpha"], options={"at_once": 12})
    assert [plan.name for plan in plans] == [f"permuted-mnist/alpha/part-{number}" for number in (1, 2, 3)]
    assert all(len(plan.settings.members) <= 12 for plan in plans)
    values = [variant["alpha"] for plan in plans for variant in plan.settings.variants]
    assert sorted(values) == list(VALUES["alpha"])
    assert plans[0].settings.variants[0] == {"alpha": 0.0}
    assert plans[0].settings.variants[-1] != {"alpha": 2.0}  # the ends of the range are not all in one run
    with pytest.raises(ValueError, match=r"--at-once is 2.* 3"):
        STUDY.plans(options={"at_once": 2})


def test_a_name_that_matches_nothing_is_told_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match=r"'gamma'.* ordered-mnist/alpha"):
        STUDY.plans(["gamma"])


def record(task: str, values: dict[float, list[float | None]], kind: str = "paper", part: str = "") -> Record:
    seeds = [
        {"seed": seed, "test": score, "test_last": score, "validation": score, "selected_epoch": 3}
        | {"diverged_step": 7 if score is None else None, "variant": {"beta": value}}
        for value, scores in values.items()
        for seed, score in enumerate(scores)
    ]
    settings = {"task": task, "variants": [{"beta": value} for value in values], "seeds": [0, 1], "hidden_size": 8}
    settings |= {"unit_options": {"alpha": 1.0}, "epochs": 2, "unit": "lipschitz"}
    environment = {"device": "a machine"}
    return Record(
        "ablation", f"{task}/beta{part}", kind, settings, seeds, {}, "accuracy", True, True, 10, 20, 1.0, "vmap",
        environment, "lipschitz-rnn reproduce ablation",
    )  # fmt: skip


def test_the_page_shows_minimum_mean_and_maximum_over_seeds() -> None:
    parts = [
        record("ordered-mnist", {0.5: [0.9, 0.94], 1.0: [0.8, None]}, part="/part-1"),
        record("ordered-mnist", {0.75: [0.97, 0.99]}, part="/part-2"),
    ]
    (curve,) = read_curves(parts)
    assert [point.value for point in curve.points] == [0.5, 0.75, 1.0]
    text = to_markdown(blocks(STUDY, parts))
    assert "| 0.75 | 2 | 97.00 % | 98.00 % | 99.00 % | 98.00 % | – |" in text
    assert "| 1 | 2 | 80.00 % | 80.00 % | 80.00 % | 80.00 % | 1 |" in text


def test_the_figure_has_both_tasks_in_a_panel_for_each_option() -> None:
    records = [
        record("ordered-mnist", {0.5: [0.9, 0.94], 0.75: [0.97, None], 1.0: [None, None]}),
        record("permuted-mnist", {0.5: [None, None], 0.75: [0.9, 0.92]}),
    ]
    (section,) = STUDY.sections
    figure = section.draw(read_curves(records))  # type: ignore[attr-defined]
    (axis,) = figure.axes
    labels = {line.get_label() for line in axis.lines}
    assert {"ordered-mnist (2 seeds)", "ordered-mnist: diverged", "permuted-mnist: diverged"} <= labels
    line = next(line for line in axis.lines if line.get_label() == "ordered-mnist (2 seeds)")
    assert line.get_ydata() == pytest.approx([92.0, 97.0])  # the value without any score has no point
    assert "| 1 | 2 | – | – | – | – | 2 |" in to_markdown(blocks(STUDY, records))


def test_a_sweep_without_any_score_is_still_a_page() -> None:
    records = [record("ordered-mnist", {0.5: [None, None]})]
    assert "| 0.5 | 2 | – | – | – | – | 2 |" in to_markdown(blocks(STUDY, records))


def test_other_epochs_than_the_papers_are_told() -> None:
    why = "30 epochs, not the paper's 100"
    short = [replace(record(task, {0.5: [0.5, 0.6]}), why=why) for task in ("ordered-mnist", "permuted-mnist")]
    assert f"ordered-mnist and permuted-mnist: {why}." in to_markdown(blocks(STUDY, short))


def test_runs_of_two_lengths_say_how_many_seeds_they_have() -> None:
    why = "three seeds, but 40 epochs instead of the paper's 100"
    whole = record("ordered-mnist", {0.5: [0.5, 0.6]})
    short = replace(whole, settings={**whole.settings, "epochs": 40, "seeds": [0]}, why=why, kind="short")
    page = to_markdown(blocks(STUDY, [whole, short]))
    assert (whole.setup.epochs, len(whole.setup.seeds)) == (2, 2)
    assert "Runs of 2 epochs have 2 seeds, runs of 40 epochs have 1 seed." in page
    assert why not in page


def test_a_mark_stands_once_for_each_task_on_an_axis_in_percent() -> None:
    curves = [record(task, {0.5: [0.9, 0.94]}) for task in ("ordered-mnist", "permuted-mnist")]
    (section,) = STUDY.sections
    (axis,) = section.draw(read_curves(curves)).axes  # type: ignore[attr-defined]
    assert axis.get_ylabel() == "test accuracy (%)"
    marks = [line for line in axis.lines if "peak" in str(line.get_label())]
    looks = {(line.get_label(), line.get_color(), str(line.get_linestyle())) for line in marks}
    assert (len(marks), len(looks)) == (4, 2)


def test_quick_runs_never_stand_among_the_papers() -> None:
    quick = replace(record("digits", {0.5: [0.5, 0.6]}, "quick"), why="small")
    assert "Quick version" in to_markdown(blocks(STUDY, [quick]))
    both = to_markdown(blocks(STUDY, [quick, record("ordered-mnist", {0.5: [0.9, 0.94]})]))
    assert "digits" not in both.split("## Quick runs")[0]
    assert "| digits/beta, beta = 0.5 | small |" in both.split("## Quick runs")[1]


def call(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["reproduce", "ablation", *map(str, arguments)])


@pytest.mark.slow
def test_the_command_writes_table_figure_and_json_and_goes_on(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    small = ["--quick", "-o", tmp_path, "--epochs", 1, "--hidden-size", 3, "--seeds", "0,5", "--only", "beta"]
    answer = call(*small, "--json")
    assert answer.exit_code == 0, answer.output
    written = [Path(path).relative_to(tmp_path).as_posix() for path in json.loads(answer.stdout)["written"]]
    assert written == ["ablation.md", "figures/ablation.svg", "results/ablation/quick-digits-beta.json"]
    (record,) = read_records(tmp_path / "results", "ablation")
    assert len(record.seeds) == 2 * len(VALUES["beta"])
    assert len(record.curves["train_loss"]) == len(record.seeds)
    page = (tmp_path / "ablation.md").read_text()
    assert page.count("| 2 |") == len(VALUES["beta"])
    assert call(*small).exit_code == 2  # the folder holds a run
    again = call(*small, "--resume")
    assert again.exit_code == 0, again.output
    assert "already complete" in again.output
    assert (tmp_path / "ablation.md").read_text() == page
    small[-1] = "alpha"
    assert call(*small).exit_code == 0
    both = (tmp_path / "ablation.md").read_text()  # a sweep that was asked for alone joins the one before it
    assert page.split("## digits, β")[1] in both
    assert "## digits, α" in both


def test_a_dry_run_lists_what_would_run() -> None:
    assert call("--dry-run").output.split() == [plan.name for plan in STUDY.plans()]
    listed = json.loads(call("--dry-run", "--json", "--task", "permuted-mnist").stdout)
    assert [entry["settings"]["task"] for entry in listed] == ["permuted-mnist"] * 2
