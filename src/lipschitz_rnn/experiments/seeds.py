"""The seeds of one setting side by side: groups of them train as runs of their own, on an engine.

```
OUT/seeds.json     the settings with all seeds, and which of them share a run
OUT/seeds-0-2      ordinary run folders; `report` and `compare` merge them
```
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lipschitz_rnn.experiments.engines import Engine
from lipschitz_rnn.experiments.results import result_of_diverged
from lipschitz_rnn.experiments.runner import check_train
from lipschitz_rnn.experiments.same_data import check_same_data
from lipschitz_rnn.experiments.shared_folder import hold_folder
from lipschitz_rnn.experiments.sweeps.work import Work, is_over
from lipschitz_rnn.training import Result, RunError, Settings
from lipschitz_rnn.training.checkpoint import atomic_write
from lipschitz_rnn.training.folder import RunConflict
from lipschitz_rnn.training.history import read_run
from lipschitz_rnn.training.reading import read_json
from lipschitz_rnn.training.results import SeedResult
from lipschitz_rnn.training.run_settings import check_alone, check_place

FILE = "seeds.json"
_POLL_SECONDS = 0.5
_HOW_TO_RESUME = "the same command with --resume"
Groups = list[tuple[int, ...]]
Tell = Callable[[dict[str, Settings]], None]


def read_spread(out: Path) -> Settings | None:
    """The settings of seeds that an earlier call has spread over this folder."""
    return _read(out)[0] if (out / FILE).exists() else None


def plan_seeds(settings: Settings, out: Path, at_once: int, *, resume: bool = False) -> dict[str, Settings]:
    """The runs by the names of their folders: as many as run at once, or those of an earlier call and of new seeds.

    Raises what would go wrong later; nothing is written.
    """
    check_place(out)
    if (out / "config.json").exists():
        raise RunConflict(f"{out} holds a single run; leave out --engine and --jobs, or choose another --out")
    check_alone(out, FILE)
    groups: Groups = []
    if (out / FILE).exists():
        if not resume:
            raise RunConflict(f"{out} already holds runs; continue them with --resume, or choose another --out")
        before, groups = _read(out)
        for seed in (seed for seed in before.seeds if seed not in settings.seeds):
            raise RunConflict(
                f"{out} holds runs with seed {seed}, which is not among those of this call; add it, or choose another "
                "--out"
            )
    known = {seed for group in groups for seed in group}
    new = [seed for seed in settings.seeds if seed not in known]
    size = max(1, -(-len(new) // at_once))
    groups += [tuple(new[start : start + size]) for start in range(0, len(new), size)]
    runs = {_name(group): dataclasses.replace(settings, seeds=group) for group in groups}
    for name, each in runs.items():
        check_train(each, out / name, resume=True)
    return runs


def train_seeds(
    settings: Settings,
    out: str | Path,
    engine: Engine,
    *,
    resume: bool = False,
    threads: int | None = None,
    tell: Tell | None = None,
) -> Result:
    """Train groups of seeds on an engine, each in its own run folder, or the rest of them.

    Every seed has the result that it has in one run with all seeds, up to rounding.

    Args:
        out: the folder of the runs, on a path that all machines of the engine share.
        engine: the seeds are divided by the number of runs that it runs at once. The caller closes it.
        threads: CPU threads of each run.
        tell: called about twice a second with the runs that have not ended.
    """
    folder = Path(out).absolute()
    plan_seeds(settings, folder, engine.at_once, resume=resume)
    with hold_folder(folder / "seeds.lock", "training job", _HOW_TO_RESUME):
        runs = plan_seeds(settings, folder, engine.at_once, resume=resume)  # another call may just have ended
        check_same_data((each, folder / name) for name, each in runs.items())
        facts = {"groups": [each.seeds for each in runs.values()], "settings": settings.to_dict()}
        atomic_write(folder / FILE, (json.dumps(facts, indent=2) + "\n").encode())
        errors = _train(runs, folder, engine, threads, tell or (lambda running: None))
    for name, error in errors.items():
        raise RunError(
            f"{len(errors)} of {len(runs)} runs failed, the first ({name}) with: {error}; {_HOW_TO_RESUME} tries again"
        )
    return _joined(settings, [folder / name for name in runs])


def _train(runs: dict[str, Settings], folder: Path, engine: Engine, threads: int | None, tell: Tell) -> dict[str, str]:
    """What went wrong, by the names of the runs."""
    running = {name: each for name, each in runs.items() if not is_over(folder / name, each.epochs)}
    for name, each in running.items():
        engine.submit(name, Work(each, folder / name, None, threads))
    errors = {}
    while running:
        ends = engine.wait(_POLL_SECONDS)
        tell(running)
        for ended in ends:
            running = {name: each for name, each in running.items() if name != ended.name}
            if ended.error is not None:
                errors[ended.name] = ended.error
    return errors


def _joined(settings: Settings, folders: Sequence[Path]) -> Result:
    """The results of all runs as one: all seeds of the first variant before the next, in the order of the settings."""
    found: dict[tuple[int, int], SeedResult] = {}
    results: list[dict[str, Any]] = []
    for folder in folders:
        run = read_run(folder)
        result = run.result or result_of_diverged(run)
        assert result is not None
        results.append(result)
        size = len(run.settings.seeds)
        for place, seed in enumerate(result["seeds"]):
            found[place // size, int(seed["seed"])] = SeedResult(**seed)
    whole = next((each for each in results if each["parameters"]), results[0])  # one in which not all diverged
    names = ("metric", "higher_is_better", "percent", "parameters", "steps", "ensemble")
    return Result(
        task=settings.task,
        unit=settings.unit,
        **{name: whole[name] for name in names},
        seconds=sum(each["seconds"] for each in results),
        seeds=tuple(found[v, seed] for v in range(max(1, len(settings.variants))) for seed in settings.seeds),
    )


def _name(group: Sequence[int]) -> str:
    """By its first and last seed; no other group has the same first one."""
    return f"seed-{group[0]}" if len(group) == 1 else f"seeds-{group[0]}-{group[-1]}"


def _read(out: Path) -> tuple[Settings, Groups]:
    facts = read_json(out / FILE)
    try:
        settings = Settings.from_dict(facts["settings"])
        groups = [tuple(int(seed) for seed in group) for group in facts["groups"]]
        if sorted(seed for group in groups for seed in group) != sorted(settings.seeds):
            raise ValueError("its groups do not hold every seed once")
    except (KeyError, ValueError, TypeError) as error:
        raise RunError(f"{out / FILE} cannot be used: {error}; restore it from a copy, or train again") from error
    return settings, groups
