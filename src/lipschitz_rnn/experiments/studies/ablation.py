"""The paper's ablation study: what the linear term (α) and the symmetric-skew matrices (β) contribute."""

from __future__ import annotations

from typing import Any

from lipschitz_rnn.experiments.pages.sweeps import ScoreAgainstOption
from lipschitz_rnn.experiments.paper import ABLATION_BEST_BETA, ABLATION_BETA, ABLATION_LARGEST_ALPHA
from lipschitz_rnn.experiments.study import QUICK, Row, Study

VALUES: dict[str, tuple[float, ...]] = {
    "alpha": tuple(round(0.2 * index, 1) for index in range(11)),
    "beta": tuple(round(0.5 + 0.05 * index, 2) for index in range(11)),
}


def _row(task: str, option: str, **more: Any) -> Row:
    """The paper's settings for the task with γ = 0.001; while α varies, β is the one of the paper's ablation."""
    held = {"alpha": 1.0} if option == "beta" else {"beta": ABLATION_BETA.get(task, ABLATION_BETA["ordered-mnist"])}
    variants = tuple({option: value} for value in VALUES[option])
    changes = {"unit_options": {"gamma": 0.001, **held}, "variants": variants, **more.pop("changes", {})}
    return Row(task, label=option, changes=changes, **more)


def _short(task: str, option: str) -> Row:
    changes = {"epochs": 40, "decay_epochs": (36,)}
    why = "three seeds, but 40 epochs instead of the paper's 100"
    return _row(task, option, changes=changes, why=why, group="short", seeds=(0, 1, 2))


_SCORE_AGAINST_OPTION = ScoreAgainstOption(
    symbols={"alpha": "α", "beta": "β"},
    meanings={"alpha": "factor on the linear term", "beta": "from symmetric to skew-symmetric"},
    marks={(task, "beta"): values for task, values in ABLATION_BEST_BETA.items()},
    remarks={
        (task, option): text
        for task, (first, second) in ABLATION_BEST_BETA.items()
        for option, text in (
            ("alpha", f"The paper's unit degenerates for α > {ABLATION_LARGEST_ALPHA}."),
            ("beta", f"In the paper, accuracy peaks at β = {first} and {second}."),
        )
    },
)

STUDY = Study(
    name="ablation",
    title="Ablation: the linear term and the matrices",
    about=(
        "Test accuracy of h⁺ = h + ε(αA h + tanh(W h + U x + b)) against α, and against the β of A and W, at the epoch "
        "selected on validation data. All values and seeds of a sweep train together as one ensemble. Equal seeds "
        "start from the same random numbers and see the same batches."
    ),
    rows=tuple(make(task, option) for make in (_row, _short) for task in ABLATION_BETA for option in VALUES),
    groups={"short": "Also 40 epochs, with three seeds."},
    quick=tuple(
        _row(
            "digits",
            option,
            changes={"hidden_size": 32, "epochs": 30},
            why="not the paper's task: 8 × 8 digits and small networks, so that it takes minutes",
            group=QUICK,
        )
        for option in VALUES
    ),
    options=("hidden_size", "at_once"),
    sections=(_SCORE_AGAINST_OPTION,),
)
