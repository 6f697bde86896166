"""Speech: sound files of two formats, the spectrogram, the splits, and what is refused."""

import re
import sys
import threading
import zipfile
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from small_data import noise, riff, sphere, tar
from typer.testing import CliRunner

from lipschitz_rnn import tasks
from lipschitz_rnn.cli import app
from lipschitz_rnn.tasks import DataError
from lipschitz_rnn.tasks.audio import collection_digest, log_spectrogram, read_sound
from lipschitz_rnn.tasks.sources import FSDD, Download
from lipschitz_rnn.tasks.speech import CORE_TEST_SPEAKERS, DEVELOPMENT_SPEAKERS, SpokenDigits, Timit

SPLITS = ("train", "validation", "test")


def test_riff_and_both_byte_orders_of_sphere_give_the_same_samples() -> None:
    samples = noise(999)
    for data in (riff(samples, 16_000), sphere(samples), sphere(samples, big_endian=True)):
        assert np.array_equal(read_sound(data, "x.wav", 16_000), samples)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (riff(noise(500), 44_100), r"x.wav has 44,100 Hz, 1 channel\(s\), 16 bits; expected 8,000 Hz.*sox"),
        (riff(noise(500), channels=2), r"x.wav has 8,000 Hz, 2 channel\(s\)"),
        (riff(noise(500), width=1), r"x.wav has 8,000 Hz, 1 channel\(s\), 8 bits"),
        (riff(noise(500))[:-100], r"x.wav is truncated: 900 bytes of sound, its header promises 1,000"),
        (riff(noise(500))[:30], r"x.wav is a damaged RIFF wav"),
        (sphere(noise(500), 16_000), r"x.wav has 16,000 Hz"),
        (sphere(noise(500), 8_000, channels=2), r"x.wav has 8,000 Hz, 2 channel\(s\)"),
        (sphere(noise(500), 8_000)[:-2], r"x.wav is truncated or altered: 998 bytes"),
        (sphere(noise(500), 8_000, sample_coding="-s26 pcm,embedded-shorten-v2.00"), r"shorten.*sph2pipe"),
        (sphere(noise(500), 8_000, sample_rate=""), r"x.wav has a damaged SPHERE header \('sample_rate'\)"),
        (b"ID3\x04 an mp3", r"x.wav is neither a RIFF wav nor a NIST SPHERE file"),
        (b"", r"x.wav is neither"),
    ],
    ids=["rate", "stereo", "8 bit", "truncated", "header cut", "sphere rate", "sphere stereo", "sphere truncated",
         "shorten", "sphere header", "mp3", "empty"],
)  # fmt: skip
def test_wrong_sound_files_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"(?s){message}"):
        read_sound(data, "x.wav", 8_000)


@pytest.mark.parametrize("count", [1_000, 1_024, 5_001])
def test_spectrogram_against_scipy(count: int) -> None:
    from scipy.signal import stft

    samples = noise(count)
    result = log_spectrogram(samples, 8_000)
    hops = -(-count // 128)
    assert result.shape == (hops + 3, 129)
    padded = np.zeros(512 + hops * 128)
    padded[256 : 256 + count] = samples / 32768.0
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(256) / 256)
    _, _, transform = stft(padded, window=window, nperseg=256, noverlap=128, boundary=None, padded=False)
    power = np.abs(transform.T * window.sum()) ** 2  # scipy divides by the window's sum
    expected = torch.from_numpy(10 * np.log10(1e-5 + power))
    torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(result[0], torch.full((129,), -50.0))  # a window of silence in front


def test_a_tone_lands_in_its_bin_after_resampling() -> None:
    time = np.arange(16_000) / 16_000
    tone = (8_000 * np.sin(2 * np.pi * 1_000 * time)).astype(np.int16)
    frames = log_spectrogram(tone, 16_000)
    assert len(frames) == 63 + 3
    assert (frames[5:60].argmax(1) == 32).all()  # 1,000 Hz in steps of 31.25 Hz
    with pytest.raises(ValueError, match="rate is 44100"):
        log_spectrogram(tone, 44_100)


@pytest.fixture
def digits(monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """12 takes of two digits by one speaker."""
    sounds = {f"{d}_ann_{take}": noise(400 + 100 * take, 10 * d + take) for d in range(2) for take in range(12)}
    monkeypatch.setattr(SpokenDigits, "recordings", replace(FSDD, digest=collection_digest(sounds)))
    return sounds


def _write_digits(folder: Path, sounds: dict[str, np.ndarray], wrapping: str) -> Path:
    files = {f"recordings/{name}.wav": riff(samples) for name, samples in sounds.items()}
    folder.mkdir(parents=True)
    if wrapping == "folder":
        (folder / "recordings").mkdir()
        for name, data in files.items():
            (folder / name).write_bytes(data)
    elif wrapping == "zip":
        with zipfile.ZipFile(folder / "master.zip", "w") as bundle:
            for name, data in files.items():
                bundle.writestr(f"free-spoken-digit-dataset-master/{name}", data)
    else:
        tar(folder / "fsdd.tar.xz", files, "w:xz")
    return folder.parent


@pytest.mark.parametrize("wrapping", ["folder", "zip", "tar.xz"])
def test_spoken_digits(tmp_path: Path, digits: dict[str, np.ndarray], wrapping: str) -> None:
    root = _write_digits(tmp_path / "fsdd", digits, wrapping)
    task = tasks.load("spoken-digits", root, offline=True, normalisation="decibels")
    assert {split: task.size(split) for split in SPLITS} == {"train": 4, "validation": 10, "test": 10}
    assert task.names["test"] == [f"{d}_ann_{take}" for d in range(2) for take in range(5)]  # type: ignore[attr-defined]
    batch = task.batch("train", torch.tensor([3, 0]))
    frames = [log_spectrogram(digits[name], 8_000) for name in ("1_ann_11", "0_ann_10")]
    assert batch.lengths is not None
    assert batch.lengths.tolist() == [len(frame) - 1 for frame in frames]
    assert batch.inputs.shape == batch.targets.shape == (len(frames[0]) - 1, 2, 129)
    for member, frame in enumerate(frames):
        length = len(frame) - 1
        assert torch.equal(batch.inputs[:length, member], frame[:-1])
        assert torch.equal(batch.targets[:length, member], frame[1:])
    assert task.sequence_length == len(frames[0]) - 1


def test_standard_normalisation_and_members(tmp_path: Path, digits: dict[str, np.ndarray]) -> None:
    task = tasks.load("spoken-digits", _write_digits(tmp_path / "fsdd", digits, "folder"), offline=True)
    frames = task._data["train.frames"]
    torch.testing.assert_close(frames.mean(0), torch.zeros(129), rtol=0, atol=1e-4)
    torch.testing.assert_close(frames.std(0), torch.ones(129), rtol=1e-3, atol=0)
    indices = torch.tensor([[0, 3], [2, 0]])
    together = task.batch("train", indices)
    outputs = torch.randn(together.targets.shape, generator=torch.Generator().manual_seed(0))
    losses = task.loss(outputs, together)
    for member in range(2):
        alone = task.batch("train", indices[member])
        steps = len(alone.inputs)
        torch.testing.assert_close(losses[member], task.loss(outputs[member, :steps], alone))
    assert task.measure(outputs, together)[1].tolist() == together.lengths.sum(-1).tolist()  # type: ignore[union-attr]


def test_an_altered_or_lost_recording(tmp_path: Path, digits: dict[str, np.ndarray]) -> None:
    root = _write_digits(tmp_path / "fsdd", digits, "folder")
    victim = root / "fsdd" / "recordings" / "0_ann_3.wav"
    whole = bytearray(victim.read_bytes())
    whole[-5] ^= 1
    victim.write_bytes(whole)
    with pytest.raises(DataError, match=r"fsdd/recordings.*24 recordings"):
        tasks.load("spoken-digits", root, offline=True)
    victim.unlink()
    with pytest.raises(DataError, match="its 23 recordings have digest"):
        tasks.load("spoken-digits", root, offline=True)
    for path in victim.parent.iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"fsdd/recordings"):
        tasks.load("spoken-digits", root, offline=True)
    victim.write_bytes(riff(noise(500), 44_100))
    with pytest.raises(DataError, match=r"0_ann_3.wav in .*recordings has 44,100 Hz"):
        tasks.load("spoken-digits", root, offline=True)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Quiet."""


def test_a_download_is_known_by_its_recordings(
    tmp_path: Path, own_cache: Path, digits: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive has no checksum of its own: the first mirror's holds an altered recording and is left."""
    altered = digits | {"0_ann_0": digits["0_ann_0"] + np.int16(1)}
    for mirror, sounds in (("altered", altered), ("good", digits)):
        tar(tmp_path / f"{mirror}.tar.gz", {f"x/recordings/{name}.wav": riff(sounds[name]) for name in sounds})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        urls = tuple(f"http://127.0.0.1:{server.server_port}/{mirror}.tar.gz" for mirror in ("altered", "good"))
        archive = Download("free-spoken-digit-dataset.tar.gz", urls, None)
        monkeypatch.setattr(SpokenDigits, "recordings", replace(SpokenDigits.recordings, download=archive))
        assert tasks.load("spoken-digits").size("test") == 10
        server.shutdown()
        thread.join()
    assert (own_cache / "fsdd" / archive.name).read_bytes() == (tmp_path / "good.tar.gz").read_bytes()
    assert tasks.load("spoken-digits", offline=True).size("test") == 10  # from the cache


def test_resampling_names_the_extra_when_scipy_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.signal", None)
    with pytest.raises(ImportError, match=r'pip install "lipschitz-rnn\[experiments\]"'):
        log_spectrogram(noise(1_000), 16_000)
    assert len(log_spectrogram(noise(1_000), 8_000)) == 11  # what needs no resampling needs no SciPy


@pytest.mark.parametrize("name", ["spoken-digits", "timit-sample", "timit"])
def test_missing_speech_says_what_to_put_where(name: str, own_cache: Path) -> None:
    with pytest.raises(DataError) as caught:
        tasks.load(name, offline=True)
    message = str(caught.value)
    expected = {"spoken-digits": "v1.0.10.tar.gz", "timit-sample": "timit.zip", "timit": "folders TRAIN and TEST"}
    assert expected[name] in message
    assert str(own_cache / tasks.find(name).recordings.folder) in message  # type: ignore[attr-defined]


def _speaker(number: int) -> str:
    letters = "abcdefghij"
    return f"m{letters[number // 100]}{letters[number // 10 % 10]}{letters[number % 10]}0"


def _write_timit(root: Path, upper: bool = True) -> None:
    """A corpus of the right shape: 462 + 24 + 50 speakers, tiny recordings, SPHERE in TRAIN and RIFF in TEST."""
    tiny = noise(300)
    sentences = ("sa1", "sa2", *(f"si{n}" for n in range(3)), *(f"sx{n}" for n in range(5)))
    train = [("train", _speaker(number)) for number in range(462)]
    test = [("test", speaker) for speaker in sorted(CORE_TEST_SPEAKERS | DEVELOPMENT_SPEAKERS)]
    for part, speaker in train + test:
        path = f"{part}/dr1/{speaker}"
        folder = root / (path.upper() if upper else path)
        folder.mkdir(parents=True)
        for sentence in sentences:
            name = f"{sentence}.wav"
            data = sphere(tiny) if part == "train" else riff(tiny, 16_000)
            (folder / (name.upper() if upper else name)).write_bytes(data)


def test_the_speaker_lists_are_the_known_ones() -> None:
    assert len(CORE_TEST_SPEAKERS) == 24
    assert len(DEVELOPMENT_SPEAKERS) == 50
    assert not CORE_TEST_SPEAKERS & DEVELOPMENT_SPEAKERS
    assert sum(name[0] == "f" for name in CORE_TEST_SPEAKERS) == 8  # two men and one woman of each of 8 regions


@pytest.mark.slow
def test_timit_from_a_copy_of_ones_own(tmp_path: Path) -> None:
    _write_timit(tmp_path / "TIMIT")
    task = tasks.load("timit", tmp_path, offline=True)
    assert {split: task.size(split) for split in SPLITS} == {"train": 3_696, "validation": 192, "test": 400}
    assert task.describe()["sizes"] == tasks.info("timit").sizes
    speakers = {name.split("/")[2] for name in task.names["validation"]}  # type: ignore[attr-defined]
    assert speakers == CORE_TEST_SPEAKERS
    assert not any("/sa" in name for names in task.names.values() for name in names)  # type: ignore[attr-defined]
    task.protocol = "standard"  # type: ignore[attr-defined]
    swapped = task._split_names([name for names in task.names.values() for name in names])  # type: ignore[attr-defined]
    assert {split: len(names) for split, names in swapped.items()} == {"train": 3_696, "validation": 400, "test": 192}


@pytest.mark.full
def test_the_study_runs_on_a_copy_of_ones_own(tmp_path: Path) -> None:
    """From sound files to the page, by the command that the page names."""
    _write_timit(tmp_path / "TIMIT")
    chosen = ["--only", "timit/lipschitz/256/euler", "--only", "timit/lstm", "--epochs", "1", "--seeds", "0"]
    places = ["--data-dir", str(tmp_path), "--offline", "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["reproduce", "speech", *chosen, *places])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "out" / "speech.md").read_text()
    for unit in ("Lipschitz RNN, Euler", "lstm (1997)"):
        assert re.search(rf"{re.escape(unit)}.* 1 \| 1 \| [\d.]+ \| [\d.]+ \| ", page)  # epochs, seeds, best, mean
    assert (tmp_path / "out" / "figures" / "speech-timit.svg").exists()


def test_an_incomplete_copy_of_timit(tmp_path: Path) -> None:
    sentences = ("sa1", *(f"si{n}" for n in range(3)), *(f"sx{n}" for n in range(5)))

    def parts(train: int, core: frozenset[str]) -> list[str]:
        folders = [f"train/dr1/{_speaker(number)}" for number in range(train)]
        folders += [f"test/dr1/{speaker}" for speaker in core | DEVELOPMENT_SPEAKERS]
        return [f"{folder}/{sentence}" for folder in folders for sentence in sentences]

    task = object.__new__(Timit)
    task.protocol = "paper"
    assert len(task._split_names(parts(462, CORE_TEST_SPEAKERS))["test"]) == 400
    with pytest.raises(DataError, match=r"461.*462"):
        task._split_names(parts(461, CORE_TEST_SPEAKERS))
    with pytest.raises(DataError, match=r"23.*24"):
        task._split_names(parts(462, CORE_TEST_SPEAKERS - {"felc0"}))
    with pytest.raises(DataError, match=r"felc0 \(7\)"):
        task._split_names([name for name in parts(462, CORE_TEST_SPEAKERS) if name != "test/dr1/felc0/sx0"])
    with pytest.raises(ValueError, match=r"'kaldi'.*'paper', 'standard'"):
        tasks.load("timit", tmp_path, protocol="kaldi")
