"""Vector-Jacobian products for the inputs that need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def vector_jacobian(
    function: Callable[..., Sequence[Any]],
    inputs: Sequence[Tensor | None],
    needs: Sequence[bool],
    cotangents: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Σ cotangentᵀ ∂output/∂input for each input that is given and needed; a missing cotangent counts as zero."""
    result: list[Tensor | None] = [None] * len(inputs)
    chosen = [i for i, (tensor, need) in enumerate(zip(inputs, needs, strict=True)) if tensor is not None and need]
    given = [i for i, cotangent in enumerate(cotangents) if cotangent is not None]
    if not chosen or not given:
        return result

    def of_chosen(*values: Tensor) -> list[Tensor | None]:
        full = list(inputs)
        for i, value in zip(chosen, values, strict=True):
            full[i] = value
        outputs = function(*full)
        return [outputs[i] for i in given]

    pull_back: Any = torch.func.vjp(of_chosen, *[inputs[i] for i in chosen])[1]
    for i, gradient in zip(chosen, pull_back([cotangents[i] for i in given]), strict=True):
        result[i] = gradient
    return result
