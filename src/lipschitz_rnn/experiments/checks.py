"""What may explain a difference from the paper's MNIST numbers: one thing changed at a time, N = 128, Euler.

`lipschitz-rnn reproduce mnist --checks` measures each beside the cell that it is a change of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Check:
    """One change of the paper's settings, on the tasks that have it."""

    name: str
    changes: Mapping[str, Any]
    why: str
    tasks: tuple[str, ...] = ("ordered-mnist", "permuted-mnist")


CHECKS = (
    Check("precision-highest", {"precision": "highest"}, "products as exact as float32 allows"),
    Check("precision-medium", {"precision": "medium"}, "products of bfloat16 operands"),
    Check("decay-60", {"decay_epochs": (60,)}, "the rate falls after 60 % of the epochs, not 90 %"),
    Check("no-decay", {"schedule": "constant", "decay_epochs": ()}, "the rate stays large to the end"),
    Check("clipped", {"clip": 1.0}, "gradient norm clipped at 1; the paper does not clip"),
    Check(
        "raw-inputs",
        {"task_options": {"scaling": "raw"}},
        "pixels from 0 to 255, as the authors' code",
        ("permuted-mnist",),
    ),
    Check(
        "other-permutation", {"task_options": {"seed": 5544}}, "the permutation of other papers", ("permuted-mnist",)
    ),
)
