"""Modules that the documentation once named still work, and say where their contents are now."""

from __future__ import annotations

import importlib
import sys

import pytest

OLD = {
    "lipschitz_rnn.robustness.figures": ("lipschitz_rnn.robustness.plots", ("draw_density", "draw_noise")),
    "lipschitz_rnn.stability.figures": ("lipschitz_rnn.stability.studies.plots", ("draw_pendulum", "draw_lemma2")),
}


@pytest.mark.parametrize("old", OLD)
def test_an_old_module_warns_and_has_the_same_functions(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    new, names = OLD[old]
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=new.replace(".", r"\.")):
        module = importlib.import_module(old)
    for name in names:
        assert getattr(module, name) is getattr(importlib.import_module(new), name)
