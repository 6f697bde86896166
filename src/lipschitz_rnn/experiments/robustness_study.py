"""The paper's robustness study: units trained to about the same loss, then attacked, shaken and measured.

`lipschitz-rnn reproduce robustness`: the neural ODE, the antisymmetric and the Lipschitz unit for the table, and the
unitary unit in the figure on noise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lipschitz_rnn.experiments.campaign import Campaign, Plan, Watch
from lipschitz_rnn.experiments.mnist import show_seeds
from lipschitz_rnn.experiments.paper import ROBUSTNESS
from lipschitz_rnn.experiments.plans import choose_plans
from lipschitz_rnn.experiments.presets import preset_settings
from lipschitz_rnn.experiments.results import Record, export_run, write_record
from lipschitz_rnn.experiments.robustness_measures import Method, measure
from lipschitz_rnn.experiments.runner import load_task
from lipschitz_rnn.experiments.target_loss import KeepEveryEpoch, load_at_loss, lowest_common_loss
from lipschitz_rnn.robustness.attacking import require_foolbox
from lipschitz_rnn.robustness.hessian import require_scipy
from lipschitz_rnn.training import Settings, Watcher, fit
from lipschitz_rnn.training.checkpoint import atomic_write
from lipschitz_rnn.training.parallel import choose_device

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
    """Trains all plans and keeps their networks of every epoch; then measures them, one by one, at a common loss: the
    lowest that all units of the table came down to.

    What is measured stays measured: a campaign that was cut off goes on with the next network.
    """

    method: Method = field(default_factory=Method)

    def run(self, plans: Sequence[Plan], watch: Watch) -> tuple[list[Record], list[str]]:
        require_foolbox()  # before hours of training, not after them
        require_scipy()
        _, failed = super().run(plans, watch)
        trained = [plan for plan in plans if plan.name not in failed]
        if not trained:
            return [], failed
        target = self.method.target_loss
        if target is None:
            compared = [plan for plan in trained if plan.settings.unit in ROBUSTNESS] or trained
            target = lowest_common_loss([self.out / plan.name for plan in compared])
        return [self._measured(plan, target, watch(plan.name)) for plan in trained], failed

    def complete(self, plan: Plan, watch: Watch) -> Record:
        folder, watcher = self.out / plan.name, watch(plan.name)
        if (folder / "result.json").exists():
            watcher.note("already trained")
        else:
            keep = KeepEveryEpoch(folder)
            fit(plan.settings, load_task(plan.settings), folder, resume=self.resume, watcher=watcher, probe=keep)
        return self._export(plan, {})

    def _measured(self, plan: Plan, target: float, watcher: Watcher) -> Record:
        folder, method = self.out / plan.name, asdict(replace(self.method, target_loss=target))
        networks, taken = load_at_loss(folder, target)
        measured = _read_measures(folder / "measures.json", method)
        if len(measured) < len(networks):
            device = choose_device(plan.settings.device)
            task = load_task(plan.settings).to(device)
            for index in range(len(measured), len(networks)):
                watcher.note(f"measuring network {index + 1} of {len(networks)}")
                measured.append(measure(networks[index].to(device), task, self.method, plan.settings.unit))
                _write_measures(folder / "measures.json", method, measured)
        measures = {"method": method, "taken": [asdict(network) for network in taken], "networks": measured}
        return self._export(plan, measures)

    def _export(self, plan: Plan, measures: Mapping[str, Any]) -> Record:
        record = export_run(
            self.out / plan.name,
            plan.study,
            plan.name,
            kind=plan.kind,
            command=plan.command,
            why=plan.why,
            commit=self.commit,
            measures=measures,
        )
        write_record(record, self.results)
        return record


def _read_measures(path: Path, method: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The networks that were measured before, in this same way and at this same loss."""
    if not path.exists():
        return []
    stored = json.loads(path.read_text(encoding="utf-8"))
    return stored["networks"] if stored["method"] == method else []


def _write_measures(path: Path, method: Mapping[str, Any], networks: Sequence[Mapping[str, Any]]) -> None:
    atomic_write(path, (json.dumps({"method": method, "networks": networks}, indent=1) + "\n").encode())
