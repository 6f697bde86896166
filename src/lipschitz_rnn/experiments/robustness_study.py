"""The paper's robustness study: units trained to about the same loss, then attacked, shaken and measured.

`lipschitz-rnn reproduce robustness`: the neural ODE, the antisymmetric and the Lipschitz unit for the table, and the
unitary unit in the figure on noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from lipschitz_rnn.experiments.campaign import Campaign, Plan
from lipschitz_rnn.experiments.measured_network import MeasuredNetwork
from lipschitz_rnn.experiments.mnist import show_seeds
from lipschitz_rnn.experiments.paper import ROBUSTNESS
from lipschitz_rnn.experiments.plans import choose_plans
from lipschitz_rnn.experiments.presets import preset_settings
from lipschitz_rnn.experiments.processes import Watch
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.experiments.robustness_measures import Method
from lipschitz_rnn.experiments.runner import load_task
from lipschitz_rnn.experiments.target_loss import KeepEveryEpoch, lowest_common_loss, take_at_loss
from lipschitz_rnn.robustness.attacks.runner import require_foolbox
from lipschitz_rnn.robustness.hessian_spectrum import require_scipy
from lipschitz_rnn.training import Settings, fit

STUDY = "robustness"
SEEDS = (0, 1, 2, 3, 4)
UNITS = (*ROBUSTNESS, "urnn")  # the last one stands in the figure only
_COMMAND = "lipschitz-rnn reproduce robustness"


@dataclass(frozen=True)
class Scale:
    """A size at which the study runs. One step size, learning rate and network size serve all units of the table."""

    task: str
    method: Method
    seeds: tuple[int, ...]
    step_size: float
    settings: Mapping[str, Any]
    unitary_rate: float  # a unitary network, which forgets nothing, does not learn at the rate of the others

    def settings_of(self, unit: str) -> dict[str, Any]:
        rate = {"learning_rate": self.unitary_rate} if unit == "urnn" else {}
        return {**self.settings, **rate}


_SGD = {"optimiser": "sgd", "momentum": 0.9, "clip": 1.0, "schedule": "constant", "decay_epochs": ()}
FULL = Scale(
    "rows-mnist",
    Method(),
    SEEDS,
    0.03,
    {"hidden_size": 128, "learning_rate": 0.2, "epochs": 60, **_SGD},
    unitary_rate=0.02,
)
QUICK = Scale(
    "digits",
    Method(radius_pgd=0.07, radius_l2=0.3, radius_linf=0.05, curved=500, probes=8, lanczos=16, noises=2),
    (0, 1, 2),
    0.5,
    {"hidden_size": 32, "learning_rate": 0.05, "epochs": 40, "batch_size": 32, "task_options": {"steps": 8}, **_SGD},
    unitary_rate=0.05,
)
_QUICK_WHY = "not the paper's task: 8 × 8 digits in eight rows, N = 32, to see the study in minutes"


def choose_method(quick: bool = False, target_loss: float | None = None, samples: int | None = None) -> Method:
    """The method of a scale, with what was asked for."""
    method = (QUICK if quick else FULL).method
    method = method if target_loss is None else replace(method, target_loss=target_loss)
    return method if samples is None else replace(method, attacked=samples)


def plan_robustness(
    only: Sequence[str] = (),
    *,
    quick: bool = False,
    seeds: Sequence[int] | None = None,
    method: Method | None = None,
    changes: Mapping[str, Any] | None = None,
) -> list[Plan]:
    """One run for each unit, all its seeds side by side. `method` is told in the command that repeats the study."""
    scale = QUICK if quick else FULL
    plans = []
    for unit in UNITS:
        options = {} if unit == "urnn" else {"step_size": scale.step_size}
        network = {"unit": unit, "unit_options": options, "seeds": tuple(seeds or scale.seeds)}
        settings = preset_settings(scale.task, changes={**scale.settings_of(unit), **network, **(changes or {})})
        name, kind, why = f"{scale.task}/{unit}", "paper", ""
        if quick:
            name, kind, why = f"quick/{name}", "quick", _QUICK_WHY
        plans.append(Plan(STUDY, name, kind, settings, _command(settings, scale, quick, method or scale.method), why))
    return choose_plans(plans, only)


def _command(settings: Settings, scale: Scale, quick: bool, method: Method) -> str:
    parts = [_COMMAND, "--quick"] if quick else [_COMMAND]
    parts += [f"--seeds {show_seeds(settings.seeds)}"] if settings.seeds != scale.seeds else []
    for name in ("epochs", "learning_rate"):
        value, usual = getattr(settings, name), scale.settings_of(settings.unit)[name]
        parts += [f"--{name.replace('_', '-')} {value:g}"] if value != usual else []
    parts += [f"--precision {settings.precision}"] if settings.precision != "highest" else []
    parts += [f"--target-loss {method.target_loss:g}"] if method.target_loss is not None else []
    parts += [f"--samples {method.attacked}"] if method.attacked is not None else []
    return " ".join(parts)


@dataclass(frozen=True)
class RobustnessCampaign(Campaign):
    """Trains all plans and keeps their networks of every epoch; then measures them at a common loss: the lowest that
    all units of the table came down to.

    With several jobs the networks of all plans stand in one queue, each with a process of its own. What is measured
    stays measured: a campaign that was cut off goes on with the other networks.
    """

    method: Method = field(default_factory=Method)

    def run(self, plans: Sequence[Plan], watch: Watch) -> tuple[list[Record], list[str]]:
        require_foolbox()  # before hours of training, not after them
        require_scipy()
        failed = self.complete_all(plans, watch)
        trained = [plan for plan in plans if plan.name not in failed]
        if not trained:
            return [], failed
        method = replace(self.method, target_loss=self._target(trained))
        networks = {plan.name: self._networks(plan, method) for plan in trained}
        left = [network for each in networks.values() for network in each if network.read() is None]
        failed += self.run_all({network.name: partial(network.complete, watch) for network in left}, watch)
        records = [self._export(plan, method, networks[plan.name]) for plan in trained]
        return [record for record in records if record is not None], failed

    def complete(self, plan: Plan, watch: Watch) -> None:
        folder, watcher = self.out / plan.name, watch(plan.name)
        if (folder / "result.json").exists():
            watcher.note("already trained")
        else:
            keep = KeepEveryEpoch(folder)
            fit(plan.settings, load_task(plan.settings), folder, resume=self.resume, watcher=watcher, probe=keep)

    def _target(self, plans: Sequence[Plan]) -> float:
        """The loss to compare at. All units of the table that were trained here count, whichever are asked for now: a
        unit that joins them later is compared at the same loss, and one outside the table never moves it."""
        if self.method.target_loss is not None:
            return self.method.target_loss
        own = [self.out / plan.name for plan in plans]
        table = [own[0].parent / unit for unit in ROBUSTNESS]
        return lowest_common_loss([folder for folder in table if (folder / "result.json").exists()] or own)

    def _networks(self, plan: Plan, method: Method) -> list[MeasuredNetwork]:
        taken = take_at_loss(self.out / plan.name, method.target_loss or 0.0)
        return [
            MeasuredNetwork(f"{plan.name}, {member.name}", self.out / plan.name, plan.settings, index, each, method)
            for index, (member, each) in enumerate(zip(plan.settings.members, taken, strict=True))
        ]

    def _export(self, plan: Plan, method: Method, networks: Sequence[MeasuredNetwork]) -> Record | None:
        """The record of what could be measured, if anything could; `taken` and `networks` go side by side."""
        found = [(network.about(), measured) for network in networks if (measured := network.read()) is not None]
        if not found:
            return None
        taken, measured = zip(*found, strict=True)
        return self.export(plan, {"method": asdict(method), "taken": list(taken), "networks": list(measured)})
