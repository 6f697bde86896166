"""CIFAR-10 as sequences: one RGB pixel per step, or one image row per step followed by noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lipschitz_rnn.tasks.base import (
    ACCURACY,
    Batch,
    DataError,
    Generators,
    Split,
    TaskInfo,
    check_choice,
    check_split,
    member_generators,
)
from lipschitz_rnn.tasks.counting import sample_keys, standard_normal
from lipschitz_rnn.tasks.files import read_dataset
from lipschitz_rnn.tasks.objectives import Classification
from lipschitz_rnn.tasks.pixels import device_indices, split_off_validation
from lipschitz_rnn.tasks.sources import CIFAR10, Dataset

MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2023, 0.1994, 0.2010)
_RECORD = 1 + 3 * 32 * 32
_PADDING = 4
Augment = bool | Literal["flip"]


def read_records(data: bytes, name: str) -> tuple[Tensor, Tensor]:
    """Images (n, 3, 32, 32) uint8 and labels (n,) of a binary batch: a label byte, then the R, G and B planes."""
    if not data or len(data) % _RECORD:
        raise DataError(f"{name} has {len(data):,} bytes, not a multiple of {_RECORD}; replace it by the original")
    records = np.frombuffer(data, np.uint8).reshape(-1, _RECORD)
    images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy())
    return images, torch.from_numpy(records[:, 0].astype(np.int64))


def crop_and_flip(images: Tensor, draws: Tensor) -> Tensor:
    """Random crops of the images padded by 4 black pixels, half of them mirrored.

    images: (n, 3, 32, 32); draws: (n, 3) int64 with the row and column of the crop in 0..8 and the flip in 0..1.
    """
    padded = F.pad(images, (_PADDING,) * 4)
    offsets, flip = draws[:, :2].to(images.device), draws[:, 2].to(images.device)
    steps = torch.arange(32, device=images.device)
    rows = offsets[:, :1] + steps
    columns = offsets[:, 1:] + torch.where(flip[:, None] == 1, 31 - steps, steps)
    sample = torch.arange(len(images), device=images.device)[:, None, None, None]
    channel = torch.arange(3, device=images.device)[:, None, None]
    return padded[sample, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _draw_crops(generator: torch.Generator, count: int, augment: Augment = True) -> Tensor:
    """The draws for `crop_and_flip`; with "flip" every crop is the whole image."""
    device = generator.device
    if augment == "flip":
        offsets = torch.full((count, 2), _PADDING, device=device)
    else:
        offsets = torch.randint(2 * _PADDING + 1, (count, 2), generator=generator, device=device)
    flips = torch.randint(2, (count, 1), generator=generator, device=device)
    return torch.cat([offsets, flips], 1)


class CifarTask(Classification):
    """Reads CIFAR-10 and normalises the images; subclasses turn them into sequences."""

    dataset: ClassVar[Dataset] = CIFAR10

    def __init__(self, root: str | None, offline: bool, options: Mapping[str, Any], augment: Augment) -> None:
        check_choice("augment", augment, (True, False, "flip"))
        super().__init__(options)
        self.augment = augment
        files = read_dataset(self.dataset, root, offline)
        parts = [read_records(files[f"data_batch_{number}.bin"], f"data_batch_{number}.bin") for number in range(1, 6)]
        splits = split_off_validation(torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]))
        splits["test"] = read_records(files["test_batch.bin"], "test_batch.bin")
        for split, (images, labels) in splits.items():
            self._data[f"{split}.images"] = images
            self._data[f"{split}.labels"] = labels
        # (x / 255 − mean) / std as one multiplication and one addition
        mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
        self._data["scale"], self._data["shift"] = 1.0 / (255.0 * std), -mean / std

    def size(self, split: Split) -> int:
        return len(self._data[f"{check_split(split)}.labels"])

    def preprocessing(self) -> dict[str, Any]:
        return {name: self._data[name].flatten().tolist() for name in ("scale", "shift")}

    def _images(self, split: Split, indices: Tensor, generator: Generators) -> Tensor:
        """(..., B, 3, 32, 32) normalised; augmented when training with a generator."""
        images = self._data[f"{split}.images"][indices]
        if self.augment and split == "train" and generator is not None:
            drawn = [_draw_crops(own, indices.shape[-1], self.augment) for own in member_generators(generator, indices)]
            images = crop_and_flip(images.flatten(0, -4), torch.cat(drawn)).view(images.shape)
        return images * self._data["scale"] + self._data["shift"]


def _info(name: str, summary: str, input_size: int, sequence_length: int) -> TaskInfo:
    return TaskInfo(
        name=name,
        summary=summary,
        input_size=input_size,
        output_size=10,
        sequence_length=sequence_length,
        readout="last",
        metric=ACCURACY,
        sizes={"train": 48_000, "validation": 2_000, "test": 10_000},
        source="CIFAR-10 (Krizhevsky), binary version",
        licence="none stated by its authors",
    )


class OrderedCifar10(CifarTask):
    """1,024 steps of one normalised RGB pixel, scanline order.

    `layout="planes"` reads the three planes one after the other, three neighbours per step, as in the authors' code.
    `augment`: random crops (padding 4) and flips in training only, or "flip" for flips alone.
    """

    info = _info("ordered-cifar10", "CIFAR-10 pixel by pixel, RGB per step", 3, 1024)

    def __init__(
        self,
        root: str | None = None,
        *,
        offline: bool = False,
        layout: Literal["rgb", "planes"] = "rgb",
        augment: Augment = True,
    ) -> None:
        check_choice("layout", layout, ("rgb", "planes"))
        super().__init__(root, offline, {"layout": layout, "augment": augment}, augment)
        self.layout = layout

    def batch(self, split: Split, indices: Tensor, generator: Generators = None) -> Batch:
        indices = device_indices(indices, self.device)
        images = self._images(check_split(split), indices, generator)
        pixels = images.movedim(-3, -1) if self.layout == "rgb" else images
        inputs = pixels.reshape(*indices.shape, 1024, 3).transpose(-3, -2).contiguous()
        return Batch(inputs, self._data[f"{split}.labels"][indices])


class NoisePaddedCifar10(CifarTask):
    """32 steps of one image row (96 values: its R, G and B), then 968 steps of Gaussian noise; the class at step 1,000.

    `noise="independent"`: every sample has its own noise; in training (with a generator) it is drawn each time,
    otherwise it depends on the sample's index. `noise="fixed"`: one tensor for all samples, as in public code.
    `augment`: as for ordered CIFAR-10, but off by default.
    """

    info = _info("noise-padded-cifar10", "CIFAR-10 row by row, then 968 steps of noise", 96, 1000)

    def __init__(
        self,
        root: str | None = None,
        *,
        offline: bool = False,
        noise: Literal["independent", "fixed"] = "independent",
        augment: Augment = False,
    ) -> None:
        check_choice("noise", noise, ("independent", "fixed"))
        super().__init__(root, offline, {"noise": noise, "augment": augment}, augment)
        self.noise = noise
        if noise == "fixed":
            self._data["noise"] = torch.randn(968, 1, 96, generator=torch.Generator().manual_seed(0))

    def batch(self, split: Split, indices: Tensor, generator: Generators = None) -> Batch:
        indices = device_indices(indices, self.device)
        rows = self._images(check_split(split), indices, generator).transpose(-3, -2).flatten(-2)
        inputs = rows.new_empty(*indices.shape[:-1], 1000, indices.shape[-1], 96)
        inputs[..., :32, :, :] = rows.transpose(-3, -2)
        self._fill_noise(inputs[..., 32:, :, :], split, indices, generator)
        return Batch(inputs, self._data[f"{split}.labels"][indices])

    def _fill_noise(self, target: Tensor, split: Split, indices: Tensor, generator: Generators) -> None:
        """Write the noise into `target`, (..., 968, B, 96)."""
        if self.noise == "fixed":
            target.copy_(self._data["noise"].expand_as(target))
        elif split == "train" and generator is not None:
            members = target if target.dim() == 4 else target.unsqueeze(0)
            for member, own in zip(members, member_generators(generator, indices), strict=True):
                if own.device.type == member.device.type:
                    member.normal_(generator=own)
                else:
                    member.copy_(torch.randn(member.shape, generator=own, device=own.device))
        else:
            values = standard_normal(sample_keys(indices, 0, split), 968 * 96)
            target.copy_(values.unflatten(-1, (968, 96)).transpose(-3, -2))
