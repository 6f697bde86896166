"""Data files: where they are looked for, every wrapping, and messages that help when one is missing or wrong."""

import gzip
import lzma
import os
import zipfile
from pathlib import Path

import pytest
from small_data import dataset, tar, write_gz

from lipschitz_rnn.tasks import DataError
from lipschitz_rnn.tasks import files as data_files

CONTENTS = {"a.bin": b"alpha" * 1000, "b.bin": b"beta" * 1000}
TINY = dataset(CONTENTS, "tiny", archives=("tiny.tar.gz",))


def test_cache_folder_follows_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert data_files.cache_folder() == Path("/somewhere/lipschitz-rnn")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(data_files.sys, "platform", "linux")
    assert data_files.cache_folder() == Path.home() / ".cache" / "lipschitz-rnn"
    monkeypatch.setattr(data_files.sys, "platform", "darwin")
    assert data_files.cache_folder() == Path.home() / "Library" / "Caches" / "lipschitz-rnn"
    monkeypatch.setattr(data_files.sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert data_files.cache_folder() == Path("/local/lipschitz-rnn/Cache")


def test_root_comes_before_the_environment_and_the_cache(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, named = tmp_path / "given", tmp_path / "named"
    for folder in (own_cache, named, given):  # the later ones win
        write_gz(folder / "tiny", CONTENTS)
        if folder == named:
            monkeypatch.setenv("LIPSCHITZ_RNN_DATA", str(named))
        root = given if folder == given else None
        (folder / "tiny" / "a.bin.gz").write_bytes(gzip.compress(b"other"))
        with pytest.raises(DataError, match=f"{folder.name}/tiny/a.bin.gz is not the original"):
            data_files.read_dataset(TINY, root, offline=True)


@pytest.mark.parametrize("wrapping", ["plain", "gz", "xz", "tar.gz", "no subfolder"])
def test_every_wrapping_gives_the_same_bytes(tmp_path: Path, wrapping: str) -> None:
    folder = tmp_path if wrapping == "no subfolder" else tmp_path / "tiny"
    folder.mkdir(exist_ok=True)
    for name, data in CONTENTS.items():
        if wrapping in ("plain", "no subfolder"):
            (folder / name).write_bytes(data)
        elif wrapping == "gz":
            (folder / f"{name}.gz").write_bytes(gzip.compress(data))
        elif wrapping == "xz":
            (folder / f"{name}.xz").write_bytes(lzma.compress(data))
    if wrapping == "tar.gz":
        tar(folder / "tiny.tar.gz", {f"deep/inside/{name}": data for name, data in CONTENTS.items()})
    assert data_files.read_dataset(TINY, tmp_path, offline=True) == CONTENTS


def test_missing_data_says_which_file_goes_where(own_cache: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        data_files.read_dataset(TINY, tmp_path, offline=True)
    message = str(caught.value)
    assert "a.bin, b.bin was not found" in message
    assert f"Put a.bin.gz, b.bin.gz (from http://127.0.0.1:9/) into {own_cache / 'tiny'}/" in message
    assert str(tmp_path / "tiny") in message
    assert "LIPSCHITZ_RNN_DATA" in message


def test_a_data_folder_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"nowhere \(data-dir option\) does not exist"):
        data_files.read_dataset(TINY, tmp_path / "nowhere", offline=True)
    monkeypatch.setenv("LIPSCHITZ_RNN_DATA", str(tmp_path / "gone"))
    with pytest.raises(DataError, match=r"gone \(LIPSCHITZ_RNN_DATA\) does not exist"):
        data_files.read_dataset(TINY, None, offline=True)


def _write(tmp_path: Path, name: str, data: bytes) -> Path:
    write_gz(tmp_path / "tiny", CONTENTS)
    path = tmp_path / "tiny" / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.bin.gz", gzip.compress(CONTENTS["a.bin"])[:-9], r"a.bin.gz \(\d+ bytes\) cannot be unpacked.*truncated"),
        ("a.bin.gz", gzip.compress(CONTENTS["a.bin"][:-1]), r"a.bin.gz is not the original.*4,999 bytes.*expected"),
        ("a.bin.gz", b"<!DOCTYPE html><html>404", r"a.bin.gz is no gz file.*<!DOCTYPE html.*replace it"),
        ("a.bin.gz", b"", r"a.bin.gz is no gz file"),
        ("a.bin", CONTENTS["a.bin"].replace(b"a", b"A", 1), r"a.bin is not the original"),
    ],
    ids=["truncated", "shortened", "web page", "empty", "altered"],
)
def test_wrong_files_are_refused_by_name(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    _write(tmp_path, name, data)
    with pytest.raises(DataError, match=f"(?s){message}.*original"):
        data_files.read_dataset(TINY, tmp_path, offline=True)


def test_a_flipped_bit_inside_gz_and_xz(tmp_path: Path) -> None:
    for ending, packed in ((".gz", gzip.compress(CONTENTS["a.bin"])), (".xz", lzma.compress(CONTENTS["a.bin"]))):
        flipped = bytearray(packed)
        flipped[len(flipped) // 2] ^= 4
        (tmp_path / f"a.bin{ending}").write_bytes(flipped)
        with pytest.raises(DataError, match=f"a.bin{ending}.*(unpacked|original)"):
            data_files.read_dataset(TINY, tmp_path, offline=True)
        (tmp_path / f"a.bin{ending}").unlink()


def test_wrong_archives(tmp_path: Path) -> None:
    archive = tmp_path / "tiny.tar.gz"
    tar(archive, {"a.bin": CONTENTS["a.bin"]})
    with pytest.raises(DataError, match=r"tiny.tar.gz lacks b.bin"):
        data_files.read_dataset(TINY, tmp_path, offline=True)
    tar(archive, CONTENTS | {"b.bin": b"other"})
    with pytest.raises(DataError, match=r"b.bin in .*tiny.tar.gz is not the original"):
        data_files.read_dataset(TINY, tmp_path, offline=True)
    tar(archive, CONTENTS)
    archive.write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"tiny.tar.gz \(\d+ bytes\) cannot be unpacked"):
        data_files.read_dataset(TINY, tmp_path, offline=True)
    archive.write_bytes(b"no archive at all")
    with pytest.raises(DataError, match="cannot be unpacked"):
        data_files.read_dataset(TINY, tmp_path, offline=True)


def test_members_of_a_folder_a_zip_and_a_tar_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name, data in CONTENTS.items():
        (tmp_path / "folder" / name).write_bytes(data)
    (tmp_path / "folder" / "notes.txt").write_text("not wanted")
    tar(tmp_path / "x.tar.xz", CONTENTS, "w:xz")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as bundle:
        for name, data in CONTENTS.items():
            bundle.writestr(name, data)
    for holder in ("folder", "x.tar.xz", "x.zip"):
        assert dict(data_files.members(tmp_path / holder, lambda name: name.endswith(".bin"))) == CONTENTS
    whole = (tmp_path / "x.zip").read_bytes()
    (tmp_path / "x.zip").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"x.zip .* cannot be unpacked"):
        dict(data_files.members(tmp_path / "x.zip", lambda name: True))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser reads every file")
def test_an_unreadable_file(tmp_path: Path) -> None:
    _write(tmp_path, "a.bin.gz", b"").chmod(0)
    with pytest.raises(DataError, match=r"a.bin.gz cannot be read: Permission denied"):
        data_files.read_dataset(TINY, tmp_path, offline=True)
