"""Networks compared at about the same training loss.

Units learn at different speeds, and a network that was trained longer is another one than the same network before. So
every network is kept after every epoch of its run, and taken from there after the first epoch whose mean training loss
is at most a target: by default the lowest loss that all networks of the comparison came down to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from lipschitz_rnn.experiments.runs import load_run
from lipschitz_rnn.training import Moment, RunError
from lipschitz_rnn.training.checkpoint import read_checkpoint, write_checkpoint
from lipschitz_rnn.training.history import read_run

_FOLDER = "epochs"


class KeepEveryEpoch:
    """A probe for `fit` that keeps all networks of a run, in a file of its folder for each epoch."""

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
    """Which epoch a network was taken from, counted from 0, the mean training loss of it, and if that is the target."""

    epoch: int
    loss: float
    reached: bool


def lowest_common_loss(folders: Sequence[Path]) -> float:
    """The lowest mean training loss of an epoch that every network of these runs came down to; diverged ones apart."""
    curves = [curve for folder in folders for curve in read_run(folder).training_losses()]
    lowest = [min(loss for loss in curve if loss is not None) for curve in curves if None not in curve]
    if not lowest:
        raise RunError("no network was trained to the end without diverging, so there is no loss to compare at")
    return max(lowest)


def take_at_loss(folder: Path, target: float) -> list[Taken | None]:
    """Of every network of a run, in the order of its members, the first epoch at the target.

    One that never came down to it is taken after the epoch at which its loss was lowest, and one that diverged in its
    first epoch not at all.
    """
    return [_take(curve, target) for curve in read_run(folder).training_losses()]


def load_taken(folder: Path, index: int, taken: Taken) -> nn.Module:
    """The network at this place among the members of a run, as it was after that epoch."""
    run = load_run(folder)
    network, prefix = run.initial(index), f"{index}/"
    own = {n.removeprefix(prefix): v for n, v in _read(folder, taken.epoch).items() if n.startswith(prefix)}
    run.fill(network, own, _file(folder, taken.epoch))
    return network


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
        raise RunError(f"{folder} did not keep its networks of epoch {epoch}: there is no {path.name}; train it again")
    return read_checkpoint(path)[0]
