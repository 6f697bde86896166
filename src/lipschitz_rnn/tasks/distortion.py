"""Small random affine distortions of images: rotation, stretching, shear and shifts, with black outside."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 28
_FRAME = 32  # images are padded to a power of two, so that its fractions and whole pixels are exact
# The largest distortions at strength 1.
ROTATION = math.radians(15.0)  # to either side
STRETCH = 0.15  # of each axis: a factor 1 ± STRETCH
SHEAR = 0.15  # pixels to either side per pixel down
STRONGEST = 2.0


def check_strength(name: str, value: object) -> None:
    """Raise unless `value` is a number in [0, STRONGEST]."""
    allowed = f"it must be a number between 0 and {STRONGEST:g}"
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); {allowed}")
    if not 0 <= value <= STRONGEST:  # also rejects NaN
        raise ValueError(f"{name} is {value}; {allowed}")


def farthest(strength: float) -> Tensor:
    """(4,): the largest rotation, horizontal and vertical stretch, and shear at this strength."""
    return strength * torch.tensor([ROTATION, STRETCH, STRETCH, SHEAR], dtype=torch.float32)


def draw_maps(generator: torch.Generator, count: int) -> Tensor:
    """(count, 4) uniform in [-1, 1); multiplied by `farthest`, these are maps for `distorted`."""
    values = torch.empty(count, 4, dtype=torch.float32, device=generator.device)
    return values.uniform_(-1.0, 1.0, generator=generator)


def distorted(images: Tensor, maps: Tensor, moves: Tensor | None = None) -> Tensor:
    """Bytes (n, 28, 28) as floats (n, 28, 28) in 0..255, each image under its own affine map about its centre.

    `maps`, (n, 4): the angle a in radians (clockwise), the horizontal stretch u, the vertical stretch v, and the
    shear k. With x to the right and y down from the centre, the point (x, y) moves to

        R(a) · [1 k; 0 1] · [1 + u, 0; 0, 1 + v] · (x, y) + (right, down),

    where `moves`, (n, 2), holds (down, right) in pixels. Zeros leave an image exactly unchanged. Values between pixels
    are interpolated bilinearly. It is one map, so a part that the distortion pushes over the edge and the shift brings
    back is not lost.

    Every pixel is read at the point given by the inverse map. The grid is computed here, not by `F.affine_grid`, which
    uses a matrix product: TF32 would round it to a hundredth of a pixel, and libraries choose their algorithm by the
    number of images, so a network could see different images in an ensemble than in a run of its own.
    """
    angle, shear = maps[:, 0], maps[:, 3]
    cos, sin = angle.cos(), angle.sin()
    pixels = torch.arange((1 - SIDE) / 2, SIDE / 2, dtype=maps.dtype, device=maps.device)
    places = pixels.expand(len(images), 2, SIDE) if moves is None else pixels - moves[:, :, None]
    rows, columns = places[:, :1], places[:, 1:]  # (n, 1, 28), relative to the shifted centre
    # (x, y) that are read for a step to the right and a step down; `grid_sample` has the frame's edges at -1 and 1.
    lengths = (1 + maps[:, 1:3]) * (_FRAME / 2)
    to_the_right = torch.stack([cos + shear * sin, -sin], -1) / lengths
    downwards = torch.stack([sin - shear * cos, cos], -1) / lengths
    along, down = to_the_right[:, :, None] * columns, downwards[:, :, None] * rows  # (n, 2, 28)
    grid = (along[:, :, None, :] + down[:, :, :, None]).movedim(1, -1)  # (n, 28, 28, 2)
    framed = F.pad(images, ((_FRAME - SIDE) // 2,) * 4)[:, None].to(maps.dtype)
    sampled = F.grid_sample(framed, grid, "bilinear", "zeros", align_corners=False)[:, 0]
    return sampled.clamp_(0.0, 255.0)  # with rounding, the four weights of a pixel may add up to more than one


def describe_changes(shift: int = 0, distort: float = 0.0, **_: object) -> str:
    """How the options of a task change its training images, in words; empty if they do not."""
    parts = []
    if distort:
        angle, share = math.degrees(distort * ROTATION), 100 * distort
        parts = [f"rotations of up to {angle:g}°", f"stretching by up to {share * STRETCH:g} %"]
        parts += [f"shear of up to {share * SHEAR:g} %"]
    if shift:
        then = "then " if parts else ""
        parts += [f"{then}shifts of up to {shift} pixel{'s' if shift > 1 else ''} in each direction"]
    return ", ".join(parts)
