"""Defaults of `lipschitz-rnn train TASK`: the paper's settings where it gives them and they work, our own elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from lipschitz_rnn import tasks
from lipschitz_rnn.data.steps import named_unit
from lipschitz_rnn.experiments.paper import tuning
from lipschitz_rnn.experiments.recipes import RECIPES
from lipschitz_rnn.experiments.working import OTHER_UNITS, OUR_UNIT
from lipschitz_rnn.training import Settings

Preset = Literal["working", "paper", "quick"]
PRESETS: tuple[str, ...] = get_args(Preset)

_ONE_CYCLE = {"schedule": "one-cycle", "warmup": 0.3}
# At the paper's step of 0.9 for TIMIT, the state of a new network grows by a factor of 1.5 per Euler step; not at 0.3.
_SPEECH = {"hidden_size": 128, "learning_rate": 0.003, "clip": 1.0, "epochs": 60, **_ONE_CYCLE}
_SPEECH_UNIT = {"beta": 0.8, "gamma": [0.8, 0.001], "step_size": 0.3, "init_scale": 6.0}
_MEMORY = {"hidden_size": 128, "learning_rate": 0.003, "clip": 1.0, "epochs": 50, **_ONE_CYCLE}
_UNEVEN = {"hidden_size": 32, "batch_size": 64, "learning_rate": 0.03, "clip": 1.0, **_ONE_CYCLE}

# Tasks that are not in the paper's table of tuning parameters. `digits` was tuned on its validation split.
_OURS: dict[str, dict[str, Any]] = {
    "digits": {
        "hidden_size": 64,
        "learning_rate": 0.06,
        "clip": 0.5,
        "epochs": 100,
        "unit_options": {"beta": 0.65, "step_size": 0.1},
        **_ONE_CYCLE,
    },
    # The robustness study: SGD with momentum, 98 steps of 8 pixels; the paper gives no other settings.
    "rows-mnist": {
        "hidden_size": 128,
        "optimiser": "sgd",
        "learning_rate": 0.05,
        "clip": 1.0,
        "epochs": 100,
        "schedule": "step",
        "decay_epochs": (90,),
        "unit_options": {"beta": 0.75, "step_size": 0.1},
    },
    "timit-sample": {**_SPEECH, "batch_size": 16, "unit_options": _SPEECH_UNIT},
    "spoken-digits": {**_SPEECH, "unit_options": _SPEECH_UNIT},
    "pendulum": {"hidden_size": 16, "learning_rate": 0.01, "epochs": 50, "unit_options": {"step_size": 0.1}}
    | _ONE_CYCLE,
    # One step size for times="input" and "ignored": the mean time between samples. Longer steps are divided.
    "irregular-digits": {**_UNEVEN, "epochs": 60, "unit_options": {"step_size": 0.25, "max_step": 0.5}},
    "irregular-pendulum": {**_UNEVEN, "epochs": 30, "unit_options": {"step_size": 0.2, "max_step": 0.4}},
    "adding": {**_MEMORY, "unit_options": {"step_size": 0.03}},
    "copying": {**_MEMORY, "unit_options": {"step_size": 0.03}},
}

# A contracting layer has its own start and needs a larger learning rate than a free one.
# The guaranteed rate is small, so that the whole sequence can be remembered: e^{−0.001·0.03} in a step of MNIST.
_GUARANTEED = {"stability": "contracting", "rate": 0.001, "metric_spread": 1000.0, "init_scale": 0.3}
_CAREFUL = {"optimiser": "adam", "clip": 1.0, "schedule": "one-cycle", "warmup": 0.2}
_CONTRACTING: dict[str, dict[str, Any]] = {
    "ordered-mnist": {"learning_rate": 0.006},
    "permuted-mnist": {"learning_rate": 0.006},
    "ordered-cifar10": {"learning_rate": 0.004, "hidden_size": 128, "unit_options": {"step_size": 0.03}},
    "digits": {"learning_rate": 0.02, "unit_options": {"step_size": 0.2, "rate": 0.02}},
}


def preset_settings(task: str, preset: Preset = "working", changes: Mapping[str, Any] | None = None) -> Settings:
    """Settings for a task: the preset, overridden by `changes`.

    `working`: the paper's settings, except where these do not work (`experiments.working`); `paper`: the printed ones
    even there; `quick`: as `working`, for a few epochs.

    `unit_options` and `task_options` in `changes` are merged key by key. Other units than the Lipschitz unit have their
    own settings on the task of their recipe; on other tasks they use the task's settings without the options of the
    Lipschitz unit. The initial scale of the Lipschitz unit changes with the hidden size, as in the paper.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset is {preset!r}; it must be one of {', '.join(PRESETS)}")
    changes = dict(changes or {})
    if changes.get("unit") == "contracting":  # the Lipschitz unit with an option, under a name of its own
        changes["unit"], changes["unit_options"] = named_unit("contracting", changes.get("unit_options"))
    unit = changes.get("unit", "lipschitz")
    known = tuning(task, changes.get("hidden_size")) or _OURS.get(task)
    if known is None and task in tasks.available():
        known = dict(tasks.find(task).defaults)
        unit = changes.get("unit", known.get("unit", "lipschitz"))
    values = {"task": task} | (known or {})
    if unit != "lipschitz":
        recipe = RECIPES.get(unit)
        if recipe is not None and recipe.task == task:
            values = recipe.settings()
        elif unit != values.get("unit"):
            values.pop("unit_options", None)
    contracting = unit == "lipschitz" and changes.get("unit_options", {}).get("stability") == "contracting"
    if preset != "paper" and not contracting:
        working = (OUR_UNIT if unit == "lipschitz" else OTHER_UNITS).get(task, {})
        options = {**values.get("unit_options", {}), **working.get("unit_options", {})}
        values = {**values, **working, "unit_options": options}
    if contracting:
        values = _contracting(values)
    elif task in _OURS and "init_scale" in values.get("unit_options", {}):
        # Keep σ = init_scale / N, the standard deviation of M, when the size changes.
        size = changes.get("hidden_size", values["hidden_size"])
        scale = values["unit_options"]["init_scale"] * size / values["hidden_size"]
        values["unit_options"] = values["unit_options"] | {"init_scale": scale}
    if preset == "quick":
        values |= _quick(values)
    for name in ("unit_options", "task_options"):
        values[name] = {**values.get(name, {}), **changes.pop(name, {})}
    return Settings(**(values | changes))


def _contracting(values: Mapping[str, Any]) -> dict[str, Any]:
    """The preset of a task for a contracting layer: the same step, integrator and epochs, its own start and rate."""
    own = _CONTRACTING.get(values["task"], {})
    kept = {
        name: value for name, value in values.get("unit_options", {}).items() if name in ("step_size", "integrator")
    }
    options = {**kept, **_GUARANTEED, **own.get("unit_options", {})}
    return {**values, **_CAREFUL, "decay_epochs": (), **own, "unit_options": options}


def _quick(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same unit for a few epochs: enough to see it learn, not to measure it."""
    if values["task"] == "digits":
        return {"epochs": min(values["epochs"], 30)}
    rate = 0.003 if values.get("optimiser", "adam") == "adam" else values["learning_rate"]
    return {"epochs": min(int(values.get("epochs", 100)), 3), "learning_rate": rate} | _ONE_CYCLE
