"""Trained networks as small files: the best seed of a run, chosen on validation data, and the way back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save

from lipschitz_rnn.experiments.runner import count_batches, load_models, load_task
from lipschitz_rnn.tasks import Metric, Split
from lipschitz_rnn.training import RunError, SequenceModel, Settings, build_model
from lipschitz_rnn.training.checkpoint import atomic_write
from lipschitz_rnn.training.ensemble import Ensemble
from lipschitz_rnn.training.evaluation import Scores, evaluate_members
from lipschitz_rnn.training.fitting import matmul_precision
from lipschitz_rnn.training.folder import read_settings
from lipschitz_rnn.training.parallel import choose_device
from lipschitz_rnn.training.reading import read_result, read_shapes
from lipschitz_rnn.training.settings import PLACE_SETTINGS
from lipschitz_rnn.units.lipschitz.pretrained import FORMAT, Pretrained, read_pretrained

_SHAPES = ("input_size", "output_size", "vocabulary", "readout")


def export_pretrained(run: str | os.PathLike[str], path: Path) -> Path:
    """Write the network of the seed that validation data like best, at its selected epoch, to `path`.

    Test scores have no say; they are noted beside the weights.
    """
    result = read_result(run, len(read_settings(run).members))
    candidates = [seed for seed in result["seeds"] if seed["validation"] is not None]
    if not candidates:
        raise RunError(f"{run} has no seed with a validation score: nothing to export")
    sign = 1.0 if result["higher_is_better"] else -1.0
    best = max(candidates, key=lambda seed: sign * seed["validation"])
    settings, models = load_models(run)  # refuses a run whose networks differ in more than their seeds
    shapes = vars(read_shapes(run))
    kept = {key: value for key, value in settings.to_dict().items() if key not in PLACE_SETTINGS}
    about = {"settings": kept | {"seeds": [best["seed"]]}, "shapes": {key: shapes[key] for key in _SHAPES}}
    about |= {"metric": result["metric"]}
    about |= {key: best[key] for key in ("seed", "selected_epoch", "validation", "test")}
    tensors = {name: value.contiguous() for name, value in models[best["seed"]].state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, save(tensors, metadata={"format": FORMAT, "about": json.dumps(about, sort_keys=True)}))
    return path


def load_classifier(name: str | os.PathLike[str]) -> tuple[Settings, SequenceModel]:
    """A trained network by name or file: its settings, and encoder ▶ unit ▶ head on the CPU, ready for inference."""
    return _build(read_pretrained(name))


def _build(trained: Pretrained) -> tuple[Settings, SequenceModel]:
    about: Mapping[str, Any] = trained.about
    settings = Settings.from_dict(about["settings"])
    model = build_model(settings, SimpleNamespace(**about["shapes"]), settings.seeds[0])
    model.load_state_dict(dict(trained.tensors))
    return settings, model.eval()


def evaluate_pretrained(
    name: str | os.PathLike[str],
    split: Split = "test",
    *,
    device: str | None = None,
    data_dir: str | None = None,
    offline: bool = False,
    started: Callable[[Settings], None] = lambda settings: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Settings, Metric, Scores]:
    """Settings of a trained network, its task's metric, and its score on a split; see `evaluate_run`."""
    settings, model = load_classifier(name)
    settings = replace(settings, device=device or "auto", data_dir=data_dir, offline=offline)
    started(settings)
    place = choose_device(settings.device)
    task = load_task(settings)
    ensemble = Ensemble([model], place)
    with matmul_precision(settings.precision), torch.no_grad():
        pause = count_batches(progress, task, split, settings)
        scores = evaluate_members(ensemble, ensemble.values, task.to(place), split, settings, pause=pause)
    return settings, task.metric, scores
