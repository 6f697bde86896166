"""Keeps large data sets unpacked in the user's cache: unpacking takes seconds per load, verifying a fraction of that.

Files are written under a temporary name and renamed, and their checksums are verified at every load. A truncated or
damaged file is simply unpacked again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
from collections.abc import Mapping
from pathlib import Path

from lipschitz_rnn.tasks.sources import Dataset


def is_kept(dataset: Dataset, name: str, folder: Path) -> bool:
    """Whether a file of the right size is in `folder`."""
    try:
        return dataset.keep_unpacked and 0 < (folder / name).stat().st_size <= dataset.size_of(name)
    except OSError:
        return False


def read_kept(dataset: Dataset, name: str, folder: Path) -> bytes | None:
    """The bytes of a file in `folder`; None if it is missing or damaged."""
    try:
        data = (folder / name).read_bytes() if is_kept(dataset, name, folder) else b""
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == dataset.contents[name] else None


def keep(dataset: Dataset, files: Mapping[str, bytes], folder: Path) -> None:
    """Write files to `folder` for later loads; if that fails, warn and continue."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            _write(folder / name, data)
    except OSError as error:
        warnings.warn(
            f"{dataset.title} cannot be kept unpacked in {folder} ({error.strerror or error}), so every load unpacks "
            "it again; free space or change permissions there, or set XDG_CACHE_HOME to another folder",
            stacklevel=2,
        )


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
