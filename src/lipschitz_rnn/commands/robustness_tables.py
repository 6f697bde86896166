"""Tables of `lipschitz-rnn robustness` for 80 columns: one row per seed, then their mean and spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lipschitz_rnn.documents.numbers import show_score
from lipschitz_rnn.robustness import AttackResult, HessianResult, NoiseCurve

RUNS_IN_A_TABLE = 4
Show = Callable[[float], str]


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    return table


def _rows(table: Table, labels: Sequence[str], rows: Sequence[Sequence[float]], shown: Sequence[Show]) -> None:
    """One row per seed; with several seeds also the mean and standard deviation of numeric columns."""
    for label, row in zip(labels, rows, strict=True):
        table.add_row(label, *(show(value) for value, show in zip(row, shown, strict=True)))
    if len(rows) < 2:
        return
    table.add_section()
    columns = [[value for value in column if math.isfinite(value)] for column in zip(*rows, strict=True)]
    means = [statistics.fmean(column) if column else math.nan for column in columns]
    spreads = [statistics.stdev(column) if len(column) > 1 else math.nan for column in columns]
    for label, row in (("mean", means), ("spread", spreads)):
        table.add_row(label, *(show(value) for value, show in zip(row, shown, strict=True)))


def _number(form: str) -> Show:
    return lambda value: "–" if math.isnan(value) else format(value, form)


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else show_score(value, percent=True)


def print_hessians(console: Console, title: str, found: Mapping[int, HessianResult]) -> None:
    table = _table("seed", "λ_max", "λ_min", "trace", "± error", "λ_max/|λ_min|", "loss", "‖∇‖")
    rows = [
        (r.lambda_max, r.lambda_min, r.trace, r.trace_error, r.condition_number, r.loss, r.gradient_norm)
        for r in found.values()
    ]
    shown = [_number(form) for form in (".3g", ".3g", ".4g", ".2g", ".4g", ".3g", ".2g")]
    _rows(table, [str(seed) for seed in found], rows, shown)
    console.print(title, highlight=False, markup=False)
    console.print(table)
    first = next(iter(found.values()))
    products = sum(result.products for result in found.values())
    kind = "full Hessian" if first.exact else f"{products:,} Hessian-vector products"
    console.print(f"{first.parameters:,} parameters, {first.samples:,} samples; {kind}", highlight=False)


def print_attacks(console: Console, found: Mapping[int, AttackResult]) -> None:
    """The same attack on the networks of several seeds."""
    first = next(iter(found.values()))
    facts = {name: value for name, value in first.settings.items() if name != "norm" and value not in (None, False)}
    table = _table("seed", "clean", "under attack", "fooled", "mean l2", "mean l∞")
    rows = [
        (r.clean_accuracy, r.accuracy, r.success_rate, r.mean_size("l2"), r.mean_size("linf")) for r in found.values()
    ]
    shown = [_percent, _percent, _percent, _number(".4f"), _number(".4f")]
    _rows(table, [str(seed) for seed in found], rows, shown)
    console.print(f"[bold]{first.name}[/]: {', '.join(map(_setting, facts.items()))}", highlight=False)
    console.print(table)


def _setting(item: tuple[str, object]) -> str:
    name, value = item[0].replace("_", " "), item[1]
    return name if value is True else f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"


def print_noise(console: Console, kind: str, curves: Mapping[str, Sequence[NoiseCurve]]) -> None:
    """Accuracy of each run in percent: mean and standard deviation over its networks."""
    names = list(curves)
    for start in range(0, len(names), RUNS_IN_A_TABLE):
        some = names[start : start + RUNS_IN_A_TABLE]
        table = _table("amount", *map(escape, some))
        for number, amount in enumerate(next(iter(curves.values()))[0].amounts):
            table.add_row(f"{amount:g}", *(_mean_and_spread(curves[name], number) for name in some))
        console.print(f"[bold]{kind} noise[/]: accuracy in %", highlight=False)
        console.print(table)


def _mean_and_spread(curves: Sequence[NoiseCurve], number: int) -> str:
    """Over the networks; for a single network, over the seeds of the noise."""
    values = [curve.mean[number] for curve in curves] if len(curves) > 1 else curves[0].accuracy[number]
    mean = f"{100 * statistics.fmean(values):.2f}"
    return mean if len(values) < 2 else f"{mean} ± {100 * statistics.stdev(values):.2f}"
