"""The runs of the paper's ablation study: what the linear term (α) and the symmetric-skew matrices (β) contribute.

All values of an option train side by side as one ensemble, with the same seeds: `lipschitz-rnn reproduce ablation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lipschitz_rnn.experiments.campaign import Plan
from lipschitz_rnn.experiments.mnist import show_seeds
from lipschitz_rnn.experiments.paper import ABLATION_BETA
from lipschitz_rnn.experiments.plans import choose_plans
from lipschitz_rnn.experiments.presets import preset_settings
from lipschitz_rnn.training import Settings

STUDY = "ablation"
SEEDS = (0, 1, 2)
EPOCHS, HIDDEN_SIZE = 100, 128  # the paper's
VALUES: dict[str, tuple[float, ...]] = {
    "alpha": tuple(round(0.2 * index, 1) for index in range(11)),
    "beta": tuple(round(0.5 + 0.05 * index, 2) for index in range(11)),
}
_COMMAND = "lipschitz-rnn reproduce ablation"
_QUICK = {"hidden_size": 32, "epochs": 30}


def plan_ablation(
    only: Sequence[str] = (),
    *,
    quick: bool = False,
    seeds: Sequence[int] | None = None,
    at_once: int | None = None,
    changes: Mapping[str, Any] | None = None,
) -> list[Plan]:
    """One run for each task and option, or several of at most `at_once` networks where memory asks for it.

    Args:
        only: names, parts of names, or patterns: ordered-mnist/alpha, permuted-mnist, beta.
        quick: both sweeps on small digits, as runs that say so.
        changes: settings for all runs: epochs (the decay moves with them), hidden_size, precision, device, data_dir.
    """
    chosen = tuple(seeds or SEEDS)
    plans: list[Plan] = []
    for task in ("digits",) if quick else tuple(ABLATION_BETA):
        for option, values in VALUES.items():
            parts = _parts(values, len(chosen), at_once)
            for number, part in enumerate(parts, 1):
                settings = _settings(task, option, part, chosen, quick, changes or {})
                name = f"{task}/{option}" + (f"/part-{number}" if len(parts) > 1 else "")
                name, kind = (f"quick/{name}", "quick") if quick else (name, "paper")
                command, why = _command(settings, quick, at_once), _why(settings, quick)
                plans.append(Plan(STUDY, name, kind, settings, command, why))
    return choose_plans(plans, only)


def _parts(values: Sequence[float], seeds: int, at_once: int | None) -> list[tuple[float, ...]]:
    """Values for each run. They are dealt out in turns: networks at the end of the range may all diverge."""
    if at_once is None:
        return [tuple(values)]
    if at_once < seeds:
        raise ValueError(f"{at_once} networks at once cannot hold the {seeds} seeds of one value; allow at least that")
    runs = -(-len(values) // (at_once // seeds))
    return [tuple(values[start::runs]) for start in range(runs)]


def _settings(
    task: str, option: str, values: Sequence[float], seeds: tuple[int, ...], quick: bool, changes: Mapping[str, Any]
) -> Settings:
    """The paper's settings of the task with γ = 0.001; while α varies, β is the paper's of this study."""
    fixed = {"gamma": 0.001, "alpha": 1.0}
    if option == "alpha":
        fixed["beta"] = ABLATION_BETA.get(task, ABLATION_BETA["ordered-mnist"])
    fixed.pop(option, None)
    variants = tuple({option: value} for value in values)
    network: dict[str, Any] = {"unit_options": fixed, "variants": variants, "seeds": seeds}
    settings = preset_settings(task, changes={**(_QUICK if quick else {}), **changes, **network})
    decays = tuple(epoch * settings.epochs // EPOCHS for epoch in settings.decay_epochs)
    return replace(settings, decay_epochs=decays)


def _why(settings: Settings, quick: bool) -> str:
    """What is not as in the paper."""
    size, epochs = settings.hidden_size, settings.epochs
    if quick:
        return f"not the paper's task: 8 × 8 digits, N = {size} and {epochs} epochs, to see the study in minutes"
    parts = [f"{epochs} epochs, not the paper's {EPOCHS}"] if epochs != EPOCHS else []
    parts += [f"N = {size}, not the paper's {HIDDEN_SIZE}"] if size != HIDDEN_SIZE else []
    return "; ".join(parts)


def _command(settings: Settings, quick: bool, at_once: int | None) -> str:
    defaults = _QUICK if quick else {"hidden_size": HIDDEN_SIZE, "epochs": EPOCHS}
    parts = [_COMMAND, "--quick"] if quick else [_COMMAND]
    parts += [f"--seeds {show_seeds(settings.seeds)}"] if settings.seeds != SEEDS else []
    parts += [f"--epochs {settings.epochs}"] if settings.epochs != defaults["epochs"] else []
    parts += [f"--hidden-size {settings.hidden_size}"] if settings.hidden_size != defaults["hidden_size"] else []
    parts += [f"--precision {settings.precision}"] if settings.precision != "highest" else []
    parts += [f"--at-once {at_once}"] if at_once is not None else []
    return " ".join(parts)
