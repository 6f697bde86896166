"""How this project trains the other units of the paper's first table: one setting each, stated with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lipschitz_rnn.experiments.tuned import Candidate


@dataclass(frozen=True)
class Baseline:
    """A unit on one task. Epochs, batch, schedule and selection are those of our unit unless `changes` says more.

    candidates: settings that were compared on validation data before the best of them stood in the other fields.
    """

    unit: str
    hidden_size: int
    changes: Mapping[str, Any]
    why: str
    unit_options: Mapping[str, Any] = field(default_factory=dict)
    candidates: tuple[Candidate, ...] = ()


_LSTM = Baseline(
    "lstm",
    128,
    {"learning_rate": 0.001, "clip": 1.0},
    "Adam's default rate, gradients clipped at 1, forget gates open at the start; all seeds in one kernel",
    {"forget_bias": 1.0, "fused": True},
)


def _steps_and_scales(*pairs: tuple[float, float]) -> tuple[Mapping[str, Any], ...]:
    return tuple({"step_size": step_size, "init_scale": init_scale} for step_size, init_scale in pairs)


_AS_OURS = Candidate(
    "options",
    {"learning_rate": 0.003},
    "rate of our unit",
    _steps_and_scales((0.03, 1.0), (0.03, 4.0), (0.1, 1.0), (0.1, 4.0), (0.3, 1.0), (0.3, 4.0)),
)
_SLOWER = Candidate(
    "options-slower",
    {"learning_rate": 0.001, "clip": 1.0},
    "a smaller rate, gradients clipped at 1",
    _steps_and_scales((0.03, 4.0), (0.03, 8.0), (0.05, 2.0), (0.05, 4.0), (0.1, 1.0), (0.1, 2.0)),
)


def _antisymmetric(best: Candidate, step_size: float, init_scale: float) -> Baseline:
    options = {"step_size": step_size, "init_scale": init_scale, "gamma": 0.001}
    why = f"γ of our unit; {best.why}, step and initial scale from a sweep on validation data"
    return Baseline("antisymmetric", 128, best.changes, why, options, (_AS_OURS, _SLOWER))


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
    ("ordered-mnist", _antisymmetric(_SLOWER, step_size=0.1, init_scale=2.0)),
    ("permuted-mnist", _antisymmetric(_AS_OURS, step_size=0.03, init_scale=4.0)),
    *((task, row) for row in (_LSTM, _EXPRNN) for task in ("ordered-mnist", "permuted-mnist")),
    *(("ordered-mnist", _cornn(size, 0.0021, step_size=0.042, gamma=2.7, epsilon=4.7)) for size in (64, 128)),
    *(("permuted-mnist", _cornn(size, 0.0054, step_size=0.076, gamma=0.4, epsilon=8.0)) for size in (64, 128)),
)
UNITS = tuple(dict.fromkeys(row.unit for _, row in BASELINES))
