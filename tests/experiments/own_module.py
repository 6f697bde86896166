"""The user's module `own_code` for the tests of somebody's own code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

from lipschitz_rnn.tasks import registry as task_registry
from lipschitz_rnn.units import registry as unit_registry


def import_own_code() -> Iterator[Any]:
    """The user's module. What it registers is taken back, as other tests go through all tasks and units."""
    before = [dict(registry._OWN._own) for registry in (task_registry, unit_registry)]
    yield importlib.import_module("own_code")
    del sys.modules["own_code"]
    for registry, names in zip((task_registry, unit_registry), before, strict=True):
        registry._OWN._own.clear()
        registry._OWN._own.update(names)
