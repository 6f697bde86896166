"""Reads the weights of a run folder: selected on validation data, the newest, or those after an optimiser step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from lipschitz_rnn.training.checkpoint import CheckpointError, copy_tensors, read_checkpoint
from lipschitz_rnn.training.errors import RunError
from lipschitz_rnn.training.folder import RunFolder, check_origin
from lipschitz_rnn.training.results import no_finite_score
from lipschitz_rnn.training.settings import Settings

_PREFIX, _AVERAGE = "parameters/", "average/"


class Weights(NamedTuple):
    """Parameters and buffers of every network by name, the file they come from, and of every network whether these
    weights were selected by a finite validation score, or asked for in another way."""

    networks: list[dict[str, Tensor]]
    where: object
    validated: tuple[bool, ...]


def read_weights(folder: Path, settings: Settings, which: str | int) -> Weights:
    """The weights of a run folder. `which`: "best", "last" or a step."""
    members, validated = range(len(settings.members)), [True] * len(settings.members)
    checkpoints = folder / "checkpoints"
    path = checkpoints / ("best.safetensors" if which == "best" else f"step-{which:>09}.safetensors")
    if which == "last":
        if (saved := RunFolder(folder).latest(settings)) is None:
            raise RunError(f"{folder} has no checkpoint yet")
        tensors, path = saved[0], checkpoints
    elif which == "best":
        if not path.exists():
            raise RunError(_without_best(folder, settings))
        tensors, state = read_checkpoint(path)
        check_origin(path, state, settings)
        values = state.get("values")  # earlier versions did not record them
        if isinstance(values, list) and len(values) == len(members):
            validated = [value is not None for value in values]
    elif isinstance(which, int) and not isinstance(which, bool):
        if not path.exists():
            raise RunError(_lacking(folder, which))
        tensors, state = read_checkpoint(path)
        check_origin(path, state, settings)
    else:
        raise ValueError(f'which is {which!r}; it must be "best", "last" or the number of an optimiser step')
    if which != "best" and settings.averaging is not None:
        tensors |= {_PREFIX + n.removeprefix(_AVERAGE): v for n, v in tensors.items() if n.startswith(_AVERAGE)}
    own = {n.removeprefix(_PREFIX): v for n, v in tensors.items() if n.startswith(_PREFIX) and v.dim()}
    return Weights([_member(own, index) for index in members], path, tuple(validated))


def _without_best(folder: Path, settings: Settings) -> str:
    """Why there is no file with the selected weights."""
    saved = RunFolder(folder).latest(settings)
    if saved is None or saved[1]["epoch"] == 0:
        return f"{folder} has no selected weights yet: its first epoch is not complete"
    if all(value is None for value in saved[1]["selection"]["values"]):
        return f"{folder} has no selected weights: {no_finite_score(len(settings.members))}"
    return f"{folder} lacks checkpoints/best.safetensors; resume the run, which takes it from the newest checkpoint"


def _member(values: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
    return {name: value[index] for name, value in values.items() if index < len(value)}


def _lacking(folder: Path, which: int) -> str:
    steps = [path.stem.removeprefix("step-") for path in (folder / "checkpoints").glob("step-*.safetensors")]
    kept = ", ".join(str(step) for step in sorted(int(step) for step in steps if step.isdecimal()))
    return f"{folder} has no checkpoint after step {which}; it has those after {kept or 'none'}"


def fill(network: nn.Module, values: Mapping[str, Tensor], where: object) -> nn.Module:
    """Copy stored values into a network and return it; `where` names their file in the message if they do not fit.

    Buffers that are not part of the network's state dict keep their initial values, unless they are stored.
    """
    kept = network.state_dict().keys() | values.keys()
    everything = (*network.named_parameters(), *network.named_buffers())
    try:
        copy_tensors(values, {name: value for name, value in everything if name in kept}, "", where)
    except CheckpointError as error:
        own = "if the run has its own model, pass the function that builds it: load_run(…, build=…)"
        raise CheckpointError(f"{error}; {own}") from error
    return network
