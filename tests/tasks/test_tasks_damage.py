"""Whatever happens to a file, it is read as it was or refused with a DataError: no other exception, no other bytes."""

import gzip
import lzma
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_data import dataset, noise, riff, sphere, tar

from lipschitz_rnn.tasks import DataError
from lipschitz_rnn.tasks.audio import read_sound
from lipschitz_rnn.tasks.files import read_dataset
from lipschitz_rnn.tasks.unpacking import members

CONTENT = bytes(range(256)) * 40
TINY = dataset({"a.bin": CONTENT}, "tiny", archives=("tiny.tar.gz",))
SOUND = noise(400)
DAMAGE = st.tuples(st.sampled_from(["flip", "cut", "insert"]), st.floats(0, 1), st.integers(0, 255))
QUICK = settings(max_examples=60, deadline=None, derandomize=True)


def damaged(data: bytes, damage: tuple[str, float, int]) -> bytes:
    kind, place, value = damage
    position = int(place * (len(data) - 1))
    if kind == "cut":
        return data[:position]
    middle = bytes((data[position] ^ (value or 1),)) if kind == "flip" else bytes((value, data[position]))
    return data[:position] + middle + data[position + 1 :]


Result = TypeVar("Result")


def read_or_refused(read: Callable[[], Result]) -> tuple[Result | None, str]:
    """What was read, or the message of the DataError; every other exception is a failure."""
    try:
        return read(), ""
    except DataError as error:
        return None, str(error)


@QUICK
@given(wrapping=st.sampled_from(["", ".gz", ".xz", "tiny.tar.gz"]), damage=DAMAGE)
def test_data_files(wrapping: str, damage: tuple[str, float, int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / (wrapping if wrapping.startswith("tiny") else f"a.bin{wrapping}")
        if wrapping.startswith("tiny"):
            tar(path, {"x/a.bin": CONTENT})
        else:
            path.write_bytes({"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[wrapping](CONTENT))
        path.write_bytes(damaged(path.read_bytes(), damage))
        found, message = read_or_refused(lambda: read_dataset(TINY, folder, offline=True))
    assert found == {"a.bin": CONTENT} or path.name in message


@QUICK
@given(damage=DAMAGE)
def test_zip_archives(damage: tuple[str, float, int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
            bundle.writestr("a.bin", CONTENT)
        path.write_bytes(damaged(path.read_bytes(), damage))
        found, message = read_or_refused(lambda: dict(members(path, lambda name: name == "a.bin")))
    # A damaged name hides the member, which the caller notices.
    assert found in ({}, {"a.bin": CONTENT}) or "x.zip" in message


@QUICK
@given(source=st.sampled_from([riff(SOUND), sphere(SOUND, 8_000)]), damage=DAMAGE, head=st.booleans())
def test_sound_files(source: bytes, damage: tuple[str, float, int], head: bool) -> None:
    """Samples carry no checksum of their own (the collection does); the container must be sound."""
    if head:  # most of the file is samples; aim at the header half of the time
        header = 44 if source[:4] == b"RIFF" else 200
        data = damaged(source[:header], damage) + source[header:]
    else:
        data = damaged(source, damage)
    samples, message = read_or_refused(lambda: read_sound(data, "x.wav", 8_000))
    assert "x.wav" in message or (samples is not None and samples.dtype == np.int16 and samples.ndim == 1)


@pytest.mark.parametrize("source", [riff(SOUND), sphere(SOUND, 8_000)], ids=["riff", "sphere"])
def test_every_byte_of_the_header(source: bytes) -> None:
    for position in range(44 if source[:4] == b"RIFF" else 220):
        for value in (0x00, 0x20, 0xFF):
            data = source[:position] + bytes((value,)) + source[position + 1 :]
            samples, message = read_or_refused(lambda data=data: read_sound(data, "x.wav", 8_000))
            assert "x.wav" in message or (samples is not None and samples.ndim == 1)
