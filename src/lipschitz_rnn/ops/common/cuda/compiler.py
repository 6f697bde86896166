"""CUDA C++ to machine code by NVRTC: a library that comes with PyTorch's CUDA builds, so no compiler is installed.

What was compiled is kept on disk, named by all that it depends on.
"""

from __future__ import annotations

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


class CompilationError(RuntimeError):
    """The source does not compile; the message is the compiler's."""


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
            yield from sorted(glob.glob(os.path.join(folder, "nvidia", "*", "lib", name)))


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
    place = _cache_folder() / (_digest(source, options, _version(nvrtc)) + ".cubin")
    try:
        return place.read_bytes()
    except OSError:
        code = _compile(nvrtc, source, name, options)
    _keep(place, code)
    return code


def _compile(nvrtc: ctypes.CDLL, source: str, name: str, options: list[str]) -> bytes:
    program = ctypes.c_void_p()
    _check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None))
    try:
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if nvrtc.nvrtcCompileProgram(program, len(options), given) != 0:
            raise CompilationError(f"{name} does not compile with {' '.join(options)}:\n{_log(nvrtc, program)}")
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
        raise CompilationError(f"NVRTC failed: {nvrtc.nvrtcGetErrorString(status).decode()}")


def _version(nvrtc: ctypes.CDLL) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(nvrtc, nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return f"{major.value}.{minor.value}"


def _digest(source: str, options: list[str], version: str) -> str:
    return hashlib.sha256("\0".join((version, *options, source)).encode()).hexdigest()


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "lipschitz-rnn"


def _keep(place: Path, code: bytes) -> None:
    """A whole file or none, also with several processes at once; without a place to write it is compiled again."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as file:
            file.write(code)
        os.replace(file.name, place)
    except OSError:
        return
