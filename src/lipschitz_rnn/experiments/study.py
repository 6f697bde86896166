"""A study as data: rows of task × unit × size × integrator with what differs from the presets, and why.

A study says what to run and what its page shows. Everything else is written once: the plans are made here, the runs in
`campaign`, the records in `results`, the pages in `pages`, the command in `commands.reproduce`. Those of the paper are
in `studies`; docs/studies.md shows how to add one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from lipschitz_rnn import tasks
from lipschitz_rnn.documents.blocks import Block
from lipschitz_rnn.documents.numbers import show_seeds
from lipschitz_rnn.experiments.campaign import Measures, Plan
from lipschitz_rnn.experiments.paper import CELLS, Cell
from lipschitz_rnn.experiments.presets import preset_settings
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.training import Settings

QUICK, BASELINES = "quick", "baselines"
_KINDS = {"": "paper", BASELINES: "baseline", "checks": "check"}  # what the record of a group is called, if not as it
# Settings that the command line may change, where a study allows it; each is part of the command that repeats a run.
_ASKED = ("epochs", "hidden_size", "learning_rate", "precision")


@dataclass(frozen=True)
class Row:
    """One run: a network on a task, all its seeds together. What is not said is the preset's (`presets`).

    task_options: options of the task that are part of its name, where two rows need them.
    changes: settings that differ from the preset; task_options and unit_options are merged key by key.
    fixed: settings that the command line cannot change either.
    why: the reason for the settings, or what is not as in the paper.
    group: rows of a group run only when they are asked for, e.g. baselines, tuned, sweep; empty for the paper's rows.
    label: what follows the task in the name of the run; by default unit, size and integrator.
    weights: name of the file for the weights of its best seed, where there is to be one.
    """

    task: str
    unit: str = "lipschitz"
    hidden_size: int | None = None
    integrator: str | None = None
    task_options: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    group: str = ""
    label: str = ""
    seeds: tuple[int, ...] | None = None
    weights: str | None = None

    @property
    def kind(self) -> str:
        return _KINDS.get(self.group, self.group)

    @property
    def name(self) -> str:
        """For example ordered-mnist/lipschitz/128/euler, or sweep/ordered-mnist/lipschitz/128/average."""
        parts = [] if self.group in ("", BASELINES) else [self.group]
        shown = (*(f"{key}-{value}" for key, value in self.task_options.items()), self.unit)
        label = self.label or "/".join(map(str, filter(None, (*shown, self.hidden_size, self.integrator))))
        return "/".join([*parts, self.task, label])

    def settings(self, seeds: Sequence[int], changes: Mapping[str, Any]) -> Settings:
        """The preset of the task under `changes` of the row, then those of the command line, then what is fixed."""
        values: dict[str, Any] = {"unit": self.unit, **self.changes}
        values["task_options"] = {**self.task_options, **self.changes.get("task_options", {})}
        if self.hidden_size is not None:
            values["hidden_size"] = self.hidden_size
        if self.integrator is not None:
            values["unit_options"] = {**self.changes.get("unit_options", {}), "integrator": self.integrator}
        settings = preset_settings(self.task, changes={**values, "seeds": tuple(seeds), **changes, **self.fixed})
        usual = preset_settings(self.task).epochs or 1  # the decay is said for so many epochs, and follows others
        return replace(settings, decay_epochs=tuple(e * settings.epochs // usual for e in settings.decay_epochs))


def cell_rows(table: str, choose: Callable[[Cell], Mapping[str, Any] | None]) -> tuple[Row, ...]:
    """A row for every number of a table of the paper: `choose` gives fields of Row, or None to leave a cell out."""
    names = ("unit", "hidden_size", "integrator", "task_options")
    chosen = [(cell, choose(cell)) for cell in CELLS if cell.table == table]
    return tuple(
        Row(cell.task, **{**{name: getattr(cell, name) for name in names}, **fields})
        for cell, fields in chosen
        if fields is not None
    )


Section = Callable[["Study", Sequence[Record]], list[Block]]  # a part of a page; nothing where it has nothing to show


@dataclass(frozen=True)
class Study:
    """One table or figure, from its runs to its page.

    about: what it shows, in a few sentences: the help of its command and the beginning of its page.
    quick: rows for ``--quick``: minutes on two cores, never shown beside the paper's numbers.
    groups: name -> help: rows that run only when asked for, by ``--<name>`` or by their name in ``--only``.
    options: further options of its command: hidden_size, learning_rate, at_once, task, target_loss, samples.
    tables: the paper's tables whose numbers stand on its page.
    sections: the parts of its page in order; by default `pages.sections.STANDARD`.
    summary: what stands between its marks in the README.
    measures: what is measured beyond the scores.
    """

    name: str
    title: str
    about: str
    rows: tuple[Row, ...]
    quick: tuple[Row, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    groups: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    summary: Section | None = None
    measures: Measures = field(default_factory=Measures)

    def plans(
        self,
        only: Sequence[str] = (),
        *,
        quick: bool = False,
        groups: Sequence[str] = (),
        seeds: Sequence[int] | None = None,
        changes: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> list[Plan]:
        """The runs that are asked for, in the order of the rows.

        Args:
            only: names, parts of names, or patterns: ordered-mnist/lipschitz/128/euler, permuted-mnist, "*/euler". A
                part that names a group, or the unit of a baseline, asks for those rows as well.
            groups: groups of rows beside the paper's, or with `only` those of them that match.
            changes: settings of all runs, e.g. epochs (the decay is rescaled), precision, device, data_dir.
            options: at_once: most networks of one run; task: another task for every row; the others are for `measures`.
        """
        options = {name: value for name, value in (options or {}).items() if value is not None}
        rows = self._asked(only, quick, groups, options.get("task"))
        plans = [plan for row in rows for plan in self._plans(row, quick, seeds, changes or {}, options)]
        for pattern in only:
            if not any(matches(plan.name, pattern) for plan in plans):
                names = ", ".join(plan.name for plan in plans)
                raise ValueError(f"no run matches --only {pattern!r}; there are {names}")
        return [plan for plan in plans if not only or any(matches(plan.name, pattern) for pattern in only)]

    def _asked(self, only: Sequence[str], quick: bool, groups: Sequence[str], task: str | None) -> list[Row]:
        if quick and groups:
            raise ValueError(f"--quick has no --{groups[0]}: its rows are {', '.join(row.name for row in self.quick)}")
        words = {*groups, *(part for pattern in only for part in pattern.split("/"))}
        rows = [
            row
            for row in (self.quick if quick else self.rows)
            if row.group in ("", QUICK) or row.group in words or (row.group == BASELINES and row.unit in words)
        ]
        if task is not None:
            tasks.info(task)  # an unknown name is told before anything starts
            why = f"not the paper's task, but {task}"
            rows = [row if row.task == task else replace(row, task=task, group="other", why=why) for row in rows]
        return rows

    def _plans(
        self, row: Row, quick: bool, seeds: Sequence[int] | None, changes: Mapping[str, Any], options: Mapping[str, Any]
    ) -> list[Plan]:
        own = row.seeds or self.seeds
        usual, settings = row.settings(own, {}), row.settings(seeds or own, changes)
        command = self._command(row, quick, settings, usual, options)
        why = "; ".join(part for part in (row.why, *_differences(row, settings, usual)) if part)
        parts = _parts(settings, options.get("at_once"))
        plan = Plan(self.name, row.name, row.kind, settings, command, why, row.weights)
        if len(parts) == 1:
            return [plan]
        numbered = {
            f"{row.name}/part-{number}": replace(settings, variants=part) for number, part in enumerate(parts, 1)
        }
        return [replace(plan, name=name, settings=each) for name, each in numbered.items()]

    def _command(self, row: Row, quick: bool, settings: Settings, usual: Settings, options: Mapping[str, Any]) -> str:
        """What repeats the run and those beside it in its table; data folder and device are left to the reader."""
        parts = [f"lipschitz-rnn reproduce {self.name}", *(["--quick"] if quick else [])]
        parts += [f"--only {row.name}"] if row.group in self.groups else []
        parts += [f"--seeds {show_seeds(settings.seeds)}"] if settings.seeds != usual.seeds else []
        values = {name: getattr(settings, name) for name in _ASKED if name not in row.fixed}
        asked = {**{name: each for name, each in values.items() if each != getattr(usual, name)}, **options}
        return " ".join([*parts, *(f"--{name.replace('_', '-')} {value}" for name, value in asked.items())])


def _differences(row: Row, settings: Settings, usual: Settings) -> list[str]:
    """What the command line made different from the paper."""
    names = {"epochs": "{} epochs, not the paper's {}", "hidden_size": "N = {}, not the paper's {}"}
    values = ((text, getattr(settings, name), getattr(usual, name)) for name, text in names.items())
    return [text.format(found, expected) for text, found, expected in values if not row.group and found != expected]


def _parts(settings: Settings, at_once: int | None) -> list[tuple[Mapping[str, Any], ...]]:
    """Variants for each run. They are dealt out in turns: networks at the end of a range may all diverge."""
    variants, seeds = settings.variants, len(settings.seeds)
    if at_once is None or not variants:
        return [variants]
    if at_once < seeds:
        raise ValueError(f"{at_once} networks at once cannot hold the {seeds} seeds of one value; allow at least that")
    runs = -(-len(variants) // (at_once // seeds))
    return [variants[start::runs] for start in range(runs)]


def matches(name: str, pattern: str) -> bool:
    """Whether --only asks for a run by its name, a part of it, or a pattern."""
    return f"/{pattern.strip('/')}/" in f"/{name}/" or fnmatchcase(name, pattern)
