"""Small random affine distortions of images: turned, stretched, sheared and moved, black outside."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 28
_FRAME = 32  # images get a black margin up to a power of two: fractions of it are exact, and so are whole pixels
# The farthest that an image is distorted at strength 1.
ROTATION = math.radians(15.0)  # to either side
STRETCH = 0.15  # of each axis: a factor 1 ± STRETCH
SHEAR = 0.15  # pixels to either side per pixel down
STRONGEST = 2.0


def check_strength(name: str, value: object) -> None:
    """Raise unless `value` is a number in [0, STRONGEST]."""
    allowed = f"it must be a number between 0 and {STRONGEST:g}"
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); {allowed}")
    if not 0 <= value <= STRONGEST:  # a NaN is not
        raise ValueError(f"{name} is {value}; {allowed}")


def farthest(strength: float) -> Tensor:
    """(4,): the largest rotation, stretch of the width and of the height, and shear at this strength."""
    return strength * torch.tensor([ROTATION, STRETCH, STRETCH, SHEAR], dtype=torch.float32)


def draw_maps(generator: torch.Generator, count: int) -> Tensor:
    """(count, 4) evenly from [-1, 1): times `farthest`, these are maps for `distorted`."""
    values = torch.empty(count, 4, dtype=torch.float32, device=generator.device)
    return values.uniform_(-1.0, 1.0, generator=generator)


def distorted(images: Tensor, maps: Tensor, moves: Tensor | None = None) -> Tensor:
    """Bytes (n, 28, 28) as floats (n, 28, 28) in 0..255, each image under its own affine map about its centre.

    `maps`, (n, 4): the angle a in radians (clockwise), the stretches u of the width and v of the height, and the
    shear k. With x to the right and y down from the centre, what was at (x, y) comes to

        R(a) · [1 k; 0 1] · [1 + u, 0; 0, 1 + v] · (x, y) + (right, down),

    where `moves`, (n, 2), holds (down, right) in pixels. Zeros leave an image exactly as it is. Between pixels the
    value is bilinear. It is one map: what a distortion pushes over the edge and a move brings back is not lost.

    Every pixel is read from where the inverse map leads. The grid is written out here, not left to `F.affine_grid`,
    because that one is a matrix product: TF32 would round it to a hundredth of a pixel, and libraries choose their
    algorithm by the number of images, so that a network's images could differ between company and alone.
    """
    angle, shear = maps[:, 0], maps[:, 3]
    cos, sin = angle.cos(), angle.sin()
    pixels = torch.arange((1 - SIDE) / 2, SIDE / 2, dtype=maps.dtype, device=maps.device)
    places = pixels.expand(len(images), 2, SIDE) if moves is None else pixels - moves[:, :, None]
    rows, columns = places[:, :1], places[:, 1:]  # (n, 1, 28), as seen from where the centre went
    # (x, y) that are read for a step to the right and a step down; `grid_sample` has the frame's edges at -1 and 1.
    lengths = (1 + maps[:, 1:3]) * (_FRAME / 2)
    to_the_right = torch.stack([cos + shear * sin, -sin], -1) / lengths
    downwards = torch.stack([sin - shear * cos, cos], -1) / lengths
    along, down = to_the_right[:, :, None] * columns, downwards[:, :, None] * rows  # (n, 2, 28)
    grid = (along[:, :, None, :] + down[:, :, :, None]).movedim(1, -1)  # (n, 28, 28, 2)
    framed = F.pad(images, ((_FRAME - SIDE) // 2,) * 4)[:, None].to(maps.dtype)
    sampled = F.grid_sample(framed, grid, "bilinear", "zeros", align_corners=False)[:, 0]
    return sampled.clamp_(0.0, 255.0)  # the four weights of a pixel may add up to one and a rounding


def describe_changes(shift: int = 0, distort: float = 0.0, **_: object) -> str:
    """What the options of a task do to its training images, in words; nothing where they stay as they are."""
    parts = []
    if distort:
        angle, share = math.degrees(distort * ROTATION), 100 * distort
        parts = [f"rotations of up to {angle:g}°", f"stretching by up to {share * STRETCH:g} %"]
        parts += [f"shear of up to {share * SHEAR:g} %"]
    if shift:
        then = "then " if parts else ""
        parts += [f"{then}shifts of up to {shift} pixel{'s' if shift > 1 else ''} in each direction"]
    return ", ".join(parts)
