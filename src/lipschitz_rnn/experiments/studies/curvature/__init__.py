"""The Hessian of the paper's third table against training loss: at which loss do the printed numbers appear?

The paper compares units at "roughly the same training loss" without saying which. Every network is saved after every
epoch, and its Hessian is measured at the first epochs that reach a grid of losses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lipschitz_rnn.experiments.campaign import Measures, Plan
from lipschitz_rnn.experiments.pages.sections import commands, runs
from lipschitz_rnn.experiments.paper import ROBUSTNESS
from lipschitz_rnn.experiments.runner import load_task
from lipschitz_rnn.experiments.studies.curvature.measuring import CurvedNetwork, Grid, epochs_at_losses
from lipschitz_rnn.experiments.studies.curvature.page import against_loss
from lipschitz_rnn.experiments.study import QUICK, Row, Study
from lipschitz_rnn.experiments.target_loss import KeepEveryEpoch
from lipschitz_rnn.robustness.hessian_spectrum import require_scipy
from lipschitz_rnn.training import Watcher, fit
from lipschitz_rnn.training.processes import Watch

_QUICK_GRID = Grid(losses=(1.5, 1.0, 0.7, 0.5, 0.3, 0.2, 0.1), samples=500, probes=8, lanczos=16)


@dataclass(frozen=True)
class AlongTraining(Measures):
    """Saves the networks after every epoch, then measures each where its training loss first reaches the grid's.

    Every measurement has its own file: an interrupted campaign continues with the remaining ones.
    """

    grid: Grid = field(default_factory=Grid)
    wait_for_all_runs = True

    def configured(self, quick: bool, options: Mapping[str, Any]) -> AlongTraining:
        samples = options.get("samples")
        grid = _QUICK_GRID if quick else self.grid
        return AlongTraining(grid if samples is None else replace(grid, samples=samples))

    def prepare(self) -> None:
        require_scipy()

    def train(self, plan: Plan, folder: Path, resume: bool, watcher: Watcher) -> None:
        keep = KeepEveryEpoch(folder)
        fit(plan.settings, load_task(plan.settings), folder, resume=resume, watcher=watcher, probe=keep)

    def pending_work(self, plans: Mapping[Path, Plan]) -> Mapping[str, Callable[[Watch], object]]:
        networks = [network for folder, plan in plans.items() for network in self.networks(folder, plan)]
        return {network.name: network.complete for network in networks if not network.is_complete()}

    def of_run(self, folder: Path, plan: Plan) -> Mapping[str, Any]:
        """The points of every network, in the order of the members; a network that diverged at once has none."""
        points = [network.points() for network in self.networks(folder, plan)]
        return {"grid": asdict(self.grid), "networks": points}

    def networks(self, folder: Path, plan: Plan) -> Sequence[CurvedNetwork]:
        taken = epochs_at_losses(folder, self.grid.losses)
        return [
            CurvedNetwork(f"{plan.name}, {member.name}", folder, plan.settings, index, each, self.grid)
            for index, (member, each) in enumerate(zip(plan.settings.members, taken, strict=True))
        ]


_SGD = {"optimiser": "sgd", "momentum": 0.9, "clip": 1.0, "decay_epochs": ()}
_LONG = {"hidden_size": 128, "learning_rate": 0.2, "epochs": 100, "schedule": "cosine", **_SGD}
_SMALL = {
    "hidden_size": 32, "learning_rate": 0.05, "epochs": 60, "batch_size": 32, "schedule": "constant",
    "task_options": {"steps": 8}, **_SGD,
}  # fmt: skip


def _rows(task: str, changes: Mapping[str, Any], step_size: float, **more: Any) -> tuple[Row, ...]:
    stepped = {**changes, "unit_options": {"step_size": step_size}}
    return tuple(Row(task, unit, changes=stepped, **more) for unit in ROBUSTNESS)


STUDY = Study(
    name="curvature",
    title="The Hessian against training loss",
    about=(
        "The paper's third table compares the Hessian of three units at roughly the same training loss, which it does "
        "not print. Here the Hessian of the training loss with respect to the parameters of the recurrent unit is "
        "measured along training, on MNIST in 98 steps of 8 pixels: mean over seeds of the networks as they were after "
        "the first epoch whose mean training loss was at most the given one."
    ),
    rows=_rows(
        "rows-mnist", _LONG, 0.03,
        why="as in the robustness study, but 100 epochs instead of 60 and a cosine decay, to reach low losses",
    ),
    quick=_rows(
        "digits", _SMALL, 0.5, group=QUICK,
        why="not the paper's task: 8 × 8 digits in eight rows and N = 32, so that it takes minutes",
    ),
    seeds=(0, 1, 2),
    options=("learning_rate", "samples"),
    sections=(commands, against_loss, runs),
    measures=AlongTraining(),
)  # fmt: skip
