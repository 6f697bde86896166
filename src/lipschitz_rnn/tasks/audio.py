"""Readers for RIFF and NIST SPHERE sound files, and log-magnitude spectrograms."""

from __future__ import annotations

import hashlib
import io
import os
import re
import struct
import wave
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.tasks.base import DataError
from lipschitz_rnn.tasks.files import cache_folder, missing, search_places, stop_unless_reading
from lipschitz_rnn.tasks.sources import Recordings
from lipschitz_rnn.tasks.unpacking import members

NETWORK_RATE = 8_000  # Hz
WINDOW, HOP = 256, 128  # samples
BINS = WINDOW // 2 + 1
_HANN = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(WINDOW) / WINDOW)  # periodic, as for overlapping frames
_POWER_FLOOR = 1e-5  # the uRNN code's: −50 dB
_LARGEST_SOUND = 16 << 20  # bytes: eight minutes, while an utterance takes seconds


def read_sound(data: bytes, name: str, rate: int) -> np.ndarray:
    """int16 samples of a mono 16-bit RIFF wav or NIST SPHERE file; anything else raises and is never converted."""
    if data[:4] == b"RIFF":
        found_rate, channels, width, samples = _read_riff(data, name)
    elif data[:7] == b"NIST_1A":
        found_rate, channels, width, samples = _read_sphere(data, name)
    else:
        raise DataError(
            f"{name} is neither a RIFF wav nor a NIST SPHERE file: it begins with {data[:8]!r}; "
            "replace it by the original"
        )
    if (found_rate, channels, width) != (rate, 1, 2):
        raise DataError(
            f"{name} has {found_rate:,} Hz, {channels} channel(s), {8 * width} bits; expected {rate:,} Hz, one channel "
            f"and 16 bits. Replace it by the original, or convert it: sox in.wav -r {rate} -c 1 -b 16 out.wav"
        )
    return samples


def _read_riff(data: bytes, name: str) -> tuple[int, int, int, np.ndarray]:
    try:
        with wave.open(io.BytesIO(data)) as sound:
            frames = sound.readframes(sound.getnframes())
            expected = sound.getnframes() * sound.getnchannels() * sound.getsampwidth()
            layout = sound.getframerate(), sound.getnchannels(), sound.getsampwidth()
    except (
        wave.Error,
        EOFError,
        RuntimeError,
        ZeroDivisionError,
        struct.error,
    ) as error:  # everything that the wave module raises
        raise DataError(f"{name} is a damaged RIFF wav: {error or 'its chunks'}; replace it by the original") from error
    if len(frames) != expected:
        raise DataError(
            f"{name} is truncated: {len(frames):,} bytes of sound, its header promises {expected:,}; "
            "replace it by the original"
        )
    return *layout, np.frombuffer(frames, "<i2") if layout[2] == 2 else np.empty(0, np.int16)


def _read_sphere(data: bytes, name: str) -> tuple[int, int, int, np.ndarray]:
    """SPHERE: "NIST_1A", the header size in bytes, lines `field -type value`, end_head, then the samples."""
    try:
        size = int(data[8:16])
        lines = data[16:size].decode("ascii").split("end_head")[0].splitlines()
        fields = {key: value for key, _, value in (line.split(None, 2) for line in lines if line.strip())}
        count, channels = int(fields["sample_count"]), int(fields["channel_count"])
        rate, width = int(fields["sample_rate"]), int(fields["sample_n_bytes"])
    except (ValueError, KeyError) as error:
        raise DataError(f"{name} has a damaged SPHERE header ({error}); replace it by the original") from error
    coding = fields.get("sample_coding", "pcm").strip()
    if coding != "pcm":
        raise DataError(f"{name} is coded as {coding!r}; expected pcm. Decode it: sph2pipe -f wav in.wav out.wav")
    body = data[size:]
    expected = count * channels * width
    if len(body) != expected:
        raise DataError(
            f"{name} is truncated or altered: {len(body):,} bytes of sound, its header promises {expected:,}; "
            "replace it by the original"
        )
    order = "<i2" if fields.get("sample_byte_format", "01").strip() == "01" else ">i2"
    samples = np.frombuffer(body, order).astype(np.int16) if width == 2 else np.empty(0, np.int16)
    return rate, channels, width, samples


def collection_digest(sounds: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of names and samples, sorted by name: the same for a collection however it is packed."""
    digest = hashlib.sha256()
    for name in sorted(sounds):
        digest.update(name.encode() + b"\0" + sounds[name].astype("<i2").tobytes())
    return digest.hexdigest()


def _collect(recordings: Recordings, holder: Path) -> dict[str, np.ndarray]:
    """Utterance name -> samples, verified as a whole if the collection's digest is known."""
    pattern = re.compile(recordings.pattern, re.IGNORECASE)
    sounds: dict[str, np.ndarray] = {}
    for path, data in members(holder, lambda name: pattern.search(name) is not None, lambda name: _LARGEST_SOUND):
        match = pattern.search(path)
        if match is not None and (name := "/".join(match.groups()).lower()) not in sounds:
            sounds[name] = read_sound(data, f"{path} in {holder}", recordings.rate)
    if not sounds:
        raise DataError(
            f"{holder} holds no recordings of {recordings.title}: no path in it matches {recordings.pattern}; "
            "replace it by the original"
        )
    if recordings.digest is not None and (found := collection_digest(sounds)) != recordings.digest:
        raise DataError(
            f"{holder} does not hold the original of {recordings.title}: its {len(sounds):,} recordings have digest "
            f"{found}, expected {recordings.digest}. Some were altered, lost or added; delete it and load again to "
            "download it, or replace it by the original"
        )
    return sounds


def read_recordings(
    recordings: Recordings, root: str | os.PathLike[str] | None, offline: bool
) -> dict[str, np.ndarray]:
    """Every utterance of the collection, from disk or, if it is public and `offline` is not set, downloaded."""
    places = search_places(root, recordings.folder, recordings.aliases)
    found = (path for place in places for holder in recordings.holders for path in sorted(place.glob(holder)))
    holder = next((path for path in found if path.suffix != ".part"), None)
    if holder is not None:
        stop_unless_reading()
        # TIMIT has the folders TRAIN and TEST: TRAIN is found first, and the root is the folder above it.
        return _collect(recordings, holder.parent if recordings.download is None else holder)
    target = cache_folder() / recordings.folder
    if recordings.download is None:
        fix = (
            f"It is licensed (https://catalog.ldc.upenn.edu/LDC93S1): put the folders TRAIN and TEST of your own copy "
            f"into {target}/"
        )
        raise missing(recordings.title, "the folder TRAIN", root, recordings.folder, fix)
    if offline:
        fix = (
            f"Put {recordings.download.name} (from {recordings.download.urls[0]}) into {target}/, "
            "allow the download (no offline option)"
        )
        raise missing(recordings.title, recordings.download.name, root, recordings.folder, fix)
    stop_unless_reading()
    from lipschitz_rnn.tasks.download import fetch

    return _collect(recordings, fetch(recordings.download, target, lambda part: _collect(recordings, part)))


def _halve_rate(samples: np.ndarray) -> np.ndarray:
    try:
        from scipy.signal import resample_poly
    except ImportError as error:
        raise ImportError(
            "speech at 16 kHz is resampled with SciPy, which is not installed; install it with: pip install "
            '"lipschitz-rnn[experiments]"'
        ) from error
    return resample_poly(samples, 1, 2)


def log_spectrogram(samples: np.ndarray, rate: int) -> Tensor:
    """Frames (L, 129) in decibels: 10 log₁₀(10⁻⁵ + |X|²) of a Hann window of 256 at hop 128, at 8 kHz.

    As in the uRNN code: samples in [−1, 1), padded to whole hops, with one window of silence on each side.
    """
    signal = samples.astype(np.float64) / 32768.0
    if rate == 2 * NETWORK_RATE:
        signal = _halve_rate(signal)
    elif rate != NETWORK_RATE:
        raise ValueError(f"rate is {rate}; it must be {NETWORK_RATE} or {2 * NETWORK_RATE}")
    fill = -len(signal) % HOP
    padded = np.pad(signal, (WINDOW, fill + WINDOW))
    # NumPy, not PyTorch: thousands of short transforms gain nothing from a thread pool.
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP]
    power = np.abs(np.fft.rfft(frames * _HANN)) ** 2
    return torch.from_numpy((10.0 * np.log10(_POWER_FLOOR + power)).astype(np.float32))


def stack_frames(spectrograms: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """All frames end to end, (sum of L, 129), and the lengths L, (n,)."""
    frames = list(spectrograms)
    return torch.cat(frames), torch.tensor([len(frame) for frame in frames])
