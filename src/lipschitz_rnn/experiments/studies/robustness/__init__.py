"""The paper's robustness study: units are trained to about the same loss, then measured under attacks and noise.

The table has the neural ODE, the antisymmetric and the Lipschitz unit; the unitary unit is only in the noise figure.
Every network is saved after every epoch, and measured at the first epoch whose training loss reaches a common target.
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
    """Saves the networks after every epoch, then measures each at a common loss: the lowest that all units of the table
    reached. Measurements are kept: an interrupted campaign continues with the remaining networks.
    """

    method: Method = field(default_factory=Method)
    wait_for_all_runs = True

    def configured(self, quick: bool, options: Mapping[str, Any]) -> AtTargetLoss:
        names = {"target_loss": "target_loss", "samples": "attacked"}
        given = {names[name]: value for name, value in options.items() if name in names and value is not None}
        return AtTargetLoss(replace(QUICK_METHOD if quick else self.method, **given))

    def prepare(self) -> None:
        require_foolbox()
        require_scipy()

    def train(self, plan: Plan, folder: Path, resume: bool, watcher: Watcher) -> None:
        keep = KeepEveryEpoch(folder)
        fit(plan.settings, load_task(plan.settings), folder, resume=resume, watcher=watcher, probe=keep)

    def pending_work(self, plans: Mapping[Path, Plan]) -> Mapping[str, Callable[[Watch], object]]:
        networks = [network for folder, plan in plans.items() for network in self.networks(folder, plan)]
        return {network.name: network.complete for network in networks if network.read() is None}

    def of_run(self, folder: Path, plan: Plan) -> Mapping[str, Any] | None:
        """The measurements of all networks that have them; the lists `taken` and `networks` correspond."""
        networks = self.networks(folder, plan)
        found = [(network.about(), measured) for network in networks if (measured := network.read()) is not None]
        if not found:
            return None
        taken, measured = zip(*found, strict=True)
        return {"method": asdict(self._resolved_method(folder)), "taken": list(taken), "networks": list(measured)}

    def networks(self, folder: Path, plan: Plan) -> Sequence[MeasuredNetwork]:
        method = self._resolved_method(folder)
        taken = take_at_loss(folder, method.target_loss or 0.0)
        return [
            MeasuredNetwork(f"{plan.name}, {member.name}", folder, plan.settings, index, each, method)
            for index, (member, each) in enumerate(zip(plan.settings.members, taken, strict=True))
        ]

    def _resolved_method(self, folder: Path) -> Method:
        """The method with its target loss. All units of the table trained so far count, not only those of this call: a
        unit added later is compared at the same loss, and a unit outside the table never changes it.
        """
        if self.method.target_loss is not None:
            return self.method
        table = [other for unit in ROBUSTNESS if ((other := folder.parent / unit) / "result.json").exists()]
        return replace(self.method, target_loss=lowest_common_loss(table or [folder]))


# All units of the table share step size, learning rate and network size. A unitary network forgets nothing and does not
# learn at that rate.
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
        "of the recurrent unit: mean ± standard deviation over seeds, with the paper's number (for MNIST) in "
        "parentheses. The units learn MNIST in 98 steps of 8 pixels by SGD with momentum, and are compared at about "
        "the same training loss. Units left out by `--only` can be added later with `--resume`."
    ),
    rows=_rows("rows-mnist", _FULL, 0.03, 0.02),
    quick=_rows(
        "digits",
        _SMALL,
        0.5,
        0.05,
        group=QUICK,
        seeds=(0, 1, 2),
        why="not the paper's task: 8 × 8 digits in eight rows and N = 32, so that it takes minutes",
    ),
    seeds=(0, 1, 2, 3, 4),
    options=("learning_rate", "target_loss", "samples"),
    sections=(comparison,),
    measures=AtTargetLoss(),
)
