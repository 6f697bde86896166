"""Networks compared at about the same training loss: each is kept as it was when it first came down to a target.

Units learn at different speeds, and a network that was trained longer is another one than the same network before. So
every network is taken after the first epoch whose mean training loss is at most the target, and one that never comes
down to it after the last epoch, with a note.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace

from torch import Tensor, nn

from lipschitz_rnn.experiments.report.collect import read_run
from lipschitz_rnn.experiments.results import training_losses
from lipschitz_rnn.training import RunError, build_model
from lipschitz_rnn.training.checkpoint import read_checkpoint, write_checkpoint
from lipschitz_rnn.training.folder import RunConflict, read_json, read_settings

_FILE = "target-loss.safetensors"


@dataclass(frozen=True)
class Kept:
    """One network: the epoch after which it was kept, counted from 0, and the mean training loss of that epoch."""

    epoch: int
    loss: float | None  # None: it diverged
    reached: bool


class KeepAtTargetLoss:
    """A probe for `fit` that keeps the networks of a run in its folder. A resumed run goes on with what is there."""

    def __init__(self, folder: Path, target: float) -> None:
        self._folder, self._target = folder, target
        self._kept, self._tensors = _read(folder, target) if (folder / _FILE).exists() else ({}, {})

    def __call__(self, networks: Sequence[nn.Module]) -> list[Mapping[str, float]]:
        run = read_run(self._folder)
        # A probe may run beside the next epoch; its own is the first that has no record of a probe yet.
        epoch = len(run.of_kind("probe"))
        losses = training_losses(run)
        last = epoch == run.settings.epochs - 1
        before = len(self._kept)
        for index, network in enumerate(networks):
            loss = losses[index][epoch]
            reached = loss is not None and loss <= self._target
            if index not in self._kept and (reached or last):
                self._kept[index] = Kept(epoch, loss, reached)
                values = dict(network.named_parameters()) | dict(network.named_buffers())
                self._tensors |= {f"{index}/{name}": value.detach().clone() for name, value in values.items()}
        if len(self._kept) > before:
            state = {"target": self._target, "networks": {str(i): asdict(kept) for i, kept in self._kept.items()}}
            write_checkpoint(self._folder / _FILE, self._tensors, state)
        return [{} for _ in networks]


def load_at_target_loss(folder: Path, target: float) -> tuple[list[nn.Module], list[Kept]]:
    """All networks of a finished run, in the order of its members, and when each was kept."""
    if not (folder / _FILE).exists():
        raise RunError(f"{folder} was not trained to a target loss: it has no {_FILE}; train it in another folder")
    kept, tensors = _read(folder, target)
    settings, shapes = read_settings(folder), SimpleNamespace(**read_json(folder / "task.json"))
    networks: list[nn.Module] = []
    for index, member in enumerate(settings.members):
        network = build_model(settings.of_variant(member.variant), shapes, member.seed)
        for name, value in (dict(network.named_parameters()) | dict(network.named_buffers())).items():
            value.data.copy_(tensors[f"{index}/{name}"])
        networks.append(network.eval())
    return networks, [kept[index] for index in range(len(networks))]


def _read(folder: Path, target: float) -> tuple[dict[int, Kept], dict[str, Tensor]]:
    tensors, state = read_checkpoint(folder / _FILE)
    if state["target"] != target:
        raise RunConflict(
            f"{folder} was trained to a loss of {state['target']}, now {target} is asked for; "
            "resume with the same target, or choose another folder"
        )
    return {int(index): Kept(**values) for index, values in state["networks"].items()}, tensors
