"""What every page has: two networks that read digits, one of them proved to contract, and the fitted pendulums."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from lipschitz_rnn.explorer.records import Images, encode, lipschitz_layer, network_record
from lipschitz_rnn.stability.studies.paper import PENDULUM_SETTINGS, fit_pendulum
from lipschitz_rnn.training.runs import load_run

FOLDER = Path(__file__).parent / "networks"
NAMES = {"digits-free": "Digits, free", "digits-contracting": "Digits, contracting"}


@cache
def digit_networks() -> list[dict[str, Any]]:
    """Both digit networks, with ten test images that both read correctly."""
    given = json.loads((FOLDER / "digits.json").read_text(encoding="utf-8"))
    examples = [
        {"label": image["label"], "pixels": [value / given["largest"] for value in image["pixels"]]}
        for image in given["images"]
    ]
    records = []
    for file, title in NAMES.items():
        run = load_run(FOLDER / f"{file}.safetensors")
        network = run.networks[0]
        layer, head = lipschitz_layer(network, title), network.head
        images = Images(8, examples, given["source"])
        records.append(network_record(title, layer.cell(), head=head, images=images))  # type: ignore[arg-type]
    return records


@cache
def pendulums() -> list[dict[str, Any]]:
    """The two-unit networks of the paper's figure 1, fitted here and now."""
    return [
        {
            "beta": fit.beta,
            "gamma": fit.gamma,
            **{name: encode(getattr(fit, name)) for name in ("A", "W", "b")},
            "equilibrium": fit.equilibrium.tolist(),
            "growth": fit.growth,
            "error": fit.error,
        }
        for fit in (fit_pendulum(beta, gamma) for beta, gamma in PENDULUM_SETTINGS)
    ]
