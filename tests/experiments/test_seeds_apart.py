"""`train --jobs`: the seeds of one setting as runs of their own, side by side, with the results of one run."""

from __future__ import annotations

import dataclasses
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_sweeps import SETTINGS, metrics
from typer.testing import CliRunner

from lipschitz_rnn.cli import app
from lipschitz_rnn.experiments.comparison import compare
from lipschitz_rnn.experiments.engines import Ended, InProcess
from lipschitz_rnn.experiments.report import write_report
from lipschitz_rnn.experiments.runner import train
from lipschitz_rnn.experiments.seeds import FILE, plan_seeds, train_seeds
from lipschitz_rnn.training import Interrupted, RunError, Settings
from lipschitz_rnn.training.checkpoint import read_checkpoint
from lipschitz_rnn.training.folder import RunConflict


def tiny(**changes: Any) -> Settings:
    return Settings.from_dict(SETTINGS | {"seeds": [0, 1, 2, 3, 4]} | changes)


class Slots(InProcess):
    """As if several ran at once; interrupted after some runs, as by a signal."""

    def __init__(self, slots: int, after: int = 99) -> None:
        super().__init__()
        self.slots, self.after, self.names = slots, after, list[str]()

    def wait(self, seconds: float) -> list[Ended]:
        if len(self.names) == self.after:
            raise Interrupted(signal.SIGTERM)
        ended = super().wait(seconds)
        self.names += [each.name for each in ended]
        return ended


def weights(run: Path) -> dict[str, torch.Tensor]:
    return read_checkpoint(run / "checkpoints" / "best.safetensors")[0]


def test_every_seed_has_the_result_of_one_run(tmp_path: Path) -> None:
    """Alone in a run bit for bit; in a group up to rounding, as in any ensemble of another size."""
    variants = {"variants": [{"beta": 0.6}, {"beta": 0.8}]}
    whole = train(tiny(**variants), tmp_path / "whole")
    apart = train_seeds(tiny(**variants), tmp_path / "apart", Slots(2))
    assert [(seed.seed, seed.variant) for seed in apart.seeds] == [(seed.seed, seed.variant) for seed in whole.seeds]
    for one, other in zip(apart.seeds, whole.seeds, strict=True):
        assert (one.test, one.validation) == pytest.approx((other.test, other.validation), rel=1e-4)
    assert [path.name for path in sorted((tmp_path / "apart").glob("seed*-*"))] == ["seeds-0-2", "seeds-3-4"]
    each = train_seeds(tiny(), tmp_path / "each", Slots(9))
    alone = train(tiny(seeds=[3]), tmp_path / "alone")
    assert each.seeds[3] == alone.seeds[0]
    assert metrics(tmp_path / "each" / "seed-3") == metrics(tmp_path / "alone")


def test_compare_and_report_take_them_for_one_setting(tmp_path: Path) -> None:
    result = train_seeds(tiny(epochs=1), tmp_path / "runs", Slots(3))
    ((cell,),) = (compare([tmp_path / "runs"]).cells.values(),)
    assert cell.scores == {seed.seed: pytest.approx(seed.test, rel=1e-4) for seed in result.seeds}
    write_report([tmp_path / "runs"], tmp_path / "report")
    assert "1 configuration, 5 trained networks" in (tmp_path / "report" / "report.md").read_text()


def test_interrupted_they_go_on_in_the_same_groups(tmp_path: Path) -> None:
    """With another number of slots too: what is left trains in the runs that the first call planned."""
    with pytest.raises(Interrupted, match="the same command with --resume"):
        train_seeds(tiny(), tmp_path / "stopped", Slots(2, after=1))
    again = Slots(5)
    result = train_seeds(tiny(), tmp_path / "stopped", again, resume=True)
    assert again.names == ["seeds-3-4"]
    whole = train_seeds(tiny(), tmp_path / "whole", Slots(2))
    assert result.seeds == whole.seeds
    for name in ("seeds-0-2", "seeds-3-4"):
        found, expected = weights(tmp_path / "stopped" / name), weights(tmp_path / "whole" / name)
        assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_more_seeds_and_more_epochs(tmp_path: Path) -> None:
    train_seeds(tiny(seeds=[0, 1]), tmp_path, Slots(1))
    more = Slots(1)
    train_seeds(tiny(seeds=[1, 7, 0]), tmp_path, more, resume=True)
    assert more.names == ["seed-7"]
    longer = Slots(1)
    result = train_seeds(tiny(seeds=[1, 7, 0], epochs=3), tmp_path, longer, resume=True)
    assert longer.names == ["seeds-0-1", "seed-7"]
    assert [seed.seed for seed in result.seeds] == [1, 7, 0]
    assert len(metrics(tmp_path / "seed-7")) > 3
    assert (tmp_path / "seeds-0-1" / "result-2-epochs.json").exists()


def test_what_cannot_go_on_is_told_before_anything_runs(tmp_path: Path) -> None:
    train_seeds(tiny(epochs=1), tmp_path, Slots(5))
    before = (tmp_path / FILE).read_text()
    for change, resume, message in (
        ({}, False, "already holds runs; continue them with --resume"),
        ({"seeds": [0, 1]}, True, "holds runs with seed 2"),
        ({"hidden_size": 4}, True, "hidden_size = 3, but this call has 4"),
    ):
        with pytest.raises(RunConflict, match=message):
            train_seeds(dataclasses.replace(tiny(epochs=1), **change), tmp_path, Slots(1), resume=resume)  # type: ignore[arg-type]
    assert (tmp_path / FILE).read_text() == before
    with pytest.raises(RunConflict, match="holds a single run"):
        plan_seeds(tiny(seeds=[0]), tmp_path / "seed-0", 2, resume=True)
    for text in ("{", '{"settings": 3, "groups": []}', before.replace('"groups": [', '"groups": [[0],')):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(RunError, match=r"seeds\.json .*; restore it from a copy"):
            plan_seeds(tiny(), tmp_path, 2, resume=True)


def test_two_calls_do_not_share_a_folder_and_failures_are_told(tmp_path: Path) -> None:
    class Second(Slots):
        def wait(self, seconds: float) -> list[Ended]:
            with pytest.raises(RunError, match="in use by another training job"):
                train_seeds(tiny(), tmp_path, InProcess(), resume=True)
            return super().wait(seconds)

        def submit(self, name: str, call: Any) -> None:
            super().submit(name, (lambda: 1 / 0) if name == "seeds-3-4" else call)

    with pytest.raises(RunError, match=r"(?s)1 of 2 runs failed, the first \(seeds-3-4\) with: .*ZeroDivisionError"):
        train_seeds(tiny(epochs=1), tmp_path, Second(2))
    assert len(train_seeds(tiny(epochs=1), tmp_path, Slots(1), resume=True).seeds) == 5


COMMAND = ["train", "adding", "-t", "length=4", "-t", "train_size=32", "-t", "eval_size=16", "-n", "3", "--epochs", "1",
           "--schedule", "constant", "--device", "cpu"]  # fmt: skip


@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.full)])
def test_the_command(tmp_path: Path, jobs: str) -> None:
    out = str(tmp_path / "runs")
    done = CliRunner().invoke(app, [*COMMAND, "--seeds", "0-2", "--jobs", jobs, "-o", out, "--json"])
    assert done.exit_code == 0, done.output
    first = json.loads(done.stdout)
    assert [seed["seed"] for seed in first["seeds"]] == [0, 1, 2]
    done = CliRunner().invoke(app, [*COMMAND, "--seeds", "0-2", "--jobs", jobs, "-o", out])
    assert done.exit_code == 2
    assert "already holds runs" in done.output
    done = CliRunner().invoke(app, ["train", "--resume", "-o", out, "--json"])  # the folder knows the rest
    assert json.loads(done.stdout) == first
    assert len(list((tmp_path / "runs").glob("*/result.json"))) == int(jobs)
    done = CliRunner().invoke(app, [*COMMAND, "--address", "here:1", "-o", str(tmp_path / "other")])
    assert (done.exit_code, "--address here:1 is for --engine ray" in done.output) == (2, True)


def test_torchrun_is_another_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = CliRunner().invoke(app, [*COMMAND, "--jobs", "2", "-o", str(tmp_path / "runs")])
    assert (done.exit_code, "leave out --engine and --jobs" in " ".join(done.output.split())) == (2, True)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    """Every run is measured as a single one is."""
    pytest.importorskip("pandas")
    lines = ["id,x,label", *(f"{n},{(n % 2) + 0.1 * t},{'ab'[n % 2]}" for n in range(24) for t in range(4))]
    (tmp_path / "series.csv").write_text("\n".join(lines) + "\n")
    command = ["train", str(tmp_path / "series.csv"), "--series", "id", "--target", "label", "--epochs", "1", "-n", "3",
               "--no-report", "--device", "cpu", "--seeds", "0,1", "--jobs", "1", "--json"]  # fmt: skip
    done = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "runs")])
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["seeds"]) == 2
    assert json.loads((tmp_path / "runs" / "seeds-0-1" / "assessment.json").read_text())["networks"]
    done = CliRunner().invoke(app, ["train", "--resume", "-o", str(tmp_path / "runs"), "--no-report"])
    assert done.exit_code == 0, done.output
    told = " ".join(done.output.split())
    assert f"next: lipschitz-rnn predict {tmp_path}/runs/seeds-0-1 NEW_FILE" in told
    assert "each group of seeds is a run of its own" in told
