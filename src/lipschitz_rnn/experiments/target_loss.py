"""Compares networks at about the same training loss.

Units learn at different speeds, and a network changes as it trains. So every network is saved after every epoch, and
compared as it was after the first epoch whose mean training loss is at most a target. By default the target is the
lowest loss that all networks of the comparison reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from lipschitz_rnn.training import Moment, RunError
from lipschitz_rnn.training.checkpoint import read_checkpoint, write_checkpoint
from lipschitz_rnn.training.history import read_run
from lipschitz_rnn.training.runs import load_run
from lipschitz_rnn.training.weights import fill

_FOLDER = "epochs"


class KeepEveryEpoch:
    """A probe for `fit` that saves all networks of a run after every epoch, in one file per epoch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, networks: Sequence[nn.Module], when: Moment) -> list[Mapping[str, float]]:
        tensors = {
            f"{index}/{name}": v for index, network in enumerate(networks) for name, v in _values(network).items()
        }
        (self._folder / _FOLDER).mkdir(exist_ok=True)
        write_checkpoint(_file(self._folder, when.epoch), tensors, {"epoch": when.epoch})
        return [{} for _ in networks]


@dataclass(frozen=True)
class Taken:
    """The epoch selected for a network, counted from 0, its mean training loss, and whether that meets the target."""

    epoch: int
    loss: float
    reached: bool


def lowest_common_loss(folders: Sequence[Path]) -> float:
    """The lowest epoch-mean training loss that all networks of these runs reached; diverged networks are ignored."""
    curves = [curve for folder in folders for curve in read_run(folder).training_losses()]
    lowest = [min(loss for loss in curve if loss is not None) for curve in curves if None not in curve]
    if not lowest:
        raise RunError("every network diverged, so there is no common loss; lower the learning rate")
    return max(lowest)


def take_at_loss(folder: Path, target: float) -> list[Taken | None]:
    """For every network of a run, in the order of its members, the first epoch that meets the target.

    For a network that never meets it, the epoch with its lowest loss; None for one that diverged in its first epoch.
    """
    return [_take(curve, target) for curve in read_run(folder).training_losses()]


def load_taken(folder: Path, index: int, taken: Taken) -> nn.Module:
    """The network at `index` among the members of a run, as it was after that epoch."""
    prefix, stored = f"{index}/", _read(folder, taken.epoch)
    own = {name.removeprefix(prefix): value for name, value in stored.items() if name.startswith(prefix)}
    return fill(load_run(folder).initial(index), own, _file(folder, taken.epoch))


def _take(curve: Sequence[float | None], target: float) -> Taken | None:
    known = [(epoch, loss) for epoch, loss in enumerate(curve) if loss is not None]
    for epoch, loss in known:
        if loss <= target:
            return Taken(epoch, loss, True)
    return Taken(*min(known, key=lambda pair: pair[1]), False) if known else None


def _values(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in (*network.named_parameters(), *network.named_buffers())}


def _file(folder: Path, epoch: int) -> Path:
    return folder / _FOLDER / f"epoch-{epoch:04d}.safetensors"


def _read(folder: Path, epoch: int) -> dict[str, Tensor]:
    path = _file(folder, epoch)
    if not path.exists():
        raise RunError(f"{folder} has no networks of epoch {epoch}: {path.name} is missing; train it again")
    return read_checkpoint(path)[0]
