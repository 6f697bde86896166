"""Small series for the tests of estimators."""

from __future__ import annotations

from typing import Any

import numpy as np

QUICK: dict[str, Any] = {"hidden_size": 8, "epochs": 3, "random_state": 0}


def waves(count: int = 30, seed: int = 0, classes: int = 2) -> tuple[list[Any], Any]:
    """Series (2, time_i) of unequal length, whose class is their frequency; and the labels, texts."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    series = []
    for label in labels:
        steps = np.arange(generator.integers(12, 30))
        phase = generator.uniform(0, 2 * np.pi)
        rate = 0.3 + 0.9 * label
        series.append(np.stack([np.sin(rate * steps + phase), np.cos(rate * steps + phase)]))
    return series, np.array(["slow", "fast", "faster"])[labels]


def padded(series: list[Any]) -> Any:
    """(cases, channels, time) with NaN beyond the end."""
    whole = np.full((len(series), series[0].shape[0], max(case.shape[1] for case in series)), np.nan)
    for index, case in enumerate(series):
        whole[index, :, : case.shape[1]] = case
    return whole
