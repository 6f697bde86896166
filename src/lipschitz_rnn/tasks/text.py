"""Penn Treebank as one long stream of characters or words, read in windows that pass on the state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.tasks.base import (
    BITS,
    PERPLEXITY,
    SPLITS,
    Batch,
    DataError,
    Generators,
    Metric,
    Split,
    TaskInfo,
    check_choice,
    check_count,
    check_split,
)
from lipschitz_rnn.tasks.files import read_dataset
from lipschitz_rnn.tasks.objectives import TokenPrediction
from lipschitz_rnn.tasks.sources import PTB, Dataset

END = "<eos>"
_FILES: dict[Split, str] = {"train": "ptb.train.txt", "validation": "ptb.valid.txt", "test": "ptb.test.txt"}


def read_words(text: str) -> list[str]:
    """Words, and the end of every line as a token."""
    return [token for line in text.splitlines() for token in (*line.split(), END)]


def read_characters(text: str) -> list[str]:
    """Characters of every stripped line, a space as "_", and the end of every line as a token."""
    return [token for line in text.splitlines() for token in (*line.strip().replace(" ", "_"), END)]


class TextTask(TokenPrediction):
    """A split is `batch` parallel streams of equal length; window k holds steps kT to (k+1)T of all of them.

    Windows are consecutive: the state after window k is the initial state of window k + 1, unless `carry` is False:
    then every window starts from zero, for units whose state grows without end. The last window may be shorter; the few
    tokens that do not fill one step of all streams are dropped.
    """

    dataset: ClassVar[Dataset] = PTB

    def __init__(
        self,
        root: str | None,
        offline: bool,
        read_tokens: Callable[[str], list[str]],
        length: int,
        train_batch: int,
        eval_batch: int,
        embedding: int,
        carry: bool,
    ) -> None:
        check_choice("carry", carry, (True, False))
        counts = {"length": length, "train_batch": train_batch, "eval_batch": eval_batch, "embedding": embedding}
        for name, value in counts.items():
            check_count(name, value)
        # A carried state leaves the record of a run as it was before this option existed.
        options: dict[str, Any] = counts if carry else {**counts, "carry": False}
        files = read_dataset(self.dataset, root, offline)
        tokens = {split: read_tokens(files[name].decode("ascii")) for split, name in _FILES.items()}
        # The most frequent token is 0, with ties in alphabetical order, so that the indices never change.
        self.tokens = sorted((count := Counter(tokens["train"])), key=lambda token: (-count[token], token))
        numbers = {token: number for number, token in enumerate(self.tokens)}
        kinds = len(self.tokens)
        super().__init__(options, sequence_length=length, input_size=embedding, vocabulary=kinds, output_size=kinds)
        for split in SPLITS:
            streams = train_batch if split == "train" else eval_batch
            unknown = set(tokens[split]) - set(numbers)
            if unknown:
                raise DataError(f"{_FILES[split]} has tokens that are not in the training text: {sorted(unknown)[:5]}")
            stream = torch.from_numpy(np.fromiter((numbers[token] for token in tokens[split]), np.int64))
            steps = len(stream) // streams
            if steps < 2:
                raise ValueError(f"a batch of {streams} is too large for the {len(stream)} tokens of {split}")
            self._data[split] = stream[: steps * streams].view(streams, steps).T.contiguous()

    @property
    def carries_state(self) -> bool:
        return bool(self.options.get("carry", True))

    @classmethod
    def shapes(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        return super().shapes(options) | {"input_size": options.get("embedding", cls.info.input_size)}

    def size(self, split: Split) -> int:
        steps = len(self._data[check_split(split)]) - 1  # the last token is only a target
        return -(-steps // self.sequence_length)

    def batch(self, split: Split, indices: Tensor, generator: Generators = None) -> Batch:
        """Window `indices` (a single number): inputs and targets (T, B) int64, the targets one step ahead."""
        if indices.numel() != 1:
            raise ValueError(
                f"indices have shape {tuple(indices.shape)}; {self.name} is read window by window, give one number"
            )
        window, windows = int(indices), self.size(split)
        if not 0 <= window < windows:
            raise IndexError(f"window {window} of {self.name}/{split}; there are {windows}, counted from 0")
        start = window * self.sequence_length
        piece = self._data[split][start : start + self.sequence_length + 1]
        return Batch(piece[:-1], piece[1:])


def _info(
    name: str, summary: str, metric: Metric, vocabulary: int, length: int, sizes: tuple[int, int, int]
) -> TaskInfo:
    return TaskInfo(
        name=name,
        summary=summary,
        input_size=200,
        output_size=vocabulary,
        sequence_length=length,
        readout="all",
        metric=metric,
        sizes=dict(zip(SPLITS, sizes, strict=True)),
        source="Penn Treebank language-model text, Mikolov's preprocessing",
        licence="text © LDC: use it, never redistribute it",
        vocabulary=vocabulary,
        stateful=True,
    )


class PtbCharacters(TextTask):
    """Penn Treebank character by character; bits per character. The paper has windows of 150 and of 300 steps."""

    info = _info("ptb-char", "Penn Treebank, the next character; windows of 150 or 300", BITS, 50, 150, (262, 263, 295))

    def __init__(
        self,
        root: str | None = None,
        *,
        offline: bool = False,
        length: int = 150,
        train_batch: int = 128,
        eval_batch: int = 10,
        embedding: int = 200,
        carry: bool = True,
    ) -> None:
        super().__init__(root, offline, read_characters, length, train_batch, eval_batch, embedding, carry)


class PtbWords(TextTask):
    """Penn Treebank word by word; perplexity. The paper has windows of 300 steps."""

    info = _info("ptb-word", "Penn Treebank, the next word; windows of 300", PERPLEXITY, 10_000, 300, (25, 25, 28))

    def __init__(
        self,
        root: str | None = None,
        *,
        offline: bool = False,
        length: int = 300,
        train_batch: int = 128,
        eval_batch: int = 10,
        embedding: int = 200,
        carry: bool = True,
    ) -> None:
        super().__init__(root, offline, read_words, length, train_batch, eval_batch, embedding, carry)
