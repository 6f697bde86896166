"""Made files of series: irregular times, holes, unequal lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def waves(count: int, seed: int = 0, shortest: int = 20, longest: int = 120, classes: int = 3) -> list[dict]:
    """Series of noisy sine waves at random times; the class is the frequency. 10 % of the values are missing."""
    generator = np.random.default_rng(seed)
    made = []
    for index in range(count):
        label = index % classes
        length = int(generator.integers(shortest, longest + 1))
        times = np.cumsum(generator.exponential(1.0, length) + 0.02)
        phase = generator.uniform(0.0, 2.0 * np.pi)
        frequency = (0.2, 0.45, 0.9)[label]
        values = np.stack([np.sin(frequency * times + phase), np.cos(frequency * times + phase)], 1)
        values = 5.0 + 2.0 * values + 0.2 * generator.normal(size=values.shape)
        values[generator.random(values.shape) < 0.1] = np.nan
        made.append({"id": f"s{index}", "label": "abc"[label], "times": times, "values": values})
    return made


def write_csv(path: Path, series: list[dict]) -> Path:
    lines = ["machine,clock,x,y,state"]
    for one in series:
        for time, row in zip(one["times"], one["values"], strict=True):
            cells = ["" if np.isnan(value) else f"{value:.6f}" for value in row]
            lines.append(",".join([one["id"], f"{time:.6f}", *cells, one["label"]]))
    path.write_text("\n".join(lines) + "\n")
    return path
