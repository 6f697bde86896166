"""Pretrained weights: one safetensors file per network, with everything needed to rebuild it."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from lipschitz_rnn.plugins import did_you_mean
from lipschitz_rnn.units.lipschitz.parametrization import as_pair

if TYPE_CHECKING:
    from lipschitz_rnn.units.lipschitz.layer import LipschitzRNN

FOLDER = Path(__file__).parents[2] / "pretrained"
FORMAT = "lipschitz-rnn/1"
SERIES_FORMAT = "lipschitz-rnn-series/"  # and a number: the files of lipschitz_rnn.data.save_model
_PREFIX = "unit."
# Options of from_pretrained: they change how the network runs, not what it computes.
_FREE = (
    "batch_first", "dropout", "backend", "recompute_every", "noise", "multiplicative_noise", "parallel", "tolerance",
    "device", "dtype",
)  # fmt: skip


@dataclass(frozen=True)
class Pretrained:
    """The tensors of a whole network (unit and head) by name, and its description.

    about: the settings of the run, the shapes of its task (input_size, output_size, vocabulary, readout), seed,
    selected_epoch, metric, and the validation and test scores.
    """

    name: str
    tensors: Mapping[str, Tensor]
    about: Mapping[str, Any]

    def layer(self, kind: type[LipschitzRNN], options: Mapping[str, Any]) -> LipschitzRNN:
        """Only the recurrent layer, in evaluation mode."""
        settings = self.about["settings"]
        if settings["unit"] != "lipschitz":
            raise ValueError(
                f"{self.name} contains the unit {settings['unit']!r}; LipschitzRNN can load only 'lipschitz'"
            )
        shapes = {"input_size": self.about["shapes"]["input_size"], "hidden_size": settings["hidden_size"]}
        own = shapes | {"num_layers": settings["num_layers"]} | settings["unit_options"]
        own = {key: tuple(value) if isinstance(value, list) else value for key, value in own.items()}
        self._require_same_network(kind, own, options)
        rnn = kind(**(own | dict(options)))
        rnn.load_state_dict({k.removeprefix(_PREFIX): v for k, v in self.tensors.items() if k.startswith(_PREFIX)})
        return rnn.eval()

    def _require_same_network(
        self, kind: type[LipschitzRNN], own: Mapping[str, Any], options: Mapping[str, Any]
    ) -> None:
        """Raise for options that the constructor does not have, or that would change the trained network."""
        parameters = inspect.signature(kind).parameters
        unknown = sorted(options.keys() - parameters.keys())
        if unknown:
            raise TypeError(
                f"from_pretrained has no option {', '.join(unknown)}; it takes {', '.join(_FREE)} and max_step"
            )
        for name, value in options.items():
            trained = own.get(name, parameters[name].default)
            # A max_step that does not split regular steps affects only gaps, which did not occur in training.
            step = own.get("step_size", parameters["step_size"].default)
            whole = name == "max_step" and trained is None and isinstance(value, (int, float)) and value >= step
            if name not in _FREE and not whole and not _equal(name, value, trained):
                raise ValueError(
                    f"{name} is {value!r}, but the weights of {self.name} were trained with {name}={trained!r}; omit "
                    f"it. You can set {', '.join(_FREE)}, and a max_step of at least the step_size, {step:g}"
                )


def _equal(name: str, one: Any, other: Any) -> bool:
    """Whether two settings are equal: a tensor never is, and one number for A and W equals a pair of it."""
    if isinstance(one, Tensor):
        return False
    if name in ("beta", "gamma"):
        one, other = (tuple(as_pair(name, value)) for value in (one, other))
    return bool(one == other)


def available() -> list[str]:
    """Names of the pretrained networks in this package."""
    return sorted(path.stem for path in FOLDER.glob("*.safetensors"))


def read_pretrained(name: str | os.PathLike[str]) -> Pretrained:
    """A network by its name in `available()`, or from a ``.safetensors`` file written by `reproduce mnist`."""
    text = os.fspath(name)
    if text.endswith(".safetensors"):
        path = Path(text)
    elif text in available():
        path = FOLDER / f"{text}.safetensors"
    else:
        names = ", ".join(available()) or "(none in this installation)"
        raise ValueError(
            f"{text!r} is neither a file that ends in .safetensors nor a network of this package"
            f"{did_you_mean(text, available())}; these are {names}"
        )
    try:
        with safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if metadata.get("format", "").startswith(SERIES_FORMAT):
        raise ValueError(
            f"{path} is a whole model of series; use `lipschitz-rnn predict` or lipschitz_rnn.data.load_model"
        )
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} was not written by this package: its metadata has no format {FORMAT!r}")
    try:
        about = json.loads(metadata["about"])
        about["settings"]["unit"], about["shapes"]["input_size"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} has no valid description of its network ({error}); download the file again"
        ) from error
    return Pretrained(path.stem, tensors, about)
