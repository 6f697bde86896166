"""Exports the best seed of a run, chosen on validation data, as a small file that `load_run` reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

from safetensors.torch import save

from lipschitz_rnn.training import RunError
from lipschitz_rnn.training.checkpoint import atomic_write
from lipschitz_rnn.training.reading import read_result
from lipschitz_rnn.training.runs import load_run
from lipschitz_rnn.training.settings import PLACE_SETTINGS
from lipschitz_rnn.units.lipschitz.pretrained import FORMAT

_SHAPES = ("input_size", "output_size", "vocabulary", "readout", "options", "preprocessing")


def export_pretrained(run: str | os.PathLike[str], path: Path) -> Path:
    """Write the network of the seed with the best validation score, at its selected epoch, to `path`.

    Test scores play no part in the choice; they are stored with the weights.
    """
    opened = load_run(run)
    result = read_result(run, len(opened.settings.members))
    candidates = [seed for seed in result["seeds"] if seed["validation"] is not None]
    if not candidates:
        raise RunError(f"{run} has no seed with a validation score, so there is nothing to export")
    sign = 1.0 if result["higher_is_better"] else -1.0
    best = max(candidates, key=lambda seed: sign * seed["validation"])
    settings, models = opened.of_variant()  # raises if the networks differ in more than their seeds
    shapes = vars(opened.shapes)
    kept = {key: value for key, value in settings.to_dict().items() if key not in PLACE_SETTINGS}
    about = {"settings": kept | {"seeds": [best["seed"]]}, "shapes": {key: shapes[key] for key in _SHAPES}}
    about |= {"metric": result["metric"], "sources": dict(opened.sources)}
    about |= {key: best[key] for key in ("seed", "selected_epoch", "validation", "test")}
    tensors = {name: value.contiguous().clone() for name, value in models[best["seed"]].state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, save(tensors, metadata={"format": FORMAT, "about": json.dumps(about, sort_keys=True)}))
    return path
