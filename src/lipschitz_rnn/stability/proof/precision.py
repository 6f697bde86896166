"""The matrices as the kernels hold them: rounded to the precision in force, enclosed where that is not known exactly.

A kernel may hold αA or εαA in place of A, rounded once more, and chooses by size and device how it takes a float32
product. So αA and W come as balls that contain every form in which a kernel of this package holds them. The rounding of
the state and of the sums while the network runs is not in these balls: see ``arithmetic``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import autocast_enabled
from lipschitz_rnn.ops.common.precision import coarsest_float32
from lipschitz_rnn.stability.proof.rounding import Ball, Matrix

_FLOAT32 = 2.0**-24
HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """How far what a kernel holds can be from the given numbers, relative to them.

    Attributes:
        unit: u of the state's dtype, to which α, ε and products of them with an entry are rounded.
        products: of every entry of αA and W where float32 products may be taken in a lower precision.
        second: of αA where A was rounded to half precision before it was multiplied, and αA may be rounded again.
        smallest: what underflow can take from an entry.
    """

    name: str
    unit: float
    products: float
    second: float
    smallest: float

    @property
    def scalars(self) -> float:
        """Of a step, or of a step times a coefficient of the tableau."""
        return 2.02 * self.unit


# TF32 keeps 11 bits, rounded or, by some tensor cores, cut off; bfloat16 keeps 8. ``high`` and ``medium`` are
# permissions, which not every kernel uses, so both rounded and unrounded matrices are covered. Casts to half precision
# are always done: the rounded matrix is known exactly.
PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("exact", 0.0, 0.0, 0.0, 0.0),
        Precision("float64", 2.0**-53, 0.0, 0.0, 2.0**-1000),
        Precision("float32", _FLOAT32, 0.0, 0.0, 2.0**-100),
        Precision("high", _FLOAT32, 1.01 * 2.0**-10, 0.0, 2.0**-100),
        Precision("medium", _FLOAT32, 1.01 * 2.0**-8, 0.0, 2.0**-100),
        Precision("bfloat16", _FLOAT32, 0.0, 1.01 * 2.0**-8, 2.0**-100),
        Precision("float16", _FLOAT32, 0.0, 1.01 * 2.0**-11, 2.0**-100),
    )
}
_ALIASES = {"highest": "float32", "double": "float64", "half": "float16", "bf16": "bfloat16", "fp16": "float16"}


def as_precision(name: str | torch.dtype) -> Precision:
    """Look up a precision by name or dtype."""
    text = str(name).removeprefix("torch.")
    if text not in PRECISIONS and text not in _ALIASES:
        names = ", ".join(PRECISIONS).replace("float32", "float32 (highest)")
        raise ValueError(f"precision is {name!r}; choose one of {names}; leave it out for what is in force")
    return PRECISIONS[_ALIASES.get(text, text)]


def in_force(A: Tensor) -> str:
    """What the scan would round A to if it were called here: by its dtype, autocast and the float32 setting."""
    dtype = A.dtype
    if dtype != torch.float64 and autocast_enabled(A.device):
        dtype = torch.get_autocast_dtype(A.device.type)
    name = str(dtype).removeprefix("torch.")
    if name not in PRECISIONS:
        raise TypeError(f"the matrices are {dtype}; certificates know float64, float32, bfloat16 and float16")
    return coarsest_float32() if name == "float32" else name


def overflows(largest: float, precision: str) -> bool:
    """Whether a number becomes infinite in the 16 bits of this precision; never in others."""
    return precision in HALF and not bool(torch.isfinite(torch.tensor(largest, dtype=HALF[precision])))


def rounded(values: Matrix, precision: Precision) -> Matrix:
    """The matrix in the dtype that the kernels load, as float64; refused where it overflows."""
    if precision.name in ("exact", "float64"):
        return values
    result = torch.from_numpy(values).to(HALF.get(precision.name, torch.float32)).double().numpy()
    if not np.all(np.isfinite(result)):
        raise ValueError(
            f"the largest entry of the matrices is {np.abs(values).max():.3g}, which {precision.name} cannot hold; "
            "use float32"
        )
    return result


def nominal(A: Matrix, W: Matrix, alpha: float) -> tuple[Ball, Ball]:
    """αA and W of exact arithmetic, from what :func:`rounded` gave."""
    return alpha * Ball.exact(A), Ball.exact(W)


def held(A: Matrix, W: Matrix, alpha: float, precision: Precision) -> tuple[Ball, Ball]:
    """Balls with every αA and every W that a kernel may hold, from what :func:`rounded` gave.

    A kernel holds αA, or εαA and εW where the state is kept in units of ε. If α is ± a power of two that costs one
    rounding of an entry; else α, αε and their product with an entry are rounded.
    """
    linear, feedback = nominal(A, W, alpha)
    if precision.name == "exact":
        return linear, feedback
    plain = math.frexp(alpha)[0] in (0.5, -0.5, 0.0)  # ± a power of two, or zero
    relative = precision.products + 1.01 * precision.unit * (1 if plain else 3)
    smallest = precision.smallest
    if precision.second and abs(alpha) != 1.0:
        # A power of two changes no digit, but in float16 it can leave the range of the format.
        relative += 0.0 if plain else precision.second
        if precision.name == "float16":
            smallest = 2.0**-24
            if np.abs(linear.mid).max(initial=0.0) >= 65504.0:
                raise ValueError(f"alpha is {alpha:g}, and float16 cannot hold alpha·A; use float32")
    return (
        linear.widened(relative, smallest),
        _with_one_rounding(feedback, precision),
    )


def held_input(U: Matrix, precision: Precision) -> Ball:
    """A ball with every U that a kernel may hold, from what :func:`rounded` gave; like W, it may hold εU."""
    return Ball.exact(U) if precision.name == "exact" else _with_one_rounding(Ball.exact(U), precision)


def _with_one_rounding(matrix: Ball, precision: Precision) -> Ball:
    return matrix.widened(precision.products + 1.01 * precision.unit, precision.smallest)
