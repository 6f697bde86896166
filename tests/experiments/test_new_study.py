"""A new study is a few lines of data, and runs to a page; every recorded command and row still does."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from lipschitz_rnn.cli import app
from lipschitz_rnn.commands.reproduce_list import estimate, inventory, scan_steps
from lipschitz_rnn.experiments.campaign import Campaign
from lipschitz_rnn.experiments.paper import CELLS
from lipschitz_rnn.experiments.presets import preset_settings
from lipschitz_rnn.experiments.reproduce import reproduce
from lipschitz_rnn.experiments.results import Record, read_records
from lipschitz_rnn.experiments.runner import check_train
from lipschitz_rnn.experiments.studies import STUDIES
from lipschitz_rnn.experiments.study import QUICK, Row, Study

ROOT = Path(__file__).parents[2]
RECORDS = read_records(ROOT / "results")
COMMANDS = sorted({record.command for record in RECORDS})

TINY = Study(
    name="tiny",
    title="A tiny study",
    about="Two units on small digits.",
    rows=(
        Row("digits", hidden_size=3, integrator="midpoint", changes={"epochs": 1}),
        Row("digits", "lstm", 3, changes={"epochs": 1}, why="another unit", group="baselines"),
    ),
    seeds=(0, 5),
    groups={"baselines": "Also an LSTM."},
)


def test_a_new_study_runs_to_a_page(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    plans = TINY.plans(groups=["baselines"], changes={"device": "cpu"})
    outcome = reproduce(TINY, Campaign(tmp_path, tmp_path / "results"), plans)
    assert outcome.failed == []
    assert [record.name for record in outcome.records] == ["digits/lipschitz/3/midpoint", "digits/lstm/3"]
    assert [len(record.seeds) for record in outcome.records] == [2, 2]
    page = (tmp_path / "tiny.md").read_text()
    for record in outcome.records:
        scores = record.scores()
        shown = " | ".join(f"{100 * value:.2f} %" for value in (min(scores), sum(scores) / 2, max(scores)))
        assert re.search(rf"\| {record.name} \| .* \| accuracy \| 2 \| {re.escape(shown)} \|", page)
    assert all(path.exists() for path in outcome.written)


def test_a_study_is_short() -> None:
    source = Path(__file__).read_text()
    assert source[source.index("TINY = ") : source.index("def test_a_new_study")].count("\n") <= 30


@pytest.mark.parametrize("command", COMMANDS)
def test_every_recorded_command_still_runs(command: str) -> None:
    program, *arguments = shlex.split(command)
    assert program == "lipschitz-rnn"
    offline = ["--offline"] if arguments[0] == "reproduce" else []
    arguments = [argument for argument in arguments if argument not in ("--device", "cuda")]
    done = CliRunner().invoke(app, [*arguments, *offline, "--dry-run"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("command", [command for command in COMMANDS if " reproduce " in command])
def test_a_recorded_command_plans_the_run_that_was_recorded(command: str) -> None:
    done = CliRunner().invoke(app, [*shlex.split(command)[1:], "--dry-run", "--json"])
    planned = {plan["name"]: plan["settings"] for plan in json.loads(done.stdout)}
    for record in (record for record in RECORDS if record.command == command):
        found = {name: planned[record.name][name] for name in record.settings}
        assert json.loads(json.dumps(found)) == record.settings, record.name


def test_every_recorded_run_is_a_row_of_its_study() -> None:
    for record in RECORDS:
        (row,) = (row for row in STUDIES[record.study].rows if row.name == record.name)
        asked = {"epochs": record.setup.epochs, "precision": record.setup.precision}
        assert row.settings(record.setup.seeds, asked).differences(record.setup) == {}, record.name


def test_every_cell_of_the_papers_tables_is_a_row() -> None:
    rows = {
        (row.task, row.unit, row.integrator, *row.task_options.values()) for s in STUDIES.values() for row in s.rows
    }
    tables = {table for study in STUDIES.values() for table in study.tables}
    assert tables == {cell.table for cell in CELLS}
    plain = [cell for cell in CELLS if cell.task not in ("ordered-mnist", "permuted-mnist")]  # MNIST trains some only
    for cell in plain:
        assert (cell.task, cell.unit, cell.integrator, *cell.task_options.values()) in rows, cell.name


@pytest.mark.parametrize("name", STUDIES)
def test_every_row_can_start(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings, unit options and sizes fit together; data are not read."""
    monkeypatch.delenv("LIPSCHITZ_RNN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    study = STUDIES[name]
    assert study.quick
    names = [row.name for row in (*study.rows, *study.quick)]
    assert len(set(names)) == len(names)
    changes = {"device": "cpu", "precision": "highest"}
    licensed = {"timit"}  # its data cannot be downloaded
    plans = [*study.plans(groups=tuple(study.groups), changes=changes), *study.plans(quick=True, changes=changes)]
    for plan in {(p.settings.task, p.settings.unit): p for p in plans if p.settings.task not in licensed}.values():
        check_train(plan.settings)
    assert all(plan.why for plan in plans if plan.kind not in ("paper",))


def test_quick_runs_are_small() -> None:
    for study in STUDIES.values():
        for plan in study.plans(quick=True):
            assert plan.kind == QUICK
            assert scan_steps(plan.settings) * plan.settings.hidden_size < 5e6, plan.name  # minutes on two cores


def test_the_list_says_what_is_committed_and_how_long_it_takes(tmp_path: Path) -> None:
    entries = {(entry.study, entry.plan.name): entry for entry in inventory(STUDIES.values(), ROOT / "results")}
    for record in RECORDS:
        assert entries[record.study, record.name].seconds == record.seconds
    known: Record = entries["cifar", "ordered-cifar10/lipschitz/128/euler"].record  # type: ignore[assignment]
    (tmp_path / "cifar").mkdir()
    shutil.copy(ROOT / "results/cifar/ordered-cifar10-lipschitz-128-euler.json", tmp_path / "cifar")
    alone = {entry.plan.name: entry for entry in inventory([STUDIES["cifar"]], tmp_path)}
    missing = alone["fixed/noise-padded-cifar10/noise-fixed/lipschitz/128/euler"]
    assert missing.record is None
    steps = scan_steps(missing.plan.settings) / scan_steps(known.setup)
    assert estimate(missing.plan.settings, [known]) == pytest.approx(known.seconds * steps)
    assert 0.5 < (missing.seconds or 0.0) / (known.seconds * steps) < 2
    unknown = preset_settings("ptb-word", changes={"unit": "spectral-rnn"})
    assert estimate(unknown, [known]) is None  # nothing like it among the records
    listed = CliRunner().invoke(app, ["reproduce", "--list", "--json", "--results", str(ROOT / "results")])
    facts = json.loads(listed.stdout)
    assert sum(fact["committed"] for fact in facts) == len(RECORDS)
    table = CliRunner().invoke(app, ["reproduce", "--list", "--results", str(ROOT / "results")], env={"COLUMNS": "90"})
    assert all(name in table.output for name in STUDIES)
    assert "about" in table.output
    few = CliRunner().invoke(app, ["reproduce", "--list", "--results", str(tmp_path)], env={"COLUMNS": "90"})
    assert "unknown" in few.output


def test_all_is_checked_before_the_first_study_starts(tmp_path: Path) -> None:
    taken = tmp_path / "figures" / "quick" / "digits" / "spectra"
    taken.mkdir(parents=True)
    (taken / "config.json").write_text("{}")
    done = CliRunner().invoke(app, ["reproduce", "all", "--quick", "-o", str(tmp_path)])
    assert done.exit_code == 2
    assert str(taken) in "".join(done.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["figures"]


def test_all_studies_are_planned_at_once() -> None:
    done = CliRunner().invoke(app, ["reproduce", "all", "--dry-run", "--json"])
    planned = {(plan["study"], plan["name"]) for plan in json.loads(done.stdout)}
    assert planned == {(study.name, row.name) for study in STUDIES.values() for row in study.rows}
    quick = CliRunner().invoke(app, ["reproduce", "all", "--quick", "--dry-run"]).output.splitlines()
    assert quick == [f"{study.name}: {row.name}" for study in STUDIES.values() for row in study.quick]
