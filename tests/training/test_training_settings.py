"""Settings are checked when they are made, survive JSON and TOML, and rates follow their definitions."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from tiny_tasks import tiny_settings

from lipschitz_rnn.training import Settings
from lipschitz_rnn.training.schedules import learning_rate
from lipschitz_rnn.training.settings import read_toml


def test_settings_survive_json_and_toml(tmp_path: Path) -> None:
    settings = tiny_settings(seeds=(3, 1), decay_epochs=(90,), unit_options={"beta": 0.8}, clip=1.0)
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    file = tmp_path / "run.toml"
    file.write_text('task = "digits"\nseeds = [0, 1]\nlearning_rate = 0.1\n[unit_options]\nbeta = 0.8\n')
    read = Settings.from_dict(read_toml(file))
    assert (read.task, read.seeds, read.learning_rate, read.unit_options) == ("digits", (0, 1), 0.1, {"beta": 0.8})


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("optimiser", "lion", "adam"),
        ("schedule", "stairs", "one-cycle"),
        ("hidden_size", 0, "at least 1"),
        ("hidden_size", 2.5, "integer"),
        ("learning_rate", -1.0, "positive"),
        ("learning_rate", "fast", "number"),
        ("dropout", 1.0, "between"),
        ("averaging", 2.0, "0.002"),
        ("seeds", (1, 1), "each once"),
        ("seeds", (), "at least one"),
        ("decay_epochs", (-1,), "at least 0"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(name: str, value: object, part: str) -> None:
    with pytest.raises((ValueError, TypeError), match=part):
        tiny_settings(**{name: value})


def test_an_unknown_setting_and_broken_toml_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'learning_rat'"):
        Settings.from_dict({"task": "digits", "learning_rat": 0.1})
    (tmp_path / "bad.toml").write_text("task = digits")
    with pytest.raises(ValueError, match=r"bad\.toml"):
        read_toml(tmp_path / "bad.toml")


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
