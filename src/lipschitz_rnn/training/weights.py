"""Reads the weights of a run folder: selected on validation data, the newest, or those after an optimiser step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from lipschitz_rnn.training.checkpoint import CheckpointError, copy_tensors, read_checkpoint
from lipschitz_rnn.training.errors import RunError
from lipschitz_rnn.training.folder import RunFolder, check_origin
from lipschitz_rnn.training.settings import Settings

_PREFIX, _AVERAGE = "parameters/", "average/"


def read_weights(folder: Path, settings: Settings, which: str | int) -> tuple[list[dict[str, Tensor]], Path]:
    """Parameters and buffers of every network by name, and the file they come from. `which`: "best", "last" or a
    step."""
    checkpoints = folder / "checkpoints"
    path = checkpoints / ("best.safetensors" if which == "best" else f"step-{which:>09}.safetensors")
    if which == "last":
        if (saved := RunFolder(folder).latest(settings)) is None:
            raise RunError(f"{folder} has no checkpoint yet")
        tensors, path = saved[0], checkpoints
    elif which == "best" or (isinstance(which, int) and not isinstance(which, bool)):
        if not path.exists():
            raise RunError(_lacking(folder, which))
        tensors, state = read_checkpoint(path)
        check_origin(path, state, settings)
    else:
        raise ValueError(f'which is {which!r}; it must be "best", "last" or the number of an optimiser step')
    if which != "best" and settings.averaging is not None:
        tensors |= {_PREFIX + n.removeprefix(_AVERAGE): v for n, v in tensors.items() if n.startswith(_AVERAGE)}
    own = {n.removeprefix(_PREFIX): v for n, v in tensors.items() if n.startswith(_PREFIX) and v.dim()}
    return [_member(own, index) for index in range(len(settings.members))], path


def _member(values: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
    return {name: value[index] for name, value in values.items() if index < len(value)}


def _lacking(folder: Path, which: str | int) -> str:
    if which == "best":
        return f"{folder} has no selected weights yet: its first epoch is not complete"
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
