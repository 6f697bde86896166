"""Puts the page together: template, style, scripts and numbers in one file that asks for nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lipschitz_rnn._version import __version__
from lipschitz_rnn.documents.assets import read_asset
from lipschitz_rnn.explorer.shipped import digit_networks, pendulums
from lipschitz_rnn.ops.lipschitz.integrators import INTEGRATORS
from lipschitz_rnn.ops.lipschitz.nonlinearities import NONLINEARITIES

ASSETS = Path(__file__).parent / "assets"
# In the order in which they rely on each other.
SCRIPTS = (
    *("data", "linear", "recurrence", "certificate", "chance", "plot", "settings"),
    *("portrait", "spectra", "distance", "pendulum", "attack", "digits", "main"),
)


def build_page(own: Sequence[dict[str, Any]] = ()) -> str:
    """The page as HTML, with somebody's own networks first in its list."""
    numbers = {
        "version": __version__,
        "integrators": {t.name: {"stages": t.stages, "weights": t.weights} for t in INTEGRATORS.values()},
        "nonlinearities": {sigma.name: sigma.slope_range for sigma in NONLINEARITIES.values()},
        "networks": [*(record | {"own": True} for record in own), *digit_networks()],
        "pendulums": pendulums(),
    }
    parts = {
        "style": f"{read_asset('theme.css')}\n{_read('style.css')}",
        "data": _inline_json(numbers),
        "script": "\n".join(_read(f"{name}.js") for name in SCRIPTS),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], _read("page.html"))


def _read(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _inline_json(numbers: Any) -> str:
    """JSON that cannot end its script element, whatever a network is called."""
    text = json.dumps(numbers, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
