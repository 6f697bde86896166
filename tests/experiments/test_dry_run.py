"""A dry run and a real run refuse the same settings, in the same words, before data are read or a folder is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lipschitz_rnn import tasks, units
from lipschitz_rnn.experiments.runner import check_train, train
from lipschitz_rnn.tasks import DataError
from lipschitz_rnn.training import RunError, Settings
from lipschitz_rnn.training.folder import RunConflict


def settings(**changes: Any) -> Settings:
    return Settings(**({"task": "digits", "hidden_size": 4, "epochs": 0, "device": "cpu"} | changes))


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"task": "nothing"}, ValueError, "no task 'nothing'"),
    ({"task_options": {"stepz": 8}}, ValueError, "no option 'stepz'"),
    ({"task_options": {"steps": 9}}, ValueError, "steps is 9"),
    ({"task": "ordered-mnist", "task_options": {"shift": -1}}, ValueError, "shift is -1"),
    ({"task": "ptb-char", "task_options": {"embedding": "many"}}, TypeError, "embedding is 'many'"),
    ({"task": "timit-sample", "task_options": {"normalisation": "loud"}}, ValueError, "normalisation is 'loud'"),
    ({"unit": "lstmm"}, ValueError, "no unit is called 'lstmm'"),
    ({"unit_options": {"betta": 1}}, TypeError, "no option 'betta'"),
    ({"unit_options": {"gamma": "(0.1,0.2)"}}, TypeError, r"gamma is '\(0.1,0.2\)'"),
    ({"unit_options": {"integrator": 5}}, TypeError, "integrator is 5"),
    ({"unit_options": {"hidden_size": 8}}, ValueError, "--hidden-size"),
    ({"unit_options": {"device": "cpu"}}, ValueError, "--device"),
    ({"unit_options": {"dtype": 1}}, ValueError, "precision"),
    ({"unit_options": {"input_size": 3}}, ValueError, "follows from the task"),
    ({"unit_options": {"bidirectional": True}}, ValueError, "one direction"),
    ({"unit_options": {"num_layers": 3}, "num_layers": 2}, ValueError, "give it once"),
    ({"variants": ({"hidden_size": 8},)}, ValueError, "variants set 'hidden_size'.*as its own run"),
    ({"variants": ({"integrator": "rk4"},)}, ValueError, "variants set 'integrator'.*can vary alpha, beta"),
    ({"variants": ({"beta": "x"},)}, (ValueError, TypeError), "beta is 'x'"),
    ({"unit": "lstm", "variants": ({"beta": 0.5},)}, ValueError, "lstm has no option that can"),
    ({"device": "mps"}, ValueError, "device is 'mps'"),
    ({"device": "meta"}, ValueError, "device is 'meta'"),
    ({"device": "cuda:99"}, ValueError, "device is 'cuda:99'"),
    ({"cuda_graph": "on"}, ValueError, "CUDA graphs need a CUDA device"),
    ({"hidden_size": 5_000_000}, RunError, "do not fit into memory"),
    ({"hidden_size": 2**31 - 1}, RunError, "do not fit into memory"),
    ({"task": "rows-mnist", "data_dir": "no/such/folder"}, DataError, "does not exist"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "kind", "part"), WRONG, ids=[str(changes) for changes, _, _ in WRONG])
def test_wrong_settings_are_refused_alike(
    changes: dict[str, Any], kind: type[Exception], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LIPSCHITZ_RNN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for run in (check_train, train):
        with pytest.raises(kind, match=part):
            run(settings(**changes), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_data_that_is_nowhere_and_may_not_be_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIPSCHITZ_RNN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("ordered-mnist", "ordered-cifar10", "ptb-word", "spoken-digits", "timit"):
        with pytest.raises(DataError, match="was not found"):
            check_train(settings(task=name, offline=True))
        if name != "timit":  # it cannot be downloaded
            check_train(settings(task=name))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("unit", units.available())
def test_every_unit_with_two_layers_and_every_precision_can_start(unit: str) -> None:
    for precision in ("highest", "bfloat16", "float64"):
        check_train(settings(unit=unit, num_layers=2, precision=precision))
    check_train(settings(unit=unit, hidden_size=1024))  # built without memory: no orthogonal matrix is drawn


def test_a_contracting_layer_can_start() -> None:
    check_train(settings(unit_options={"stability": "contracting"}))


@pytest.mark.parametrize("name", ["digits", "pendulum", "adding", "copying", "irregular-digits", "irregular-pendulum"])
def test_shapes_without_data_are_those_of_the_task(name: str) -> None:
    options = {"digits": {"steps": 8}, "irregular-digits": {"kept": 9}}.get(name, {"train_size": 5, "eval_size": 5})
    built = tasks.load(name, **options)
    found = tasks.check(name, **options)
    assert {fact: getattr(built, fact) for fact in vars(found)} == vars(found)
    assert tasks.check("ptb-char", embedding=7).input_size == 7


def test_the_run_folder_is_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for path, part in ((file, "is a file"), (file / "deep" / "run", "is a file"), (tmp_path / ("x" * 300), "too long")):
        for run in (check_train, train):
            with pytest.raises(RunError, match=part):
                run(settings(), path)
    for run in (check_train, train):
        with pytest.raises(RunError, match="NUL"):
            run(settings(), f"{tmp_path}/a\0b")
    assert file.read_text() == "mine"
    train(settings(), tmp_path / "run")
    for run in (check_train, train):
        with pytest.raises(RunConflict, match="already holds a run"):
            run(settings(), tmp_path / "run")
        with pytest.raises(RunConflict, match=r"hidden_size = 4, .* 5"):
            run(settings(hidden_size=5), tmp_path / "run", resume=True)
    check_train(settings(), tmp_path / "run", resume=True)


def test_a_folder_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    for run in (check_train, train):
        with pytest.raises(RunError, match="is not writable"):
            run(settings(), tmp_path / "deep" / "run")
    assert list(tmp_path.iterdir()) == []
