"""docs/units.md says what the registry and the recipes say, and its examples run."""

import re

from units_learn import PAGE, REACHED_HEAD, UNITS_HEAD, read_rows, unit_rows, write_rows

from lipschitz_rnn import units
from lipschitz_rnn.experiments.recipes import RECIPES

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_table_of_units_is_the_registry() -> None:
    assert list(unit_rows()) == units.available()
    assert read_rows(TEXT, "units") == unit_rows()


def test_every_unit_has_learned_with_its_recipe() -> None:
    """At least 80 % on digits, or half of the error of guessing the mean on adding; test_units_learn trains anew."""
    table = read_rows(TEXT, "reached")
    assert list(table) == units.available() == list(RECIPES)
    for name, (_, task, _, test, settings) in table.items():
        assert (task, settings) == (RECIPES[name].task, str(RECIPES[name])), name
        assert float(test.removesuffix(" %")) >= 80.0 if task == "digits" else float(test) < 0.167 / 2, name


def test_a_page_written_anew_is_the_page() -> None:
    again = write_rows(TEXT, "units", UNITS_HEAD, unit_rows())
    assert write_rows(again, "reached", REACHED_HEAD, read_rows(TEXT, "reached")) == TEXT


def test_examples_run() -> None:
    namespace: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) >= 5
    for block in blocks:
        exec(compile(block, "docs/units.md", "exec"), namespace)
    assert namespace["outputs"].shape == (4, 20, 8, 16)  # type: ignore[attr-defined]
