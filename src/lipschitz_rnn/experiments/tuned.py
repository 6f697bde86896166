"""What better training gives at the same N and the same number of parameters: candidates, and those that were chosen.

A first sweep showed that these networks overfit once the step is small: a cosine decay ends below the paper's step
decay while its training loss is far lower, and an average of the weights under the large step is ahead of both. So the
candidates average, and regularise: dropout, weight decay, small shifts and distortions of the training images. They are
compared on validation data alone (`mnist_sweep.criterion`), with seeds that are used for nothing else (`lipschitz-rnn
reproduce mnist --sweep`); the chosen one is then trained from fresh seeds (``--tuned``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SWEEP_SEEDS = (1000, 1001)


@dataclass(frozen=True)
class Candidate:
    """Settings laid over the paper's, with the reason for them; options of task and unit are merged key by key.

    variants: unit options that are tried side by side, each with all seeds, as one ensemble.
    """

    name: str
    changes: Mapping[str, Any]
    why: str
    variants: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Choice:
    """What the sweep decided for one cell: a candidate, the unit options that were best under it, and how long it then
    trains; decays move along."""

    candidate: str
    unit_options: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = 100


_SMOOTH = {"averaging": 0.002}
_CONSTANT = {"schedule": "constant", "decay_epochs": ()}
_AVERAGE = {**_SMOOTH, **_CONSTANT}
_LONG = {"averaging": 0.0005, **_CONSTANT}
_COSINE = {**_SMOOTH, "schedule": "cosine", "decay_epochs": (), "warmup": 0.02, "clip": 1.0}
_SHIFT = {"task_options": {"shift": 1}}
_MOVED = "training images moved at random by up to one pixel (validation and test images never)"


def _distorted(strength: float) -> tuple[Candidate, Candidate]:
    """Training images also turned, stretched and sheared, under the paper's decay and under a cosine."""
    options = {"task_options": {"shift": 1, "distort": strength}}
    seen = f"{_MOVED}, turned, stretched and sheared at random by {strength:g} times the usual"
    units: tuple[Mapping[str, Any], ...] = ({}, {"step_size": 0.02})
    decay = Candidate(
        f"average-distort-{strength:g}", {**_SMOOTH, **options}, f"average, the paper's decay, and {seen}", units
    )
    cosine = Candidate(
        f"cosine-distort-{strength:g}", {**_COSINE, **options}, f"average, a cosine, clipping, and {seen}", units
    )
    return decay, cosine


CANDIDATES: dict[str, Candidate] = {
    candidate.name: candidate
    for candidate in (
        Candidate("average", _AVERAGE, "average of the weights over about an epoch, under the large step to the end"),
        Candidate("average-decay", _SMOOTH, "the same average with the paper's decay at the end"),
        Candidate("average-long", _LONG, "average over about four epochs"),
        Candidate("average-dropout", {**_AVERAGE, "dropout": 0.2}, "average, and dropout on the last state"),
        Candidate(
            "average-weight-decay",
            {**_AVERAGE, "optimiser": "adamw", "weight_decay": 0.01},
            "average, and decoupled weight decay",
        ),
        Candidate("average-shift-1", {**_AVERAGE, **_SHIFT}, f"average, and {_MOVED}"),
        Candidate(
            "average-shift-2",
            {**_AVERAGE, "task_options": {"shift": 2}},
            f"average, and {_MOVED.replace('one pixel', 'two pixels')}",
        ),
        Candidate("average-shift-1-decay", {**_SMOOTH, **_SHIFT}, f"average, the paper's decay, and {_MOVED}"),
        Candidate(
            "average-shift-1-dropout",
            {**_AVERAGE, **_SHIFT, "dropout": 0.1},
            f"average, dropout on the last state, and {_MOVED}",
        ),
        Candidate("average-shift-1-long", {**_LONG, **_SHIFT}, f"average over about four epochs, and {_MOVED}"),
        Candidate(
            "average-shift-1-units",
            {**_AVERAGE, **_SHIFT},
            f"average, one option of the unit at a time away from the paper's, and {_MOVED}",
            (
                {"beta": 0.65}, {"beta": 0.8}, {"beta": 0.85}, {"step_size": 0.02}, {"step_size": 0.045},
                {"step_size": 0.06}, {"gamma": 0.01}, {"gamma": 0.03},
            ),
        ),
        Candidate(
            "cosine-shift-1",
            {**_COSINE, **_SHIFT},
            f"average, the rate along a cosine to zero, gradients clipped at 1, and {_MOVED}",
            (
                {}, {"step_size": 0.02}, {"step_size": 0.015}, {"gamma": 0.03}, {"beta": 0.65},
                {"step_size": 0.02, "gamma": 0.03}, {"step_size": 0.02, "beta": 0.65},
                {"step_size": 0.02, "beta": 0.65, "gamma": 0.03},
            ),
        ),
        Candidate(
            "cosine-shift-2",
            {**_COSINE, "task_options": {"shift": 2}},
            f"the same with {_MOVED.replace('one pixel', 'two pixels')}",
            ({}, {"step_size": 0.02}),
        ),
        Candidate(
            "cosine-shift-1-fast",
            {**_COSINE, **_SHIFT, "learning_rate": 0.006},
            f"cosine and clipping from a larger rate, 0.006, and {_MOVED}",
            ({}, {"step_size": 0.02}),
        ),
        *_distorted(0.5),
        *_distorted(0.75),
        *_distorted(1),
        *_distorted(1.5),
    )
}  # fmt: skip

# By task and N: the best by validation in the sweep at N = 128 (see docs/results/mnist.md).
CHOSEN: dict[tuple[str, int], Choice] = {
    ("ordered-mnist", 64): Choice("average-shift-1-decay"),
    ("ordered-mnist", 128): Choice("cosine-distort-1", epochs=300),
    ("permuted-mnist", 64): Choice("cosine-shift-1-fast"),
    ("permuted-mnist", 128): Choice("cosine-shift-1-fast"),
}
