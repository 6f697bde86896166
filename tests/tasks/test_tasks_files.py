"""Data files: where they are looked for, every wrapping, and messages that help when one is missing or wrong."""

import gzip
import lzma
import os
import re
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from small_data import dataset, tar, write_gz

from lipschitz_rnn.tasks import DataError, unpacking
from lipschitz_rnn.tasks import files as data_files
from lipschitz_rnn.tasks.sources import Dataset
from lipschitz_rnn.tasks.unpacking import members

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
        with pytest.raises(DataError, match=f"{folder.name}/tiny/a.bin.gz"):
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
    assert all(part in message for part in ("a.bin.gz, b.bin.gz", "http://127.0.0.1:9/", f"{own_cache / 'tiny'}/"))
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
        ("a.bin.gz", b"<!DOCTYPE html><html>404", r"a.bin.gz is not a gz file.*<!DOCTYPE html.*replace it"),
        ("a.bin.gz", b"", r"a.bin.gz is not a gz file"),
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
    with pytest.raises(DataError, match=r"tiny.tar.gz does not contain b.bin"):
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
        assert dict(members(tmp_path / holder, lambda name: name.endswith(".bin"))) == CONTENTS
    whole = (tmp_path / "x.zip").read_bytes()
    (tmp_path / "x.zip").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"x.zip .* cannot be unpacked"):
        dict(members(tmp_path / "x.zip", lambda name: True))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser reads every file")
def test_an_unreadable_file(tmp_path: Path) -> None:
    _write(tmp_path, "a.bin.gz", b"").chmod(0)
    with pytest.raises(DataError, match=r"a.bin.gz cannot be read: Permission denied"):
        data_files.read_dataset(TINY, tmp_path, offline=True)


def peak(read: Callable[[], object]) -> int:
    """The most bytes of Python objects at any moment of a call that must raise a DataError."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"bytes.*original"):
            read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("ending", [".gz", ".xz", ""])
def test_a_small_file_does_not_become_a_large_memory(tmp_path: Path, ending: str) -> None:
    known = replace(TINY, sizes={name: len(data) for name, data in CONTENTS.items()})
    packers: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".xz": lzma.compress, "": bytes}
    _write(tmp_path, f"a.bin{ending}", packers[ending](bytes(40_000_000)))
    if ending != ".gz":
        (tmp_path / "tiny" / "a.bin.gz").unlink()
    assert (
        peak(lambda: data_files.read_dataset(known, tmp_path, offline=True)) < 12_000_000
    )  # xz has a dictionary of 8 MiB


@pytest.mark.parametrize("kind", ["tar.gz", "tar.xz", "tar.bz2", "zip"])
def test_nor_does_a_small_archive(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"x.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
            bundle.writestr("a.bin", bytes(40_000_000))
    else:
        tar(path, {"a.bin": bytes(40_000_000)}, f"w:{kind[4:]}")
    assert path.stat().st_size < 100_000
    wanted = members(path, lambda name: name == "a.bin", lambda name: 5000)
    assert peak(lambda: dict(wanted)) < 12_000_000


def test_what_an_archive_holds_beside_the_wanted_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skipped members, long headers, and the number of members."""
    monkeypatch.setattr(unpacking, "LARGEST_TOTAL", 1_000_000)
    monkeypatch.setattr(unpacking, "LARGEST_FILE", 300_000)
    path = tmp_path / "x.tar.gz"
    for contents in ({f"{number}": bytes(250_000) for number in range(6)}, {"a" * 500_000: b""}):
        tar(path, contents | CONTENTS)
        with pytest.raises(DataError, match=r"x.tar.gz holds more than 1,000,000 bytes"):
            dict(members(path, lambda name: name in CONTENTS))
    monkeypatch.setattr(unpacking, "MOST_MEMBERS", 3)
    tar(path, {str(number): b"" for number in range(5)})
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as bundle:
        for number in range(5):
            bundle.writestr(str(number), b"")
    for holder in (path, tmp_path / "x.zip"):
        with pytest.raises(DataError, match="or 3 files"):
            dict(members(holder, lambda name: name in CONTENTS))


@pytest.mark.parametrize("name", ["/a.bin", "../a.bin", "x/../../a.bin", "..\\a.bin"])
def test_members_whose_path_leads_out_of_the_archive(tmp_path: Path, name: str) -> None:
    tar(tmp_path / "x.tar.gz", {name: b"1"})
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as bundle:
        bundle.writestr(name, b"1")
    for holder in ("x.tar.gz", "x.zip"):
        with pytest.raises(DataError, match="leads out of the archive"):
            dict(members(tmp_path / holder, lambda name: name.endswith("a.bin")))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.tar.gz", "x.zip"]


def test_a_link_in_an_archive_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(CONTENTS["a.bin"])
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        with tarfile.open(tmp_path / "tiny.tar.gz", "w:gz") as archive:
            member = tarfile.TarInfo("a.bin")
            member.type, member.linkname = kind, str(tmp_path / "secret")
            archive.addfile(member)
        with pytest.raises(DataError, match=r"does not contain a\.bin"):
            data_files.read_dataset(TINY, tmp_path, offline=True)


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    write_gz(tmp_path / "tiny", {"b.bin": CONTENTS["b.bin"]})
    (tmp_path / "tiny" / "a.bin.gz").mkdir()
    with pytest.raises(DataError, match=r"tiny/a.bin.gz is not a file"):
        data_files.read_dataset(TINY, tmp_path, offline=True)


OTHERS = {
    "zip": b"PK\x03\x04" + bytes(60), "gzip": b"\x1f\x8b" + bytes(60), "xz": b"\xfd7zXZ\x00" + bytes(60),
    "bzip2": b"BZh9" + bytes(60), "png": b"\x89PNG\r\n" + bytes(60), "elf": b"\x7fELF" + bytes(60), "empty": b"",
    "pickle": b"\x80\x04" + bytes(60), "npz": b"PK\x05\x06" + bytes(18), "html": b"<!DOCTYPE html>", "nul": bytes(600),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_files_of_another_kind(tmp_path: Path, kind: str) -> None:
    for name in ("a.bin", "a.bin.gz", "a.bin.xz", "tiny.tar.gz"):
        path = tmp_path / name
        path.write_bytes(OTHERS[kind])
        with pytest.raises(DataError, match=f"(?s){re.escape(str(path))}.*original"):
            data_files.read_dataset(replace(TINY, aliases=("",)), tmp_path, offline=True)
        assert path.read_bytes() == OTHERS[kind]
        path.unlink()


Packed = tuple[Dataset, dict[str, bytes]]


@pytest.fixture
def packed(tmp_path: Path) -> Packed:
    """A data set that is kept unpacked, in an archive in the data folder."""
    contents = {"one.bin": b"1" * 5_000, "two.bin": b"2" * 6_000}
    tar(tmp_path / "all.tar.gz", {f"inside/{name}": data for name, data in contents.items()})
    sizes = {name: len(data) for name, data in contents.items()}
    return dataset(contents, "tiny", archives=("all.tar.gz",), keep_unpacked=True, sizes=sizes), contents


def test_a_large_data_set_is_unpacked_once(
    packed: Packed, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny, contents = packed
    assert data_files.read_dataset(tiny, tmp_path, offline=True) == contents
    folder = own_cache / "unpacked" / "tiny"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == contents
    monkeypatch.setattr(data_files, "members", lambda *_: pytest.fail("unpacked again"))
    assert data_files.read_dataset(tiny, tmp_path, offline=True) == contents
    (tmp_path / "all.tar.gz").unlink()
    assert data_files.read_dataset(tiny, None, offline=True) == contents
    with data_files.without_reading(), pytest.raises(data_files.NotRead):  # a dry run agrees
        data_files.read_dataset(tiny, None, offline=True)


@pytest.mark.parametrize(
    "damage", [b"", b"1" * 4_999, b"3" * 5_000, b"1" * 5_001], ids=["empty", "cut", "bits", "long"]
)
def test_what_was_kept_and_is_damaged_is_unpacked_again(
    packed: Packed, tmp_path: Path, own_cache: Path, damage: bytes
) -> None:
    tiny, contents = packed
    data_files.read_dataset(tiny, tmp_path, offline=True)
    kept = own_cache / "unpacked" / "tiny" / "one.bin"
    kept.write_bytes(damage)
    assert data_files.read_dataset(tiny, tmp_path, offline=True) == contents
    assert kept.read_bytes() == contents["one.bin"]
    kept.write_bytes(damage)
    (tmp_path / "all.tar.gz").unlink()
    with pytest.raises(DataError, match=r"one\.bin"):  # and nothing is made of what is left
        data_files.read_dataset(tiny, tmp_path, offline=True)


def test_a_cache_that_cannot_be_written_is_done_without(packed: Packed, tmp_path: Path, own_cache: Path) -> None:
    tiny, contents = packed
    own_cache.parent.mkdir(exist_ok=True)
    own_cache.write_text("a file where the cache should be")
    with pytest.warns(UserWarning, match="XDG_CACHE_HOME"):
        assert data_files.read_dataset(tiny, tmp_path, offline=True) == contents


def test_plain_files_of_the_user_are_not_copied(packed: Packed, tmp_path: Path, own_cache: Path) -> None:
    tiny, contents = packed
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    assert data_files.read_dataset(tiny, tmp_path, offline=True) == contents
    assert not (own_cache / "unpacked").exists()
