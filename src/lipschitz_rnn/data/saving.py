"""One file a model: safetensors with weights of one or several seeds and everything needed to predict. No pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from lipschitz_rnn._version import __version__
from lipschitz_rnn.data.ensemble import Predictions, SeriesEnsemble, require_alike
from lipschitz_rnn.data.errors import SeriesError
from lipschitz_rnn.data.intervals import Intervals
from lipschitz_rnn.data.model import SeriesModel
from lipschitz_rnn.data.preprocessing import Preprocessing
from lipschitz_rnn.data.recipes import describe_network, network_tensors, rebuild, require_same
from lipschitz_rnn.data.series import SeriesSet
from lipschitz_rnn.data.streaming import SeriesStream
from lipschitz_rnn.data.target import Target
from lipschitz_rnn.plugins import MissingCodeError
from lipschitz_rnn.storage import READING_ERRORS, atomic_write, checksum, read_tensors
from lipschitz_rnn.units.lipschitz.pretrained import SERIES_FORMAT

FORMAT = f"{SERIES_FORMAT}1"
FILE_NAME = "model.safetensors"  # in a folder of save_pretrained
AGAIN = "save it again, or get another copy"


class ModelFileError(SeriesError):
    """A model file is missing, damaged, of another program or of a newer version. The message names the file."""


@dataclass(frozen=True)
class SavedModels:
    """The networks of a model file, one per seed, and what was saved with them."""

    models: tuple[SeriesModel, ...]
    extra: dict[str, Any] = field(default_factory=dict)
    name: str = "the model"

    def __post_init__(self) -> None:
        require_alike(self.models)

    @property
    def target(self) -> Target:
        return self.models[0].target

    @property
    def preprocessing(self) -> Preprocessing:
        return self.models[0].preprocessing

    @property
    def intervals(self) -> Intervals:
        """What is known about the errors of numbers; ValueError if nothing is."""
        if self.target.classes is not None:
            raise ValueError(f"{self.name} predicts classes, which have probabilities, not intervals; ask for none")
        kept = self.extra.get("intervals")
        if kept is None:
            raise ValueError(
                f"{self.name} has no intervals: they come from validation errors of all its networks. Train it again "
                "with a validation part, and take all seeds"
            )
        return Intervals.from_dict(kept)

    @property
    def ensemble(self) -> SeriesEnsemble:
        """All networks as one module: probabilities, or numbers, as the mean over the seeds."""
        return SeriesEnsemble(self.models)

    def predict(self, series: SeriesSet) -> Predictions:
        """Predictions for series with the columns of the model, in any order; `SeriesError` for others."""
        return self.ensemble.predict(series)

    def stream(self, batch_size: int | None = None) -> SeriesStream:
        """All networks on live data; the prediction is probabilities or numbers, as the mean over the seeds."""
        return SeriesStream(self.models, self.ensemble.combine, batch_size)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write all networks and `extra` to one .safetensors file."""
        return save_model(path, self.models, self.extra)


def save_model(
    path: str | os.PathLike[str], models: Sequence[SeriesModel], extra: Mapping[str, Any] | None = None
) -> Path:
    """Write models that differ in their weights only (seeds) to one safetensors file; returns its path.

    The file holds the weights, and in its metadata units and options, preprocessing, classes, target and version, as
    JSON. It is written whole or not at all, and only after the models were rebuilt from it and compared.

    Args:
        extra: plain values to keep with the models, e.g. {"metric": "accuracy", "test": 0.97}.
    """
    models = tuple(models)
    require_alike(models)
    target = Path(path)
    if target.suffix != ".safetensors":
        raise ValueError(f"the file is {str(path)!r}; its name must end in .safetensors")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target} cannot be written: there is no folder {target.parent}; create it first")
    try:
        kept = json.loads(json.dumps(dict(extra or {})))
    except (TypeError, ValueError) as error:
        raise ValueError(f"extra holds something that is no plain value: {error}") from error
    about = {
        "version": __version__,
        "preprocessing": models[0].preprocessing.to_dict(),
        "target": models[0].target.to_dict(),
        "networks": [describe_network(model) for model in models],
        "extra": kept,
    }
    tensors = {f"{k}.{name}": value for k, model in enumerate(models) for name, value in network_tensors(model).items()}
    text = json.dumps(about)  # not sorted: the order of the categories is that of the network's inputs
    for model, again in zip(models, _models(json.loads(text), tensors), strict=True):
        require_same(model, again)
    metadata = {"format": FORMAT, "version": __version__, "about": text, "sha256": checksum(tensors, text)}
    atomic_write(target, save(tensors, metadata=metadata))
    return target


def load_model(path: str | os.PathLike[str]) -> SavedModels:
    """The models of a file written by `save_model`, or of a folder written by `save_pretrained`, on the CPU.

    Loading runs no code from the file. A unit of your own must be registered before. Raises `ModelFileError`, a
    ValueError, for files that are missing, damaged, of another program or of a newer version.
    """
    place = Path(path)
    if place.is_dir():
        if (place / "config.json").exists() and (place / "task.json").exists():
            raise ModelFileError(
                f"{place} is a run folder; make a model file of it: lipschitz-rnn export {place} MODEL.safetensors"
            )
        place = place / FILE_NAME
    if not place.is_file():
        what = "is not a file" if place.exists() else "does not exist"
        raise ModelFileError(
            f"{place} {what}; give a .safetensors file written by save_model or `lipschitz-rnn export`"
        )
    try:
        tensors, metadata = read_tensors(place)
    except READING_ERRORS as error:
        raise ModelFileError(f"{place} cannot be read as safetensors ({error}); it is damaged: {AGAIN}") from error
    _require_format(place, metadata)
    text = metadata.get("about", "")
    if metadata.get("sha256") != checksum(tensors, text):
        raise ModelFileError(f"{place} is damaged: its content does not match the checksum inside; {AGAIN}")
    try:
        about = json.loads(text)
        return SavedModels(tuple(_models(about, tensors)), about["extra"], str(place))
    except MissingCodeError as error:
        raise ModelFileError(f"{place} needs code that is not here: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ModelFileError(
            f"{place} (written by version {metadata.get('version')}) cannot be rebuilt here (version {__version__}): "
            f"{error}"
        ) from error


def save_folder(
    folder: str | os.PathLike[str], models: Sequence[SeriesModel], extra: Mapping[str, Any] | None = None
) -> Path:
    """`save_model` into `model.safetensors` in a folder, which is created."""
    place = Path(folder)
    if place.suffix == ".safetensors":
        raise ValueError(f"{place} is the name of a file; save_pretrained writes a folder: name one, or call save")
    place.mkdir(parents=True, exist_ok=True)
    return save_model(place / FILE_NAME, models, extra)


def load_single(path: str | os.PathLike[str]) -> SeriesModel:
    """The model of a file that holds one network."""
    found = load_model(path)
    if len(found.models) != 1:
        raise ValueError(
            f"{found.name} holds {len(found.models)} networks; open it with lipschitz_rnn.data.load_model(path), whose "
            "predictions are their mean, or take one of its models"
        )
    return found.models[0]


def _models(about: Mapping[str, Any], tensors: Mapping[str, Any]) -> list[SeriesModel]:
    preprocessing, target = Preprocessing.from_dict(about["preprocessing"]), Target.from_dict(about["target"])
    built = []
    for index, network in enumerate(about["networks"]):
        prefix = f"{index}."
        own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        built.append(rebuild(network, own, preprocessing, target))
    return built


def holds_series_model(path: Path) -> bool:
    """Whether a .safetensors file says that it is a whole model of series, of this version or another one."""
    try:
        with safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
            return str((file.metadata() or {}).get("format", "")).startswith(SERIES_FORMAT)
    except (OSError, SafetensorError):
        return False


def _require_format(path: Path, metadata: Mapping[str, str]) -> None:
    found = metadata.get("format", "")
    if found == FORMAT:
        return
    if found.startswith(SERIES_FORMAT):
        raise ModelFileError(
            f"{path} has the format {found!r} of lipschitz-rnn {metadata.get('version', '(unknown version)')}; this "
            f"version, {__version__}, reads {FORMAT!r}: install that version"
        )
    if found.startswith("lipschitz-rnn/"):
        raise ModelFileError(f"{path} is a network without preprocessing; open it with lipschitz_rnn.load_run")
    raise ModelFileError(
        f"{path} was not written by lipschitz-rnn: its metadata has no format {FORMAT!r}. Give a file written by "
        "save_model or `lipschitz-rnn export`"
    )
