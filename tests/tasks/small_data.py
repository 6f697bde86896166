"""Tiny data sets in the formats of the real ones, written by the tests that read them."""

import gzip
import hashlib
import io
import struct
import tarfile
import wave
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lipschitz_rnn.tasks.sources import Dataset, Download


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def dataset(contents: Mapping[str, bytes], folder: str, **options: object) -> Dataset:
    """A data set of these files; downloads point to an address that no test may reach."""
    downloads = {name: Download(f"{name}.gz", ("http://127.0.0.1:9/never",), None) for name in contents}
    sums = {name: sha256(data) for name, data in contents.items()}
    return Dataset("tiny data", folder, sums, downloads, aliases=("",), **options)  # type: ignore[arg-type]


def write_gz(folder: Path, contents: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(data, 1))


def tar(path: Path, contents: Mapping[str, bytes], mode: str = "w:gz") -> None:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def idx(values: np.ndarray) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def mnist_contents(train: int = 2_100, test: int = 30) -> dict[str, bytes]:
    generator = np.random.default_rng(0)
    contents = {}
    for part, count in (("train", train), ("t10k", test)):
        contents[f"{part}-images-idx3-ubyte"] = idx(generator.integers(0, 256, (count, 28, 28), dtype=np.uint8))
        contents[f"{part}-labels-idx1-ubyte"] = idx(generator.integers(0, 10, count, dtype=np.uint8))
    return contents


def cifar_contents(per_batch: int = 420) -> dict[str, bytes]:
    generator = np.random.default_rng(1)

    def records() -> bytes:
        values = generator.integers(0, 256, (per_batch, 3073), dtype=np.uint8)
        values[:, 0] %= 10
        return values.tobytes()

    return {name: records() for name in (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin")}


def riff(samples: np.ndarray, rate: int = 8_000, channels: int = 1, width: int = 2) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(width)
        sound.setframerate(rate)
        sound.writeframes(samples.tobytes())
    return file.getvalue()


def sphere(
    samples: np.ndarray, rate: int = 16_000, channels: int = 1, big_endian: bool = False, **fields: str
) -> bytes:
    values = {
        "sample_count": f"-i {len(samples) // channels}",
        "sample_rate": f"-i {rate}",
        "channel_count": f"-i {channels}",
        "sample_n_bytes": "-i 2",
        "sample_byte_format": "-s2 10" if big_endian else "-s2 01",
        "sample_coding": "-s3 pcm",
    } | fields
    lines = "".join(f"{key} {value}\n" for key, value in values.items() if value)
    header = f"NIST_1A\n   1024\n{lines}end_head\n".encode().ljust(1024, b" ")
    return header + samples.astype(">i2" if big_endian else "<i2").tobytes()


def noise(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3_000, 3_000, count).astype(np.int16)
