"""Trained weights that come with the package: one safetensors file each, with all that it takes to build a network."""

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

from lipschitz_rnn.units.lipschitz.parametrization import as_pair

if TYPE_CHECKING:
    from lipschitz_rnn.units.lipschitz.layer import LipschitzRNN

FOLDER = Path(__file__).parents[2] / "pretrained"
FORMAT = "lipschitz-rnn/1"
_PREFIX = "unit."
# How the network runs, not what it computes: all that from_pretrained may set.
_FREE = ("batch_first", "dropout", "backend", "recompute_every", "noise", "multiplicative_noise", "device", "dtype")


@dataclass(frozen=True)
class Pretrained:
    """Tensors by the names of the whole network (unit, head), and what is known of it.

    about: settings of the run, shapes of its task (input_size, output_size, vocabulary, readout), seed, selected_epoch,
    metric, and the scores validation and test.
    """

    name: str
    tensors: Mapping[str, Tensor]
    about: Mapping[str, Any]

    def layer(self, kind: type[LipschitzRNN], options: Mapping[str, Any]) -> LipschitzRNN:
        """The recurrent layer alone, ready for inference."""
        settings = self.about["settings"]
        if settings["unit"] != "lipschitz":
            raise ValueError(f"{self.name} holds the unit {settings['unit']!r}; this layer can read lipschitz only")
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
        """Refuse options that the constructor does not have, or that would make another network of the weights."""
        parameters = inspect.signature(kind).parameters
        unknown = sorted(options.keys() - parameters.keys())
        if unknown:
            raise TypeError(f"from_pretrained got {', '.join(unknown)}; it takes {', '.join(_FREE)} and max_step")
        for name, value in options.items():
            trained = own.get(name, parameters[name].default)
            # Regular samples are a step apart: a max_step that leaves it whole is for gaps that training did not have.
            step = own.get("step_size", parameters["step_size"].default)
            whole = name == "max_step" and trained is None and isinstance(value, (int, float)) and value >= step
            if name not in _FREE and not whole and not _equal(name, value, trained):
                raise ValueError(
                    f"{name} is {value!r}, but {name} belongs to the weights of {self.name}, which were trained with "
                    f"{trained!r}; leave it out. What may be set: {', '.join(_FREE)}, and a max_step of "
                    f"at least the step_size, {step:g}"
                )


def _equal(name: str, one: Any, other: Any) -> bool:
    """Whether both are the same setting; a tensor is none, and one number for A and W is the same as two of it."""
    if isinstance(one, Tensor):
        return False
    if name in ("beta", "gamma"):
        one, other = (tuple(as_pair(name, value)) for value in (one, other))
    return bool(one == other)


def available() -> list[str]:
    """Names of the networks that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.safetensors"))


def read_pretrained(name: str | os.PathLike[str]) -> Pretrained:
    """A network by the name of `available()`, or from a file ``….safetensors`` that `reproduce mnist` wrote."""
    text = os.fspath(name)
    if text.endswith(".safetensors"):
        path = Path(text)
    elif text in available():
        path = FOLDER / f"{text}.safetensors"
    else:
        names = ", ".join(available()) or "none in this installation"
        raise ValueError(f"no trained network is called {text!r}; there are: {names}; or give a file ….safetensors")
    try:
        with safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is not a trained network of this package: its metadata has no format {FORMAT!r}")
    try:
        about = json.loads(metadata["about"])
        about["settings"]["unit"], about["shapes"]["input_size"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not say what its network is: {error}; get the original file again") from error
    return Pretrained(path.stem, tensors, about)
