"""How PyTorch takes float32 products: asked, and set for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lipschitz_rnn.ops.problem import Problem


def rounds_float32(device: torch.device) -> bool:
    """Whether PyTorch may round the operands of float32 products on this device, to TF32 or bfloat16."""
    if device.type == "mps":  # knows no such setting, and no float64
        return False
    settings = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    return settings.matmul.fp32_precision not in ("ieee", "none")


def needs_float64(problem: Problem) -> bool:
    """Whether PyTorch's own float32 products would fall short of what the problem asks for.

    Float64 is then the way to them that changes no setting: settings belong to the whole process, to every thread.
    """
    return problem.scheme.exact_products and problem.A.dtype == torch.float32 and rounds_float32(problem.A.device)


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """``torch.set_float32_matmul_precision(precision)``, and what was set before at the end."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
