"""An estimator as one .safetensors file, and back: no pickle, so a file of somebody else runs no code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lipschitz_rnn.data import SavedModels, load_model, save_model
from lipschitz_rnn.estimators.fitting import Trained, plain
from lipschitz_rnn.training import Settings

KINDS = {
    "LipschitzRNNClassifier": "classify",
    "LipschitzRNNRegressor": "regress",
    "LipschitzRNNForecaster": "forecast",
}


def save_estimator(estimator: Any, path: str | os.PathLike[str]) -> Path:
    """Write the fitted estimator: its networks, preprocessing, parameters, classes and history."""
    trained: Trained = estimator._trained
    extra = {
        "estimator": type(estimator).__name__,
        "parameters": {name: _to_plain(name, value) for name, value in estimator.get_params(deep=False).items()},
        "settings": None if trained.settings is None else trained.settings.to_dict(),
        "feature_names": estimator.feature_names_in_.tolist() if hasattr(estimator, "feature_names_in_") else None,
        "clock": estimator._clock,
        "history": estimator.history_,
        "n_iter": estimator.n_iter_,
        "notes": list(estimator.notes_),
        "intervals": None if estimator._intervals is None else estimator._intervals.to_dict(),
        **estimator._extra(),
    }
    return save_model(path, estimator.models_, extra)


def load_estimator(kind: Any, path: str | os.PathLike[str]) -> Any:
    """The estimator of a file; of one that `lipschitz-rnn export` wrote too, with the default parameters."""
    saved = load_model(path)
    name, extra = kind.__name__, saved.extra
    wanted = KINDS[name]
    if saved.target.kind != wanted or extra.get("estimator", name) != name:
        found = extra.get("estimator") or f"model with the task {saved.target.kind!r}"
        fitting = next((each for each, task in KINDS.items() if task == saved.target.kind), "lipschitz_rnn.data")
        raise ValueError(f"{saved.name} holds a {found}, not a {name}; load it with {fitting}")
    parameters = {key: _from_plain(key, value) for key, value in extra.get("parameters", {}).items()}
    estimator = kind(**parameters)
    estimator._restore(_trained(saved), extra)
    return estimator


def _trained(saved: SavedModels) -> Trained:
    extra = saved.extra
    settings = extra.get("settings")
    return Trained(
        models=tuple(model.eval() for model in saved.models),
        settings=None if settings is None else Settings.from_dict(settings),
        record={"preprocessing": saved.preprocessing.to_dict(), "target": saved.target.to_dict()},
        history={name: list(values) for name, values in extra.get("history", {}).items()},
    )


def _to_plain(name: str, value: Any) -> Any:
    """A parameter as a plain value. A generator of random numbers is not kept: a loaded model draws none."""
    if name == "random_state" and not isinstance(value, int | np.integer):
        return None
    if name == "class_weight" and isinstance(value, Mapping):
        return [[plain(label), float(weight)] for label, weight in value.items()]  # JSON's keys are texts
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple | np.ndarray) else plain(value)


def _from_plain(name: str, value: Any) -> Any:
    return dict(value) if name == "class_weight" and isinstance(value, list) else value
