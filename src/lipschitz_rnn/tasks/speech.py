"""Speech: predict the next frame's log-magnitude spectrum from the frames so far. One pipeline, three corpora."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.tasks.audio import BINS, log_spectrogram, read_recordings, stack_frames
from lipschitz_rnn.tasks.base import (
    MSE,
    SPLITS,
    Batch,
    DataError,
    Generators,
    Split,
    TaskInfo,
    check_choice,
    check_split,
)
from lipschitz_rnn.tasks.objectives import Regression
from lipschitz_rnn.tasks.pixels import device_indices
from lipschitz_rnn.tasks.sources import FSDD, TIMIT, TIMIT_SAMPLE, Recordings

Normalisation = Literal["standard", "decibels"]


class SpeechTask(Regression):
    """The frames of all utterances of a split are concatenated; a batch is padded to its longest utterance.

    `normalisation="standard"`: every bin has mean 0 and variance 1 over the training frames. "decibels": no
    normalisation, as in the public uRNN code: values from −50 dB upwards, and an error in dB².
    """

    recordings: ClassVar[Recordings]

    def __init__(self, root: str | None, offline: bool, normalisation: Normalisation, **options: object) -> None:
        check_choice("normalisation", normalisation, ("standard", "decibels"))
        sounds = read_recordings(self.recordings, root, offline)
        names = self._split_names(sounds)
        parts = {split: self._frames(sounds, names[split]) for split in SPLITS}
        longest = max(int(lengths.max()) for _, lengths in parts.values())
        super().__init__({"normalisation": normalisation, **options}, sequence_length=longest - 1)
        self.names = names
        train = parts["train"][0]
        mean, std = train.mean(0), train.std(0).clamp_min(1e-6)
        self._frame_scale = {"scale": (1.0 / std).tolist(), "shift": (-mean / std).tolist()}
        for split, (frames, lengths) in parts.items():
            self._data[f"{split}.frames"] = (frames - mean) / std if normalisation == "standard" else frames
            self._data[f"{split}.lengths"] = lengths
            self._data[f"{split}.starts"] = lengths.cumsum(0) - lengths

    def preprocessing(self) -> dict[str, list[float]]:
        """How the frames, which are in decibels, are normalised."""
        return self._frame_scale if self.options["normalisation"] == "standard" else {}

    @abstractmethod
    def _split_names(self, sounds: Collection[str]) -> dict[Split, list[str]]:
        """The utterances of every split, in a fixed order."""

    def _frames(self, sounds: dict[str, np.ndarray], names: list[str]) -> tuple[Tensor, Tensor]:
        return stack_frames(log_spectrogram(sounds[name], self.recordings.rate) for name in names)

    def size(self, split: Split) -> int:
        return len(self._data[f"{check_split(split)}.lengths"])

    def batch(self, split: Split, indices: Tensor, generator: Generators = None) -> Batch:
        """inputs and targets (T, B, 129) with T one less than the longest utterance of the batch; lengths (B,)."""
        indices = device_indices(indices, self.device)
        frames = self._data[f"{check_split(split)}.frames"]
        lengths = self._data[f"{split}.lengths"][indices] - 1
        steps = torch.arange(int(lengths.max()) + 1, device=self.device).unsqueeze(-1)
        # Padding repeats the last frame of an utterance; the mask of the loss ignores it.
        inside = steps.minimum(lengths.unsqueeze(-2))
        sequence = frames[self._data[f"{split}.starts"][indices].unsqueeze(-2) + inside]
        return Batch(sequence[..., :-1, :, :].contiguous(), sequence[..., 1:, :, :].contiguous(), lengths)


def _info(name: str, summary: str, length: int, sizes: tuple[int, int, int], source: str, licence: str) -> TaskInfo:
    return TaskInfo(
        name=name,
        summary=summary,
        input_size=BINS,
        output_size=BINS,
        sequence_length=length,
        readout="all",
        metric=MSE,
        sizes=dict(zip(SPLITS, sizes, strict=True)),
        source=source,
        licence=licence,
    )


class SpokenDigits(SpeechTask):
    """Spoken digits of six speakers. Recordings 0–4: test (the official split); 5–9: validation; 10–49: training."""

    info = _info(
        "spoken-digits",
        "next spectral frame of spoken digits",
        145,
        (2_400, 300, 300),
        "Free Spoken Digit Dataset (Jackson et al.), 3,000 recordings",
        "CC BY-SA 4.0",
    )
    recordings = FSDD

    def __init__(
        self, root: str | None = None, *, offline: bool = False, normalisation: Normalisation = "standard"
    ) -> None:
        super().__init__(root, offline, normalisation)

    def _split_names(self, sounds: Collection[str]) -> dict[Split, list[str]]:
        def part(takes: range) -> list[str]:
            return sorted(name for name in sounds if int(name.rpartition("_")[2]) in takes)

        return {"train": part(range(10, 50)), "validation": part(range(5, 10)), "test": part(range(5))}


def _no_dialect_sentences(sounds: Collection[str]) -> list[str]:
    """Without SA1 and SA2, which every speaker reads and TIMIT's documentation excludes from training and test."""
    return sorted(name for name in sounds if not name.rpartition("/")[2].startswith("sa"))


class TimitSample(SpeechTask):
    """NLTK's free sample of TIMIT: dialect regions 1–6 for training, 7 validation, 8 test (two speakers each)."""

    info = _info(
        "timit-sample",
        "next spectral frame of read sentences, 16 speakers",
        348,
        (96, 16, 16),
        "NLTK's sample of TIMIT (LDC93S1)",
        "CC BY-NC-SA, © 1993 LDC",
    )
    recordings = TIMIT_SAMPLE

    def __init__(
        self, root: str | None = None, *, offline: bool = False, normalisation: Normalisation = "standard"
    ) -> None:
        super().__init__(root, offline, normalisation)

    def _split_names(self, sounds: Collection[str]) -> dict[Split, list[str]]:
        names = _no_dialect_sentences(sounds)

        def part(regions: str) -> list[str]:
            return [name for name in names if name[2] in regions]

        return {"train": part("123456"), "validation": part("7"), "test": part("8")}


# The 24 speakers of TIMIT's core test set (its testset.doc), and the 50 of the development set in common use.
_CORE = (
    "mdab0 mwbt0 felc0 mtas1 mwew0 fpas0 mjmp0 mlnt0 fpkt0 mlll0 mtls0 fjlm0 mbpm0 mklt0 fnlp0 mcmj0 mjdh0 fmgd0 "
    "mgrt0 mnjm0 fdhc0 mjln0 mpam0 fmld0"
)
_DEVELOPMENT = (
    "faks0 fdac1 fjem0 mgwt0 mjar0 mmdb1 mmdm2 mpdf0 fcmh0 fkms0 mbdg0 mbwm0 mcsh0 fadg0 fdms0 fedw0 mgjf0 mglb0 "
    "mrtk0 mtaa0 mtdt0 mthc0 mwjg0 fnmr0 frew0 fsem0 mbns0 mmjr0 mdls0 mdlf0 mdvc0 mers0 fmah0 fdrw0 mrcs0 mrjm4 "
    "fcal1 mmwh0 fjsj0 majc0 mjsw0 mreb0 fgjd0 fjmg0 mroa0 mteb0 mjfc0 mrjr0 fmml0 mrws1"
)
CORE_TEST_SPEAKERS = frozenset(_CORE.split())
DEVELOPMENT_SPEAKERS = frozenset(_DEVELOPMENT.split())


class Timit(SpeechTask):
    """The whole of TIMIT, from the user's licensed copy: folders TRAIN and TEST with SPHERE or RIFF files at 16 kHz.

    Training uses all 462 training speakers. `protocol="paper"`: validation on the core test set (192 utterances) and
    test on the development set (400), as they are named in the public code behind the paper's numbers.
    `protocol="standard"`: validation on the development set, test on the core test set.
    """

    info = _info(
        "timit",
        "next spectral frame of read sentences, 630 speakers (your own licensed copy)",
        489,
        (3_696, 192, 400),
        "TIMIT (LDC93S1)",
        "LDC user agreement; not downloadable",
    )
    recordings = TIMIT

    def __init__(
        self,
        root: str | None = None,
        *,
        offline: bool = False,
        normalisation: Normalisation = "standard",
        protocol: Literal["paper", "standard"] = "paper",
    ) -> None:
        check_choice("protocol", protocol, ("paper", "standard"))
        self.protocol = protocol
        super().__init__(root, offline, normalisation, protocol=protocol)

    def _split_names(self, sounds: Collection[str]) -> dict[Split, list[str]]:
        names = _no_dialect_sentences(sounds)

        def part(folder: str, speakers: Collection[str] | None = None) -> list[str]:
            return [
                name
                for name, (top, _, speaker, _) in ((name, name.split("/")) for name in names)
                if top == folder and (speakers is None or speaker in speakers)
            ]

        train = part("train")
        core, development = part("test", CORE_TEST_SPEAKERS), part("test", DEVELOPMENT_SPEAKERS)
        _check_speakers("training", train, 462)
        _check_speakers("core test", core, len(CORE_TEST_SPEAKERS))
        _check_speakers("development", development, len(DEVELOPMENT_SPEAKERS))
        validation, test = (core, development) if self.protocol == "paper" else (development, core)
        return {"train": train, "validation": validation, "test": test}


def _check_speakers(part: str, names: list[str], expected: int) -> None:
    """Every speaker of TIMIT reads eight sentences besides SA1 and SA2."""
    counts = Counter(name.split("/")[2] for name in names)
    partial = sorted(f"{speaker} ({count})" for speaker, count in counts.items() if count != 8)
    if len(counts) != expected or partial:
        detail = f"; without 8 sentences each: {', '.join(partial[:5])}" if partial else ""
        raise DataError(
            f"your copy of TIMIT has {len(counts)} speakers in the {part} part, expected {expected} with 8 sentences "
            f"each besides SA1 and SA2{detail}. Copy the folders TRAIN and TEST again from the original"
        )
