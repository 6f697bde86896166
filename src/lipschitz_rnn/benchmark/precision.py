"""The precisions that are measured, and PyTorch's switches for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from lipschitz_rnn.ops.common.precision import float32_products


@dataclass(frozen=True)
class Precision:
    """How numbers are stored and multiplied.

    Attributes:
        name: what a table calls it.
        dtype: of inputs, weights and results.
        matmul: for ``torch.set_float32_matmul_precision``; other than ``highest`` it also lets cuDNN use TF32.
        operands: of the products, by which rows are compared with each other.
        rounding: unit roundoff of the operands, half of their relative spacing.
    """

    name: str
    dtype: torch.dtype
    matmul: str
    operands: str
    rounding: float

    @contextmanager
    def active(self) -> Iterator[None]:
        cudnn = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = self.matmul != "highest"
        try:
            with float32_products(self.matmul):
                yield
        finally:
            torch.backends.cudnn.allow_tf32 = cudnn


BFLOAT16 = Precision("bfloat16", torch.bfloat16, "highest", "bfloat16", 2.0**-8)
FLOAT16 = Precision("float16", torch.float16, "highest", "float16", 2.0**-11)
MEDIUM = Precision("float32 medium", torch.float32, "medium", "bfloat16", 2.0**-8)
TF32 = Precision("float32 high", torch.float32, "high", "tf32", 2.0**-11)
FLOAT32 = Precision("float32 highest", torch.float32, "highest", "float32", 2.0**-24)
EXACT = Precision("float64", torch.float64, "highest", "float64", 2.0**-53)

SUMS = FLOAT32.rounding  # the unit roundoff of sums: every precision adds up in float32
