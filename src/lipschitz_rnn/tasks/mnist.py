"""MNIST as sequences: pixel by pixel in scanline or permuted order, and in rows of eight."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.tasks.base import ACCURACY, DataError, Split, TaskInfo, check_choice, check_count
from lipschitz_rnn.tasks.files import read_dataset
from lipschitz_rnn.tasks.pixels import PixelTask, split_off_validation
from lipschitz_rnn.tasks.sources import MNIST, Dataset


def read_idx(data: bytes, name: str, dimensions: int) -> np.ndarray:
    """An idx file of bytes: magic 0, 0, 8, number of dimensions; the sizes, big-endian; the values."""
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes((0, 0, 8, dimensions)):
        raise DataError(
            f"{name} is no idx file of bytes in {dimensions} dimensions: it begins with {data[:4]!r}, expected "
            f"{bytes((0, 0, 8, dimensions))!r}; replace it by the original"
        )
    shape = struct.unpack(f">{dimensions}I", data[4:header])
    values = np.frombuffer(data, np.uint8, offset=header)
    if values.size != np.prod(shape, dtype=np.int64):
        raise DataError(f"{name} holds {values.size:,} values, its header promises {shape}; replace it by the original")
    return values.reshape(shape).copy()  # writable, as tensors want their memory


class MnistTask(PixelTask):
    """Reads MNIST, keeps the last 2,000 of the shuffled training images for validation, and orders the pixels."""

    dataset: ClassVar[Dataset] = MNIST

    def __init__(
        self,
        root: str | None,
        offline: bool,
        options: Mapping[str, Any],
        steps: int = 784,
        order: Tensor | None = None,
        scale: float = 1.0 / 255.0,
    ) -> None:
        files = read_dataset(self.dataset, root, offline)

        def images(part: str) -> Tensor:
            pixels = torch.from_numpy(read_idx(files[f"{part}-images-idx3-ubyte"], f"{part}-images", 3)).view(-1, 784)
            return (pixels if order is None else pixels[:, order]).view(-1, steps, 784 // steps)

        def labels(part: str) -> Tensor:
            return torch.from_numpy(read_idx(files[f"{part}-labels-idx1-ubyte"], f"{part}-labels", 1)).long()

        sequences: dict[Split, tuple[Tensor, Tensor]] = split_off_validation(images("train"), labels("train"))
        sequences["test"] = images("t10k"), labels("t10k")
        super().__init__(options, sequences, scale)


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
    """784 steps of one pixel in [0, 1], scanline order."""

    info = _info("ordered-mnist", "MNIST pixel by pixel in scanline order", 1, 784)

    def __init__(self, root: str | None = None, *, offline: bool = False) -> None:
        super().__init__(root, offline, {})


class PermutedMnist(MnistTask):
    """784 steps of one pixel under one fixed permutation.

    `seed` fixes the permutation: 12008 as in the authors' code, 5544 in other papers. `scaling="raw"` feeds 0–255
    like the authors' loader, which saturates nearly every unit at the start; "unit" scales to [0, 1].
    """

    info = _info("permuted-mnist", "MNIST pixel by pixel under one fixed permutation", 1, 784)

    def __init__(
        self,
        root: str | None = None,
        *,
        offline: bool = False,
        seed: int = 12008,
        scaling: Literal["unit", "raw"] = "unit",
    ) -> None:
        check_count("seed", seed, 0, 2**63 - 1)
        check_choice("scaling", scaling, ("unit", "raw"))
        order = torch.randperm(784, generator=torch.Generator().manual_seed(seed))
        scale = 1.0 / 255.0 if scaling == "unit" else 1.0
        super().__init__(root, offline, {"seed": seed, "scaling": scaling}, order=order, scale=scale)


class RowsMnist(MnistTask):
    """98 steps of 8 neighbouring pixels in [0, 1]: the robustness study."""

    info = _info("rows-mnist", "MNIST in 98 steps of 8 pixels (the robustness study)", 8, 98)

    def __init__(self, root: str | None = None, *, offline: bool = False) -> None:
        super().__init__(root, offline, {}, steps=98)
