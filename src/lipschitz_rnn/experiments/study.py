"""A study as data: rows of task × unit × size × integrator, with the settings that differ from the presets, and why.

A study says what to run and what its page shows. Everything else is written once: plans are made here, runs in
`campaign`, records in `results`, pages in `pages`, and the command in `commands.reproduce`. The paper's studies are in
`studies`; docs/studies.md shows how to add one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from lipschitz_rnn import tasks
from lipschitz_rnn.documents.blocks import Block
from lipschitz_rnn.documents.numbers import show_seeds
from lipschitz_rnn.experiments.campaign import Measures, Plan
from lipschitz_rnn.experiments.paper import CELLS, Cell, tuning
from lipschitz_rnn.experiments.presets import preset_settings
from lipschitz_rnn.experiments.results import Record, record_file
from lipschitz_rnn.training import Settings

QUICK, BASELINES = "quick", "baselines"
_KINDS = {"": "paper", BASELINES: "baseline", "checks": "check"}  # group -> kind of its records, where the two differ
# Settings that the command line may change if the study allows it; each is part of the command that repeats a run.
_COMMAND_LINE_SETTINGS = ("epochs", "hidden_size", "learning_rate", "precision")


@dataclass(frozen=True)
class Row:
    """One run: a network on a task, with all its seeds. Other settings are the paper's (`presets`).

    task_options: options of the task that tell two rows apart; they become part of the name.
    changes: settings that differ from the preset; task_options and unit_options are merged key by key.
    fixed: settings that differ from the preset and that the command line cannot change.
    why: the reason for the settings, or how they differ from the paper.
    group: rows of a group run only on request, e.g. baselines, tuned, sweep; empty for the paper's rows. A group with
        the name of its task holds the paper's rows on data that not everybody has.
    label: what follows the task in the name of the run; by default unit, size and integrator.
    weights: file name for the weights of the best seed, if they are to be kept.
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
        if self.group == self.task:
            return "paper" if self.unit == "lipschitz" else "baseline"
        return _KINDS.get(self.group, self.group)

    @property
    def name(self) -> str:
        """For example ordered-mnist/lipschitz/128/euler, or sweep/ordered-mnist/lipschitz/128/average."""
        parts = [] if self.group in ("", BASELINES, self.task) else [self.group]
        shown = (*(f"{key}-{value}" for key, value in self.task_options.items()), self.unit)
        label = self.label or "/".join(map(str, filter(None, (*shown, self.hidden_size, self.integrator))))
        return "/".join([*parts, self.task, label])

    def settings(self, seeds: Sequence[int], changes: Mapping[str, Any]) -> Settings:
        """The paper's settings for the task, overridden by the row, then by the command line, then by `fixed`."""
        values: dict[str, Any] = {"unit": self.unit, **self.changes}
        values["task_options"] = {**self.task_options, **self.changes.get("task_options", {})}
        if self.hidden_size is not None:
            values["hidden_size"] = self.hidden_size
        if self.integrator is not None:
            values["unit_options"] = {**self.changes.get("unit_options", {}), "integrator": self.integrator}
        values |= {"seeds": tuple(seeds), **changes, **self.fixed}
        settings = preset_settings(self.task, "paper", values)
        given = {**self.changes, **self.fixed}  # decay epochs belong to the epochs given with them, and are rescaled
        usual = preset_settings(self.task, "paper", {"unit": self.unit}).epochs
        usual = (given.get("epochs", usual) if "decay_epochs" in given else usual) or 1
        return replace(settings, decay_epochs=tuple(e * settings.epochs // usual for e in settings.decay_epochs))


def cell_rows(table: str, choose: Callable[[Cell], Mapping[str, Any] | None]) -> tuple[Row, ...]:
    """A row for every cell of one of the paper's tables: `choose` returns fields of Row, or None to skip the cell."""
    names = ("task", "unit", "hidden_size", "integrator", "task_options")
    chosen = [(cell, choose(cell)) for cell in CELLS if cell.table == table]
    return tuple(
        Row(**{**{name: getattr(cell, name) for name in names}, **fields})
        for cell, fields in chosen
        if fields is not None
    )


Section = Callable[["Study", Sequence[Record]], list[Block]]  # a part of a page; [] if there is nothing to show


@dataclass(frozen=True)
class Study:
    """One table or figure, from its runs to its page.

    about: a few sentences on what it shows: the help of its command and the start of its page.
    quick: rows for ``--quick``: minutes on two cores, never shown next to the paper's numbers.
    groups: name -> help, for rows that run only with ``--<name>`` or if ``--only`` names them.
    options: additional options of its command: hidden_size, learning_rate, at_once, task, target_loss, samples.
    tables: the paper's tables whose numbers are shown on its page.
    sections: the parts of its page in order; by default `pages.sections.STANDARD`.
    summary: the section between its marks in the README.
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

    def __post_init__(self) -> None:
        for row in (row for row in self.rows if row.group not in ("", *self.groups)):
            raise ValueError(
                f"{row.name} is of the group {row.group!r}; the groups are {', '.join(self.groups) or 'none'}"
            )
        for row in (row for row in self.quick if row.group != QUICK):
            raise ValueError(f"{row.name} is a row of quick= with the group {row.group!r}; it must be {QUICK!r}")

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
        """The selected runs, in the order of the rows.

        Args:
            only: names, parts of names, or patterns: ordered-mnist/lipschitz/128/euler, permuted-mnist, "*/euler". A
                part that names a group, or the unit of a baseline, also selects those rows.
            groups: groups of rows to add to the paper's; with `only`, their rows must match it too.
            changes: settings of all runs, e.g. epochs (the decay is rescaled), precision, device, data_dir.
            options: at_once: most networks per run; task: another task for every row; the others are for `measures`.
        """
        options = {name: value for name, value in (options or {}).items() if value is not None}
        rows = self._selected_rows(only, quick, groups, options.get("task"))
        plans = [plan for row in rows for plan in self._plans(row, quick, seeds, changes or {}, options)]
        _check_names(plans)
        for pattern in only:
            if not any(matches(plan.name, pattern) for plan in plans):
                if pattern in self.groups and not quick:
                    raise ValueError(f"no run has {pattern!r} in its name; --{pattern} adds the runs of that group")
                names = ", ".join(plan.name for plan in plans)
                raise ValueError(
                    f"no run matches --only {pattern!r}{self._hint(pattern, plans, quick)}; the runs are {names}"
                )
        return [plan for plan in plans if not only or any(matches(plan.name, pattern) for pattern in only)]

    def _hint(self, pattern: str, plans: Sequence[Plan], quick: bool) -> str:
        """What may have been meant by a pattern that selects none of these plans."""
        if any(pattern in plan.name for plan in plans):
            return f", but the pattern '*{pattern}*' would"
        rows = self.quick if quick else self.rows
        groups = [row.group for row in rows if matches(row.name, pattern) and row.group in self.groups]
        return f" without --{groups[0]}" if groups else nearest(pattern, [row.name for row in rows])

    def _selected_rows(self, only: Sequence[str], quick: bool, groups: Sequence[str], task: str | None) -> list[Row]:
        if quick and groups:
            names = ", ".join(row.name for row in self.quick)
            raise ValueError(f"--{groups[0]} cannot be used with --quick, whose runs are {names}")
        for group in (group for group in groups if group not in self.groups):
            raise ValueError(f"{self.name} has no group {group!r}; its groups are {', '.join(self.groups) or 'none'}")
        words = {*groups, *(part for pattern in only for part in pattern.split("/") if part)}
        rows = [
            row
            for row in (self.quick if quick else self.rows)
            if row.group in ("", QUICK)
            or row.group in words
            or (row.group == BASELINES and words & {row.unit, row.label.partition("/")[0]})
        ]
        if task is not None:
            tasks.info(task)  # raises for an unknown name before anything starts
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
        """The command that repeats the run and the others of its table; data folder and device are left out.

        A run with other seeds or epochs than the study's is named: its command would change the other runs as well.
        """
        parts = [f"lipschitz-rnn reproduce {self.name}", *(["--quick"] if quick else [])]
        alone = not quick and (settings.seeds != usual.seeds or settings.epochs != usual.epochs)
        parts += [f"--only {row.name}"] if row.group in self.groups or alone else []
        parts += [f"--seeds {show_seeds(settings.seeds)}"] if settings.seeds != usual.seeds else []
        values = {name: getattr(settings, name) for name in _COMMAND_LINE_SETTINGS if name not in row.fixed}
        given = {**{name: each for name, each in values.items() if each != getattr(usual, name)}, **options}
        return " ".join([*parts, *(f"--{name.replace('_', '-')} {value}" for name, value in given.items())])


def _check_names(plans: Sequence[Plan]) -> None:
    """Raise for invalid or duplicate names: each name is a folder and a record, so a run would be lost."""
    seen: dict[str, str] = {}
    for plan in plans:
        file = record_file(plan.study, plan.name)
        if file in seen:
            both = plan.name if plan.name == seen[file] else f"{seen[file]} and {plan.name}"
            raise ValueError(f"two rows would write {file} ({both}); give one of them another label=")
        seen[file] = plan.name


def _differences(row: Row, settings: Settings, usual: Settings) -> list[str]:
    """How the command line makes the run differ from the paper, or from the study where the paper gives no settings."""
    whose = "the paper's" if tuning(row.task) is not None else "the study's"
    names = {"epochs": f"{{}} epochs, not {whose} {{}}", "hidden_size": f"N = {{}}, not {whose} {{}}"}
    values = ((text, getattr(settings, name), getattr(usual, name)) for name, text in names.items())
    return [text.format(found, expected) for text, found, expected in values if not row.group and found != expected]


def _parts(settings: Settings, at_once: int | None) -> list[tuple[Mapping[str, Any], ...]]:
    """The variants of each run, dealt out round-robin, since networks at one end of a range may all diverge."""
    variants, seeds = settings.variants, len(settings.seeds)
    if at_once is None or not variants:
        return [variants]
    if at_once < seeds:
        raise ValueError(f"--at-once is {at_once}; it must be at least {seeds}, the number of seeds of one value")
    runs = -(-len(variants) // (at_once // seeds))
    return [variants[start::runs] for start in range(runs)]


def matches(name: str, pattern: str) -> bool:
    """Whether --only selects a run: by its name, a part of its name, or a pattern."""
    return f"/{pattern.strip('/')}/" in f"/{name}/" or fnmatchcase(name, pattern)


def nearest(pattern: str, names: Sequence[str]) -> str:
    """ " (did you mean 'ordered-mnist'?)", a name or a part of one, or nothing if none is close to the pattern."""
    known = dict.fromkeys([*names, *(part for name in names for part in name.split("/"))])
    close = get_close_matches(pattern, known, n=1, cutoff=0.7)
    return f" (did you mean {close[0]!r}?)" if close else ""
