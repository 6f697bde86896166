"""`lipschitz-rnn sweep`: every configuration once, chosen on validation data, resumed without loss."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from optional import needs
from tiny_sweeps import SETTINGS, Stopping, assert_same_runs, tiny_sweep
from typer.testing import CliRunner

from lipschitz_rnn.cli import app
from lipschitz_rnn.experiments.engines import Ended, Engine, InProcess
from lipschitz_rnn.experiments.engines.workers import Workers
from lipschitz_rnn.experiments.sweeps import run_sweep
from lipschitz_rnn.experiments.sweeps.packing import Trial
from lipschitz_rnn.experiments.sweeps.running import check_sweep
from lipschitz_rnn.experiments.sweeps.search import Search
from lipschitz_rnn.training import Interrupted, RunError
from lipschitz_rnn.training.folder import RunConflict
from lipschitz_rnn.training.history import read_run

SPACE: dict[str, Any] = {"learning_rate": [0.001, 0.05], "unit_options": {"beta": [0.6, 0.8]}}


def test_a_grid_is_trained_chosen_and_tested(tmp_path: Path) -> None:
    outcome = run_sweep(tiny_sweep(SPACE, final={"seeds": [5, 6]}), tmp_path)
    assert len(outcome.trials) == 4
    assert len(list((tmp_path / "runs").iterdir())) == 2  # both β of a learning rate share a run
    lines = list(csv.DictReader((tmp_path / "trials.csv").read_text().splitlines()))
    scores = {int(line["trial"]): float(line["validation"]) for line in lines}
    (winner,) = outcome.winners
    chosen = min(scores, key=scores.__getitem__)
    summary = json.loads((tmp_path / "summary.json").read_text())["winners"][0]
    assert (winner.best.trial.number, summary["trial"]) == (chosen, chosen)
    final = read_run(winner.best.folder)
    assert final.settings.seeds == (5, 6)
    assert outcome.tests == (tuple(seed["test"] for seed in (final.result or {})["seeds"]),)


def test_scores_are_those_of_separate_runs(tmp_path: Path) -> None:
    packed = run_sweep(tiny_sweep(SPACE), tmp_path / "packed")
    apart = run_sweep(tiny_sweep(SPACE, sweep={"at_once": 1}), tmp_path / "apart")
    assert len(list((tmp_path / "apart" / "runs").iterdir())) == 4
    for one, other in zip(packed.trials, apart.trials, strict=True):
        assert one.trial.point == other.trial.point
        assert one.score == pytest.approx(other.score, rel=1e-4)


def test_a_winner_for_every_unit(tmp_path: Path) -> None:
    space = {"unit": ["gru", "rnn"], "learning_rate": [0.001, 0.05]}
    outcome = run_sweep(tiny_sweep(space, sweep={"best_per": ["unit"], "metric": "loss"}), tmp_path)
    assert [winner.group["unit"] for winner in outcome.winners] == ["gru", "rnn"]
    assert {winner.metric for winner in outcome.winners} == {"loss"}


def test_what_the_preset_says_is_a_value_too(tmp_path: Path) -> None:
    """The unit without a given step size has the preset's, and competes with the trial that names it."""
    space = {"clip": [1.0, 2.0], "unit_options": {"step_size": {"values": [0.03], "when": {"clip": 1.0}}}}
    sweep = tiny_sweep(space, sweep={"best_per": ["unit_options.step_size", "hidden_size"]}, epochs=1)
    (winner,) = run_sweep(sweep, tmp_path).winners
    assert winner.group == {"task": "adding", "unit_options.step_size": 0.03, "hidden_size": 3}


@pytest.mark.parametrize(
    "search",
    [{}, pytest.param({"method": "random", "trials": 4}, marks=[needs("optuna"), pytest.mark.full]),
     pytest.param({"method": "bayes", "trials": 4}, marks=needs("optuna")),
     pytest.param({"pruning": "median"}, marks=[needs("optuna"), pytest.mark.full])],
    ids=["grid", "random", "bayes", "pruned grid"],
)  # fmt: skip
def test_interrupted_it_goes_on_and_repeats_nothing(tmp_path: Path, search: dict[str, Any]) -> None:
    space = {"learning_rate": [0.001, 0.01, 0.02, 0.05]}
    if search.get("method"):
        space = {"learning_rate": {"low": 0.001, "high": 0.05, "log": True}}  # type: ignore[dict-item]
    sweep = tiny_sweep(space, sweep=search)
    first, second, third = Stopping(1), Stopping(99), Stopping(99)
    with pytest.raises(Interrupted, match=r"Resume with: the same command"):
        run_sweep(sweep, tmp_path / "stopped", engine=first)
    outcome = run_sweep(sweep, tmp_path / "stopped", engine=second)
    assert len(first.names) == 1
    assert sorted(first.names + second.names) == [f"{number:05d}" for number in range(4)]
    assert len(outcome.trials) == 4
    whole = run_sweep(sweep, tmp_path / "whole")
    if search.get("method") != "bayes":  # whose draws depend on what it knew
        assert_same_runs(tmp_path / "stopped", tmp_path / "whole")
        assert [each.score for each in outcome.trials] == [each.score for each in whole.trials]
    run_sweep(sweep, tmp_path / "stopped", engine=third)
    assert third.names == []


def test_another_file_does_not_go_on_in_the_same_folder(tmp_path: Path) -> None:
    run_sweep(tiny_sweep({"learning_rate": [0.01]}), tmp_path)
    with pytest.raises(RunConflict, match=r"\[space\] learning_rate = \[0.01\].*\[0.02\]"):
        check_sweep(tiny_sweep({"learning_rate": [0.02]}), tmp_path)
    check_sweep(tiny_sweep({"learning_rate": [0.01]}, device="auto"), tmp_path)  # another place


def test_two_sweeps_do_not_share_a_folder(tmp_path: Path) -> None:
    class Second(InProcess):
        def wait(self, seconds: float) -> list[Ended]:
            with pytest.raises(RunError, match="in use by another sweep"):
                run_sweep(sweep, tmp_path)
            return super().wait(seconds)

    sweep = tiny_sweep({"learning_rate": [0.01]})
    run_sweep(sweep, tmp_path, engine=Second())


def test_what_diverges_or_fails_has_no_score_and_stops_no_other(tmp_path: Path) -> None:
    class Failing(InProcess):
        def wait(self, seconds: float) -> list[Ended]:
            (ended,) = super().wait(seconds)
            return [ended]

        def submit(self, name: str, call: Any) -> None:
            super().submit(name, (lambda: 1 / 0) if name == "00001" else call)

    sweep = tiny_sweep({"learning_rate": [0.01, 0.02, 1e30]}, optimiser="sgd", epochs=3)
    outcome = run_sweep(sweep, tmp_path, engine=Failing())
    assert [each.state for each in outcome.trials] == ["complete", "failed", "diverged"]
    assert "ZeroDivisionError" in (outcome.failed[0].error or "")
    assert outcome.winners[0].best.trial.number == 0
    again = run_sweep(sweep, tmp_path)  # the failed one has another try, and only that one
    assert [each.state for each in again.trials] == ["complete", "complete", "diverged"]


def test_options_of_final_runs_are_added_to_the_winners(tmp_path: Path) -> None:
    """The winner's β and the step size of the preset stay; a changed [final] trains a run of its own."""
    space, options = {"unit_options": {"beta": [0.6, 0.8]}}, {"gamma": 0.01}
    first = run_sweep(tiny_sweep(space, epochs=1, final={"seeds": [5], "unit_options": options}), tmp_path)
    (winner,) = first.winners
    beta = winner.best.trial.point["unit_options.beta"]
    assert winner.best.trial.settings.unit_options == {"step_size": 0.03, "beta": beta, **options}
    second = run_sweep(tiny_sweep(space, epochs=1, final={"seeds": [6], "unit_options": options}), tmp_path)
    assert second.winners[0].best.trial.settings.seeds == (6,)
    assert second.tests != first.tests
    names = sorted(path.name for path in (tmp_path / "final").iterdir())
    assert [name.partition("-")[2] for name in names] == ["adding", "adding~2"]
    again = run_sweep(tiny_sweep(space, epochs=1, final={"seeds": [5], "unit_options": options}), tmp_path)
    assert again.tests == first.tests


def test_folders_that_cannot_be_used_are_told_before_anything_runs(tmp_path: Path) -> None:
    sweep = tiny_sweep({"learning_rate": [0.01]})
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file, not a folder"):
        check_sweep(sweep, tmp_path / "file")
    (tmp_path / "sweep.json").write_text('{"settings": 3}')
    with pytest.raises(RunConflict, match=r"\[settings\]"):
        check_sweep(sweep, tmp_path)


@needs("optuna")
def test_bayesian_search_finds_a_planted_region(tmp_path: Path) -> None:
    """A made objective with a narrow best region: far more of the later draws hit it than of the first."""
    space = {"learning_rate": {"low": 1e-4, "high": 1.0, "log": True}, "dropout": {"low": 0.0, "high": 0.9},
             "optimiser": ["adam", "sgd", "rmsprop"]}  # fmt: skip
    search = Search(tiny_sweep(space, sweep={"method": "bayes", "trials": 60}), tmp_path, {})

    def is_good(trial: Trial) -> bool:
        point = trial.point
        near = 0.003 < point["learning_rate"] < 0.03 and 0.2 < point["dropout"] < 0.5
        return near and point["optimiser"] == "sgd"

    hits = []
    while not search.is_over:
        for job in search.next(1):
            (trial,) = job.trials
            distance = abs(math.log10(trial.point["learning_rate"]) + 2) + abs(trial.point["dropout"] - 0.35)
            search.tell(trial, distance + (trial.point["optimiser"] != "sgd"))
            hits.append(is_good(trial))
    assert len(hits) == 60
    assert sum(hits[30:]) >= 8 > 3 * sum(hits[:10])


@needs("optuna")
def test_pruned_runs_are_stopped_and_can_be_resumed(tmp_path: Path) -> None:
    search = {"pruning": "median", "startup_trials": 1, "startup_epochs": 0}
    sweep = tiny_sweep({"learning_rate": [0.02, 1e-7, 2e-7]}, sweep=search, epochs=4)
    outcome = run_sweep(sweep, tmp_path)
    assert [each.state for each in outcome.trials] == ["complete", "pruned", "pruned"]
    assert all(each.epochs < 4 for each in outcome.trials[1:])
    assert outcome.winners[0].best.trial.number == 0
    run = outcome.trials[1].folder
    done = CliRunner().invoke(app, ["train", "--resume", "-o", str(run), "--json"])
    assert done.exit_code == 0, done.output
    assert len(read_run(run).of_kind("validation")) == 4


@pytest.mark.full
@needs("optuna")
def test_pruning_saves_a_third_of_the_epochs_and_keeps_the_winner(tmp_path: Path) -> None:
    """Ten searches with and without pruning, with the same draws: the winner is another in one of them at most."""
    space = {"learning_rate": {"low": 1e-5, "high": 0.1, "log": True}}
    same, epochs = 0, {"none": 0, "median": 0}
    for repeat in range(10):
        winners = []
        for pruning in epochs:
            early = {"startup_trials": 4, "startup_epochs": 1}
            search = {"method": "random", "trials": 24, "seed": repeat, "pruning": pruning, **early}
            outcome = run_sweep(tiny_sweep(space, sweep=search, epochs=10), tmp_path / f"{pruning}-{repeat}")
            epochs[pruning] += sum(each.epochs for each in outcome.trials)
            winners.append(outcome.winners[0].best.trial.point)
        same += winners[0] == winners[1]
    assert same >= 9
    assert epochs["median"] <= 2 / 3 * epochs["none"]


@needs("optuna")
def test_a_failed_run_under_pruning_has_another_try(tmp_path: Path) -> None:
    class Failing(InProcess):
        def submit(self, name: str, call: Any) -> None:
            super().submit(name, (lambda: 1 / 0) if name == "00001" else call)

    sweep = tiny_sweep({"learning_rate": [0.02, 0.01]}, sweep={"pruning": "median"})
    assert [each.state for each in run_sweep(sweep, tmp_path, engine=Failing()).trials] == ["complete", "failed"]
    assert [each.state for each in run_sweep(sweep, tmp_path).trials] == ["complete", "complete"]


def write_file(folder: Path, text: str, without: str = "") -> Path:
    left = ("task_options", "learning_rate", without)
    values = "\n".join(f"{name} = {json.dumps(value)}" for name, value in SETTINGS.items() if name not in left)
    options = "\n".join(f"{name} = {value}" for name, value in SETTINGS["task_options"].items())
    path = folder / "tiny.toml"
    path.write_text(f"{text}\n[settings]\n{values}\n[settings.task_options]\n{options}\n")
    return path


def test_the_command(tmp_path: Path) -> None:
    file = write_file(tmp_path, "[space]\nunit_options.beta = [0.6, 0.8]\nlearning_rate = [0.01, 0.02]")
    command = ["sweep", str(file), "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*command, "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "4 trials in 2 runs, 4 networks, 4 epochs, 8 steps" in done.output
    assert not (tmp_path / "out").exists()
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["trials"] == 4
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0
    assert "best of 4 trials" in done.output


def test_own_data_can_be_swept(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    lines = ["id,x,label", *(f"{n},{(n % 2) + 0.1 * t},{'ab'[n % 2]}" for n in range(24) for t in range(4))]
    (tmp_path / "series.csv").write_text("\n".join(lines) + "\n")
    file = tmp_path / "own.toml"
    file.write_text(
        f'[settings]\ntask = "{tmp_path / "series.csv"}"\nepochs = 1\nhidden_size = 3\ndevice = "cpu"\n'
        '[data]\nseries = "id"\ntarget = "label"\n[space]\ndata.scaling = ["standard", "none"]\n'
    )
    done = CliRunner().invoke(app, ["sweep", str(file), "-o", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["winners"][0]["metric"] == "accuracy"
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 2
    (tmp_path / "moved").mkdir()
    (tmp_path / "series.csv").rename(tmp_path / "moved" / "series.csv")
    again = ["sweep", str(file), "-o", str(tmp_path / "out"), "--json"]
    assert CliRunner().invoke(app, again).exit_code == 2
    done = CliRunner().invoke(app, [*again, "--data-dir", str(tmp_path / "moved")])
    assert done.exit_code == 0, done.output


@needs("optuna")
def test_the_plan_of_a_search_does_not_make_configurations_up(tmp_path: Path) -> None:
    space = "[space]\nlearning_rate = {low = 0.01, high = 0.02}\nhidden_size = {low = 2, high = 5}"
    file = write_file(tmp_path, f'{space}\n[sweep]\nmethod = "random"\ntrials = 5', without="hidden_size")
    done = CliRunner().invoke(app, ["sweep", str(file), "-o", str(tmp_path / "out"), "--dry-run"])
    assert done.exit_code == 0, done.output
    corners = "(learning_rate=0.01 hidden_size=2) and (learning_rate=0.02 hidden_size=5)"
    assert f"configurations are drawn as runs start; the cost below is that of runs at {corners}" in done.output
    assert "5 trials in 5 runs" in done.output
    assert "00001" not in done.output


SCRIPT = """
import sys, os, json
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tiny_sweeps import tiny_sweep
from lipschitz_rnn.experiments.engines.workers import Workers
from lipschitz_rnn.experiments.sweeps import run_sweep

if __name__ == "__main__":
    space = {"learning_rate": [0.001 * n for n in range(1, int(sys.argv[3]) + 1)]}
    with Workers(2) as engine:
        outcome = run_sweep(tiny_sweep(space, epochs=int(sys.argv[4])), sys.argv[2], engine=engine, threads=1)
    print(json.dumps([each.state for each in outcome.trials]))
"""


def start(folder: Path, out: str, runs: int, epochs: int) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(folder / "script.py"), str(Path(__file__).parent), str(folder / out), str(runs)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, str(epochs)], env=environment, stdout=subprocess.PIPE, text=True)


def children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z" and "spawn_main" in Path(path.parent, "cmdline").read_text():
            found.append(int(path.parent.name))
    return found


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
def test_killed_processes_and_a_killed_driver_lose_and_double_nothing(tmp_path: Path) -> None:
    """A worker is killed, then the driver; the next call ends with what an undisturbed one has, bit for bit."""
    driver = start(tmp_path, "killed", 4, 12)
    end = time.monotonic() + 120
    while len(list((tmp_path / "killed" / "runs").glob("*/checkpoints/step-*[1-9].safetensors"))) < 1:
        assert driver.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    os.kill(children(driver.pid)[0], signal.SIGKILL)
    time.sleep(0.5)
    driver.kill()
    driver.communicate()
    done = start(tmp_path, "killed", 4, 12)
    assert json.loads(done.communicate(timeout=120)[0]) == ["complete"] * 4
    space = {"learning_rate": [0.001 * n for n in range(1, 5)]}
    run_sweep(tiny_sweep(space, epochs=12), tmp_path / "whole", threads=1)
    assert_same_runs(tmp_path / "killed", tmp_path / "whole")


def fail() -> None:
    raise RunError("no")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_workers_report_failures_and_give_up_on_what_kills_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lipschitz_rnn.experiments.engines.workers.MOST_STARTS", 1)  # a start takes seconds
    engine: Engine
    with Workers(1) as engine:
        for name, call in (("fails", fail), ("works", list), ("dies", die)):
            engine.submit(name, call)
        ended: list[Ended] = []
        end = time.monotonic() + 180
        while len(ended) < 3 and time.monotonic() < end:
            ended += engine.wait(1.0)
    errors = {each.name: each.error for each in ended}
    assert (errors["fails"], errors["works"]) == ("no", None)
    assert "killed 1 times" in (errors["dies"] or "")
