"""Opens what `predict` and `export` take: a run folder on a file of one's own, or a model file."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from lipschitz_rnn import data
from lipschitz_rnn.data.reading import READERS
from lipschitz_rnn.data.saving import AGAIN
from lipschitz_rnn.experiments.left_out import left_out_note, require_validated
from lipschitz_rnn.storage import READING_ERRORS, read_tensors
from lipschitz_rnn.training.errors import RunError
from lipschitz_rnn.training.reading import is_there, read_json, read_result
from lipschitz_rnn.training.runs import LoadedRun, load_run

_MODELS = "give the run folder of `lipschitz-rnn train FILE`, or a .safetensors model, in its place"


def require_whole(path: Path) -> None:
    """Raise `RunError` for a .safetensors file that is missing or damaged, whatever it is said to hold."""
    if path.suffix != ".safetensors" or path.is_dir():
        return
    if not is_there(path):
        raise RunError(f"there is no {path}; check the path, or give another .safetensors file")
    try:
        read_tensors(path)
    except READING_ERRORS as error:
        raise RunError(f"{path} cannot be read as safetensors ({error}); it is damaged: {AGAIN}") from error


def open_models(source: Path, seed: int | None = None, variant: int | None = None) -> data.SavedModels:
    """All networks of a run folder or a model file, or those of one seed; those that were never validated are left out,
    and a line says so."""
    if not is_there(source):
        raise RunError(f"there is no {source}; give a run folder of `lipschitz-rnn train FILE`, or a model file")
    if source.is_file() and source.suffix.lower() in READERS:
        raise RunError(f"{source} is a file of series; {_MODELS}")
    if source.is_file() and source.suffix.lower() in (".onnx", ".pt2"):
        raise RunError(f"{source} is for other programs: {source.suffix} is only a format of output; {_MODELS}")
    if source.is_dir() and not (source / "model.safetensors").is_file():
        found = _of_run(source, variant)
    else:
        if variant is not None:
            raise ValueError(f"--variant is {variant}, but {source} is a model file; variants belong to run folders")
        found = data.load_model(source)
    if seed is None:
        return found
    seeds = found.extra.get("seeds") or list(range(len(found.models)))
    if seed not in seeds:
        raise ValueError(f"--seed is {seed}; {source} has the seeds {', '.join(map(str, seeds))}")
    chosen = seeds.index(seed)
    extra = found.extra | {"seeds": [seed]}
    if len(found.models) > 1:
        extra.pop("intervals", None)  # they are of the mean of all networks
    return data.SavedModels((found.models[chosen],), extra, found.name)


@contextmanager
def spoken_warnings() -> Iterator[None]:
    """Print what looks odd in series as plain sentences, after the block and whether or not it fails."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", data.SeriesWarning)
        try:
            yield
        finally:
            for each in said:
                text = f"warning: {each.message}"
                Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)


def _of_run(folder: Path, variant: int | None) -> data.SavedModels:
    run = load_run(folder)
    record = getattr(run.shapes, "series", None)
    if record is None:
        raise RunError(
            f"{folder} was trained on the task {run.settings.task!r}, not on series of your own; give a run of "
            "`lipschitz-rnn train FILE`"
        )
    settings, networks = run.of_variant(variant)
    start = (variant or 0) * len(networks)
    own = slice(start, start + len(networks))
    members, validated = run.settings.members[own], run.validated()[own]
    require_validated(folder, validated)
    if note := left_out_note(members, validated):
        Console(stderr=True).print(note, highlight=False, markup=False, soft_wrap=True)
    kept = [member for member, counts in zip(members, validated, strict=True) if counts]
    seeds = [member.seed for member in kept]
    models = tuple(data.SeriesModel.from_record(networks[seed], record) for seed in seeds)
    extra: dict[str, Any] = {"seeds": seeds, "metric": getattr(run.shapes, "metric", None)}
    extra |= {"reading": record.get("reading"), "scores": _scores(folder, run, own, seeds)}
    if not settings.variants:
        extra["intervals"] = _intervals(folder, [member.name for member in kept])
    extra["training"] = {
        name: value
        for name, value in settings.to_dict().items()
        if name not in ("task_options", "data_dir", "device", "offline")  # no paths of this machine
    }
    return data.SavedModels(models, extra, str(folder))


def _intervals(folder: Path, networks: list[str]) -> dict[str, Any] | None:
    """What `train FILE` measured on validation data, if it came so far, and of the mean of the same networks."""
    path = folder / "assessment.json"
    if not path.exists() or not (folder / "result.json").exists():  # a run that goes on has other weights
        return None
    assessment = read_json(path)
    return assessment.get("intervals") if assessment.get("networks") == networks else None


def _scores(folder: Path, run: LoadedRun, own: slice, seeds: list[int]) -> list[dict[str, Any]] | None:
    if not (folder / "result.json").exists():  # still training, or interrupted
        return None
    rows = read_result(folder, len(run.settings.members))["seeds"][own]
    names = ("seed", "validation", "test", "selected_epoch")
    return [{name: row[name] for name in names} for row in rows if row["seed"] in seeds]
