"""Noise on the state in training, after "Noisy recurrent neural networks" by the same first author: what it is worth.

All strengths and seeds of a task train together, as variants of one run: equal seeds start from the same weights and
see the same batches. Networks on images in rows are then measured with disturbed inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lipschitz_rnn.experiments.campaign import Measures, Plan
from lipschitz_rnn.experiments.pages.sections import commands, runs
from lipschitz_rnn.experiments.runner import load_task
from lipschitz_rnn.experiments.studies.noise.measuring import measure_inputs
from lipschitz_rnn.experiments.studies.noise.page import accuracies, disturbed_inputs
from lipschitz_rnn.experiments.study import QUICK, Row, Study
from lipschitz_rnn.robustness.attacks.runner import require_foolbox
from lipschitz_rnn.robustness.measuring import Method
from lipschitz_rnn.training.parallel import choose_device
from lipschitz_rnn.training.runs import load_run

MEASURED = ("rows-mnist", "digits")  # the tasks whose networks are measured with disturbed inputs


def _both(noise: float, multiplicative: float) -> dict[str, float]:
    return {"noise": noise, "multiplicative_noise": multiplicative}


# The strengths of the paper on noise are 0.02 and 0.05, and 0.02 for multiplicative noise.
STRENGTHS = tuple(
    _both(*pair) for pair in ((0.0, 0.0), (0.005, 0.0), (0.02, 0.0), (0.05, 0.0), (0.0, 0.02), (0.02, 0.02))
)
_FEWER = (STRENGTHS[0], STRENGTHS[2], STRENGTHS[5])
_CIFAR = {
    "optimiser": "adam", "learning_rate": 0.003, "schedule": "cosine", "warmup": 0.02, "clip": 1.0, "epochs": 60,
    "precision": "bfloat16",
}  # fmt: skip

_QUICK_METHOD = Method(attacked=200, noises=1, radius_pgd=0.07, radius_l2=0.3, radius_linf=0.05)  # for 8 × 8 digits


@dataclass(frozen=True)
class DisturbedInputs(Measures):
    """Accuracy of every network under noise and attacks on its inputs, at the epoch selected on validation data."""

    method: Method = field(default_factory=lambda: Method(attacked=2000))

    def configured(self, quick: bool, options: Mapping[str, Any]) -> DisturbedInputs:
        return DisturbedInputs(_QUICK_METHOD) if quick else self

    def prepare(self) -> None:
        require_foolbox()

    def of_run(self, folder: Path, plan: Plan) -> Mapping[str, Any]:
        if plan.settings.task not in MEASURED or not (folder / "result.json").exists():
            return {}
        device = choose_device(plan.settings.device)
        task = load_task(plan.settings).to(device)
        networks = [measure_inputs(network.to(device), task, self.method) for network in load_run(folder).networks]
        method = {name: getattr(self.method, name) for name in ("radius_pgd", "radius_l2", "radius_linf", "attacked")}
        return {"method": method, "networks": networks}


def _row(task: str, **more: Any) -> Row:
    changes = {"variants": STRENGTHS, **more.pop("changes", {})}
    return Row(task, label="noise", changes=changes, **more)


STUDY = Study(
    name="noise",
    title="Noise on the state in training",
    about=(
        "Not in the paper. After every step in training h ← (1 + m u) h + a ξ, with standard normal ξ and u uniform "
        "in [−1, 1]; never in evaluation. Numbers are test accuracies at the epoch selected on validation data, then "
        "accuracies with noise and attacks on the inputs. Only the strengths a and m differ between the rows of a "
        "table."
    ),
    rows=(
        _row("ordered-mnist", hidden_size=128),
        _row("permuted-mnist", hidden_size=128),
        _row(
            "rows-mnist",
            hidden_size=128,
            changes={"variants": (*STRENGTHS, _both(0.1, 0.0))},
            why="MNIST in 98 steps of 8 pixels",
        ),
        _row("noise-padded-cifar10", hidden_size=128, changes={**_CIFAR, "variants": _FEWER}, why="60 epochs, Adam"),
    ),
    quick=(
        _row(
            "digits",
            changes={"hidden_size": 32, "epochs": 20, "task_options": {"steps": 8}, "batch_size": 64},
            why="not MNIST: 8 × 8 digits in eight rows and N = 32, so that it takes minutes",
            group=QUICK,
            seeds=(0, 1),
        ),
    ),
    sections=(commands, accuracies, disturbed_inputs, runs),
    measures=DisturbedInputs(),
)
