"""Reports hold what the runs hold, in Markdown and in one HTML file."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from html import unescape
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from lipschitz_rnn.cli import app
from lipschitz_rnn.experiments.comparison.collecting import compare, compare_runs
from lipschitz_rnn.experiments.presets import preset_settings
from lipschitz_rnn.experiments.report import group_runs, write_report
from lipschitz_rnn.experiments.runner import train
from lipschitz_rnn.training import Diverged, RunError, evaluate
from lipschitz_rnn.training.folder import read_settings
from lipschitz_rnn.training.history import find_runs, holds_runs
from lipschitz_rnn.training.runs import load_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three small runs: two of one configuration with different seeds, and an LSTM."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    small = {"epochs": 2, "hidden_size": 6, "device": "cpu"}
    for name, changes in (
        ("a", {"seeds": (0, 1)}),
        ("b", {"seeds": (2,)}),
        ("lstm", {"seeds": (0,), "unit": "lstm"}),
    ):
        train(preset_settings("digits", changes=small | changes), folder / name)
    return folder


@pytest.fixture(scope="module")
def written(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The report of all of them."""
    return write_report([runs], tmp_path_factory.mktemp("report"))


def test_seeds_of_one_configuration_are_laid_together(runs: Path) -> None:
    groups = group_runs(find_runs([runs]))
    assert [group.record.name for group in groups] == ["digits, lipschitz, N = 6", "digits, lstm, N = 6"]
    assert [(group.task, group.name) for group in groups] == [("digits", "lipschitz"), ("digits", "lstm")]
    assert [seed["seed"] for seed in groups[0].record.seeds] == [0, 1, 2]


def test_the_report_shows_minimum_mean_and_maximum(runs: Path, written: dict[str, Path], tmp_path: Path) -> None:
    text = written["markdown"].read_text()
    results = [json.loads((runs / name / "result.json").read_text()) for name in ("a", "b")]
    scores = [seed["test"] for result in results for seed in result["seeds"]]
    row = next(line for line in text.splitlines() if line.startswith("| lipschitz | 6 |"))
    shown = [f"{100 * value:.2f} %" for value in (min(scores), sum(scores) / 3, max(scores))]
    assert f"| 3 | {' | '.join(shown)} |" in row
    for picture in re.findall(r"\]\((figures/[^)]+)\)", text):
        assert (written["markdown"].parent / picture).read_bytes().startswith(b"<?xml")
    assert "task-1-eigenvalues" in text
    lstm = write_report([runs / "lstm"], tmp_path)["markdown"].read_text()
    assert "eigenvalues" not in lstm  # it has no A and W
    assert "Units and tasks" not in lstm  # there is only one


def test_units_are_compared_where_there_are_several(runs: Path, written: dict[str, Path], tmp_path: Path) -> None:
    text = written["markdown"].read_text()
    assert "## Units and tasks\n" in text
    assert re.search(
        r"\| unit \| digits \(accuracy\) \|\n\| --- \| ---: \|\n\| lipschitz \| \*?\*?[\d.]+ ± [\d.]+ %", text
    )
    copy = tmp_path / "copy"
    shutil.copytree(runs / "lstm", copy)
    twice = write_report([runs, copy], tmp_path / "twice")["markdown"].read_text()
    assert "These runs cannot be compared: seed 0 of lstm on digits is in" in twice


def test_a_task_has_one_section_whatever_the_number_of_runs(written: dict[str, Path]) -> None:
    text = written["markdown"].read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## Units and tasks", "## digits"]
    kept = [line for line in text.splitlines() if line.startswith("### ")]
    assert kept == ["### Differences and their p-values"] * ("p, corrected" in text) + [
        "### Every seed", "### Settings", "### Runs and hardware",
    ]  # fmt: skip
    assert "| lipschitz | 6 |" in text
    assert re.search(r"\| configuration \| unit \|.*\n.*\n\| lipschitz \| lipschitz \|", text)  # what differs
    assert "All configurations share:" in text


def test_the_html_needs_no_other_file(written: dict[str, Path]) -> None:
    page = written["html"].read_text()
    assert page.count("<svg role") == 2
    sources = re.findall(r'(?:src|href)="([^"]{0,40})', page)
    assert all(source.startswith(("#", "data:,")) for source in sources)
    assert "http" not in page.replace("http-equiv", "")


def test_runs_on_one_task_share_a_picture_with_whole_epochs(written: dict[str, Path]) -> None:
    """Two configurations of three runs: one joint picture, without a background, ticks at 1 and 2 but not at 1.25."""
    text, folder = written["markdown"].read_text(), written["markdown"].parent / "figures"
    assert text.count("![Learning curves on digits: both configurations.") == 1
    for path in folder.glob("*.svg"):
        svg = path.read_text()
        assert "opacity: 0" in svg  # the background
        ticks = re.findall(r"<!-- ([−\d.]+) -->", svg)
        assert {"1", "2"} <= set(ticks)
        assert not {"1.2", "1.25", "1.4", "1.50"} & set(ticks)
    joint = (folder / "task-1-learning.svg").read_text()
    assert "<!-- lipschitz -->" in joint
    assert "<!-- lstm -->" in joint


def test_curves_carry_their_numbers(runs: Path, written: dict[str, Path]) -> None:
    """What the pointer reads is what was measured, inside its panel."""
    page = written["html"].read_text()
    found = re.findall(r'data-panels="([^"]+)"', page)
    assert len(found) == 2
    loss, score = json.loads(unescape(found[0]))
    records = [json.loads(line) for line in (runs / "lstm" / "metrics.jsonl").read_text().splitlines()]
    accuracy = [100 * record["accuracy"][0] for record in records if record["kind"] == "validation"]
    (points,) = (points for name, _, points in score["curves"] if name == "lstm")
    assert [x for *_, x, _ in points] == [1, 2]
    assert [y for *_, y in points] == pytest.approx(accuracy, rel=1e-3)
    for panel in (loss, score):
        left, top, right, bottom = panel["box"]
        places = [point[:2] for _, _, points in panel["curves"] for point in points]
        assert all(left <= across <= right and top <= down <= bottom for across, down in places)
        assert len(places) == 4


def test_wide_tables_scroll_and_pictures_suit_a_dark_page(written: dict[str, Path]) -> None:
    page = written["html"].read_text()
    boxes = re.findall(r'<div class="scroll" role="group" aria-label="[^"]+" tabindex="0"><table>', page)
    assert len(boxes) == page.count("<table>") > 0
    assert "overflow-x: auto" in page
    assert "prefers-color-scheme: dark" in page
    assert "stroke: var(--c0)" in page
    assert "background: white" not in page


def test_an_unfinished_run_is_reported_as_far_as_it_is(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "going"
    folder.mkdir()
    for name in ("config.json", "environment.json"):
        (folder / name).write_bytes((runs / "a" / name).read_bytes())
    lines = (runs / "a" / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines[:3]) + b'{"kind": "tra')
    waiting = tmp_path / "waiting"
    waiting.mkdir()
    for name in ("config.json", "environment.json"):
        (waiting / name).write_bytes((runs / "lstm" / name).read_bytes())
    text = write_report([waiting, folder], tmp_path / "page")["markdown"].read_text()
    assert "going is not complete: 1 of 2 epochs" in text
    assert "waiting is not complete: 0 of 2 epochs" in text
    assert re.findall(r"^## .*|configuration.*, min", text, re.MULTILINE)[:2] == [
        "## digits",
        "configuration | N | parameters | seeds | accuracy, min",
    ]


def test_diverged_seeds_are_counted(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "diverged"
    shutil.copytree(runs / "a", folder)
    event = {"kind": "diverged", "seed": 1, "epoch": 1, "step": 9, "gradient_norm": None, "last_good_checkpoint": "x"}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")
    text = write_report([folder], tmp_path / "page")["markdown"].read_text()
    assert "| 2 (1 diverged) |" in text
    assert "seed 1 diverged at step 9 (gradient norm not finite); last good checkpoint: x." in text


def test_a_run_in_which_all_seeds_diverged_is_not_called_incomplete(tmp_path: Path) -> None:
    wild = {"epochs": 2, "hidden_size": 4, "optimiser": "sgd", "learning_rate": 1e30, "clip": None, "device": "cpu"}
    variants = {"variants": ({"beta": 0.5}, {"beta": 0.75})}
    for name, changes in (("two", {}), ("one", {"seeds": (3,)}), ("varied", variants)):
        with pytest.raises(Diverged):
            train(preset_settings("digits", changes=wild | {"seeds": (0, 1)} | changes), tmp_path / name)
    text = write_report([tmp_path], tmp_path / "page")["markdown"].read_text()
    assert "not complete" not in text
    assert len(re.findall(r"varied: all 2 seeds diverged, at steps? \d", text)) == 2  # once for each variant
    (when,) = re.findall(r"two: all 2 seeds diverged, at (steps? .*), so it has no scores\.", text)
    steps = {int(step) for step in re.findall(r"two: seed \d diverged at step (\d+)", text)}
    assert {int(step) for step in re.findall(r"\d+", when)} == steps
    assert re.search(r"one: its only seed diverged at step \d+, so it has no scores\.", text)
    found = compare_runs(find_runs([tmp_path / "varied"]))
    assert [cell.diverged for cell in found.cells.values()] == [2, 2]
    assert not found.left_out


def test_the_papers_number_stands_beside_ours(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    for name in ("environment.json", "metrics.jsonl", "result.json"):
        (folder / name).write_bytes((runs / "a" / name).read_bytes())
    seeds = read_settings(runs / "a").seeds
    (folder / "config.json").write_text(
        json.dumps(preset_settings("ordered-mnist", changes={"seeds": seeds}).to_dict())
    )
    text = write_report([folder], tmp_path / "page")["markdown"].read_text()
    assert "99.4 % (99.0, 99.2, 99.4)" in text


def test_a_folder_without_runs_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, message in (
        ("", "holds no run"),
        ("gone", "there is no folder .*gone; give"),
        ("file", "file is a file;"),
    ):
        with pytest.raises(RunError, match=message):
            write_report([tmp_path / name], tmp_path / "page")


def test_runs_of_reproduce_are_found_far_below_the_folder(runs: Path, tmp_path: Path) -> None:
    """Nothing is searched inside a run, in a hidden folder or further down."""
    far = tmp_path / "a/b/c/d/e/f/g"
    for place in (far, far / "inside", tmp_path / ".hidden", tmp_path / "A/b/c/d/e/f/g/h"):
        shutil.copytree(runs / "a", place)
    assert [run.path for run in find_runs([tmp_path])] == [far]


def test_links_lead_to_each_run_once(runs: Path, tmp_path: Path) -> None:
    """Links in a circle would double the ways to a run at every level; the shortest counts."""
    shutil.copytree(runs / "a", tmp_path / "deep/run")
    for name in "uvwxyz":
        (tmp_path / name).symlink_to(tmp_path)
    (tmp_path / "twice").symlink_to(tmp_path / "deep/run")
    (tmp_path / "itself").symlink_to(tmp_path / "itself")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    assert [run.path for run in find_runs([tmp_path])] == [tmp_path / "twice"]


def test_each_folder_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "uvwxyz":
        (tmp_path / name).symlink_to(tmp_path)
    read, listdir = list[str](), os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: read.append(str(path)) or listdir(path))
    assert not holds_runs(tmp_path)
    assert read == [str(tmp_path)]


def test_a_folder_of_links_to_runs_is_not_one_of_results(runs: Path, tmp_path: Path) -> None:
    """Each has JSON files one level down, config.json among them."""
    (tmp_path / "links").mkdir()
    for name in ("a", "lstm"):
        (tmp_path / "links" / name).symlink_to(runs / name)
    asked = ["report", str(tmp_path / "links"), "-o", str(tmp_path / "page")]
    assert CliRunner().invoke(app, asked).exit_code == 0
    assert (tmp_path / "page/report.html").exists()
    assert set(compare([tmp_path / "links"]).rows) == set(compare([runs]).rows)


def test_a_hidden_run_does_not_hide_results(tmp_path: Path) -> None:
    """Editors and notebooks keep copies in hidden folders."""
    results = Path(__file__).parents[2] / "results" / "ablation"
    shutil.copytree(results, tmp_path / "results/ablation")
    (tmp_path / "results/.copies").mkdir()
    (tmp_path / "results/.copies/config.json").write_text("{}")
    written = CliRunner().invoke(app, ["report", str(tmp_path / "results"), "-o", str(tmp_path / "pages")])
    assert written.exit_code == 0, written.output
    assert (tmp_path / "pages/ablation.md").exists()


def test_a_folder_that_may_not_be_read_is_not_called_empty(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> list[str]:
        if Path(path).name == "locked":
            raise PermissionError(errno.EACCES, "Permission denied")
        return listdir(path)

    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", refused)
    (tmp_path / "locked").mkdir()
    with pytest.raises(
        RunError, match=r"locked cannot be searched for runs: Permission denied; change its permissions"
    ):
        find_runs([tmp_path / "locked"])
    shutil.copytree(runs / "a", tmp_path / "open/run")  # beside it
    assert [run.path for run in find_runs([tmp_path])] == [tmp_path / "open/run"]


def test_models_come_back_from_the_folder_alone(runs: Path) -> None:
    from lipschitz_rnn import tasks

    settings, models = load_run(runs / "a").of_variant()
    assert settings == read_settings(runs / "a")
    result = json.loads((runs / "a" / "result.json").read_text())
    task = tasks.load("digits")
    expected = [pytest.approx(seed["test"], abs=1.01 / task.size("test")) for seed in result["seeds"]]
    assert [evaluate(model, task) for model in models.values()] == expected  # up to a sample at the border
    with pytest.raises(ValueError, match="best"):
        load_run(runs / "a").checkpoint("worst")
