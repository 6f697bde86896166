"""The runs behind the paper's first table and its table on random initialisation: `lipschitz-rnn reproduce mnist`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lipschitz_rnn.experiments.baselines import BASELINES, UNITS, Baseline
from lipschitz_rnn.experiments.campaign import Plan
from lipschitz_rnn.experiments.checks import CHECKS
from lipschitz_rnn.experiments.paper import CELLS, MNIST
from lipschitz_rnn.experiments.plans import choose_plans
from lipschitz_rnn.experiments.presets import preset_settings
from lipschitz_rnn.experiments.tuned import CANDIDATES, CHOSEN, SWEEP_SEEDS
from lipschitz_rnn.training import Settings

STUDY = "mnist"
SEEDS = tuple(range(12))
QUICK_SEEDS = (0, 1)
TASKS = ("ordered-mnist", "permuted-mnist")
_COMMAND = "lipschitz-rnn reproduce mnist"
_PAPER_EPOCHS = 100


def plan_mnist(
    only: Sequence[str] = (),
    *,
    baselines: bool = False,
    tuned: bool = False,
    sweep: bool = False,
    checks: bool = False,
    quick: bool = False,
    seeds: Sequence[int] | None = None,
    changes: Mapping[str, Any] | None = None,
) -> list[Plan]:
    """The runs that are asked for, in the order of the table.

    Args:
        only: names, parts of names, or patterns: ordered-mnist/lipschitz/128/euler, permuted-mnist, lstm, "*/euler".
            A part that names a baseline, or a first part tuned, sweep or checks, asks for those runs as well.
        baselines, tuned, sweep, checks: these besides the paper's eight cells, or with `only` those of them that match.
        quick: the same way on small digits in minutes, as a study of its own that no table of the paper shows.
        seeds: of every run; 0 to 11 by default, and others in the sweep, so that what is chosen meets fresh ones.
        changes: settings for all runs: epochs (the decay moves with them), precision, device, data_dir, offline.
    """
    if quick:
        if baselines or tuned or sweep or checks:
            raise ValueError("--quick has neither baselines nor tuned settings: it shows the way on small digits")
        return choose_plans(_quick(seeds, changes or {}), only)
    parts = {part for pattern in only for part in pattern.split("/")}
    pool = _paper(seeds, changes or {})
    pool += _baselines(seeds, changes or {}) if baselines or parts & set(UNITS) else []
    pool += _tuned(seeds, changes or {}) if tuned or "tuned" in parts else []
    pool += _sweep(seeds, changes or {}) if sweep or "sweep" in parts else []
    pool += _checks(seeds, changes or {}) if checks or "checks" in parts else []
    return choose_plans(pool, only)


def _paper(seeds: Sequence[int] | None, changes: Mapping[str, Any]) -> list[Plan]:
    plans = []
    for cell in CELLS:
        if cell.table == MNIST and cell.unit == "lipschitz":
            network = {"hidden_size": cell.hidden_size, "unit_options": {"integrator": cell.integrator}}
            settings = _settings(cell.task, network, seeds or SEEDS, changes)
            command = _command(settings, SEEDS)
            suffix = "" if cell.integrator == "euler" else f"-{cell.integrator}"
            weights = f"{cell.task}-{cell.hidden_size}{suffix}"
            plans.append(Plan(STUDY, cell.name, "paper", settings, command, pretrained=weights))
    return plans


def _baselines(seeds: Sequence[int] | None, changes: Mapping[str, Any]) -> list[Plan]:
    plans = []
    for task, row in BASELINES:
        settings = _settings(task, _network(row), seeds or SEEDS, changes)
        command = _command(settings, SEEDS, f"--only {row.unit}/{row.hidden_size}")
        plans.append(Plan(STUDY, f"{task}/{row.unit}/{row.hidden_size}", "baseline", settings, command, row.why))
    return plans


def _network(row: Baseline) -> dict[str, Any]:
    return {"unit": row.unit, "hidden_size": row.hidden_size, "unit_options": row.unit_options, **row.changes}


def _tuned(seeds: Sequence[int] | None, changes: Mapping[str, Any]) -> list[Plan]:
    plans = []
    for (task, size), choice in CHOSEN.items():
        candidate = CANDIDATES[choice.candidate]
        network = {"hidden_size": size, "unit_options": choice.unit_options, "epochs": choice.epochs}
        settings = _settings(task, {**network, **candidate.changes}, seeds or SEEDS, changes)
        name, why = f"tuned/{task}/lipschitz/{size}/euler", f"{candidate.name}: {candidate.why}"
        command = _command(settings, SEEDS, f"--only {name}", epochs=choice.epochs)
        weights = f"{task}-{size}-tuned"
        plans.append(Plan(STUDY, name, "tuned", settings, command, why, weights))
    return plans


def _sweep(seeds: Sequence[int] | None, changes: Mapping[str, Any]) -> list[Plan]:
    plans = []
    for task in TASKS:
        for candidate in CANDIDATES.values():
            network = {"hidden_size": 128, "variants": candidate.variants, **candidate.changes}
            settings = _settings(task, network, seeds or SWEEP_SEEDS, changes)
            command = _command(settings, SWEEP_SEEDS, "--only sweep")
            name = f"sweep/{task}/lipschitz/128/{candidate.name}"
            plans.append(Plan(STUDY, name, "sweep", settings, command, candidate.why))
    swept = [(task, row, candidate) for task, row in BASELINES for candidate in row.candidates]
    for task, row, candidate in swept:
        network = {**_network(row), **candidate.changes, "variants": candidate.variants}
        settings = _settings(task, network, seeds or SWEEP_SEEDS, changes)
        command = _command(settings, SWEEP_SEEDS, f'--only "sweep/*/{row.unit}/*"')
        name = f"sweep/{task}/{row.unit}/{row.hidden_size}/{candidate.name}"
        plans.append(Plan(STUDY, name, "sweep", settings, command, candidate.why))
    return plans


def _checks(seeds: Sequence[int] | None, changes: Mapping[str, Any]) -> list[Plan]:
    plans = []
    for task in TASKS:
        for check in (check for check in CHECKS if task in check.tasks):
            # What is checked wins over what all runs are given: precision is among both.
            settings = _settings(task, {"hidden_size": 128}, seeds or SEEDS, {**changes, **check.changes})
            command = _command(settings, SEEDS, f"--only checks/{task}/lipschitz/128/{check.name}")
            plans.append(
                Plan(STUDY, f"checks/{task}/lipschitz/128/{check.name}", "check", settings, command, check.why)
            )
    return plans


def _quick(seeds: Sequence[int] | None, changes: Mapping[str, Any]) -> list[Plan]:
    why = "not the paper's task: 8 × 8 digits, small networks and few epochs, to see that everything runs"
    plans = []
    for size in (16, 32):
        for integrator in ("euler", "midpoint"):
            network = {"hidden_size": size, "unit_options": {"integrator": integrator}, "epochs": 10}
            settings = preset_settings("digits", changes={**network, "seeds": tuple(seeds or QUICK_SEEDS), **changes})
            command = _command(settings, QUICK_SEEDS, "--quick", epochs=10)
            name = f"quick/digits/lipschitz/{size}/{integrator}"
            plans.append(Plan("quick", name, "quick", settings, command, why))
    return plans


def _settings(task: str, network: Mapping[str, Any], seeds: Sequence[int], changes: Mapping[str, Any]) -> Settings:
    values: dict[str, Any] = {**network, "seeds": tuple(seeds), **changes}
    settings = preset_settings(task, changes=values)
    if settings.epochs != _PAPER_EPOCHS and settings.decay_epochs:
        decays = tuple(epoch * settings.epochs // _PAPER_EPOCHS for epoch in settings.decay_epochs)
        settings = preset_settings(task, changes={**values, "decay_epochs": decays})
    return settings


def _command(settings: Settings, seeds: Sequence[int], option: str = "", epochs: int = _PAPER_EPOCHS) -> str:
    """What repeats the run and those beside it in its table; data folder and device are left to the reader."""
    parts = [_COMMAND, option]
    parts += [f"--seeds {show_seeds(settings.seeds)}"] if settings.seeds != tuple(seeds) else []
    parts += [f"--epochs {settings.epochs}"] if settings.epochs != epochs else []
    parts += [f"--precision {settings.precision}"] if settings.precision != "highest" else []
    return " ".join(part for part in parts if part)


def show_seeds(seeds: Sequence[int]) -> str:
    """As `--seeds` reads them: 0-11, or 3,5,8."""
    if len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}-{seeds[-1]}"
    return ",".join(map(str, seeds))
