"""A few units, one of each kind, learn `digits` with the code and the recipes behind docs/units.md."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lipschitz_rnn import tasks

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "units_learn.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exprnn", "urnn", "antisymmetric"])
def test_learns_digits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("units_learn", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "units_learn", script)
    spec.loader.exec_module(script)
    recipe = replace(script.RECIPES["digits"][name], epochs=12)
    accuracy, seconds = script.train(name, recipe, tasks.load("digits"))
    print(f"{name}: {accuracy:.1f} % on digits after 12 epochs, {seconds:.0f} s")
    assert accuracy >= 80.0
