"""Reads plain, packed and archived files with limits, so that a small file cannot fill the memory.

The packed size is checked before a byte is read, and unpacking stops at the limit. Members of archives are read into
memory and never written to disk.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, cast

from lipschitz_rnn.tasks.base import DataError

LARGEST_FILE = 256 << 20  # bytes of one unpacked file of unknown size
LARGEST_TOTAL = 2 << 30  # total bytes read or skipped in one archive or folder
MOST_MEMBERS = 100_000
_OVERHEAD = 1 << 16  # bytes that packing may add to incompressible data: headers, and less than 1 % of the size

# What the unpackers raise for damaged files; the last three come from invalid header fields.
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
_MAGIC: dict[str, tuple[bytes, Callable[[Path], IO[bytes]]]] = {
    ".gz": (b"\x1f\x8b", lambda path: cast(IO[bytes], gzip.GzipFile(path))),
    ".xz": (b"\xfd7zXZ\x00", lambda path: cast(IO[bytes], lzma.LZMAFile(path))),  # noqa: SIM115 (closed by who asks)
    ".bz2": (b"BZh", lambda path: cast(IO[bytes], bz2.BZ2File(path))),
}
FIX = "delete it and load again to download it, or replace it by the original"


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn an error during reading into a message that says how to fix it."""
    try:
        yield
    except DataError:  # its message is already complete
        raise
    except OSError as error:
        # The unpackers report some kinds of damage as an OSError without a number.
        if error.errno is None:
            raise DataError(_damaged(path, error)) from error
        raise DataError(f"{path} cannot be read: {error.strerror}; check the file and its permissions") from error
    except _UNPACKING_ERRORS as error:
        raise DataError(_damaged(path, error)) from error


def _damaged(path: Path, error: Exception) -> str:
    size = path.stat().st_size
    detail = str(error) or type(error).__name__
    return f"{path} ({size:,} bytes) cannot be unpacked: {detail}. It is truncated, damaged or of another kind; {FIX}"


def unpack(path: Path, limit: int = LARGEST_FILE) -> bytes:
    """The bytes of a plain, .gz or .xz file; DataError if there are more than `limit`."""
    with readable(path):
        packed = path.stat().st_size
        if packed > limit + limit // 100 + _OVERHEAD:
            raise DataError(f"{path} has {packed:,} bytes, expected at most {limit:,}; {FIX}")
        if path.suffix not in (".gz", ".xz"):
            with path.open("rb") as file:
                return _read(file, limit, str(path))
        magic, opener = _MAGIC[path.suffix]
        beginning = _beginning(path)
        if not beginning.startswith(magic):
            raise DataError(
                f"{path} is not a {path.suffix[1:]} file: it begins with {beginning!r} (a saved web page, perhaps); "
                "replace it by the original"
            )
        with opener(path) as stream:
            return _read(stream, limit, str(path))


def _read(stream: IO[bytes], limit: int, name: str) -> bytes:
    data = stream.read(limit + 1)
    if len(data) > limit:
        raise DataError(f"{name} holds more than {limit:,} bytes, which is not the original; {FIX}")
    return data


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(16)


def members(
    path: Path, wanted: Callable[[str], bool], limit: Callable[[str], int] = lambda name: LARGEST_FILE
) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of the wanted files in a folder, a tar archive of any compression, or a zip archive.

    `limit`: how many bytes a file of this name may have. Archives with paths that lead outside, or with more content
    than a data set can have, raise DataError.
    """
    with readable(path):
        if path.is_dir():
            found = _in_folder(path, wanted, limit)
        elif _beginning(path).startswith(b"PK\x03\x04"):
            found = _in_zip(path, wanted, limit)
        else:
            found = _in_tar(path, wanted, limit)
        total = 0
        for name, data in found:
            total += len(data)
            if total > LARGEST_TOTAL:
                raise DataError(_too_much(path))
            yield name, data


def _too_much(path: Path) -> str:
    return f"{path} holds more than {LARGEST_TOTAL:,} bytes or {MOST_MEMBERS:,} files; {FIX}"


def _check_path(name: str, holder: Path) -> None:
    """Raise for a path that leads outside: nothing is written to it, but such an archive is not the original."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise DataError(f"{holder} has a member with the path {name!r}, which leads out of the archive; {FIX}")


def _in_folder(path: Path, wanted: Callable[[str], bool], limit: Callable[[str], int]) -> Iterator[tuple[str, bytes]]:
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if wanted(name) and file.is_file():
            with readable(file), file.open("rb") as stream:
                data = _read(stream, limit(name), str(file))
            yield name, data


def _in_zip(path: Path, wanted: Callable[[str], bool], limit: Callable[[str], int]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as bundle:
        if len(bundle.infolist()) > MOST_MEMBERS:
            raise DataError(_too_much(path))
        for entry in bundle.infolist():
            if not entry.is_dir() and wanted(entry.filename):
                _check_path(entry.filename, path)
                with bundle.open(entry) as stream:
                    yield entry.filename, _read(stream, limit(entry.filename), f"{entry.filename} in {path}")


def _in_tar(path: Path, wanted: Callable[[str], bool], limit: Callable[[str], int]) -> Iterator[tuple[str, bytes]]:
    with _Limited(path) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
        for count, member in enumerate(archive):
            if count >= MOST_MEMBERS:
                raise DataError(_too_much(path))
            if member.isfile() and wanted(member.name) and (file := archive.extractfile(member)) is not None:
                _check_path(member.name, path)
                if member.size > limit(member.name):
                    allowed = f"expected at most {limit(member.name):,}"
                    raise DataError(f"{member.name} in {path} has {member.size:,} bytes, {allowed}; {FIX}")
                yield member.name, file.read()


class _Limited(io.RawIOBase):
    """The unpacked stream of a tar archive, limited to the size that a data set can have."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        beginning = _beginning(path)
        openers = [opener for magic, opener in _MAGIC.values() if beginning.startswith(magic)]
        self._path = path
        self._stream = openers[0](path) if openers else path.open("rb")

    def read(self, size: int = -1) -> bytes:
        # Each read is for one header or one file; the size comes from the archive.
        if not 0 <= size <= LARGEST_FILE:
            raise DataError(_too_much(self._path))
        return self._stream.read(size)

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET or position > LARGEST_TOTAL:
            raise DataError(_too_much(self._path))
        return self._stream.seek(position)

    def tell(self) -> int:
        return self._stream.tell()

    def close(self) -> None:
        self._stream.close()
        super().close()
