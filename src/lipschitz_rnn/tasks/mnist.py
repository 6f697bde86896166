"""MNIST as sequences: pixel by pixel in scanline or permuted order, and in rows of eight."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lipschitz_rnn.tasks.base import (
    ACCURACY,
    DataError,
    Generators,
    Split,
    TaskInfo,
    check_choice,
    check_count,
    member_generators,
)
from lipschitz_rnn.tasks.distortion import SIDE, check_strength, distorted, draw_maps, farthest
from lipschitz_rnn.tasks.files import read_dataset
from lipschitz_rnn.tasks.pixels import PixelTask, split_off_validation
from lipschitz_rnn.tasks.sources import MNIST, Dataset


def read_idx(data: bytes, name: str, dimensions: int) -> np.ndarray:
    """An idx file of bytes: magic 0, 0, 8, number of dimensions; the sizes, big-endian; the values."""
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes((0, 0, 8, dimensions)):
        raise DataError(
            f"{name} is not an idx file of bytes in {dimensions} dimensions: it begins with {data[:4]!r}, expected "
            f"{bytes((0, 0, 8, dimensions))!r}; replace it by the original"
        )
    shape = struct.unpack(f">{dimensions}I", data[4:header])
    values = np.frombuffer(data, np.uint8, offset=header)
    if values.size != math.prod(shape):
        raise DataError(f"{name} holds {values.size:,} values, its header promises {shape}; replace it by the original")
    return values.reshape(shape).copy()  # a writable copy, as torch.from_numpy needs


def _draw_moves(generator: torch.Generator, count: int, shift: int) -> Tensor:
    """(count, 2): by how many pixels each image moves down and right, in -shift..shift."""
    return torch.randint(-shift, shift + 1, (count, 2), generator=generator, device=generator.device)


def _in_order(images: Tensor, steps: int, order: Tensor | None) -> Tensor:
    """(..., 28, 28) as (..., T, p)."""
    flat = images.flatten(-2)
    return (flat if order is None else flat[..., order]).unflatten(-1, (steps, 784 // steps))


class MnistTask(PixelTask):
    """Reads MNIST, keeps the last 2,000 of the shuffled training images for validation, and orders the pixels.

    `shift`: in training with a generator, every image is shifted by up to this number of whole pixels in each
    direction, with black outside, before its pixels are ordered. Validation and test images are not shifted.

    `distort`, 0 to 2: in training with a generator, every image is also rotated by up to ±15° · distort, stretched
    along each axis by 1 ± 0.15 · distort and sheared by up to ±0.15 · distort about its centre (see `distortion`), each
    drawn uniformly, and then shifted by `shift`.
    """

    dataset: ClassVar[Dataset] = MNIST

    def __init__(
        self,
        root: str | None,
        offline: bool,
        options: Mapping[str, Any],
        shift: int,
        distort: float,
        steps: int = 784,
        order: Tensor | None = None,
        scale: float = 1.0 / 255.0,
    ) -> None:
        check_count("shift", shift, 0, SIDE - 1)
        check_strength("distort", distort)
        files = read_dataset(self.dataset, root, offline)

        def images(part: str) -> Tensor:
            return torch.from_numpy(read_idx(files[f"{part}-images-idx3-ubyte"], f"{part}-images", 3))

        def labels(part: str) -> Tensor:
            return torch.from_numpy(read_idx(files[f"{part}-labels-idx1-ubyte"], f"{part}-labels", 1)).long()

        splits = split_off_validation(images("train"), labels("train"))
        splits["test"] = images("t10k"), labels("t10k")
        sequences = {split: (_in_order(values, steps, order), classes) for split, (values, classes) in splits.items()}
        # Without shifts, the description is the same as before the option existed: stored runs stay comparable.
        changes = {name: value for name, value in (("shift", shift), ("distort", distort)) if value}
        super().__init__({**options, **changes}, sequences, scale)
        self.shift, self.distort = shift, distort
        if distort:
            # Training images take the place of the ordered ones: what is drawn between pixels has to be ordered anew.
            self._data["train.images"] = splits["train"][0]
            self._data["train.farthest"] = farthest(distort)
            if order is not None:
                self._data["train.order"] = order
            del self._data["train.pixels"]
        elif shift:
            # Training images with a black margin take the place of the ordered ones: wherever an image is moved to, its
            # pixels lie at the same distances from each other, and one gather reads all of them.
            self._width = SIDE + 2 * shift
            place = torch.arange(shift, shift + SIDE)
            self._data["train.places"] = _in_order(place[:, None] * self._width + place, steps, order)[:, None]
            self._data["train.padded"] = F.pad(splits["train"][0], (shift,) * 4).flatten()
            del self._data["train.pixels"]

    def _pixels(self, split: Split, indices: Tensor, generator: Generators) -> Tensor:
        if split == "train" and self.distort:
            return self._distorted(indices, generator)
        if split == "train" and self.shift:
            return self._moved(indices, generator)
        return super()._pixels(split, indices, generator)

    def _moved(self, indices: Tensor, generator: Generators) -> Tensor:
        first = indices * self._width**2
        if generator is not None:
            down, right = self._moves(indices, generator).view(*indices.shape, 2).unbind(-1)
            first = first - (down * self._width + right)  # an image that moves down is read from further up
        return self._data["train.padded"][first[..., None, :, None] + self._data["train.places"]]

    def _distorted(self, indices: Tensor, generator: Generators) -> Tensor:
        images = self._data["train.images"][indices]
        if generator is not None:
            moves = self._moves(indices, generator) if self.shift else None
            drawn = [draw_maps(own, indices.shape[-1]) for own in member_generators(generator, indices)]
            maps = torch.cat(drawn).to(self.device) * self._data["train.farthest"]
            images = distorted(images.flatten(0, -3), maps, moves).view(images.shape)
        return _in_order(images, self.sequence_length, self._data.get("train.order")).transpose(-3, -2).contiguous()

    def _moves(self, indices: Tensor, generator: Generators) -> Tensor:
        """(n, 2) for all n images of all members."""
        drawn = [_draw_moves(own, indices.shape[-1], self.shift) for own in member_generators(generator, indices)]
        return torch.cat(drawn).to(self.device)


def _info(name: str, summary: str, input_size: int, sequence_length: int) -> TaskInfo:
    return TaskInfo(
        name=name,
        summary=summary,
        input_size=input_size,
        output_size=10,
        sequence_length=sequence_length,
        readout="last",
        metric=ACCURACY,
        sizes={"train": 58_000, "validation": 2_000, "test": 10_000},
        source="MNIST (LeCun, Cortes, Burges), the four original idx files",
        licence="none stated by its authors",
    )


class OrderedMnist(MnistTask):
    """784 steps of one pixel in [0, 1], scanline order. `shift`, `distort`: see `MnistTask`; the paper does neither."""

    info = _info("ordered-mnist", "MNIST pixel by pixel in scanline order", 1, 784)

    def __init__(self, root: str | None = None, *, offline: bool = False, shift: int = 0, distort: float = 0.0) -> None:
        super().__init__(root, offline, {}, shift, distort)


class PermutedMnist(MnistTask):
    """784 steps of one pixel under one fixed permutation.

    `seed` fixes the permutation: 12008 as in the authors' code, 5544 in other papers. `scaling="raw"` feeds 0–255
    like the authors' loader, which saturates nearly every unit at the start; "unit" scales to [0, 1].
    `shift` and `distort` (see `MnistTask`) change the image, not the permuted sequence.
    """

    info = _info("permuted-mnist", "MNIST pixel by pixel under one fixed permutation", 1, 784)

    def __init__(
        self,
        root: str | None = None,
        *,
        offline: bool = False,
        seed: int = 12008,
        scaling: Literal["unit", "raw"] = "unit",
        shift: int = 0,
        distort: float = 0.0,
    ) -> None:
        check_count("seed", seed, 0, 2**63 - 1)
        check_choice("scaling", scaling, ("unit", "raw"))
        order = torch.randperm(784, generator=torch.Generator().manual_seed(seed))
        scale = 1.0 / 255.0 if scaling == "unit" else 1.0
        super().__init__(root, offline, {"seed": seed, "scaling": scaling}, shift, distort, order=order, scale=scale)


class RowsMnist(MnistTask):
    """98 steps of 8 neighbouring pixels in [0, 1]: the robustness study. `shift`, `distort`: see `MnistTask`."""

    info = _info("rows-mnist", "MNIST in 98 steps of 8 pixels (the robustness study)", 8, 98)

    def __init__(self, root: str | None = None, *, offline: bool = False, shift: int = 0, distort: float = 0.0) -> None:
        super().__init__(root, offline, {}, shift, distort, steps=98)
