"""The paper's tables as data: every cell with its printed number (cells.csv), and the settings (tuning.toml).

Numbers are as printed: accuracies in percent, otherwise bits, perplexity or squared error.
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from lipschitz_rnn.training import Settings

MNIST, CIFAR, TIMIT = "Pixel-by-pixel MNIST", "Pixel-by-pixel CIFAR-10", "TIMIT"
CHARACTERS, WORDS = "Penn Treebank, characters", "Penn Treebank, words"
TITLES = {
    "ordered-mnist": "Ordered MNIST",
    "permuted-mnist": "Permuted MNIST",
    "ordered-cifar10": "Ordered CIFAR-10",
    "noise-padded-cifar10": "Noise-padded CIFAR-10",
    "timit": TIMIT,
    "ptb-char": CHARACTERS,
    "ptb-word": WORDS,
}


@dataclass(frozen=True)
class Cell:
    """One number of a table. `spread`: minimum, average and maximum over ten seeds, if the paper gives them."""

    table: str
    task: str
    unit: str
    printed: float
    hidden_size: int | None = None
    integrator: str | None = None
    task_options: Mapping[str, Any] = field(default_factory=dict)
    spread: tuple[float, float, float] | None = None
    validation: float | None = None
    parameters: str = ""

    @property
    def name(self) -> str:
        """For example ordered-mnist/lipschitz/128/euler, with task options where they tell two cells apart."""
        options = [f"{key}-{value}" for key, value in self.task_options.items()]
        parts = [self.task, *options, self.unit, self.hidden_size, self.integrator]
        return "/".join(str(part) for part in parts if part is not None)


def _read_table(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(_DATA.joinpath(name).read_text(encoding="utf-8").splitlines()))


def _read_cell(row: Mapping[str, str]) -> Cell:
    spread = tuple(float(row[name]) for name in ("minimum", "mean", "maximum") if row[name]) or None
    return Cell(
        **{name: row[name] for name in ("table", "task", "unit", "parameters")},
        printed=float(row["printed"]),
        hidden_size=int(row["hidden_size"] or 0) or None,
        integrator=row["integrator"] or None,
        task_options={"length": int(row["length"])} if row["length"] else {},
        spread=spread,  # type: ignore[arg-type]
        validation=float(row["validation"] or 0) or None,
    )


_DATA = files("lipschitz_rnn.experiments.paper")
CELLS = tuple(map(_read_cell, _read_table("cells.csv")))
_TUNING: dict[str, Any] = tomllib.loads(_DATA.joinpath("tuning.toml").read_text(encoding="utf-8"))


def tuning(task: str, hidden_size: int | None = None) -> dict[str, Any] | None:
    """The paper's settings for our unit on a task, at its largest N or at `hidden_size`; None if it gives none."""
    if task not in _TUNING:
        return None
    row = _TUNING[task]
    size = hidden_size or row["hidden_size"]
    scale = row["init_scale"] if "init_scale" in row else row["sigma"] * size
    options = {**row["unit_options"], "init_scale": scale}
    return {"task": task, "hidden_size": size, "unit_options": options, **row["settings"]}


def find_cell(settings: Settings) -> Cell | None:
    """The paper's cell to compare a run with: same task and unit, and same size and integrator where given.

    The paper has no network of several layers.
    """
    if settings.num_layers > 1:
        return None
    integrator = str(settings.unit_options.get("integrator", "euler")).replace("rk2", "midpoint")
    for cell in CELLS:
        same_options = all(_option(settings, key) == value for key, value in cell.task_options.items())
        same_network = cell.hidden_size in (None, settings.hidden_size) or cell.unit != "lipschitz"
        same_kind = (cell.task, cell.unit) == (settings.task, settings.unit) and cell.integrator in (None, integrator)
        if same_kind and same_options and same_network:
            return cell
    return None


def _option(settings: Settings, key: str) -> Any:
    return settings.task_options.get(key, {"length": 150}.get(key))


# The third table: accuracy under attack in percent; λ_max, trace and condition number of the Hessian with respect to
# the unit's parameters. The condition number is printed as λ_max / λ_min; the numbers fit |λ_min| of the most negative
# eigenvalue.
ROBUSTNESS: dict[str, dict[str, float]] = {
    row.pop("unit"): {name: float(value) for name, value in row.items()} for row in _read_table("robustness.csv")
}

# The ablation study: the β at which α is varied, the best β (the only number that the paper prints for it), and the α
# beyond which the unit degenerates.
ABLATION_BETA: dict[str, float] = {"ordered-mnist": 0.65, "permuted-mnist": 0.8}
ABLATION_BEST_BETA: dict[str, tuple[float, float]] = {"ordered-mnist": (0.65, 0.7), "permuted-mnist": (0.8, 0.85)}
ABLATION_LARGEST_ALPHA = 1.6
