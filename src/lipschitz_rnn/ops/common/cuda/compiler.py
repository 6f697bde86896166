"""CUDA C++ to machine code by NVRTC: a library that comes with PyTorch's CUDA builds, so no compiler is installed.

What was compiled is kept on disk, named by all that it depends on, and with a hash: a file that was cut off or damaged
is no machine code.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch

NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
NO_MEMORY = 1  # a status of NVRTC
_HASH_BYTES = 32  # at the end of a file


class CompilationError(RuntimeError):
    """The source does not compile; the message is the compiler's, and so is the status, where it gave one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@cache
def library() -> ctypes.CDLL | None:
    """NVRTC, as PyTorch has loaded it or as an installed package has it; None where there is none."""
    for place in _places(torch.version.cuda):
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    return None


def _places(version: str | None) -> Iterator[str]:
    """Where it may be. That of PyTorch's own ``version`` of CUDA comes first: it is as old as the driver may be."""
    own = "libnvrtc.so." + (version or "").split(".")[0]
    for name in sorted(NAMES, key=lambda name: name != own):
        yield name  # what is loaded, or where the system looks
        for folder in filter(None, sys.path):
            yield from sorted(glob.glob(os.path.join(glob.escape(folder), "nvidia", "*", "lib", name)))


def compiled(source: str, name: str, architecture: str, macros: dict[str, str]) -> bytes:
    """The machine code of ``source`` with ``macros`` defined, for an architecture such as ``sm_90``."""
    nvrtc = library()
    if nvrtc is None:
        raise CompilationError("NVRTC is not installed; PyTorch's CUDA builds bring it along")
    options = [
        f"--gpu-architecture={architecture}",
        "--std=c++17",
        *(f"-D{key}={value}" for key, value in macros.items()),
    ]
    place = _cache_folder() / (_digest(source, options, version(nvrtc)) + ".cubin")
    code = _kept(place)
    if code is None:
        code = _compile(nvrtc, source, name, options)
        _keep(place, code)
    return code


def _compile(nvrtc: ctypes.CDLL, source: str, name: str, options: list[str]) -> bytes:
    program = ctypes.c_void_p()
    _check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None))
    try:
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        status = nvrtc.nvrtcCompileProgram(program, len(options), given)
        if status != 0:
            log = _log(nvrtc, program)
            raise CompilationError(f"{name} does not compile with {' '.join(options)}:\n{log}", status)
        size = ctypes.c_size_t()
        _check(nvrtc, nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        code = ctypes.create_string_buffer(size.value)
        _check(nvrtc, nvrtc.nvrtcGetCUBIN(program, code))
        return code.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _log(nvrtc: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    _check(nvrtc, nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
    log = ctypes.create_string_buffer(size.value)
    _check(nvrtc, nvrtc.nvrtcGetProgramLog(program, log))
    return log.value.decode(errors="replace")


def _check(nvrtc: ctypes.CDLL, status: int) -> None:
    if status != 0:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise CompilationError(f"NVRTC failed: {nvrtc.nvrtcGetErrorString(status).decode()}", status)


def version(nvrtc: ctypes.CDLL) -> tuple[int, int]:
    """That of CUDA which it belongs to."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(nvrtc, nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def _digest(source: str, options: list[str], version: tuple[int, int]) -> str:
    return hashlib.sha256("\0".join((str(version), *options, source)).encode()).hexdigest()


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "lipschitz-rnn"


def _kept(place: Path) -> bytes | None:
    """The machine code of a file, if there is one and its hash is right."""
    try:
        content = place.read_bytes()
    except OSError:
        return None
    code, digest = content[:-_HASH_BYTES], content[-_HASH_BYTES:]
    return code if digest == _hash(code) else None


def _keep(place: Path, code: bytes) -> None:
    """A whole file or none, also with several processes at once; without a place to write it is compiled again."""
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=place.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(code + _hash(code))
            os.replace(name, place)
        finally:
            Path(name).unlink(missing_ok=True)  # still there where the disk is full


def _hash(code: bytes) -> bytes:
    return hashlib.sha256(code).digest()
