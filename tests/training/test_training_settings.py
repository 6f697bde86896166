"""Settings are checked when they are made, survive JSON and TOML, and rates follow their definitions."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_tasks import SignTask, tiny_settings

from lipschitz_rnn.training import Diverged, Settings, fit
from lipschitz_rnn.training.errors import RunConflict
from lipschitz_rnn.training.preparation import check_recorded_options
from lipschitz_rnn.training.schedules import learning_rate
from lipschitz_rnn.training.settings import read_toml


def test_settings_survive_json_and_toml(tmp_path: Path) -> None:
    settings = tiny_settings(seeds=(3, 1), decay_epochs=(90,), unit_options={"beta": 0.8}, clip=1.0)
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    file = tmp_path / "run.toml"
    file.write_text('task = "digits"\nseeds = [0, 1]\nlearning_rate = 0.1\n[unit_options]\nbeta = 0.8\n')
    read = Settings.from_dict(read_toml(file))
    assert (read.task, read.seeds, read.learning_rate, read.unit_options) == ("digits", (0, 1), 0.1, {"beta": 0.8})
    file.write_text(file.read_text(), encoding="utf-8-sig")  # as some editors write it
    assert Settings.from_dict(read_toml(file)) == read


WRONG: dict[str, list[tuple[object, str]]] = {
    "task": [("", "a name"), (3, "a name"), (None, "a name"), ("a\0b", "a name")],
    "task_options": [([("a", 1)], "by name"), ({1: 2}, "a name"), ({"a": object()}, "config.json"), ("x", "by name")],
    "unit": [("", "a name"), (["lstm"], "a name")],
    "unit_options": [({"beta": math.nan}, "finite"), ({"beta": [math.inf]}, "finite"), ({"a": {1, 2}}, "config.json")],
    "variants": [({"beta": 1}, "list of unit options"), ([1], "list of unit"), (({}, {}), "each once"), (7, "list of")],
    "hidden_size": [(0, "at least 1"), (2.5, "integer"), (True, "integer"), (10**30, "at most"), ("8", "integer")],
    "num_layers": [(0, "at least 1"), (None, "integer")],
    "dropout": [(1.0, "between 0 and 1"), (-0.1, "between"), (math.nan, "between"), ("0.1", "number")],
    "embedding_dropout": [(1.0, "between 0 and 1"), (-0.1, "between"), ("0.1", "number")],
    "seeds": [((1, 1), "each once"), ((), "at least one"), ((-1,), "at least 0"), (5, "list of"), ("012", "list of"),
              ((2**63,), "at most"), (([1],), "integer")],
    "patience": [(0, "at least 1"), (2.5, "integer"), (True, "integer")],
    "epochs": [(-1, "at least 0"), (1.0, "integer"), (10**12, "at most")],
    "batch_size": [(0, "at least 1"), (math.nan, "integer")],
    "eval_batch_size": [(0, "at least 1")],
    "optimiser": [("lion", "adam"), (None, "adam"), (["adam"], "adam")],
    "learning_rate": [(-1.0, "positive"), (0, "positive"), (math.inf, "positive"), ("fast", "number"), (None, "number"),
                      (10**400, "number")],
    "momentum": [(1.5, "between"), (None, "number")],
    "smoothing": [(-0.5, "between")],
    "matrix_rate": [(0, "positive"), (-1.0, "positive"), (math.inf, "positive"), ("1", "number"), (None, "number")],
    "bias_rate": [(0, "positive"), (-1.0, "positive"), (math.inf, "positive"), ("1", "number"), (None, "number")],
    "weight_decay": [(-1.0, "at least 0"), (math.inf, "finite"), (math.nan, "at least 0")],
    "clip": [(0, "positive"), (-1.0, "positive"), ("1", "number"), (math.inf, "positive")],
    "schedule": [("stairs", "one-cycle")],
    "decay_factor": [(-1, "at least 0"), (math.inf, "finite")],
    "decay_epochs": [((-1,), "at least 0"), (90, "list of"), (("90",), "integer")],
    "warmup": [(2.0, "between")],
    "final_rate": [(-1.0, "between")],
    "margin": [(-1.0, "at least 0"), ("wide", "number")],
    "train_radius": [(-0.1, "at least 0"), (float("inf"), "finite")],
    "gain_penalty": [(-1.0, "at least 0")],
    "head_penalty": [(-1.0, "at least 0")],
    "robust_ramp": [(1.5, "between 0 and 1"), (-0.1, "between")],
    "averaging": [(2.0, "between 0 and 1"), (0.0, "without 0")],
    "precision": [("float16", "bfloat16")],
    "ensemble": [("all", "vmap")],
    "device": [("toaster", "cuda:1"), (0, "cuda:1"), ("", "cuda:1"), ("cuda:x", "cuda:1")],
    "cuda_graph": [(True, "auto")],
    "log_steps": [(0, "at least 1")],
    "checkpoint_minutes": [(-1.0, "at least 0"), (math.nan, "at least 0"), (None, "number")],
    "data_dir": [(3, "path"), ("", "path"), ("a\0b", "path")],
    "offline": [("no", "True or False"), (1, "True or False")],
}  # fmt: skip


def test_every_setting_has_wrong_values() -> None:
    assert set(WRONG) == {item.name for item in dataclasses.fields(Settings)}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_is_named_with_what_is_allowed(name: str) -> None:
    """When settings are made, when one is replaced, and when they come from a file."""
    right = tiny_settings()
    for value, part in WRONG[name]:
        for make in (
            lambda value=value: tiny_settings(**{name: value}),
            lambda value=value: dataclasses.replace(right, **{name: value}),
            lambda value=value: Settings.from_dict(right.to_dict() | {name: value}),
        ):
            with pytest.raises((ValueError, TypeError), match=part):
                make()


@pytest.mark.parametrize("name", ["matrix_rate", "bias_rate"])
def test_rates_that_no_float32_holds_are_refused(name: str) -> None:
    """The optimiser would stop with an overflow after the run folder is made, whatever the arithmetic."""
    with pytest.raises(ValueError, match=r"learning_rate is 1e\+40; it must be at most 1e\+30"):
        tiny_settings(learning_rate=1e40)
    with pytest.raises(ValueError, match=rf"learning_rate × {name} is 1e\+40; it must be at most 1e\+30"):
        tiny_settings(**{"learning_rate": 1e20, name: 1e20})
    with pytest.raises(ValueError, match=rf"learning_rate × {name} is inf; it must be at most 1e\+30"):
        tiny_settings(**{"learning_rate": 1e20, name: 1e300})
    for optimiser in ("adam", "adamw", "sgd", "rmsprop", "muon"):
        largest = tiny_settings(**{"optimiser": optimiser, "learning_rate": 1e15, name: 1e15})
        with contextlib.suppress(Diverged):
            fit(largest, SignTask())


def test_a_folder_may_be_given_as_a_path(tmp_path: Path) -> None:
    assert tiny_settings(data_dir=tmp_path).data_dir == str(tmp_path)
    assert tiny_settings(checkpoint_minutes=math.inf).checkpoint_minutes == math.inf


def test_settings_for_another_task_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'adding'.*'sign'"):
        fit(tiny_settings(task="adding"), SignTask(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=r"noise.*0\.5.*0\.0"):
        fit(tiny_settings(task_options={"noise": 0.5}), SignTask())
    fit(tiny_settings(task_options={"noise": 0.5}, epochs=0), SignTask(noise=0.5))
    fit(tiny_settings(epochs=0), SignTask(noise=0.5))  # what the settings leave open, the task says


def test_a_run_goes_on_with_the_options_of_its_task(tmp_path: Path) -> None:
    """Also those that the settings leave open; one that the record does not have had its default."""
    fit(tiny_settings(epochs=1), SignTask(noise=0.5), tmp_path)
    fit(tiny_settings(epochs=2), SignTask(noise=0.5), tmp_path, resume=True)
    with pytest.raises(RunConflict, match=r"on sign with noise = 0\.5, but the task given has 0\.0; load the task"):
        fit(tiny_settings(epochs=3), SignTask(), tmp_path, resume=True)
    record = json.loads((tmp_path / "task.json").read_text())
    (tmp_path / "task.json").write_text(json.dumps(record | {"options": {}}))
    with pytest.raises(RunConflict, match=r"noise = 0\.0, but the task given has 0\.5"):
        fit(tiny_settings(epochs=3), SignTask(noise=0.5), tmp_path, resume=True)
    assert json.loads((tmp_path / "task.json").read_text())["options"] == {}
    odd: dict[str, Any] = {"noise": math.nan, "sizes": ((1, 2), 3.0)}
    (tmp_path / "task.json").write_text(json.dumps(record | {"options": odd}))
    task = SignTask()
    task.options = odd
    check_recorded_options(tmp_path, task)


def test_an_unknown_setting_and_broken_toml_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'learning_rat'"):
        Settings.from_dict({"task": "digits", "learning_rat": 0.1})
    (tmp_path / "bad.toml").write_text("task = digits")
    for content in (b"task = digits", b"\xff\xfe\0", b"\x1f\x8b" * 9, b"a = " + b"[" * 5000, b"#" * (2 << 20)):
        (tmp_path / "bad.toml").write_bytes(content)
        with pytest.raises(ValueError, match=r"bad\.toml"):
            read_toml(tmp_path / "bad.toml")
    for path in (tmp_path, tmp_path / "none.toml"):
        with pytest.raises(OSError, match=re.escape(str(path))):
            read_toml(path)
    for wrong in ([], "task", None, 3):
        with pytest.raises(TypeError, match=type(wrong).__name__):
            Settings.from_dict(wrong)  # type: ignore[arg-type]


def test_only_settings_of_place_may_differ() -> None:
    here = tiny_settings()
    assert here.differences(tiny_settings(device="cuda", data_dir="elsewhere")) == {}
    assert here.differences(tiny_settings(learning_rate=0.5)) == {"learning_rate": (0.02, 0.5)}


def test_step_decay_acts_after_the_named_epoch() -> None:
    settings = tiny_settings(schedule="step", decay_epochs=(90,), decay_factor=0.1, epochs=100, learning_rate=1.0)
    rates = [learning_rate(settings, epoch * 7, 7) for epoch in (0, 90, 91, 99)]
    assert rates == pytest.approx([1.0, 1.0, 0.1, 0.1])
    assert learning_rate(settings, 91 * 7 - 1, 7) == 1.0


def test_one_cycle_and_cosine_rise_and_fall() -> None:
    for schedule in ("one-cycle", "cosine"):
        settings = tiny_settings(schedule=schedule, epochs=10, learning_rate=0.5, warmup=0.25, final_rate=0.01)
        rates = [learning_rate(settings, step, 10) for step in range(100)]
        top = rates.index(max(rates))
        assert max(rates) == pytest.approx(0.5)
        assert top in (24, 25)
        assert rates[:top] == sorted(rates[:top])
        assert rates[top:] == sorted(rates[top:], reverse=True)
        assert rates[-1] == pytest.approx(0.005)


def test_cosine_without_warmup_is_pytorchs() -> None:
    settings = tiny_settings(schedule="cosine", epochs=4, learning_rate=1.0, warmup=0.0)
    parameter = torch.nn.Parameter(torch.zeros(()))
    optimiser = torch.optim.SGD([parameter], lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=11)
    for step in range(12):
        assert math.isclose(learning_rate(settings, step, 3), schedule.get_last_lr()[0], abs_tol=1e-12)
        optimiser.step()
        schedule.step()
