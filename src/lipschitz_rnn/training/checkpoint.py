"""Checkpoints that survive a crash at any moment: one safetensors file with its JSON state and checksum inside.

A file is written under a temporary name, synced and renamed, and the folder is synced, so a checkpoint either does not
exist or is complete. The checksum detects later damage by a disk or a copy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from lipschitz_rnn.storage import READING_ERRORS, checksum, read_tensors
from lipschitz_rnn.storage import atomic_write as atomic_write
from lipschitz_rnn.storage import sync_folder as sync_folder


class CheckpointError(RuntimeError):
    """A checkpoint is missing or damaged; the message names the file and what is wrong with it."""


def write_checkpoint(path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write tensors and a JSON state to `path` atomically."""
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    text = json.dumps(state, sort_keys=True)
    atomic_write(path, save(plain, metadata={"state": text, "sha256": checksum(plain, text)}))


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors on the CPU and the state; raises `CheckpointError` if anything differs from what was written."""
    try:
        if not path.is_file():
            raise CheckpointError(
                f"{path} cannot be read: {'it is not a file' if path.exists() else 'it does not exist'}"
            )
        tensors, metadata = read_tensors(path)
    except READING_ERRORS as error:
        raise CheckpointError(f"{path} cannot be read: {error}; it is damaged or not a checkpoint") from error
    text = metadata.get("state", "")
    if metadata.get("sha256") != checksum(tensors, text):
        raise CheckpointError(f"{path} is damaged: its content does not match the checksum inside")
    try:
        state = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: its state is not JSON ({error})") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} cannot be read: its state is a JSON {type(state).__name__}, not an object")
    return tensors, state


def copy_tensors(tensors: Mapping[str, Tensor], targets: Mapping[str, Tensor], prefix: str, where: object) -> None:
    """Copy into each of `targets` the tensor named `prefix` + its name.

    Raises `CheckpointError`, and changes nothing, unless every target has a tensor of its shape. `where`: the file, for
    the message.
    """
    for name, target in targets.items():
        found = tensors.get(prefix + name)
        if found is None or found.shape != target.shape:
            what = "has none" if found is None else f"has shape {tuple(found.shape)}"
            raise CheckpointError(
                f"{where} does not fit: the network's {name} has shape {tuple(target.shape)}, the file {what}; "
                "it belongs to another run, or to another version of the network"
            )
    with torch.no_grad():
        for name, target in targets.items():
            target.data.copy_(tensors[prefix + name])
