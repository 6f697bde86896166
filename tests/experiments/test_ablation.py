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
from lipschitz_rnn.experiments.ablation import VALUES, plan_ablation
from lipschitz_rnn.experiments.ablation_page import blocks, draw, read_curves, summary
from lipschitz_rnn.experiments.report.document import to_markdown
from lipschitz_rnn.experiments.results import Record, read_records


def test_the_study_sweeps_both_options_on_both_tasks_with_the_papers_settings() -> None:
    plans = {plan.name: plan.settings for plan in plan_ablation()}
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
    (plan,) = plan_ablation(["ordered-mnist/beta"], seeds=(0, 1, 2, 3), changes={"epochs": 20, "precision": "high"})
    assert plan.settings.decay_epochs == (18,)
    assert plan.command == "lipschitz-rnn reproduce ablation --seeds 0-3 --epochs 20 --precision high"
    assert plan.why == "20 epochs, not the paper's 100"
    assert {plan.why for plan in plan_ablation()} == {""}


def test_a_sweep_is_split_where_memory_asks_for_it() -> None:
    plans = plan_ablation(["permuted-mnist/alpha"], at_once=12)
    assert [plan.name for plan in plans] == [f"permuted-mnist/alpha/part-{number}" for number in (1, 2, 3)]
    assert all(len(plan.settings.members) <= 12 for plan in plans)
    values = [variant["alpha"] for plan in plans for variant in plan.settings.variants]
    assert sorted(values) == list(VALUES["alpha"])
    assert plans[0].settings.variants[0] == {"alpha": 0.0}
    assert plans[0].settings.variants[-1] != {"alpha": 2.0}  # the ends of the range are not all in one run
    with pytest.raises(ValueError, match="2 networks at once cannot hold the 3 seeds"):
        plan_ablation(at_once=2)


def test_a_name_that_matches_nothing_is_told_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match=r"'gamma'; there are ordered-mnist/alpha"):
        plan_ablation(["gamma"])


def record(task: str, values: dict[float, list[float | None]], kind: str = "paper", part: str = "") -> Record:
    seeds = [
        {"seed": seed, "test": score, "test_last": score, "validation": score, "selected_epoch": 3}
        | {"diverged_step": 7 if score is None else None, "variant": {"beta": value}}
        for value, scores in values.items()
        for seed, score in enumerate(scores)
    ]
    settings = {"task": task, "variants": [{"beta": value} for value in values], "seeds": [0, 1], "hidden_size": 8}
    settings |= {"unit_options": {"alpha": 1.0}, "epochs": 2}
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
    text = to_markdown(blocks(parts))
    assert "| 0.75 | 2 | 97.00 % | 98.00 % | 99.00 % | 98.00 % | – |" in text
    assert "| 1 | 2 | 80.00 % | 80.00 % | 80.00 % | 80.00 % | 1 |" in text
    assert "highest at β = 0.75 (98.00 %); at β = 0.5 it is 92.00 %" in text
    assert "peak at β = 0.65 and 0.7" in text
    assert "Quick" not in text
    row = "| ordered-mnist | β | 0.75 | 98.00 % | 0.5 | 92.00 % | 1 | 80.00 % |"
    assert row in to_markdown(summary(parts))


def test_the_figure_draws_the_mean_within_the_range_of_the_seeds() -> None:
    figure = draw(read_curves([record("ordered-mnist", {0.5: [0.9, 0.94], 0.75: [0.97, 0.99], 1.0: [None, None]})]))
    (axis,) = figure.axes
    line = next(line for line in axis.lines if line.get_marker() == "o")
    assert line.get_xdata() == pytest.approx([0.5, 0.75])
    assert line.get_ydata() == pytest.approx([92.0, 98.0])
    band = axis.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((90.0, 99.0))


def test_both_tasks_share_a_panel_and_diverged_networks_are_marked() -> None:
    records = [
        record("ordered-mnist", {0.5: [0.9, 0.94], 0.75: [0.97, None], 1.0: [None, None]}),
        record("permuted-mnist", {0.5: [None, None], 0.75: [0.9, 0.92]}),
    ]
    figure = draw(read_curves(records))
    (axis,) = figure.axes
    crosses = {
        (line.get_label(), *line.get_xdata()): line.get_ydata()[0] for line in axis.lines if line.get_marker() == "x"
    }
    assert list(crosses) == [
        ("ordered-mnist: diverged", 0.75),
        ("ordered-mnist: diverged", 1.0),
        ("permuted-mnist: diverged", 0.5),
    ]
    assert crosses["ordered-mnist: diverged", 0.75] == pytest.approx(97.0)  # on its curve
    assert all(height < 0.1 for (_, value), height in crosses.items() if value != 0.75)  # near the bottom
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(set(names)) == len(names) == 6  # of each task its curve, its crosses and the paper's peaks
    text = to_markdown(blocks(records))
    assert "A cross: some or all networks of that value diverged." in text
    assert "| 1 | 2 | – | – | – | – | 2 |" in text
    assert "permuted-mnist, β" in text


def test_a_sweep_without_any_score_is_still_a_page() -> None:
    records = [record("ordered-mnist", {0.5: [None, None]})]
    assert "No network of this sweep has a score." in to_markdown(blocks(records))
    assert "| ordered-mnist | β | 0.5 | – |" in to_markdown(summary(records))


def test_other_epochs_than_the_papers_are_told_wherever_numbers_stand() -> None:
    why = "30 epochs, not the paper's 100"
    sweep = {0.5: [0.5, 0.6]}
    short = [replace(record(task, sweep), why=why) for task in ("ordered-mnist", "permuted-mnist")]
    told = f"ordered-mnist and permuted-mnist: {why}."
    text = to_markdown(blocks(short))
    assert text.count(told) == 3  # introduction, picture and its caption
    assert text.count("2 epochs (not the paper's 100)") == 2
    assert draw(read_curves(short)).get_suptitle() == told
    assert f"| permuted-mnist ({why}) |" in to_markdown(summary(short))
    whole = [short[0], record("permuted-mnist", sweep)]
    assert draw(read_curves(whole)).get_suptitle() == f"ordered-mnist: {why}."


def test_a_quick_study_says_so_in_text_and_figure() -> None:
    records = [record("digits", {0.5: [0.5, 0.6]}, "quick")]
    text = to_markdown(blocks(records))
    assert text.count("Quick version, not the paper's experiment") == 3
    assert "digits, β: from symmetric to skew-symmetric (quick)" in text
    assert "not the paper's experiment" in draw(read_curves(records)).get_suptitle()


def call(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["reproduce", "ablation", *map(str, arguments)])


@pytest.mark.slow
def test_the_command_writes_table_figure_and_json_and_goes_on(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    small = ["--quick", "-o", tmp_path, "--epochs", 1, "--hidden-size", 3, "--seeds", "0,5", "--only", "beta"]
    answer = call(*small, "--json")
    assert answer.exit_code == 0, answer.output
    written = [Path(path).relative_to(tmp_path).as_posix() for path in json.loads(answer.stdout)]
    assert written == ["ablation.md", "figures/ablation.svg", "ablation.png", "results/ablation/quick-digits-beta.json"]
    assert (tmp_path / "ablation.png").read_bytes().startswith(b"\x89PNG")
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
    assert call("--dry-run").output.split() == [plan.name for plan in plan_ablation()]
    listed = json.loads(call("--dry-run", "--json", "--task", "permuted-mnist").stdout)
    assert [entry["settings"]["task"] for entry in listed] == ["permuted-mnist"] * 2
