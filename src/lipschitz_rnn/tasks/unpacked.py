"""Large data sets kept unpacked in the user's cache: unpacking takes seconds at every load, checking them a fraction.

A file is written under another name and renamed, and its checksum is compared at every load, so that one that is cut
off or damaged is only unpacked again.
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
    """Whether a file is kept in `folder`, by its size alone."""
    try:
        return dataset.keep_unpacked and 0 < (folder / name).stat().st_size <= dataset.size_of(name)
    except OSError:
        return False


def read_kept(dataset: Dataset, name: str, folder: Path) -> bytes | None:
    """The bytes of a file if it is kept in `folder` and whole."""
    try:
        data = (folder / name).read_bytes() if is_kept(dataset, name, folder) else b""
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == dataset.contents[name] else None


def keep(dataset: Dataset, files: Mapping[str, bytes], folder: Path) -> None:
    """Put files into `folder` for later loads; where that cannot be done, say so and go on without."""
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
