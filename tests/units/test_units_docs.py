"""docs/units.md says what the registry says, and its examples run."""

import re
from pathlib import Path

from lipschitz_rnn import units

PAGE = (Path(__file__).parents[2] / "docs" / "units.md").read_text(encoding="utf-8")


def rows(section: str) -> dict[str, list[str]]:
    """The table between the section's marks: unit -> its other cells."""
    table = re.search(rf"<!-- {section} -->\n(.*?)\n<!-- /{section} -->", PAGE, re.DOTALL)
    assert table is not None, section
    cells = (line.removeprefix("| ").removesuffix(" |").split(" | ") for line in table[1].splitlines()[2:])
    return {name.strip("`"): rest for name, *rest in cells}


def test_the_table_of_units_is_the_registry() -> None:
    table = rows("units")
    assert list(table) == units.available()
    for name, (equation, paper, constraint, parameters) in table.items():
        about = units.info(name)
        assert (equation, constraint) == (about.equation, about.constraint)
        assert paper == f"{about.paper} {about.year}"
        assert parameters == f"{about.parameters:,}"


def test_every_unit_has_learned() -> None:
    """At least 80 % on digits, or half of the error of guessing the mean on adding."""
    table = rows("reached")
    assert list(table) == units.available()
    for name, (digits, adding, _) in table.items():
        learned_digits = digits != "–" and float(digits) >= 80.0
        learned_adding = adding != "–" and float(adding) < 0.167 / 2
        assert learned_digits or learned_adding, name


def test_examples_run() -> None:
    namespace: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "docs/units.md", "exec"), namespace)
    assert namespace["outputs"].shape == (4, 20, 8, 16)  # type: ignore[attr-defined]
