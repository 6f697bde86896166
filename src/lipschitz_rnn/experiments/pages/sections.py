"""Sections that any study's page can use: the paper's tables with our results, seeds, settings, runs.

A section takes the study and its records and returns blocks, or an empty list if it has nothing to show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lipschitz_rnn.documents.blocks import Block, Commands, Details, Heading, Paragraph, Table
from lipschitz_rnn.documents.numbers import show_duration, show_plain, show_score, spread
from lipschitz_rnn.experiments.pages.pictures import compare_units, distributions, learning_curves, unit_and_start
from lipschitz_rnn.experiments.paper import CELLS, TITLES, Cell, find_cell
from lipschitz_rnn.experiments.results import Record, count_diverged, scores_of
from lipschitz_rnn.experiments.study import QUICK, Study
from lipschitz_rnn.tasks.distortion import describe_changes
from lipschitz_rnn.training import Settings
from lipschitz_rnn.units import info

_KINDS = ("paper", "adam", "fixed", "printed", "stacked", "baseline", "tuned", "check", "sweep")
Records = Sequence[Record]
CRITERION_SHARE = 10  # the last tenth of the epochs, where the paper's learning rate is small
# Kinds of records that have rows of their own in the paper's tables, after those that they are compared with.
BESIDE = {
    "printed": "Lipschitz RNN, as printed", "fixed": "Lipschitz RNN, fixed noise", "adam": "Lipschitz RNN, Adam",
    "stacked": "Lipschitz RNN, {layers} layers, rate {rate:g}",
}  # fmt: skip
# A tuned cell may differ from its candidate in these: the command line sets them, or they follow from `epochs`.
_NOT_PART_OF_A_CHOICE = {"seeds", "precision", "epochs", "decay_epochs"}
_TEXT = (
    "Candidates for the settings, with their scores on validation data. They are ranked by the mean over the last "
    "tenth of the epochs and over the seeds: on few samples, the best of many epochs is a noisy criterion. "
    "The test split plays no part in the choice, and no row of the tables has these seeds. The best comes first."
)
_CHOSEN = (
    "The chosen one was trained again with new seeds, as the tuned cell of its task and N or as another unit's row."
)

_NOT_THE_PAPERS = ("not the paper's experiment: ", "not the paper's task: ", "not the paper's task, but ")
_DIVERGED = "A seed that diverged is counted, but has no score: best and mean are over the others."


def blocks(study: Study, records: Records) -> list[Block]:
    """The whole page. Quick runs are never mixed with the others."""
    quick = [record for record in records if record.kind == QUICK]
    main = sorted((record for record in records if record.kind != QUICK), key=_place)
    page: list[Block] = [Heading(study.title, 1)]
    if quick and not main:
        reason = quick[0].why
        for said_already in _NOT_THE_PAPERS:
            reason = reason.removeprefix(said_already)
        why = f": {reason}" if reason else ""
        page.append(Paragraph(f"**Quick version, not the paper's experiment**{why}. What follows describes the study."))
    page.append(Paragraph(study.about))
    for section in study.sections or STANDARD:
        page += section(study, main or quick)
    return page + ([Heading("Quick runs"), plain_table(quick)] if quick and main else [])


def _place(record: Record) -> tuple[Any, ...]:
    """Sort key: the paper's rows first, then by task, unit and size."""
    order = _KINDS.index(record.kind) if record.kind in _KINDS else len(_KINDS)
    return order, record.setup.task, record.setup.unit, record.setup.hidden_size, record.name


_FEW_COMMANDS = 4  # more would stand between a reader and the results


def commands(study: Study, records: Records) -> list[Block]:
    """How to repeat the study; only the shortest, most general command if there are many: ``runs`` lists them all."""
    lines = _commands(records)
    if len(lines) <= _FEW_COMMANDS:
        return [Commands(lines)]
    return [
        Commands([min(lines, key=len)]),
        Paragraph("Other runs have commands of their own, listed under [Runs](#runs)."),
    ]


def _commands(records: Records) -> list[str]:
    return list(dict.fromkeys(record.command for record in records))


def cells(study: Study, records: Records) -> list[Block]:
    """Every table of the paper: our runs with the printed numbers, then the cells that we did not train.

    Nothing for quick runs, which are in none of them.
    """
    if all(record.kind == QUICK for record in records):
        return []
    printed = [cell for cell in CELLS if cell.table in study.tables]
    page: list[Block] = []
    for key in dict.fromkeys(map(_key, printed)):
        same = [cell for cell in printed if _key(cell) == key]
        own = [r for r in records if r.kind in ("paper", "baseline", *BESIDE) and _belongs(study, r, same)]
        page += [Heading(key), _cells_table(study, records, own, same)]
        page += [Paragraph(_DIVERGED)] if any(record.diverged for record in own) else []
    return page


def _key(cell: Cell) -> str:
    return ", ".join([TITLES.get(cell.task, cell.task), *(f"{k} {v}" for k, v in cell.task_options.items())])


def _belongs(study: Study, record: Record, cells: Sequence[Cell]) -> bool:
    cell = printed_cell(study, record)
    return cell in cells if cell is not None else record.setup.task == cells[0].task


def _cells_table(study: Study, records: Records, own: Records, printed: Sequence[Cell]) -> Table:
    tuned = ["tuned, best", "tuned, mean"] if "tuned" in study.groups else []
    header = ["unit", "N", "parameters", "epochs", "seeds", "best", "mean", *tuned, "the paper"]
    rows: list[list[str]] = []
    for record in own:
        size = f"{record.parameters:,}" if record.parameters else "–"  # unknown if all networks diverged
        numbers = [size, str(record.setup.epochs), count_seeds(record.seeds)]
        scores = [record.best(), spread(record.scores())[1]]
        if tuned:
            other = _tuned_cell(records, record)
            scores += [other.best(), spread(other.scores())[1]] if other is not None else [None, None]
        shown = [number(record, score) for score in scores]
        cell = printed_cell(study, record)
        rows.append([name_unit(record), str(record.setup.hidden_size), *numbers, *shown, _printed(cell)])
    seen = [printed_cell(study, record) for record in own if record.kind not in BESIDE]
    for cell in (cell for cell in printed if cell not in seen):
        name = f"Lipschitz RNN, {_integrator(cell.integrator)}" if cell.integrator else cell.unit
        rows.append([name, str(cell.hidden_size or "–"), *["–"] * (len(header) - 3), str(cell.printed)])
    return Table(header, rows, left=1)


def printed_cell(study: Study, record: Record) -> Cell | None:
    cell = find_cell(record.setup)
    return cell if cell is not None and cell.table in study.tables else None


def _printed(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    size = f" (N = {cell.hidden_size})" if cell.unit != "lipschitz" and cell.hidden_size else ""
    return f"{cell.printed}{size}"


def _tuned_cell(records: Records, like: Record) -> Record | None:
    return next((record for record in records if record.name == f"tuned/{like.name}"), None)


def name_unit(record: Record) -> str:
    if record.kind in BESIDE:
        name = BESIDE[record.kind].format(layers=record.setup.num_layers, rate=record.setup.learning_rate)
        return f"{name}, {_integrator(record.setup.unit_options.get('integrator', 'euler'))}"
    if record.setup.unit == "lipschitz":
        return f"**Lipschitz RNN, {_integrator(record.setup.unit_options.get('integrator', 'euler'))}**"
    return f"{unit_and_start(record)} ({info(record.setup.unit).year})"


def count_seeds(seeds: Sequence[Mapping[str, Any]]) -> str:
    """The number of seeds, and how many of them diverged."""
    diverged = count_diverged(seeds)
    return f"{len(seeds)} ({diverged} diverged)" if diverged else str(len(seeds))


def _integrator(name: str) -> str:
    return {"euler": "Euler"}.get(name, name)


def number(record: Record, value: float | None) -> str:
    """In percent, without the percent sign, if the metric is a fraction."""
    return show_score(value, record.percent).removesuffix(" %")


def tuned(study: Study, records: Records) -> list[Block]:
    """How tuned cells were trained, and whether training images were changed, which the paper does not do."""
    shown = {f"{r.setup.task.partition('-')[0]} N = {r.setup.hidden_size}": r for r in records if r.kind == "tuned"}
    trained = "; ".join(f"{name}: {len(r.seeds)} seeds, {r.setup.epochs} epochs" for name, r in shown.items())
    text = f'"Tuned" is the same network with a different training recipe ({trained}).'
    changes = {name: describe_changes(**record.setup.task_options) for name, record in shown.items()}
    if seen := "; ".join(f"{name}: {change}" for name, change in changes.items() if change):
        text += (
            f" Training images are changed at random. {seen[:1].upper()}{seen[1:]}. Validation and test images are "
            "never changed; the paper changes no images at all."
        )
    return [Paragraph(text)] if shown else []


def units(study: Study, records: Records) -> list[Block]:
    """A picture that compares the units; nothing if only ours was trained."""
    shown = [
        record
        for record in records
        if record.kind in ("paper", "tuned", "stacked", "baseline")
        and record.setup.unit_options.get("integrator", "euler") == "euler"
        and record.scores()
        and not record.setup.variants
    ]
    return [compare_units(study, shown)] if any(record.kind == "baseline" for record in shown) else []


def seeds(study: Study, records: Records) -> list[Block]:
    """Minimum, mean and maximum over the seeds of our unit, at the selected and the last epoch, and the paper's."""
    own = [record for record in records if record.kind == "paper" and record.scores() and not record.setup.variants]
    if not own:
        return []
    header = ["cell", "seeds", "min", "mean", "max", "last epoch: min", "mean", "max", "paper: min", "mean", "max"]
    rows = []
    for record in own:
        cell = printed_cell(study, record)
        ours = [number(record, value) for name in ("test", "test_last") for value in spread(record.scores(name))]
        theirs = [str(value) for value in cell.spread] if cell is not None and cell.spread else ["–"] * 3
        rows.append([record.name, count_seeds(record.seeds), *ours, *theirs])
    return [Heading("Random initialisation"), Table(header, rows, left=1), distributions(study, own)]


def learning(study: Study, records: Records) -> list[Block]:
    """The rows of the study, in a group of its own or not, but for kinds that are compared with the paper's rows."""
    own = [record for record in records if record.kind not in _KINDS[1:] and not record.setup.variants]
    return [Heading("Learning"), learning_curves(study, own)] if own else []


def settings(study: Study, records: Records) -> list[Block]:
    """Settings that need a reason: other units, tuned cells, and cells where the paper's settings do not work."""
    rows = [[r.name, _describe(r), r.why] for r in records if r.kind not in ("check", "sweep") and r.why]
    return (
        [Heading("Settings that are not the paper's"), Table(["cell", "settings", "why"], rows, left=3)] if rows else []
    )


_REGULARISERS = ("clip", "dropout", "embedding_dropout", "weight_decay", "averaging")


def _describe(record: Record) -> str:
    values = record.setup
    parts = [f"{values.optimiser} {values.learning_rate:g}", f"schedule {values.schedule}"]
    named = {name: getattr(values, name) for name in _REGULARISERS}
    parts += [f"{name.replace('_', ' ')} {value:g}" for name, value in named.items() if value]
    factors = {"matrix rate": values.matrix_rate, "bias rate": values.bias_rate}
    parts += [f"{name} × {value:g}" for name, value in factors.items() if value != 1.0]
    options = {**values.task_options, **values.unit_options}
    return ", ".join([*parts, *(f"{name} {value}" for name, value in options.items() if name != "integrator")])


def checks(study: Study, records: Records) -> list[Block]:
    """Runs with a single change, next to the unchanged cell."""
    rows = []
    for record in (record for record in records if record.kind == "check"):
        changed = record.name.removeprefix("checks/").rpartition("/")[0]
        cell = [other for other in records if other.name == f"{changed}/euler"]
        means = [spread(run.scores(name))[1] for run in (record, *cell) for name in ("test", "test_last")]
        shown = [number(record, mean) for mean in (*means, None, None)[:4]]
        rows.append([record.name, record.why, count_seeds(record.seeds), *shown])
    header = ["change", "what it is", "seeds", "mean", "last epoch, mean", "unchanged: mean", "last epoch, mean"]
    return [Heading("What moves the numbers"), Table(header, rows, left=2)] if rows else []


def criterion(record: Record, variant: Mapping[str, Any] | None = None) -> float | None:
    """The selection criterion: the validation score, averaged over the last tenth of the epochs and over the seeds.

    None if a seed diverged: its score would be that of the weights before it did.
    """
    curves = record.curves[f"validation_{record.metric}"]
    own = [
        (seed, curve) for seed, curve in zip(record.seeds, curves, strict=True) if seed["variant"] == (variant or {})
    ]
    late = [value for _, curve in own for value in curve[-max(1, len(curve) // CRITERION_SHARE) :]]
    known = [value for value in late if value is not None]
    whole = len(known) == len(late) and all(seed["diverged_step"] is None for seed, _ in own)
    return sum(known) / len(known) if known and whole else None


def sweep(study: Study, records: Sequence[Record]) -> list[Block]:
    """Candidates and their variants, the best first on each task; nothing if none was tried."""
    tried = [record for record in records if record.kind == "sweep"]
    if not tried:
        return []
    tuned = [record.setup for record in records if record.kind in ("tuned", "baseline")]
    groups: dict[tuple[str, str], list[tuple[float, list[str]]]] = {}
    for record in tried:
        groups.setdefault((record.setup.task, record.setup.unit), []).extend(_candidates(record, tuned))
    rows = [row for found in groups.values() for _, row in sorted(found, key=lambda item: item[0])]
    late, best = "last tenth, mean", "best epoch, mean"
    header = ["candidate", "options of the unit", "what it is", "chosen", "epochs", "seeds", late, best]
    chosen = _CHOSEN if any(row[3] for row in rows) else "None of them became a row as it stands here."
    text = f"{_TEXT} {chosen} A dash: a seed diverged."
    return [Heading("The sweep behind the settings"), Paragraph(text), Table(header, rows, left=4)]


def _candidates(record: Record, tuned: Sequence[Settings]) -> list[tuple[float, list[str]]]:
    """The rank (lowest first) and the table row of a candidate, or of each of its variants."""
    rows = []
    for variant in record.setup.variants or ({},):
        own = [seed for seed in record.seeds if seed["variant"] == variant]
        best = spread([seed["validation"] for seed in own if seed["validation"] is not None])[1]
        late = criterion(record, variant)
        options = ", ".join(f"{name} {value}" for name, value in variant.items()) or "the paper's"
        own_settings = record.setup.of_variant(variant)
        chosen = any(set(own_settings.differences(other)) <= _NOT_PART_OF_A_CHOICE for other in tuned)
        numbers = [str(record.setup.epochs), str(len(own)), *(number(record, value) for value in (late, best))]
        rank = math.inf if late is None else -late if record.higher_is_better else late
        rows.append((rank, [record.name, options, record.why, "yes" if chosen else "", *numbers]))
    return rows


def runs(study: Study, records: Records) -> list[Block]:
    """Hardware, software, precision and time of every run, and their commands if ``commands`` left some out."""
    rows, lines = [], _commands(records)
    for record in records:
        values = record.setup
        counts = [
            str(len({seed["seed"] for seed in record.seeds})),
            str(values.epochs),
            time_of([record], "cells at once"),
        ]
        rows.append([record.name, *machine(record.environment), values.precision, *counts])
    header = ["cell", "hardware", "software", "commit", "precision", "seeds", "epochs", "time of all seeds"]
    more = [Details("Commands", [Commands(lines)])] if len(lines) > _FEW_COMMANDS else []
    return [Heading("Runs"), Table(header, rows, left=5), *more]


def machine(facts: Mapping[str, Any]) -> list[str]:
    software = f"PyTorch {facts.get('torch', '?')}, Python {facts.get('python', '?')}"
    commit, changed, _ = str(facts.get("commit") or "–").partition("-changed")
    return [str(facts.get("device", "?")), software, commit[:12] + (" with changes" if changed else "")]


def time_of(records: Records, shared: str = "at once") -> str:
    """How long the runs trained, and how many shared the machine."""
    at_once = max(record.at_once for record in records)
    text = show_duration(sum(record.seconds for record in records))
    return text + (f" ({at_once} {shared})" if at_once > 1 else "")


def scores(study: Study, records: Records) -> list[Block]:
    """A table that fits any run."""
    return [Heading("Scores"), plain_table(records)]


def quick_scores(study: Study, records: Records) -> list[Block]:
    """The same for quick runs only: the others are in other tables."""
    return scores(study, records) if all(record.kind == QUICK for record in records) else []


def plain_table(records: Records) -> Table:
    """A line for every run, or for each of its variants: they are different networks, not seeds of one."""
    header = ["run", "what it is", "metric", "networks", "test min", "mean", "max", "time", "hardware"]
    rows = []
    for record in records:
        time, device = show_duration(record.seconds), str(record.environment.get("device", "?"))
        for variant in record.setup.variants or (None,):
            own = [seed for seed in record.seeds if variant is None or seed["variant"] == variant]
            scores = spread(scores_of(own))
            name = record.name if variant is None else f"{record.name}, {show_plain(dict(variant))}"
            shown = [show_score(value, record.percent) for value in scores]
            rows.append([name, record.why or "–", record.metric, count_seeds(own), *shown, time, device])
    return Table(header, rows, left=3)


def readme(study: Study, records: Records) -> list[Block]:
    """For the README: our unit with the paper's settings and tuned, and the paper's numbers."""
    header = ["", "N", "integrator", "best", "mean", "tuned, mean", "paper, best", "paper, mean", "time"]
    records = sorted(records, key=_place)
    shown = [record for record in records if record.kind == "paper"]
    rows = []
    for record in shown:
        cell, other = printed_cell(study, record), _tuned_cell(records, record)
        means = [spread(record.scores())[1], spread(other.scores())[1] if other is not None else None]
        prints = [_printed(cell), "–" if cell is None or cell.spread is None else f"{cell.spread[1]}"]
        name = record.setup.task.partition("-")[0].capitalize()
        row = [name, str(record.setup.hidden_size), _integrator(record.setup.unit_options["integrator"])]
        scores = [number(record, value) for value in (record.best(), *means)]
        rows.append([*row, *scores, *prints, time_of([record], "cells at once")])
    counts = sorted({len(record.seeds) for record in shown}) or [0]
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    hardware = ", ".join(dict.fromkeys(str(record.environment["device"]) for record in shown)) or "–"
    text = f"{study.title}, test accuracy in percent, {seeds} seeds per row, on {hardware}:"
    page = f"docs/results/{study.name}.md"
    more = Paragraph(f"Every seed, other units, learning curves and settings: [{page}]({page}).")
    run = commands(study, [record for record in records if record.kind in ("paper", "tuned")])
    return [Paragraph(text), Table(header, rows, left=3), *tuned(study, records), *run, more]


STANDARD = (commands, cells, units, seeds, learning, settings, scores, runs)
