"""How this project trains the other units of the paper's first table: one setting each, stated with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Baseline:
    """A unit on one task. Epochs, batch, schedule and selection are those of our unit unless `changes` says more."""

    unit: str
    hidden_size: int
    changes: Mapping[str, Any]
    why: str
    unit_options: Mapping[str, Any] = field(default_factory=dict)


_LSTM = Baseline("lstm", 128, {"learning_rate": 0.001, "clip": 1.0}, "Adam's default rate; gradients clipped at 1")
_ANTISYMMETRIC = Baseline(
    "antisymmetric",
    128,
    {"learning_rate": 0.003},
    "optimiser, rate, step and γ of our unit, so that only the unit differs",
    {"step_size": 0.03, "gamma": 0.001},
)
_EXPRNN = Baseline(
    "exprnn",
    360,
    {"learning_rate": 0.0002},
    "the paper's N; Adam at one rate, between those of expRNN's public code for W (0.00007) and for the rest (0.0007)",
)
_CORNN = "N of our unit, so about its number of parameters; rate, Δt, γ and ε from coRNN's public code at N = 256"

BASELINES: dict[tuple[str, str], Baseline] = {
    ("ordered-mnist", "lstm"): _LSTM,
    ("permuted-mnist", "lstm"): _LSTM,
    ("ordered-mnist", "antisymmetric"): _ANTISYMMETRIC,
    ("permuted-mnist", "antisymmetric"): _ANTISYMMETRIC,
    ("ordered-mnist", "exprnn"): _EXPRNN,
    ("permuted-mnist", "exprnn"): _EXPRNN,
    ("ordered-mnist", "cornn"): Baseline(
        "cornn", 128, {"learning_rate": 0.0021}, _CORNN, {"step_size": 0.042, "gamma": 2.7, "epsilon": 4.7}
    ),
    ("permuted-mnist", "cornn"): Baseline(
        "cornn", 128, {"learning_rate": 0.0054}, _CORNN, {"step_size": 0.076, "gamma": 0.4, "epsilon": 8.0}
    ),
}
UNITS = tuple(dict.fromkeys(unit for _, unit in BASELINES))
