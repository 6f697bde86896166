"""Train every unit on a small task: the table "Does each unit learn?" of docs/units.md.

    python benchmarks/units_learn.py --write      # all units, a few minutes on one CPU core; rewrites the page's tables
    python benchmarks/units_learn.py exprnn lem   # two of them, printed only

`digits`: 8 × 8 images, one pixel a step (T = 64); a unit learns it with a test accuracy of at least 80 %. `adding`: the
sum of two marked numbers among T = 100; learned below half of 0.167, the error of always guessing the mean.

The settings are those of `lipschitz-rnn train` (experiments/recipes.py). A run reads the test split once, at the epoch
that validation selects.
"""

import argparse
import re
import time
from pathlib import Path
from typing import NamedTuple

import torch

from lipschitz_rnn import tasks, units
from lipschitz_rnn.experiments.recipes import RECIPES
from lipschitz_rnn.training import Settings, fit

PAGE = Path(__file__).parents[1] / "docs" / "units.md"


def settings_of(unit: str) -> Settings:
    return Settings(**RECIPES[unit].settings(), unit=unit, device="cpu")


class Reached(NamedTuple):
    """Scores at the epoch that validation selected: accuracy as a fraction on digits, squared error on adding."""

    unit: str
    validation: float
    test: float
    seconds: float  # of one CPU core

    @property
    def learned(self) -> bool:
        return self.test >= 0.8 if RECIPES[self.unit].task == "digits" else self.test < 0.167 / 2

    def cells(self) -> list[str]:
        """Its row of the table."""
        recipe = RECIPES[self.unit]
        scores = (f"{s:.1%}".replace("%", " %") if recipe.task == "digits" else f"{s:.4f}" for s in self[1:3])
        return [f"`{self.unit}`", recipe.task, *scores, str(recipe)]


def train(unit: str) -> Reached:
    """One run of a unit's recipe."""
    settings, threads, started = settings_of(unit), torch.get_num_threads(), time.process_time()
    torch.set_num_threads(1)  # products are so small that a second thread only waits
    try:
        result = fit(settings, tasks.load(settings.task, **settings.task_options))
    finally:
        torch.set_num_threads(threads)
    seed = result.seeds[0]
    if seed.validation is None or seed.test is None:
        raise RuntimeError(f"{unit} diverged at step {seed.diverged_step}")
    return Reached(unit, seed.validation, seed.test, time.process_time() - started)


UNITS_HEAD = ["unit", "equation", "paper", "constraint", "parameters"]
REACHED_HEAD = ["unit", "task", "validation", "test", "trained with"]


def unit_rows() -> dict[str, list[str]]:
    about = map(units.info, units.available())
    return {
        u.name: [f"`{u.name}`", u.equation, f"{u.paper} {u.year}", u.constraint, f"{u.parameters:,}"] for u in about
    }


def read_rows(page: str, section: str) -> dict[str, list[str]]:
    """The table between the marks of a section: unit -> its cells."""
    table = re.search(rf"<!-- {section} -->\n(.*?)\n<!-- /{section} -->", page, re.DOTALL)
    if table is None:
        raise ValueError(f"the page has no table between <!-- {section} --> and <!-- /{section} -->")
    lines = (line.removeprefix("| ").removesuffix(" |") for line in table[1].splitlines()[2:])
    rows = ([cell.replace("\\|", "|") for cell in line.split(" | ")] for line in lines)
    return {cells[0].strip("`"): cells for cells in rows}


def write_rows(page: str, section: str, head: list[str], rows: dict[str, list[str]]) -> str:
    """The page with the rows of all units in the order of the registry."""
    lines = [head, ["---"] * len(head), *(rows[name] for name in units.available() if name in rows)]
    shown = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    table = "\n".join(f"| {' | '.join(line)} |" for line in shown)
    marks = (f"<!-- {section} -->\n", f"\n<!-- /{section} -->")
    before, rest = page.split(marks[0])
    return before + marks[0] + table + marks[1] + rest.split(marks[1])[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=units.available(), help="units (all)")
    parser.add_argument("--write", action="store_true", help=f"put what was reached into {PAGE.name}")
    arguments = parser.parse_args()
    reached = {}
    for name in arguments.names:
        got = train(name)
        reached[name] = got.cells()
        print(" | ".join(got.cells()), f"| {got.seconds:.0f} s", "" if got.learned else "| NOT LEARNED", flush=True)
    if arguments.write:
        page = PAGE.read_text(encoding="utf-8")
        page = write_rows(page, "units", UNITS_HEAD, unit_rows())
        page = write_rows(page, "reached", REACHED_HEAD, read_rows(page, "reached") | reached)
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
