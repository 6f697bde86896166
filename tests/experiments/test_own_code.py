"""Somebody's own task, unit and models: trained, found again through their folder, and used like the package's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from own_module import import_own_code
from typer.testing import CliRunner

import lipschitz_rnn as lr
from lipschitz_rnn import plugins
from lipschitz_rnn.cli import app
from lipschitz_rnn.experiments.presets import preset_settings
from lipschitz_rnn.experiments.pretrained import export_pretrained
from lipschitz_rnn.training import Result, RunError, Settings, fit
from lipschitz_rnn.training.folder import RunConflict
from lipschitz_rnn.training.interrupts import resume_command
from lipschitz_rnn.training.runs import LoadedRun

HERE = Path(__file__).parent
MODELS = ("lipschitz", "gru")
Runs = dict[str, tuple[Path, Result]]


own = pytest.fixture(scope="module", autouse=True)(import_own_code)


@pytest.fixture(scope="module")
def settings(own: Any) -> Settings:
    return preset_settings("own-steps", changes={"seeds": (0, 1), "device": "cpu"})


@pytest.fixture(scope="module")
def runs(own: Any, settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """One run for each model."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("own")
    builders = {"lipschitz": partial(own.lipschitz_model, step_size=0.2), "gru": own.gru_model}
    task = own.Steps(gap=0.7)
    return {name: (folder / name, fit(settings, task, folder / name, build=builders[name])) for name in MODELS}


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after --import own_code; tests without it see a process in which the user named no module."""
    monkeypatch.setattr(plugins, "_allowed", {"own_code"})


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize("name", MODELS)
def test_the_networks_come_back_and_score_as_they_did(own: Any, settings: Settings, name: str, runs: Runs) -> None:
    folder, result = runs[name]
    run = lr.load_run(folder)
    assert isinstance(run, LoadedRun)
    assert run.settings == settings
    assert (run.shapes.input_size, run.shapes.output_size, run.shapes.readout) == (2, 2, "last")
    assert run.preprocessing == {"scale": 1.0, "shift": 0.0}
    for network, trained in zip(run.networks, result.models, strict=True):
        assert isinstance(network, own.Pooled)
        for key, value in trained.state_dict().items():
            assert torch.equal(network.state_dict()[key], value), key
    task = run.load_task()
    assert isinstance(task, own.Steps)
    assert task.options == {"gap": 0.7}  # of the task that was trained; the settings do not name it
    metric, scores = run.evaluate()
    one = 1.01 / task.size("test")
    assert metric.name == "accuracy"
    assert scores.metric == [pytest.approx(seed.test, abs=one) for seed in result.seeds]
    assert len(run.checkpoint("last")) == 2
    assert all(
        torch.equal(a, b)
        for one, two in zip(run.checkpoint("last"), run.checkpoint(2 * 4), strict=True)
        for a, b in zip(one.parameters(), two.parameters(), strict=True)
    )


@pytest.mark.usefixtures("allowed")
def test_certified_or_refused_by_name(runs: Runs) -> None:
    pytest.importorskip("cvxpy")
    ours = CliRunner().invoke(app, ["certify", str(runs["lipschitz"][0]), "--json"])
    assert ours.exit_code == 0, ours.output
    found = json.loads(ours.stdout)
    assert [found[name]["holds"] for name in ("seed 0", "seed 1")] == [True, True]
    theirs = CliRunner().invoke(app, ["certify", str(runs["gru"][0])])
    assert theirs.exit_code == 2
    assert "GRU" in theirs.output


@pytest.mark.usefixtures("allowed")
@pytest.mark.filterwarnings("ignore:The tensor attribute")  # of PyTorch's export, about its own GRU
@pytest.mark.parametrize("name", MODELS)
def test_reported_exported_and_measured(name: str, runs: Runs, tmp_path: Path) -> None:
    folder, _ = runs[name]
    pytest.importorskip("matplotlib")
    reported = CliRunner().invoke(app, ["report", str(folder), "-o", str(tmp_path / "page")])
    assert reported.exit_code == 0, reported.output
    assert "own-steps" in (tmp_path / "page" / "report.md").read_text(encoding="utf-8")
    run = lr.load_run(folder)
    network, x = run.networks[1], torch.randn(9, 3, 2)
    exported = torch.export.export(network, (x,), strict=False)
    torch.testing.assert_close(exported.module()(x)[0], network(x)[0])
    noise = CliRunner().invoke(
        app,
        ["robustness", "noise", str(folder), "--kind", "white", "--amounts", "0,0.5", "--noise-seeds", "0", "--json"],
    )
    assert noise.exit_code == 0, noise.output
    clean = json.loads(noise.stdout)["runs"][0]["seeds"][0]["curves"][0]
    assert clean["amounts"] == [0.0, 0.5]


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_comes_back_too(name: str, runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, result = runs[name]
    file = export_pretrained(folder, tmp_path / "own.safetensors")
    saved = lr.load_run(file)
    (network,) = saved.networks
    index = saved.settings.seeds[0]
    x = torch.randn(9, 3, 2)
    torch.testing.assert_close(network(x)[0], lr.load_run(folder).networks[index](x)[0], rtol=0.0, atol=0.0)
    (score,) = saved.evaluate()[1].metric
    assert score == pytest.approx(result.seeds[index].test, abs=1.01 / 32)
    assert saved.preprocessing == {"scale": 1.0, "shift": 0.0}
    with pytest.raises(ValueError, match="last"):
        saved.checkpoint("last")
    monkeypatch.setattr(plugins, "_allowed", set())
    with pytest.raises(RunError, match="--import own_code"):
        lr.load_run(file).networks  # noqa: B018


def test_a_builder_that_asks_for_more_than_was_recorded(own: Any, settings: Settings, tmp_path: Path) -> None:
    def curious(settings: Settings, task: Any, seed: int) -> torch.nn.Module:
        assert task.size("train") == 64
        return own.gru_model(settings, task, seed)

    task = own.Steps()
    fit(settings, task, tmp_path / "run", build=curious)
    with pytest.raises(RunError, match="'size'"):
        lr.load_run(tmp_path / "run", build=curious).networks  # noqa: B018
    assert len(lr.load_run(tmp_path / "run", build=curious, task=task).networks) == 2


def test_a_task_that_cannot_be_recorded_is_told_so(own: Any, settings: Settings, tmp_path: Path) -> None:
    class Odd(own.Steps):
        def preprocessing(self) -> dict[str, Any]:
            return {"scale": torch.ones(2)}

    with pytest.raises(TypeError, match="plain values"):
        fit(settings, Odd(), tmp_path / "run")


def test_a_folder_alone_causes_no_import(own: Any, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module is loaded in this process, but the user did not name it: it must not be looked up for a folder."""
    monkeypatch.setattr(plugins, "_allowed", set())
    folder, result = runs["gru"]
    with pytest.raises(RunError, match="--import own_code") as error:
        lr.load_run(folder).networks  # noqa: B018
    assert str(folder) in str(error.value)
    assert "build=" in str(error.value)
    given = lr.load_run(folder, build=own.gru_model)  # what Python passes needs no permission
    assert torch.equal(given.networks[0].out.weight, result.models[0].out.weight)
    named = lr.load_run(folder, imports=["own_code"])
    assert torch.equal(named.networks[0].out.weight, result.models[0].out.weight)
    monkeypatch.setattr(plugins, "_allowed", set())
    monkeypatch.setenv(plugins.ENVIRONMENT, "own_code")
    assert len(lr.load_run(folder).networks) == 2


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"module": "os", "name": "system"}, "--import os"),
        ({"module": "own_code", "name": "torch.hub.load"}, "does not define"),
        ({"module": "own_code", "name": "nn.GRU"}, "does not define"),
        ({"module": "own_code", "name": "gone"}, "does not define"),
        ({"module": "own_code", "name": "gru_model", "importable": False}, "cannot be imported"),
        ({"module": "own_codes.evil", "name": "f"}, "--import own_codes"),
        ({"module": 3, "name": "f"}, "damaged"),
        ({"module": "own_code", "name": "gru_model", "arguments": [1]}, "damaged"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_hostile_record_reaches_nothing(record: dict[str, object], reason: str, runs: Runs, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    (copy / "checkpoints").mkdir(parents=True)
    for name in ("config.json", "task.json", "checkpoints/best.safetensors"):
        (copy / name).write_bytes((runs["gru"][0] / name).read_bytes())
    (copy / "sources.json").write_text(json.dumps({"build": {"arguments": {}, "importable": True} | record}))
    with pytest.raises(RunError, match=reason):
        lr.load_run(copy).networks  # noqa: B018


def test_of_a_named_package_only_what_it_imports_itself_is_used(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder must not have other modules of the package run: scripts, say, or its __main__."""
    package, copy = tmp_path / "trusted_package", tmp_path / "copy"
    package.mkdir()
    (package / "__init__.py").write_text("from trusted_package.models import build as build\n")
    (package / "models.py").write_text("from own_code import gru_model\ndef build(*a):\n    return gru_model(*a)\n")
    (package / "script.py").write_text("raise SystemExit('it ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "_allowed", set())
    (copy / "checkpoints").mkdir(parents=True)
    for name in ("config.json", "task.json", "checkpoints/best.safetensors"):
        (copy / name).write_bytes((runs["gru"][0] / name).read_bytes())

    def load(module: str) -> LoadedRun:
        record = {"module": module, "name": "build", "arguments": {}, "importable": True}
        (copy / "sources.json").write_text(json.dumps({"build": record}))
        return lr.load_run(copy, imports=["trusted_package"])

    with pytest.raises(RunError, match=r"--import trusted_package\.script"):
        load("trusted_package.script").networks  # noqa: B018
    assert len(load("trusted_package.models").networks) == 2


def test_what_cannot_be_imported_is_said_and_can_be_passed(own: Any, settings: Settings, tmp_path: Path) -> None:
    def local(*arguments: object) -> torch.nn.Module:
        return own.gru_model(*arguments)

    class Local(own.Steps):
        pass

    task = Local()
    fit(settings, task, tmp_path / "run", build=local)
    with pytest.raises(RunError, match="build="):
        lr.load_run(tmp_path / "run").networks  # noqa: B018
    run = lr.load_run(tmp_path / "run", build=local, task=task)
    assert run.load_task() is task
    assert len(run.evaluate()[1].metric) == 2
    assert lr.load_run(tmp_path / "run", build=local, task=Local).load_task().size("test") == 32
    with pytest.raises(ValueError, match="digits"):
        lr.load_run(tmp_path / "run", task=lr.tasks.load("digits")).load_task()


def test_a_run_keeps_its_kind_of_model_when_resumed(own: Any, settings: Settings, runs: Runs) -> None:
    folder, _ = runs["gru"]
    with pytest.raises(RunConflict, match="gru_model"):
        fit(settings, own.Steps(gap=0.7), folder, resume=True)
    done = CliRunner().invoke(app, ["train", "--resume", "--out", str(folder)])
    assert done.exit_code == 2
    assert "build=" in done.output
    again = fit(settings, own.Steps(gap=0.7), folder, resume=True, build=own.gru_model)
    assert again.seeds == runs["gru"][1].seeds
    sources = {"task": plugins.reference(own.Steps), "build": None}
    assert resume_command("run", 1, True, sources).endswith("--import own_code")
    assert "build=" in resume_command("run", 1, True, sources | {"build": plugins.reference(own.gru_model)})


@pytest.mark.full
def test_from_a_fresh_process_through_the_commands(runs: Runs, tmp_path: Path) -> None:
    """Nothing of this process is known there but the folder, and the module that the user names."""
    folder, result = runs["lipschitz"]
    program = (
        "import sys; from lipschitz_rnn.cli import app\n"
        "for call in sys.argv[1].split('|'):\n"
        "    try: app(call.split())\n"
        "    except SystemExit as end: print('exit', end.code)\n"
    )
    calls = [
        f"evaluate {folder}",
        f"evaluate {folder} --json --import own_code",
        f"certify {folder} --import own_code",
        f"report {folder} -o {tmp_path / 'page'}",
        f"train own-steps -e 1 -o {tmp_path / 'new'} --import own_code",
        f"train --resume -o {tmp_path / 'new'} --import own_code",
        "tasks own-steps --import missing_module",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, "|".join(calls)], cwd=HERE, capture_output=True, text=True, env=environment
    )
    codes = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("exit ")]
    assert codes == ["1", "0", "0", "0", "0", "0", "1"], done.stdout + done.stderr
    told = json.loads(done.stdout[done.stdout.index("{") : done.stdout.rindex("}") + 1])
    one = 1.01 / 32
    assert [seed["accuracy"] for seed in told["seeds"]] == [pytest.approx(s.test, abs=one) for s in result.seeds]
    assert "--import own_code" in " ".join(done.stderr.split())
    assert "missing_module" in done.stderr


@pytest.mark.usefixtures("allowed")
def test_a_study_takes_an_own_task_as_the_message_says() -> None:
    arguments = ["reproduce", "figures", "--task", "own-steps", "--import", "own_code", "--dry-run", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert [plan["settings"]["task"] for plan in json.loads(done.stdout)] == ["own-steps"]
