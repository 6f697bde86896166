"""How this project trains the other units of the paper's first table: one setting each, stated with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Baseline:
    """A unit on one task. Epochs, batch, schedule and selection are those of our unit unless `changes` says more.

    variants: unit options that are compared on validation data before one of them stands in `unit_options`.
    """

    unit: str
    hidden_size: int
    changes: Mapping[str, Any]
    why: str
    unit_options: Mapping[str, Any] = field(default_factory=dict)
    variants: tuple[Mapping[str, Any], ...] = ()


_LSTM = Baseline(
    "lstm",
    128,
    {"learning_rate": 0.001, "clip": 1.0},
    "Adam's default rate, gradients clipped at 1, forget gates open at the start; all seeds in one kernel",
    {"forget_bias": 1.0, "fused": True},
)
_ANTISYMMETRIC = Baseline(
    "antisymmetric",
    128,
    {"learning_rate": 0.001, "clip": 1.0},
    "γ of our unit; a smaller rate and clipping, since it oscillates under ours",
    {"step_size": 0.03, "gamma": 0.001},
    tuple(
        {"step_size": step, "init_scale": scale}
        for step, scale in ((0.03, 4.0), (0.03, 8.0), (0.05, 2.0), (0.05, 4.0), (0.1, 1.0), (0.1, 2.0))
    ),
)
_EXPRNN = Baseline(
    "exprnn",
    360,
    {"learning_rate": 0.0007},
    "the paper's N; the rates of expRNN's public code, 0.0007 and for W a tenth of it, with Adam in place of RMSprop",
    {"relative_rate": 0.1},
)
_CORNN = "about as many parameters as our unit at the same N; rate, Δt, γ and ε from coRNN's public code at N = 256"


def _cornn(hidden_size: int, rate: float, **options: float) -> Baseline:
    return Baseline("cornn", hidden_size, {"learning_rate": rate}, _CORNN, options)


BASELINES: tuple[tuple[str, Baseline], ...] = (  # with the task of each
    *((task, row) for row in (_LSTM, _ANTISYMMETRIC, _EXPRNN) for task in ("ordered-mnist", "permuted-mnist")),
    *(("ordered-mnist", _cornn(size, 0.0021, step_size=0.042, gamma=2.7, epsilon=4.7)) for size in (64, 128)),
    *(("permuted-mnist", _cornn(size, 0.0054, step_size=0.076, gamma=0.4, epsilon=8.0)) for size in (64, 128)),
)
UNITS = tuple(dict.fromkeys(row.unit for _, row in BASELINES))
