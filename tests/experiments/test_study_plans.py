"""Plans of a study: which runs there are, what they are called, and that a campaign survives being cut off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from lipschitz_rnn.cli import app
from lipschitz_rnn.commands.parsing import parse_seeds
from lipschitz_rnn.documents.numbers import show_seeds
from lipschitz_rnn.experiments.campaign import Campaign, Plan
from lipschitz_rnn.experiments.paper import CELLS, MNIST, find_cell
from lipschitz_rnn.experiments.presets import preset_settings
from lipschitz_rnn.experiments.results import read_records
from lipschitz_rnn.experiments.studies.mnist import CANDIDATES, STUDY, SWEEP_SEEDS, tuned_row
from lipschitz_rnn.training import RunError, Watcher
from lipschitz_rnn.units.lipschitz.pretrained import read_pretrained
from lipschitz_rnn.units.registry import count_parameters

QUICK = ["reproduce", "mnist", "--quick", "--device", "cpu", "--epochs", "1"]


def names(*only: str, groups: Sequence[str] = ()) -> list[str]:
    return [plan.name for plan in STUDY.plans(only, groups=groups)]


def test_by_default_the_papers_eight_cells_with_its_settings() -> None:
    plans = STUDY.plans()
    assert [plan.name for plan in plans] == [
        cell.name for cell in CELLS if cell.table == MNIST and cell.unit == "lipschitz"
    ]
    for plan in plans:
        assert find_cell(plan.settings).name == plan.name  # type: ignore[union-attr]
        assert plan.settings.seeds == tuple(range(12))
        assert (plan.settings.epochs, plan.settings.decay_epochs) == (100, (90,))
        assert plan.command == "lipschitz-rnn reproduce mnist"


def test_only_takes_names_parts_and_patterns() -> None:
    assert names("ordered-mnist/lipschitz/128/euler") == ["ordered-mnist/lipschitz/128/euler"]
    assert names("64", "permuted-mnist/lipschitz/128") == [
        name for name in names() if "/64/" in name or name.startswith("permuted")
    ]
    assert names("*/euler") == [name for name in names() if name.endswith("euler")]
    assert names("lstm") == ["ordered-mnist/lstm/128", "permuted-mnist/lstm/128"]
    assert names("tuned/ordered-mnist") == [f"tuned/ordered-mnist/lipschitz/{n}/euler" for n in (64, 128)]
    assert len(names("sweep/*/lipschitz/*")) == 2 * len(CANDIDATES)
    assert names("sweep/*/antisymmetric/*") == [
        f"sweep/{task}-mnist/antisymmetric/128/options{which}"
        for task in ("ordered", "permuted")
        for which in ("", "-slower")
    ]
    assert set(names(groups=["baselines"])) - set(names()) == {
        f"{task}-mnist/{unit}" for task in ("ordered", "permuted") for unit in
        ("lstm/128", "antisymmetric/128", "exprnn/360", "cornn/64", "cornn/128", "momentum-lstm/128", "soft-orth/128",
         "irnn/128", "irnn-warm/128", "nais/128", "urnn/128", "full-urnn/128", "kronecker/128", "lru/128", "lru-2/128")
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"'imagenet'.*permuted-mnist/lipschitz/64/euler"):
        STUDY.plans(["imagenet"])


def test_the_decay_moves_with_the_epochs_and_the_command_says_what_differs() -> None:
    (plan,) = STUDY.plans(
        ["ordered-mnist/lipschitz/64/euler"], seeds=(3, 4, 5), changes={"epochs": 20, "precision": "medium"}
    )
    assert plan.settings.decay_epochs == (18,)
    only = "--only ordered-mnist/lipschitz/64/euler"  # else the other runs would get these seeds and epochs too
    assert plan.command == f"lipschitz-rnn reproduce mnist {only} --seeds 3-5 --epochs 20 --precision medium"
    for seeds in ((0, 1, 2), (7,), (0, 2, 5), (4, 3)):
        assert parse_seeds(show_seeds(seeds)) == seeds


def test_tuned_settings_keep_the_size_and_meet_fresh_seeds() -> None:
    for plan in STUDY.plans(groups=["tuned"]):
        assert not set(plan.settings.seeds) & set(SWEEP_SEEDS)
    for candidate in CANDIDATES.values():
        assert candidate.why
        assert not {"hidden_size", "num_layers", "unit", "unit_options"} & set(candidate.changes)
        assert set(candidate.changes.get("task_options", {})) <= {"shift", "distort"}
        options = candidate.changes.get("task_options", {})
        assert [word in candidate.why for word in ("moved", "rotated")] == [
            key in options for key in ("shift", "distort")
        ]


def test_shifts_reach_the_settings_and_nothing_else_changes() -> None:
    (plan,) = STUDY.plans(["sweep/permuted-mnist/lipschitz/128/average-shift-2"], changes={"epochs": 20})
    (still,) = STUDY.plans(["sweep/permuted-mnist/lipschitz/128/average"], changes={"epochs": 20})
    assert plan.settings.differences(still.settings) == {"task_options": ({"shift": 2}, {})}
    assert (plan.settings.averaging, plan.settings.schedule, plan.settings.seeds) == (0.002, "constant", SWEEP_SEEDS)
    (decayed,) = STUDY.plans(["sweep/ordered-mnist/lipschitz/128/average-shift-1-decay"], changes={"epochs": 20})
    assert (decayed.settings.schedule, decayed.settings.decay_epochs) == ("step", (18,))
    assert decayed.settings.task_options == {"shift": 1}


def test_one_candidate_can_be_asked_for() -> None:
    name = "sweep/ordered-mnist/lipschitz/128/average-shift-1"
    done = CliRunner().invoke(app, ["reproduce", "mnist", "--only", name, "--dry-run", "--json"])
    assert done.exit_code == 0, done.output
    (cell,) = json.loads(done.stdout)  # and not those whose names go on
    assert (cell["name"], cell["settings"]["task_options"]) == (name, {"shift": 1})
    assert cell["settings"]["seeds"] == [1000, 1001]


def test_a_choice_carries_its_unit_options() -> None:
    row = tuned_row("ordered-mnist", 64, "average-dropout", unit_options={"step_size": 0.06})
    (plan,) = replace(STUDY, rows=(row,)).plans(groups=["tuned"])
    assert plan.settings.unit_options["step_size"] == 0.06
    assert plan.settings.unit_options["beta"] == 0.75
    assert (plan.settings.dropout, plan.settings.averaging) == (0.2, 0.002)


def test_a_choice_may_train_longer_and_its_decay_moves_along() -> None:
    study = replace(STUDY, rows=(tuned_row("ordered-mnist", 64, "average-distort-0.5", epochs=200),))
    (plan,) = study.plans(groups=["tuned"])
    assert (plan.settings.epochs, plan.settings.decay_epochs) == (200, (180,))
    command = "lipschitz-rnn reproduce mnist --only tuned/ordered-mnist/lipschitz/64/euler"
    assert plan.command == command
    (short,) = study.plans(groups=["tuned"], changes={"epochs": 10})
    assert (short.settings.epochs, short.settings.decay_epochs) == (10, (9,))
    assert short.command == f"{command} --epochs 10"


def test_each_check_changes_one_thing_of_its_cell() -> None:
    cells = {plan.settings.task: plan.settings for plan in STUDY.plans(["128/euler"])}
    for plan in STUDY.plans(["checks"], changes={"precision": "high"}):
        changed = set(plan.settings.differences(cells[plan.settings.task])) - {"precision"}
        if "precision" in plan.name:
            assert not changed
            assert plan.settings.precision == plan.name.rpartition("-")[2]
        else:
            assert changed - {"decay_epochs"} in ({"clip"}, {"schedule"}, {"task_options"}, set())
            assert plan.settings.precision == "high"
        assert STUDY.plans(plan.command.split("--only ")[1].split()[:1])[0].name == plan.name


def test_baselines_are_buildable_and_give_a_reason() -> None:
    for plan in STUDY.plans(groups=["baselines"]):
        if plan.kind == "baseline":
            assert plan.why
            settings = plan.settings
            assert count_parameters(settings.unit, settings.hidden_size, 1, 10) < 75_000


def test_quick_runs_exports_and_is_not_run_again(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    arguments = [*QUICK, "--only", "16/euler", "-o", str(tmp_path), "--json", "--commit", "abc"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    (cell,) = json.loads(done.stdout)["runs"]
    (record,) = read_records(tmp_path / "results")
    assert (record.study, record.kind) == ("mnist", "quick")  # never shown beside the paper's numbers
    assert cell["seeds"] == record.seeds
    assert record.command == "lipschitz-rnn reproduce mnist --quick --epochs 1"
    page = tmp_path / "page"
    assert CliRunner().invoke(app, ["report", str(tmp_path / "results"), "-o", str(page)]).exit_code == 0
    assert "not the paper's task" in (page / "mnist.md").read_text()
    assert (tmp_path / "mnist.md").read_text() in (page / "mnist.md").read_text()
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 2
    assert "--resume" in again.output
    before = (tmp_path / record.name / "checkpoints").stat().st_mtime_ns
    assert CliRunner().invoke(app, [*arguments, "--resume"]).exit_code == 0
    assert (tmp_path / record.name / "checkpoints").stat().st_mtime_ns == before
    other = CliRunner().invoke(app, [*arguments, "--resume", "--seeds", "5"])
    assert other.exit_code == 2
    assert "seeds" in other.output


def test_one_failure_does_not_stop_the_others(tmp_path: Path) -> None:
    small = {"epochs": 1, "hidden_size": 3, "device": "cpu"}
    nowhere = small | {"data_dir": str(tmp_path), "offline": True}
    plans = [
        Plan("test", "wild", "paper", preset_settings("timit", changes=nowhere), "", pretrained="wild"),
        Plan("test", "calm", "paper", preset_settings("digits", changes=small), "", pretrained="calm"),
    ]
    records, failed = Campaign(tmp_path, tmp_path / "results").run(plans, lambda name: Watcher())
    assert ([record.name for record in records], failed) == (["calm"], ["wild"])
    assert read_pretrained(tmp_path / "pretrained" / "calm.safetensors").about["test"] == pytest.approx(
        records[0].scores()[0], rel=1e-5
    )
    assert not (tmp_path / "pretrained" / "wild.safetensors").exists()


def test_failed_cells_end_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Campaign, "run", lambda self, plans, watch: ([], [plan.name for plan in plans]))
    done = CliRunner().invoke(app, [*QUICK, "-o", str(tmp_path)])
    assert done.exit_code == 1
    assert "4 of 4" in done.output


@pytest.mark.full
def test_a_process_saves_on_a_signal_and_goes_on_after_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lipschitz_rnn", *QUICK, "--only", "16/euler", "--jobs", "2", "-o", str(tmp_path)]
    command += ["--epochs", "5"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    best = tmp_path / "quick" / "digits" / "lipschitz" / "16" / "euler" / "checkpoints" / "best.safetensors"
    while not best.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 143, errors
    assert "--resume" in errors
    done = subprocess.run([*command, "--resume"], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "after step" in done.stderr or "already complete" in done.stderr
    (record,) = read_records(tmp_path / "results")
    assert len(record.curves["train_loss"][0]) == 5
    assert record.measures == {"cells_at_once": 2}


def test_a_campaign_that_runs_alone_says_nothing_of_jobs(tmp_path: Path) -> None:
    plan = Plan("test", "one", "paper", preset_settings("digits", changes={"epochs": 1, "hidden_size": 2}), "")
    (record,), _ = Campaign(tmp_path, tmp_path / "results").run([plan], lambda name: Watcher())
    assert record.measures == {}
    with pytest.raises(RunError, match="already holds a run"):
        Campaign(tmp_path, tmp_path / "results").run([plan], lambda name: Watcher())
