"""Small whole models of any unit, with weights as they are drawn, and series for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from series_files import waves
from torch import nn

from lipschitz_rnn import data, units


def irregular(count: int = 8, seed: int = 0, longest: int = 30, targets: str = "labels") -> data.SeriesSet:
    """Waves at random times with holes; `targets`: labels, numbers or none."""
    made = waves(count, seed, shortest=3, longest=longest)
    labels = np.array([one["label"] for one in made])
    numbers = np.array([[float(len(one["times"])), float(np.nanmean(one["values"]))] for one in made])
    y = {"labels": labels, "numbers": numbers, "none": None}[targets]
    values = [one["values"].T for one in made]
    return data.from_arrays(values, y, times=[one["times"] for one in made], columns=["x", "y"])


def target_of(kind: str) -> data.Target:
    if kind in ("classify", "sequence"):
        return data.Target(kind, ("label",), ("a", "b", "c"))
    if kind == "regress":
        return data.Target("regress", ("u", "v"), None, (100.0, -3.0), (20.0, 0.5))
    return data.Target("forecast", ("y", "x"), None, (0.1, 0.0), (0.7, 0.2), (1, 0))


def make_model(
    unit: str = "lipschitz",
    kind: str = "classify",
    seed: int = 0,
    hidden_size: int = 4,
    options: dict[str, Any] | None = None,
    series: data.SeriesSet | None = None,
    dtype: torch.dtype = torch.float32,
    **preprocessing: Any,
) -> data.SeriesModel:
    options = options or {}
    fitted = data.Preprocessing.fit(
        irregular() if series is None else series,
        step_size=data.unit_step(unit, options),
        **{"ahead": kind == "forecast"} | preprocessing,
    )
    target = target_of(kind)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = units.build(unit, fitted.output_size, hidden_size, **options)
        head = nn.Linear(built.output_size, target.size)
    return data.SeriesModel(fitted, built.to(dtype), head.to(dtype), target).eval()
