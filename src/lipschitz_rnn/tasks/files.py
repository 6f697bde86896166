"""Find data files, unpack them and make sure that they are what they should be.

Nothing here repairs or skips a bad file: the first one found is used or refused, with its name and the way out.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from lipschitz_rnn.tasks.base import DataError
from lipschitz_rnn.tasks.sources import Dataset

ENVIRONMENT_VARIABLE = "LIPSCHITZ_RNN_DATA"
# What the unpackers raise for damaged files; the last three come from header fields that make no sense.
_UNPACKING_ERRORS = (
    EOFError,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    struct.error,
    ValueError,
    RuntimeError,
)


def cache_folder() -> Path:
    """The user's cache of this package: XDG_CACHE_HOME where set, else what the platform uses."""
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "lipschitz-rnn"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "lipschitz-rnn"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "lipschitz-rnn" / "Cache"
    return Path.home() / ".cache" / "lipschitz-rnn"


def data_folders(root: str | os.PathLike[str] | None) -> list[Path]:
    """Where files are looked for, in order: `root`, LIPSCHITZ_RNN_DATA, the cache."""
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
    """Every directory in which the files of one data set may lie."""
    return [base / part for base in data_folders(root) for part in (folder, *aliases)]


def missing(title: str, names: str, root: str | os.PathLike[str] | None, folder: str, fix: str) -> DataError:
    """The error for data that is nowhere: which file, where it was looked for, where to put it."""
    looked = "\n".join(f"  {base / folder}" for base in data_folders(root))
    return DataError(
        f"{title} is not here: {names} was not found in\n{looked}\n"
        f"{fix}, or point {ENVIRONMENT_VARIABLE} or the data-dir option to a folder that holds {folder}/"
    )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what goes wrong while a file is read into a message with the way out."""
    fix = "delete it and load again to download it, or replace it by the original"
    try:
        yield
    except DataError:  # it says all that is to be said
        raise
    except _UNPACKING_ERRORS as error:
        raise DataError(
            f"{path} ({path.stat().st_size:,} bytes) cannot be unpacked: {error}. "
            f"It is truncated, damaged or of another kind; {fix}"
        ) from error
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path} cannot be read: {reason}; check the file and its permissions") from error


def unpack(path: Path) -> bytes:
    """The bytes of a plain, .gz or .xz file."""
    openers: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
        ".gz": (b"\x1f\x8b", gzip.decompress),
        ".xz": (b"\xfd7zXZ\x00", lzma.decompress),
    }
    with _readable(path):
        packed = path.read_bytes()
        if path.suffix not in openers:
            return packed
        magic, opener = openers[path.suffix]
        if not packed.startswith(magic):
            raise DataError(
                f"{path} is no {path.suffix[1:]} file: it begins with {packed[:16]!r} (a saved web page, perhaps); "
                "replace it by the original"
            )
        return opener(packed)


def _begins_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of the wanted files in a folder, a tar archive of any compression, or a zip archive."""
    with _readable(path):
        if path.is_dir():
            for file in sorted(path.rglob("*")):
                name = file.relative_to(path).as_posix()
                if wanted(name) and file.is_file():
                    yield name, file.read_bytes()
        elif _begins_with(path, b"PK\x03\x04"):
            with zipfile.ZipFile(path) as bundle:
                for name in filter(wanted, bundle.namelist()):
                    yield name, bundle.read(name)
        else:
            with tarfile.open(path) as archive:
                for member in archive:
                    if member.isfile() and wanted(member.name) and (stream := archive.extractfile(member)) is not None:
                        yield member.name, stream.read()


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


def _look(dataset: Dataset, root: str | os.PathLike[str] | None) -> dict[str, bytes]:
    """What the disk holds of the data set, loose files before archives, all of it verified."""
    places = search_places(root, dataset.folder, dataset.aliases)

    def loose(name: str) -> bytes | None:
        paths = (place / (name + ending) for place in places for ending in ("", ".gz", ".xz"))
        path = next((path for path in paths if path.is_file()), None)
        return None if path is None else _verified(unpack(path), dataset.contents[name], str(path), dataset.title)

    with ThreadPoolExecutor() as pool:  # unpacking and hashing run outside Python's lock
        read = dict(zip(dataset.contents, pool.map(loose, dataset.contents), strict=True))
    found = {name: data for name, data in read.items() if data is not None}
    lacking = set(dataset.contents) - set(found)
    packed = (place / name for place in places for name in dataset.archives)
    if lacking and (archive := next((path for path in packed if path.is_file()), None)):
        for member, data in members(archive, lambda name: name.rpartition("/")[2] in lacking):
            name = member.rpartition("/")[2]
            found[name] = _verified(data, dataset.contents[name], f"{member} in {archive}", dataset.title)
        if lacking - set(found):
            raise DataError(
                f"{archive} lacks {', '.join(sorted(lacking - set(found)))}; it is no original of {dataset.title}: "
                "delete it and load again to download it, or replace it by the original"
            )
    return found


def read_dataset(dataset: Dataset, root: str | os.PathLike[str] | None, offline: bool) -> dict[str, bytes]:
    """Unpacked and verified bytes of every file of the data set; what is nowhere is downloaded unless `offline`."""
    found = _look(dataset, root)
    lacking = [name for name in dataset.contents if name not in found]
    if not lacking:
        return found
    wanted = list(dict.fromkeys(dataset.downloads[name] for name in lacking))
    target = cache_folder() / dataset.folder
    if offline:
        fix = (
            f"Put {', '.join(download.name for download in wanted)} (from {wanted[0].urls[0].rpartition('/')[0]}/) "
            f"into {target}/, allow the download (no offline option)"
        )
        raise missing(dataset.title, ", ".join(lacking), root, dataset.folder, fix)
    from lipschitz_rnn.tasks.download import fetch

    for download in wanted:
        fetch(download, target)
    return found | _look(dataset, root)
