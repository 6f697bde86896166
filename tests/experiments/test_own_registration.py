"""Names of somebody's own tasks and units: registered, imported, installed by a package, or refused."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from own_module import import_own_code
from typer.testing import CliRunner

import lipschitz_rnn as lr
from lipschitz_rnn import plugins
from lipschitz_rnn.cli import app

HERE = Path(__file__).parent
own = pytest.fixture(scope="module", autouse=True)(import_own_code)


def test_a_unit_is_not_registered_without_a_name() -> None:
    """`@units.register` without a name, as tasks are registered, would put a function in place of the class."""
    with pytest.raises(ValueError, match="Unnamed"):

        @lr.units.register  # type: ignore[arg-type]
        class Unnamed(torch.nn.Module):
            pass


def test_registered_ones_are_first_class(tmp_path: Path) -> None:
    assert "own-steps" in lr.tasks.available()
    assert lr.tasks.info("own-steps").options == {"gap": 1.0}
    assert lr.units.info("own-leaky").options()[0] == "leak"
    assert lr.units.info("own-leaky").year == 2026
    assert lr.units.info("own-leaky").parameters == 128 * (1 + 128 + 2) + 10 * 129
    for command in ("tasks", "units"):
        listed = CliRunner().invoke(app, [command, "--json"])
        assert {"tasks": "own-steps", "units": "own-leaky"}[command] in json.loads(listed.stdout)
    command = [
        "train",
        "own-steps",
        "--unit",
        "own-leaky",
        "-u",
        "leak=0.25",
        "-t",
        "gap=0.5",
        "-o",
        str(tmp_path / "a"),
    ]
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["steps"] == 8  # the task's own defaults: 2 epochs of 4 batches
    run = lr.load_run(tmp_path / "a")
    assert run.networks[0].unit.leak == 0.25
    assert (run.settings.hidden_size, run.load_task().options) == (5, {"gap": 0.5})
    assert run.sources["unit"]["module"] == "own_code"
    wrong = CliRunner().invoke(app, ["train", "own-stairs"])
    assert wrong.exit_code == 2
    assert "own-steps" in wrong.output


@pytest.mark.parametrize("name", ["own_code.py", "tests/own_code", "", "own-code", "..", "own_code.missing", "no_such"])
def test_modules_that_cannot_be_imported_are_named(name: str) -> None:
    done = CliRunner().invoke(app, ["tasks", "--import", name])
    assert done.exit_code in (1, 2)
    assert repr(name) in done.output


def test_a_module_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_broken.py").write_text("import a_module_that_nobody_has\n")
    (tmp_path / "own_wrong.py").write_text("1 / 0\n")
    for name, reason in (("own_broken", "a_module_that_nobody_has"), ("own_wrong", "ZeroDivisionError")):
        done = CliRunner().invoke(app, ["tasks", "--import", name])
        assert done.exit_code == 1
        assert repr(name) in done.output
        assert reason in done.output


def test_own_cells_and_units_that_fail() -> None:
    from lipschitz_rnn.units.orthogonal import ExpRNNCell

    @lr.units.register("own-cell")
    class Mine(ExpRNNCell):
        pass

    layers = lr.units.build("own-cell", 2, 4, num_layers=2, bidirectional=True)
    assert layers(torch.randn(5, 3, 2))[0].shape == (5, 3, 8)

    @lr.units.register("own-failing")
    class Failing(torch.nn.Module):
        def __init__(self, input_size: int, hidden_size: int) -> None:
            raise ArithmeticError("never")

    listed = CliRunner().invoke(app, ["units", "--json"])
    assert listed.exit_code == 0
    assert "own-cell" in json.loads(listed.stdout)
    assert "own-failing" in listed.stderr
    assert "own-failing" not in json.loads(listed.stdout)


def test_names_that_are_taken_or_wrong_are_refused(own: Any) -> None:
    lr.tasks.register(own.Steps)  # the same definition again, as in a notebook
    with pytest.raises(ValueError, match="lipschitz"):
        lr.units.register("lipschitz")(own.Leaky)
    with pytest.raises(ValueError, match="own-leaky"):
        lr.units.register("own-leaky")(own.Pooled)
    for name in ("", "a b", "../up", "table.csv", 3):
        with pytest.raises(ValueError, match="name of the unit"):
            lr.units.register(name)(own.Leaky)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Leaky"):
        lr.tasks.register(own.Leaky)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="info"):
        lr.tasks.register(lr.tasks.Task)


class _EntryPoint:
    value, dist = "own_code:Steps", None

    def __init__(self, name: str, found: object) -> None:
        self.name, self._found = name, found

    def load(self) -> object:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


def test_entry_points_of_installed_packages_count(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed(own.Steps):
        info = replace(own.Steps.info, name="installed")

    installed = [
        _EntryPoint("installed", Installed),
        _EntryPoint("renamed", own.Steps),
        _EntryPoint("broken", SyntaxError("no")),
        _EntryPoint("twice", own.Steps),
        _EntryPoint("twice", own.Steps),
        _EntryPoint("digits", own.Steps),
    ]
    plugins._entry_points.cache_clear()
    monkeypatch.setattr(plugins.metadata, "entry_points", lambda group: installed)
    try:
        assert lr.tasks.load("installed", gap=2.0).options == {"gap": 2.0}
        assert type(lr.tasks.load("digits")).__name__ == "Digits"  # the package's own keep their names
        assert lr.tasks.available().count("digits") == 1
        for name in ("broken", "twice", "renamed"):
            with pytest.raises(plugins.MissingCodeError, match=name):
                lr.tasks.info(name)
        listed = CliRunner().invoke(app, ["tasks"])
        assert listed.exit_code == 0, listed.output
        assert "broken" in listed.output
    finally:
        plugins._entry_points.cache_clear()
