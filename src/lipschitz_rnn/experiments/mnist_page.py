"""The page of `reproduce mnist`: the paper's first table and its table on random initialisation, filled by our runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lipschitz_rnn.experiments.mnist_pictures import distributions, learning_curves, units_beside_ours
from lipschitz_rnn.experiments.mnist_sweep import sweep_blocks
from lipschitz_rnn.experiments.paper import CELLS, MNIST, Cell, find_cell
from lipschitz_rnn.experiments.report.document import Block, Commands, Heading, Paragraph, Table
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.experiments.scores import show_duration, spread
from lipschitz_rnn.tasks.distortion import ROTATION, SHEAR, STRETCH
from lipschitz_rnn.training import Settings
from lipschitz_rnn.units import info

TASKS = {"ordered-mnist": "Ordered", "permuted-mnist": "Permuted"}
INTEGRATORS = {"euler": "Euler", "midpoint": "midpoint"}

_INTRODUCTION = (
    "MNIST pixel by pixel: 784 steps of one number, in scanline order or under one fixed permutation. Numbers are test "
    "accuracies in percent, at the epoch that 2,000 validation images chose, over the seeds of a cell. The paper "
    "prints the best of its seeds, and for its own unit minimum, average and maximum over ten; beside other units is "
    "what it quotes for them, in part at other sizes. A dash: not trained here, or not in the paper."
)
_KINDS = ("paper", "baseline", "tuned", "check", "sweep")


def blocks(records: Sequence[Record]) -> list[Block]:
    """The whole page."""
    records = sorted(records, key=_place)
    paper = [record for record in records if record.kind == "paper"]
    page: list[Block] = [Heading("Pixel-by-pixel MNIST", 1), Paragraph(_INTRODUCTION), _commands(records)]
    for task, title in TASKS.items():
        page += [Heading(f"{title}: the paper's first table"), _first_table(records, task)]
    page += _tuned(records)
    page += _others(records)
    if paper:
        page += [Heading("Random initialisation"), _initialisation_table(paper), distributions(paper)]
        page += [Heading("Learning"), learning_curves(paper)]
    page += _other_settings(records)
    page += _checks(records)
    page += sweep_blocks(records)
    return [*page, Heading("Runs"), _runs_table(records)]


def summary(records: Sequence[Record]) -> list[Block]:
    """For the README: our unit with the paper's settings, tuned, and as printed."""
    header = ["", "N", "integrator", "best", "mean", "tuned, mean", "paper, best", "paper, mean", "time"]
    records = sorted(records, key=_place)
    shown = [record for record in records if record.kind == "paper"]
    rows = []
    for record in shown:
        _, mean, best = spread(record.scores())
        cell, tuned = _cell(record), spread(_tuned_scores(records, record))[1]
        prints = [_printed(cell), "–" if cell is None or cell.spread is None else f"{cell.spread[1]}"]
        row = [TASKS[record.settings["task"]], str(record.settings["hidden_size"]), _integrator(record)]
        rows.append([*row, _percent(best), _percent(mean), _percent(tuned), *prints, _time(record)])
    seeds = _range([len(record.seeds) for record in shown])
    text = f"Pixel-by-pixel MNIST, test accuracy in percent over {seeds} seeds a row, on {_hardware(shown)}:"
    more = "Every seed, other units, learning curves and settings: [docs/results/mnist.md](docs/results/mnist.md)."
    commands = _commands([record for record in records if record.kind in ("paper", "tuned")])
    return [Paragraph(text), Table(header, rows, left=3), *_tuned(records), commands, Paragraph(more)]


def _commands(records: Sequence[Record]) -> Commands:
    return Commands(list(dict.fromkeys(record.command for record in records)))


def _first_table(records: Sequence[Record], task: str) -> Table:
    header = ["unit", "N", "parameters", "epochs", "seeds", "best", "mean", "tuned, best", "tuned, mean", "the paper"]
    rows: list[list[str]] = []
    cells: list[Cell | None] = []
    for record in records:
        if record.settings["task"] == task and record.kind in ("paper", "baseline"):
            cell = _cell(record)
            cells.append(cell)
            _, mean, best = spread(record.scores())
            _, tuned_mean, tuned_best = spread(_tuned_scores(records, record))
            size = [f"{record.parameters:,}", str(record.settings["epochs"]), str(len(record.seeds))]
            scores = [_percent(value) for value in (best, mean, tuned_best, tuned_mean)]
            rows.append([_unit(record), str(record.settings["hidden_size"]), *size, *scores, _printed(cell)])
    for cell in CELLS:
        if cell.table == MNIST and cell.task == task and cell not in cells:
            name = f"{cell.unit}, {INTEGRATORS[cell.integrator]}" if cell.integrator else cell.unit
            rows.append([name, str(cell.hidden_size or "–"), *["–"] * 7, str(cell.printed)])
    return Table(header, rows, left=1)


def _others(records: Sequence[Record]) -> list[Block]:
    """A picture of all units; nothing where ours is alone."""
    shown = [
        record
        for record in records
        if record.kind in ("paper", "tuned", "baseline")
        and record.settings["unit_options"].get("integrator", "euler") == "euler"
        and record.scores()
    ]
    return [units_beside_ours(shown)] if any(record.kind == "baseline" for record in shown) else []


def _initialisation_table(records: Sequence[Record]) -> Table:
    header = ["cell", "seeds", "min", "mean", "max", "last epoch: min", "mean", "max", "paper: min", "mean", "max"]
    rows = []
    for record in records:
        cell = _cell(record)
        ours = [_percent(value) for name in ("test", "test_last") for value in spread(record.scores(name))]
        theirs = [str(value) for value in cell.spread] if cell is not None and cell.spread else ["–"] * 3
        rows.append([record.name, str(len(record.seeds)), *ours, *theirs])
    return Table(header, rows, left=1)


def _other_settings(records: Sequence[Record]) -> list[Block]:
    """Settings that are not the paper's of our unit, each with its reason."""
    others = [record for record in records if record.kind in ("baseline", "tuned")]
    if not others:
        return []
    rows = [[record.name, _describe(record.settings), record.why] for record in others]
    return [Heading("Settings of the other units and of tuned cells"), Table(["cell", "settings", "why"], rows, left=3)]


def _tuned(records: Sequence[Record]) -> list[Block]:
    """How tuned cells were trained; that images were changed, which the paper's are not, where they were."""
    cells = [record for record in records if record.kind == "tuned"]
    if not cells:
        return []
    trained = "; ".join(map(_trained, cells))
    text = f'"Tuned" is the same network with a different training recipe ({trained}).'
    seen = [_seen_by(record) for record in cells if record.settings["task_options"].get("shift")]
    if seen:
        text += (
            f" Training images are changed at random. {_sentence(seen)}. Validation and test images are never "
            "changed; the paper changes none at all."
        )
    return [Paragraph(text)]


def _sentence(parts: Sequence[str]) -> str:
    text = "; ".join(parts)
    return text[:1].upper() + text[1:]


def _tuned_name(record: Record) -> str:
    return f"{record.settings['task'].removesuffix('-mnist')} N = {record.settings['hidden_size']}"


def _trained(record: Record) -> str:
    return f"{_tuned_name(record)}: {len(record.seeds)} seeds, {record.settings['epochs']} epochs"


def _seen_by(record: Record) -> str:
    """What happened to the training images of a tuned cell."""
    options = record.settings["task_options"]
    size, strength = options["shift"], options.get("distort", 0)
    text = f"shifts of up to {size} pixel{'s' if size > 1 else ''} in each direction"
    if strength:
        angle, share = math.degrees(strength * ROTATION), 100 * strength
        text = (
            f"rotations of up to {angle:g}°, stretching by up to {share * STRETCH:g} %, shear of up to "
            f"{share * SHEAR:g} %, then {text}"
        )
    return f"{_tuned_name(record)}: {text}"


def _checks(records: Sequence[Record]) -> list[Block]:
    """One change at a time, beside the cell of the table that it is a change of."""
    rows = []
    for record in (record for record in records if record.kind == "check"):
        task = record.settings["task"]
        cell = [other for other in records if other.name == f"{task}/lipschitz/128/euler"]
        means = [spread(run.scores(name))[1] for run in (record, *cell) for name in ("test", "test_last")]
        shown = [_percent(mean) for mean in (*means, None, None)[:4]]
        rows.append([record.name, record.why, str(len(record.seeds)), *shown])
    if not rows:
        return []
    header = ["change", "what it is", "seeds", "mean", "last epoch, mean", "unchanged: mean", "last epoch, mean"]
    return [Heading("What moves the numbers"), Table(header, rows, left=2)]


def _runs_table(records: Sequence[Record]) -> Table:
    rows = []
    for record in records:
        facts = record.environment
        software = f"PyTorch {facts['torch']}, Python {facts['python']}"
        row = [
            record.name,
            str(facts["device"]),
            software,
            str(facts["commit"] or "–")[:12],
            record.settings["precision"],
        ]
        rows.append([*row, str(len(record.seeds)), str(record.settings["epochs"]), _time(record)])
    header = ["cell", "hardware", "software", "commit", "precision", "seeds", "epochs", "time of all seeds"]
    return Table(header, rows, left=5)


def _place(record: Record) -> tuple[Any, ...]:
    """Our unit first, small before large, in the order of the paper's tables."""
    settings = record.settings
    return _KINDS.index(record.kind), settings["task"], settings["unit"], settings["hidden_size"], record.name


def _cell(record: Record) -> Cell | None:
    cell = find_cell(Settings.from_dict(record.settings))
    return cell if cell is not None and cell.table == MNIST else None


def _printed(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    return f"{cell.printed}" + (f" (N = {cell.hidden_size})" if cell.unit != "lipschitz" else "")


def _tuned_scores(records: Sequence[Record], like: Record) -> list[float]:
    """Test scores of the tuned cell of the same task, N and integrator."""
    wanted = f"tuned/{like.name}"
    return next((record.scores() for record in records if record.kind == "tuned" and record.name == wanted), [])


def _unit(record: Record) -> str:
    unit = str(record.settings["unit"])
    if unit == "lipschitz":
        return f"**Lipschitz RNN, {_integrator(record)}**"
    return f"{unit} ({info(unit).year})"


def _integrator(record: Record) -> str:
    return INTEGRATORS[record.settings["unit_options"]["integrator"]]


def _describe(settings: Any) -> str:
    parts = [f"{settings['optimiser']} {settings['learning_rate']:g}", f"schedule {settings['schedule']}"]
    names = ("clip", "dropout", "weight_decay", "averaging")
    parts += [f"{name.replace('_', ' ')} {settings[name]:g}" for name in names if settings[name]]
    options = {**settings["task_options"], **settings["unit_options"]}
    parts += [f"{name} {value}" for name, value in options.items() if name != "integrator"]
    return ", ".join(parts)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def _time(record: Record) -> str:
    at_once = record.measures.get("cells_at_once")
    return show_duration(record.seconds) + (f" ({at_once} cells at once)" if at_once else "")


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts, default=0), max(counts, default=0)
    return str(low) if low == high else f"{low} to {high}"


def _hardware(records: Sequence[Record]) -> str:
    return ", ".join(dict.fromkeys(str(record.environment["device"]) for record in records)) or "–"
