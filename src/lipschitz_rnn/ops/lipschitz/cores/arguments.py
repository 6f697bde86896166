"""What a kernel is told: one table of whole numbers, sizes, strides and addresses, written in Python and read by it.

Strides count reals, and every array has its last axis without gaps. An array that is not there has address zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import Array, c_int64
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from lipschitz_rnn.ops.lipschitz.cores.code import Code, Pointer, Value

SIZES = (
    "steps",
    "units",  # N
    "padded",  # N in whole vectors
    "features",  # p, or 0 where the drive is u itself
    "stages",
    "nonlinearity",  # its place in sizes.NONLINEARITIES
    "chunks",
    "chunk",  # steps whose κ and d are collected before they enter the gradients of the matrices
    "keep",  # whether states are wanted
    "save",  # whether σ is
    "recompute",  # whether the slopes of the stages are needed on the way back
)

# Name and axes of each array: (S, T, B, ·) and so on, in the order of its strides.
ARRAYS = {
    "table": "",  # ε, then the coefficients of every stage, then the weights, in rows of ``stages``
    "drive": "stb",
    "bias": "s",  # (S, padded), zeros if there is none
    "start": "sb",
    "timespans": "stb",
    "tape": "stkb",  # k: slots
    "last": "sb",
    "forward_panels": "s",  # [Wᵀ, αAᵀ]
    "input_panels": "s",  # Uᵀ
    "backward_panels": "s",  # [αA; W]
    "slope_panels": "s",  # αAᵀ
    "noise_words": "s",  # four whole numbers a network: both words of the seed, the first sample, the first step
    "additive": "stb",  # a √Δt and m √Δt
    "multiplicative": "stb",
    "grad_states": "stb",
    "grad_last": "sb",
    "grad_drive": "stb",  # ∂u
    "grad_start": "sb",
    "grad_timespans": "stb",
    "grad_matrices": "sg",  # (S, groups, 2 padded, gap): rows of α⁻¹∂A, then of ∂W
    "grad_inputs": "sg",  # (S, groups, p + 1, gap): rows of ∂Uᵀ, then ∂b
}

FIELDS = (*SIZES, *(field for name, axes in ARRAYS.items() for field in (name, *(f"{name}.{axis}" for axis in axes))))
PLACES = {field: place for place, field in enumerate(FIELDS)}
_ROWS = {name: (PLACES[name], [PLACES[f"{name}.{axis}"] for axis in axes]) for name, axes in ARRAYS.items()}


def filled(sizes: Mapping[str, int], arrays: Mapping[str, Tensor | None]) -> Array[c_int64]:
    """The table for a call; the arrays must outlive it."""
    table = (c_int64 * len(FIELDS))()
    for name, size in sizes.items():
        table[PLACES[name]] = size
    for name, tensor in arrays.items():
        if tensor is not None:
            place, axes = _ROWS[name]
            # What a function transform has left wrapped, when it ended, has an address only inside.
            address = torch._C._functorch.unwrap_if_dead(tensor).data_ptr()
            if address == 0 and tensor.numel() > 0:  # the kernel would end the process
                raise RuntimeError(
                    f"a kernel was given a {type(tensor).__name__} without memory of its own as {name!r}; pass plain "
                    "tensors, e.g. zeros instead of a tensor of PyTorch's internal kind for zeros"
                )
            table[place] = address
            for axis, stride in zip(axes, tensor.stride(), strict=False):
                table[axis] = stride
    return table


class Arguments:
    """The table as the kernel reads it."""

    def __init__(self, code: Code, table: Pointer) -> None:
        self.code = code
        self.known = {field: code.word(table, place) for field, place in PLACES.items()}

    def __getitem__(self, field: str) -> Value:
        return self.known[field]

    def array(self, name: str) -> Pointer:
        return self.code.pointer(self[name])

    def at(self, name: str, **indices: Value) -> Pointer:
        """The address of a row of an array, by the indices along its axes, such as s=, t=, b=."""
        place = self.array(name)
        for axis, index in indices.items():
            place = place.at(self[f"{name}.{axis}"] * index)
        return place
