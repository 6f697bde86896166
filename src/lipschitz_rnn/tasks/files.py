"""Finds data files, unpacks them and verifies that they are the originals.

Bad files are never repaired or skipped: the first file found is used, or rejected with its name and the fix.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from lipschitz_rnn.tasks.base import DataError
from lipschitz_rnn.tasks.sources import Dataset
from lipschitz_rnn.tasks.unpacked import is_kept, keep, read_kept
from lipschitz_rnn.tasks.unpacking import FIX, members, unpack

ENVIRONMENT_VARIABLE = "LIPSCHITZ_RNN_DATA"
_reading: ContextVar[bool] = ContextVar("reading", default=True)


class NotRead(Exception):
    """Raised instead of reading, inside `without_reading`: the options are valid and the files are in place."""


@contextmanager
def without_reading() -> Iterator[None]:
    """Tasks built in this context check their options, look for their files, and then raise `NotRead`."""
    token = _reading.set(False)
    try:
        yield
    finally:
        _reading.reset(token)


def stop_unless_reading() -> None:
    if not _reading.get():
        raise NotRead


def cache_folder() -> Path:
    """The user's cache for this package: in XDG_CACHE_HOME if set, else where the platform keeps caches."""
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "lipschitz-rnn"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "lipschitz-rnn"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "lipschitz-rnn" / "Cache"
    return Path.home() / ".cache" / "lipschitz-rnn"


def data_folders(root: str | os.PathLike[str] | None) -> list[Path]:
    """The folders to search for files, in order: `root`, LIPSCHITZ_RNN_DATA, the cache."""
    chosen = {"data-dir option": root, ENVIRONMENT_VARIABLE: os.environ.get(ENVIRONMENT_VARIABLE)}
    folders = []
    for giver, folder in chosen.items():
        if folder:
            path = Path(folder).expanduser()
            if not path.is_dir():
                raise DataError(f"the data folder {path} ({giver}) does not exist; give one that does, or leave it out")
            folders.append(path)
    return [*folders, cache_folder()]


def search_places(root: str | os.PathLike[str] | None, folder: str, aliases: tuple[str, ...] = ()) -> list[Path]:
    """Every folder that may hold the files of a data set."""
    return [base / part for base in data_folders(root) for part in (folder, *aliases)]


def missing(title: str, names: str, root: str | os.PathLike[str] | None, folder: str, fix: str) -> DataError:
    """The error for missing data: which file, where it was searched for, and where to put it."""
    looked = "\n".join(f"  {base / folder}" for base in data_folders(root))
    return DataError(
        f"{title} is missing: {names} was not found in\n{looked}\n"
        f"{fix}, or set {ENVIRONMENT_VARIABLE} or the data-dir option to a folder that contains {folder}/"
    )


def digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _verified(data: bytes, expected: str, where: str, title: str) -> bytes:
    found = hashlib.sha256(data).hexdigest()
    if found != expected:
        raise DataError(
            f"{where} is not the original of {title}: its unpacked {len(data):,} bytes have SHA-256 {found}, "
            f"expected {expected}. It was altered or truncated; delete it and load again to download it, "
            "or replace it by the original"
        )
    return data


def _find(dataset: Dataset, root: str | os.PathLike[str] | None) -> tuple[dict[str, Path], Path | None]:
    """The files of the data set on disk, by name, and an archive if some of them are missing."""
    places = search_places(root, dataset.folder, dataset.aliases)
    loose: dict[str, Path] = {}
    odd: Path | None = None
    for name in dataset.contents:
        for path in (place / (name + ending) for place in places for ending in ("", ".gz", ".xz")):
            if path.is_file():
                loose[name] = path
                break
            odd = path if odd is None and path.exists() else odd
    packed = (place / name for place in places for name in dataset.archives)
    archive = None if len(loose) == len(dataset.contents) else next((path for path in packed if path.is_file()), None)
    if archive is None and len(loose) < len(dataset.contents) and odd is not None:
        raise DataError(f"{odd} is not a file; {dataset.title} needs the original file of this name there")
    return loose, archive


def _look(dataset: Dataset, root: str | os.PathLike[str] | None) -> dict[str, bytes]:
    """The verified files of the data set that are on disk; unpacked ones are kept if unpacking is slow."""
    place = unpacked_folder(dataset)
    with ThreadPoolExecutor() as pool:  # unpacking and hashing release the GIL
        kept = pool.map(lambda name: read_kept(dataset, name, place), dataset.contents)
        found = {name: data for name, data in zip(dataset.contents, kept, strict=True) if data is not None}
        if len(found) == len(dataset.contents):
            return found
        loose, archive = _find(dataset, root)
        unpacked = _unpack(dataset, loose, archive, pool)
    plain = {name for name, path in loose.items() if path.suffix not in (".gz", ".xz")}
    if dataset.keep_unpacked and (fresh := unpacked.keys() - found.keys() - plain):
        keep(dataset, {name: unpacked[name] for name in fresh}, place)
    return found | unpacked


def unpacked_folder(dataset: Dataset) -> Path:
    """The folder for unpacked files: separate from the originals, so that a damaged copy cannot hide one."""
    return cache_folder() / "unpacked" / dataset.folder


def _unpack(
    dataset: Dataset, loose: Mapping[str, Path], archive: Path | None, pool: ThreadPoolExecutor
) -> dict[str, bytes]:
    """Loose files before the archive."""

    def read(name: str) -> bytes:
        data = unpack(loose[name], dataset.size_of(name))
        return _verified(data, dataset.contents[name], str(loose[name]), dataset.title)

    found = dict(zip(loose, pool.map(read, loose), strict=True))
    if archive is not None:
        lacking = set(dataset.contents) - set(found)

        def inside(member: str) -> str:
            return member.rpartition("/")[2]

        for member, data in members(
            archive, lambda name: inside(name) in lacking, lambda n: dataset.size_of(inside(n))
        ):
            name = inside(member)
            found[name] = _verified(data, dataset.contents[name], f"{member} in {archive}", dataset.title)
        if lacking - set(found):
            raise DataError(
                f"{archive} does not contain {', '.join(sorted(lacking - set(found)))}; it is not an original of "
                f"{dataset.title}: {FIX}"
            )
    return found


def read_dataset(dataset: Dataset, root: str | os.PathLike[str] | None, offline: bool) -> dict[str, bytes]:
    """Unpacked and verified bytes of every file of the data set; missing ones are downloaded unless `offline`."""
    found = _look(dataset, root) if _reading.get() else {}  # report damaged files before missing ones
    if len(found) == len(dataset.contents):
        return found
    loose, archive = _find(dataset, root)
    kept = [name for name in dataset.contents if is_kept(dataset, name, unpacked_folder(dataset))]
    here = {*loose, *found, *(() if _reading.get() else kept)}
    lacking = [] if archive is not None else [name for name in dataset.contents if name not in here]
    target = cache_folder() / dataset.folder
    wanted = list(dict.fromkeys(dataset.downloads[name] for name in lacking))
    if lacking and offline:
        fix = (
            f"Put {', '.join(download.name for download in wanted)} (from {wanted[0].urls[0].rpartition('/')[0]}/) "
            f"into {target}/, allow the download (no offline option)"
        )
        raise missing(dataset.title, ", ".join(lacking), root, dataset.folder, fix)
    stop_unless_reading()
    if not lacking:
        return found
    from lipschitz_rnn.tasks.download import fetch

    for download in wanted:
        fetch(download, target)
    return found | _look(dataset, root)
