"""Files that are either whole or not there, and tensors in them with a checksum."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

# What safetensors and PyTorch raise for invalid bytes, types and shapes.
READING_ERRORS = (OSError, SafetensorError, ValueError, TypeError, KeyError, RuntimeError, OverflowError, MemoryError)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a safetensors file, on the CPU, and its metadata; raises one of `READING_ERRORS`."""
    with safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    """SHA-256 over a text and over every tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"\n{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def atomic_write(path: Path, content: bytes) -> None:
    """Replace `path` so that every reader, even after a crash, sees either the old or the new file."""
    temporary = path.with_name(f".{path.name[:200]}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb") as file:  # never follow a link that somebody put there
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename durable; only POSIX systems can open a folder."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network and FUSE file systems sync files only
            raise
    finally:
        os.close(descriptor)
