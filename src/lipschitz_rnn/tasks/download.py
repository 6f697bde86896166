"""Downloads public originals: from several mirrors, resumable, verified before use, and once for all processes."""

from __future__ import annotations

import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import cast

from filelock import FileLock

from lipschitz_rnn._version import __version__
from lipschitz_rnn.tasks.base import DataError
from lipschitz_rnn.tasks.files import digest
from lipschitz_rnn.tasks.sources import Download

_CHUNK = 1 << 18
_TIMEOUT_S = 30.0
_LARGEST = 1 << 30  # bytes: far more than any original, far less than a disk
_ATTEMPTS_PER_MIRROR = 3  # a broken connection resumes where it stopped

Check = Callable[[Path], object]  # raises DataError when the file is not the original
Advance = Callable[[int, int | None], None]  # bytes on disk so far, total bytes if the server reports them


class _BadFileError(Exception):
    """A mirror delivered a complete file that is not the original."""


def fetch(download: Download, folder: Path, check: Check | None = None) -> Path:
    """Download the file into `folder` and return its path.

    The bytes go to a .part file, which a later call resumes; only a file that passes its checksum (and `check`) is
    renamed to the final name. A lock makes a second process wait and then use the file of the first.
    """
    target = folder / download.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{download.name}.lock"):  # the system releases it however the process ends
            if not target.exists():  # otherwise another process was faster, and verified the file before renaming it
                _from_any_mirror(download, target, check)
    except OSError as error:
        raise DataError(
            f"{target} cannot be written: {error.strerror or error}; free space or permissions in {folder}, "
            "or set XDG_CACHE_HOME to another folder"
        ) from error
    return target


def _from_any_mirror(download: Download, target: Path, check: Check | None) -> None:
    part = target.with_name(target.name + ".part")
    failures: list[str] = []
    for url in download.urls:
        for _ in range(_ATTEMPTS_PER_MIRROR):
            resumed = part.exists()
            try:
                with _progress(download.name) as advance:
                    _transfer(url, part, advance)
                _verify(part, download.checksum, check)
            except _BadFileError as error:
                part.unlink(missing_ok=True)
                failures.append(f"{url}: {error}")
                if resumed:
                    continue  # the beginning may come from another mirror; start again from zero
                break
            except urllib.error.URLError as error:  # refused, not found or no response: try the next mirror
                failures.append(f"{url}: {error.reason or error}")
                break
            except (HTTPException, TimeoutError, ConnectionError, ssl.SSLError) as error:  # connection lost: resume
                failures.append(f"{url}: {error}")
                continue
            os.replace(part, target)
            return
    listed = "\n".join(f"  {failure}" for failure in dict.fromkeys(failures))
    raise DataError(
        f"{download.name} could not be downloaded:\n{listed}\n"
        f"Check the network and load again (the download resumes), or put the file into {target.parent}/"
    )


def _transfer(url: str, part: Path, advance: Advance) -> None:
    """Append what is missing to `part`, from the start when the server cannot resume."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": f"lipschitz-rnn/{__version__}"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = cast(HTTPResponse, urllib.request.urlopen(request, timeout=_TIMEOUT_S))
    except urllib.error.HTTPError as error:
        if have and error.code == 416:  # no more bytes: the file is complete or too long; the checksum decides
            error.close()
            return
        raise
    with response:
        if response.status != 206:
            have = 0
        length = response.headers.get("Content-Length") or ""
        total = have + int(length) if length.isdecimal() else None
        if total is not None and total > _LARGEST:
            raise _BadFileError(f"the server offers {total:,} bytes, more than any original has")
        with part.open("ab" if have else "wb") as file:
            advance(have, total)
            while block := response.read(_CHUNK):
                file.write(block)
                have += len(block)
                advance(have, total)
                if have > _LARGEST:
                    raise _BadFileError(f"the server sent more than {_LARGEST:,} bytes, which no original has")
            file.flush()
            os.fsync(file.fileno())
    if total is not None and have < total:
        raise ConnectionError(f"the connection broke after {have:,} of {total:,} bytes")


def _verify(path: Path, checksum: str | None, check: Check | None) -> None:
    if checksum is not None:
        algorithm, _, expected = checksum.partition(":")
        found = digest(path, algorithm)
        if found != expected:
            raise _BadFileError(f"{path.stat().st_size:,} bytes with {algorithm} {found}, expected {expected}")
    if check is not None:
        try:
            check(path)
        except DataError as error:
            raise _BadFileError(str(error)) from error


@contextmanager
def _progress(name: str) -> Iterator[Advance]:
    """A bar with rate and time left on a terminal; nothing otherwise."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        bar = progress.add_task(name, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)
