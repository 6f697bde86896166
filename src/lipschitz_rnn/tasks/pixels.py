"""Images read as sequences of pixels, kept as bytes on the device and cut into batches there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.tasks.base import ACCURACY, Batch, Generators, Split, TaskInfo, check_choice, check_split
from lipschitz_rnn.tasks.objectives import Classification


def shuffled(count: int, seed: int = 1234) -> np.ndarray:
    """The permutation that selects the validation samples, as in the paper's code (NumPy's RandomState)."""
    return np.random.RandomState(seed).permutation(count)


def split_off_validation(images: Tensor, labels: Tensor, count: int = 2_000) -> dict[Split, tuple[Tensor, Tensor]]:
    """The last `count` of the shuffled samples are for validation, the others for training."""
    order = torch.from_numpy(shuffled(len(labels)))
    train, validation = order[:-count], order[-count:]
    return {"train": (images[train], labels[train]), "validation": (images[validation], labels[validation])}


def device_indices(indices: Tensor, device: torch.device) -> Tensor:
    """Check the shape, (B,) or (S, B), and move the indices to the device of the data."""
    if indices.dim() not in (1, 2) or indices.dtype != torch.int64:
        raise ValueError(
            f"indices have shape {tuple(indices.shape)} and type {indices.dtype}; they must be int64 of shape (B,), "
            "or (S, B) for S members at once"
        )
    return indices.to(device, non_blocking=True)


class PixelTask(Classification):
    """Bytes (n, T, p) and labels (n,) per split; a batch is a gather, a transpose and one multiplication.

    Inputs are `bytes * scale`, (T, B, p). `batch` reads nothing back to the host: a CUDA graph can capture it.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        sequences: Mapping[Split, tuple[Tensor, Tensor]],
        scale: float,
    ) -> None:
        pixels = sequences["train"][0]
        super().__init__(options, sequence_length=pixels.shape[1], input_size=pixels.shape[2])
        self.scale = scale
        for split, (values, labels) in sequences.items():
            self._data[f"{split}.pixels"] = values.contiguous()
            self._data[f"{split}.labels"] = labels

    def size(self, split: Split) -> int:
        return len(self._data[f"{check_split(split)}.labels"])

    def batch(self, split: Split, indices: Tensor, generator: Generators = None) -> Batch:
        indices = device_indices(indices, self.device)
        labels = self._data[f"{check_split(split)}.labels"][indices]
        pixels = self._pixels(split, indices, generator)
        return Batch(pixels.to(torch.float32, memory_format=torch.contiguous_format) * self.scale, labels)

    def preprocessing(self) -> dict[str, Any]:
        return {"scale": self.scale, "shift": 0.0}

    def _pixels(self, split: Split, indices: Tensor, generator: Generators) -> Tensor:
        """(..., T, B, p) bytes of the samples."""
        return self._data[f"{split}.pixels"][indices].transpose(-3, -2)


class Digits(PixelTask):
    """scikit-learn's bundled 8 × 8 handwritten digits, pixel by pixel: 64 steps of one value in [0, 1].

    `steps=8` reads a row of eight pixels at each step.
    """

    info = TaskInfo(
        name="digits",
        summary="8 × 8 handwritten digits, one pixel per step; needs no download",
        input_size=1,
        output_size=10,
        sequence_length=64,
        readout="last",
        metric=ACCURACY,
        sizes={"train": 1257, "validation": 180, "test": 360},
        source="scikit-learn's copy of the UCI optical recognition of handwritten digits (test part)",
        licence="CC BY 4.0 (UCI), bundled with scikit-learn (BSD-3)",
    )

    def __init__(self, root: str | None = None, *, offline: bool = False, steps: int = 64) -> None:
        check_choice("steps", steps, (8, 64))
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise ImportError(
                'the task "digits" reads scikit-learn\'s bundled images, and scikit-learn is not installed; '
                'install it with: pip install "lipschitz-rnn[experiments]"'
            ) from error
        images, labels = load_digits(return_X_y=True)
        order = shuffled(len(labels))
        pixels = torch.from_numpy(images.astype(np.uint8)[order]).view(-1, steps, 64 // steps)
        classes = torch.from_numpy(labels.astype(np.int64)[order])
        sequences: dict[Split, tuple[Tensor, Tensor]] = {}
        start = 0
        for split in ("test", "validation", "train"):
            stop = start + (self.info.sizes[split] or 0)
            sequences[split] = pixels[start:stop], classes[start:stop]
            start = stop
        super().__init__({"steps": steps}, sequences, scale=1.0 / 16.0)
