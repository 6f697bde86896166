"""The paper's robustness study: units trained to about the same loss, then attacked, shaken and measured.

The neural ODE, the antisymmetric and the Lipschitz unit for the table; the unitary unit stands in the figure on noise
only. Every network is kept after every epoch, and measured where its training loss first reaches a common target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lipschitz_rnn.experiments.campaign import Measures, Plan
from lipschitz_rnn.experiments.measured_network import MeasuredNetwork
from lipschitz_rnn.experiments.paper import ROBUSTNESS
from lipschitz_rnn.experiments.runner import load_task
from lipschitz_rnn.experiments.studies.robustness.page import comparison
from lipschitz_rnn.experiments.study import QUICK, Row, Study
from lipschitz_rnn.experiments.target_loss import KeepEveryEpoch, lowest_common_loss, take_at_loss
from lipschitz_rnn.robustness.attacks.runner import require_foolbox
from lipschitz_rnn.robustness.hessian_spectrum import require_scipy
from lipschitz_rnn.robustness.measuring import Method
from lipschitz_rnn.training import Watcher, fit
from lipschitz_rnn.training.processes import Watch

QUICK_METHOD = Method(radius_pgd=0.07, radius_l2=0.3, radius_linf=0.05, curved=500, probes=8, lanczos=16, noises=2)


@dataclass(frozen=True)
class AtTargetLoss(Measures):
    """Keeps the networks of every epoch, then measures each at a common loss: the lowest that all units of the table
    reached. What is measured stays measured: a campaign that was cut off goes on with the other networks.
    """

    method: Method = field(default_factory=Method)
    later = True

    def configured(self, quick: bool, options: Mapping[str, Any]) -> AtTargetLoss:
        names = {"target_loss": "target_loss", "samples": "attacked"}
        asked = {names[name]: value for name, value in options.items() if name in names and value is not None}
        return AtTargetLoss(replace(QUICK_METHOD if quick else self.method, **asked))

    def prepare(self) -> None:
        require_foolbox()
        require_scipy()

    def train(self, plan: Plan, folder: Path, resume: bool, watcher: Watcher) -> None:
        keep = KeepEveryEpoch(folder)
        fit(plan.settings, load_task(plan.settings), folder, resume=resume, watcher=watcher, probe=keep)

    def works(self, plans: Mapping[Path, Plan]) -> Mapping[str, Callable[[Watch], object]]:
        networks = [network for folder, plan in plans.items() for network in self.networks(folder, plan)]
        return {network.name: network.complete for network in networks if network.read() is None}

    def of_run(self, folder: Path, plan: Plan) -> Mapping[str, Any] | None:
        """What could be measured, if anything could; `taken` and `networks` go side by side."""
        networks = self.networks(folder, plan)
        found = [(network.about(), measured) for network in networks if (measured := network.read()) is not None]
        if not found:
            return None
        taken, measured = zip(*found, strict=True)
        return {"method": asdict(self._at(folder)), "taken": list(taken), "networks": list(measured)}

    def networks(self, folder: Path, plan: Plan) -> Sequence[MeasuredNetwork]:
        method = self._at(folder)
        taken = take_at_loss(folder, method.target_loss or 0.0)
        return [
            MeasuredNetwork(f"{plan.name}, {member.name}", folder, plan.settings, index, each, method)
            for index, (member, each) in enumerate(zip(plan.settings.members, taken, strict=True))
        ]

    def _at(self, folder: Path) -> Method:
        """The method with the loss to compare at. All units of the table that were trained here count, whichever are
        asked for now: a unit that joins later is compared at the same loss, and one outside the table never moves it.
        """
        if self.method.target_loss is not None:
            return self.method
        table = [beside for unit in ROBUSTNESS if ((beside := folder.parent / unit) / "result.json").exists()]
        return replace(self.method, target_loss=lowest_common_loss(table or [folder]))


# One step size, learning rate and network size serve all units of the table. A unitary network, which forgets nothing,
# does not learn at the rate of the others.
_SGD = {"optimiser": "sgd", "momentum": 0.9, "clip": 1.0, "schedule": "constant", "decay_epochs": ()}
_FULL = {"hidden_size": 128, "learning_rate": 0.2, "epochs": 60, **_SGD}
_SMALL = {
    "hidden_size": 32,
    "learning_rate": 0.05,
    "epochs": 40,
    "batch_size": 32,
    "task_options": {"steps": 8},
    **_SGD,
}


def _rows(task: str, changes: Mapping[str, Any], step_size: float, unitary_rate: float, **more: Any) -> tuple[Row, ...]:
    stepped = {**changes, "unit_options": {"step_size": step_size}}
    unitary = Row(task, "urnn", changes={**changes, "learning_rate": unitary_rate}, **more)
    return (*(Row(task, unit, changes=stepped, **more) for unit in ROBUSTNESS), unitary)


STUDY = Study(
    name="robustness",
    title="Robustness to perturbed inputs and parameters",
    about=(
        "Accuracy under attack on the test split, and the Hessian of the training loss with respect to the parameters "
        "of the recurrent unit; mean ± standard deviation over seeds, the paper's number (for MNIST) in parentheses. "
        "The units learn MNIST in 98 steps of 8 pixels by SGD with momentum and are compared at about the same "
        "training loss. Units left out by --only can be added later with --resume."
    ),
    rows=_rows("rows-mnist", _FULL, 0.03, 0.02),
    quick=_rows(
        "digits",
        _SMALL,
        0.5,
        0.05,
        group=QUICK,
        seeds=(0, 1, 2),
        why="not the paper's task: 8 × 8 digits in eight rows, N = 32, to see the study in minutes",
    ),
    seeds=(0, 1, 2, 3, 4),
    options=("learning_rate", "target_loss", "samples"),
    sections=(comparison,),
    measures=AtTargetLoss(),
)
