"""What NVRTC made is kept on disk: used while it is whole, compiled again if not, and no litter on a full disk."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lipschitz_rnn.ops.common.cuda import compiler

CODE = b"\x7fELF" + bytes(range(256)) * 40


@pytest.fixture
def compilations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of a compiler that gives ``CODE``; kept in ``tmp_path``."""
    names: list[str] = []

    def compile_code(nvrtc: object, source: str, name: str, options: list[str]) -> bytes:
        names.append(name)
        return CODE

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "library", lambda: "some NVRTC")
    monkeypatch.setattr(compiler, "version", lambda _: (12, 8))
    monkeypatch.setattr(compiler, "_compile", compile_code)
    return names


def ask(name: str = "kernel.cu") -> bytes:
    return compiler.compiled("source", name, "sm_90", {"SIZE": "1"})


def kept_files(folder: Path) -> list[Path]:
    return list((folder / "lipschitz-rnn").iterdir())


def test_an_intact_file_is_used(compilations: list[str], tmp_path: Path) -> None:
    assert [ask(), ask()] == [CODE, CODE]
    assert compilations == ["kernel.cu"]
    assert len(kept_files(tmp_path)) == 1


@pytest.mark.parametrize("damage", ["empty", "short", "cut", "longer", "changed", "without its hash"])
def test_a_damaged_file_is_compiled_again_and_replaced(damage: str, compilations: list[str], tmp_path: Path) -> None:
    ask()
    (file,) = kept_files(tmp_path)
    whole = file.read_bytes()
    damaged = {
        "empty": b"",
        "short": whole[:7],
        "cut": whole[: len(whole) // 2],
        "longer": whole + b"!",
        "changed": whole.replace(b"ELF", b"FLE"),
        "without its hash": CODE,
    }
    file.write_bytes(damaged[damage])
    assert ask() == CODE
    assert len(compilations) == 2
    assert kept_files(tmp_path) == [file]
    assert file.read_bytes() == whole
    assert ask() == CODE
    assert len(compilations) == 2


@contextmanager
def no_room_on_disk() -> Iterator[None]:
    """Not a byte more fits into any file: writing fails when the buffer is emptied, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_no_file(compilations: list[str], tmp_path: Path) -> None:
    with no_room_on_disk():
        codes = [ask(), ask()]
    assert codes == [CODE, CODE]
    assert len(compilations) == 2
    assert kept_files(tmp_path) == []


def test_a_name_that_cannot_be_taken_leaves_no_file(
    compilations: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(compiler.os, "replace", refuse)
    assert ask() == CODE
    assert kept_files(tmp_path) == []


class FailingNvrtc:
    """Fails to compile with a status, and has a log."""

    def __init__(self, status: int) -> None:
        self.status = status

    def nvrtcVersion(self, major: object, minor: object) -> int:
        return 0

    def nvrtcCreateProgram(self, *_: object) -> int:
        return 0

    def nvrtcCompileProgram(self, *_: object) -> int:
        return self.status

    def nvrtcGetProgramLogSize(self, program: object, size: ctypes._Pointer) -> int:
        size._obj.value = 4  # type: ignore[attr-defined]
        return 0

    def nvrtcGetProgramLog(self, program: object, log: ctypes.Array) -> int:
        log.value = b"why"
        return 0

    def nvrtcDestroyProgram(self, program: object) -> int:
        return 0


@pytest.mark.parametrize("status", [compiler.NO_MEMORY, 6])
def test_an_error_has_the_status_of_the_compiler(status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "library", lambda: FailingNvrtc(status))
    with pytest.raises(compiler.CompilationError, match=r"does not compile .*\n.*why") as caught:
        ask()
    assert caught.value.status == status
