"""Every unit learns with its settings: the table of docs/units.md, trained anew and printed at the end of the tests."""

from collections.abc import Callable

import pytest
from units_learn import train

from lipschitz_rnn import units


@pytest.mark.slow
@pytest.mark.parametrize("name", units.available())
def test_learns(name: str, record_property: Callable[[str, object], None]) -> None:
    """At least 80 % on digits, or half of the error of guessing the mean on adding: on the test split, read once."""
    reached = train(name)
    row = "  ".join(f"{cell:{width}}" for cell, width in zip(reached.cells(), (21, 6, 6, 6, 0), strict=True))
    record_property("unit reached", f"{row}  ({reached.seconds:.0f} s)")
    assert reached.learned, row
