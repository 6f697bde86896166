"""Settings with which each unit learns a small task: the presets of units other than the paper's.

Chosen on the validation split only. Starting from N = 64, a batch size of 64 and gradients clipped at 1, we changed
first the learning rate (0.003 to 0.15) and the number of epochs (10 to 70), then the clipping or the unit's own
options, until seed 0 validated above 90 %. benchmarks/units_learn.py writes the scores into docs/units.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CLIP, HIDDEN_SIZE = 1.0, 64
TASK_OPTIONS: dict[str, dict[str, Any]] = {"digits": {}, "adding": {"length": 100}}


@dataclass(frozen=True)
class Recipe:
    """The settings of one unit that differ from the common ones."""

    learning_rate: float
    epochs: int
    unit_options: Mapping[str, Any] = field(default_factory=dict)
    clip: float = CLIP
    hidden_size: int = HIDDEN_SIZE
    task: str = "digits"

    def settings(self) -> dict[str, Any]:
        """Values for `Settings`, without the unit's name."""
        return {
            "task": self.task,
            "task_options": TASK_OPTIONS[self.task],
            "unit_options": dict(self.unit_options),
            "hidden_size": self.hidden_size,
            "batch_size": 64,
            "epochs": self.epochs,
            "learning_rate": self.learning_rate,
            "clip": self.clip,
            "schedule": "one-cycle",
            "warmup": 0.3,
        }

    def __str__(self) -> str:
        text = f"rate {self.learning_rate:g}, {self.epochs} epochs"
        text += "" if self.clip == CLIP else f", clip {self.clip:g}"
        text += "" if self.hidden_size == HIDDEN_SIZE else f", N = {self.hidden_size}"
        return text + "".join(f", {name} {value}" for name, value in self.unit_options.items())


# Units that integrate an equation need enough time: with T = 64, a step of 0.03 covers only 2 units of time.
_TIME = {"step_size": 0.3}
_RELU = {"nonlinearity": "relu"}

RECIPES: dict[str, Recipe] = {
    "rnn": Recipe(0.006, 60),
    "lstm": Recipe(0.02, 40),
    "gru": Recipe(0.03, 25),
    "rnn-orth": Recipe(0.01, 20),
    "momentum-lstm": Recipe(0.02, 25),
    "srlstm": Recipe(0.01, 40, {"restart": 5, **_TIME}, clip=0.5, hidden_size=48),
    "urnn": Recipe(0.01, 10),
    "full-urnn": Recipe(0.004, 15),
    "eurnn": Recipe(0.01, 10),
    "soft-orth": Recipe(0.004, 30, {"margin": 0.3}),
    "kronecker": Recipe(0.01, 15),
    "scornn": Recipe(0.004, 20),
    "exprnn": Recipe(0.004, 20),
    "dtriv": Recipe(0.004, 20),
    "nnrnn": Recipe(0.01, 15),
    "antisymmetric": Recipe(0.02, 20, _TIME),
    "antisymmetric-gated": Recipe(0.04, 20, _TIME),
    "nais": Recipe(0.005, 2, _RELU, task="adding"),
    "irnn": Recipe(0.004, 70),
    "neural-ode": Recipe(0.04, 30, {"step_size": 0.2}),  # with longer steps one of six seeds fails
    "residual": Recipe(0.003, 2, _RELU, task="adding"),
    "fastrnn": Recipe(0.12, 40),
    "fastgrnn": Recipe(0.015, 40, clip=0.3),
    "fastgrnn-lsq": Recipe(0.02, 30, clip=0.3),
    "spectral-rnn": Recipe(0.01, 40),
    "lipschitz": Recipe(0.02, 20, _TIME),
    "lipschitz-gated": Recipe(0.04, 20, _TIME),
    "cornn": Recipe(0.04, 20, {"step_size": 0.2, "gamma": 1.0, "epsilon": 0.5}),
    "lem": Recipe(0.02, 20),
    "gru-d": Recipe(0.02, 20),
    "lru": Recipe(0.02, 20),
    "ren": Recipe(0.003, 40),
}
