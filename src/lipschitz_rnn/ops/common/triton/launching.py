"""Launches without Triton's search for the right program at every call.

Triton looks at each argument of a launch to find the program compiled for such arguments, and asks the driver about
every address. Python spends longer on that than a short kernel runs, so what was found is remembered here under the
facts on which the search depends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import triton
from torch import Tensor

_REMEMBERED = 4096  # launches; sequences of ever new lengths must not fill the memory
_launches: dict[tuple[Any, ...], Callable[..., None]] = {}


def launch(
    kernel: Any,
    grid: tuple[int, int, int],
    tensors: Sequence[Tensor],
    numbers: tuple[int | float, ...],
    constants: tuple[Any, ...],
    **options: int,
) -> None:
    """``kernel[grid](*tensors, *numbers, *constants, **options)`` on the device of the tensors.

    The order is that of the kernel's signature, what is compiled in last; ``options`` are Triton's own, such as
    ``num_warps``.
    """
    if interpreted(kernel):
        kernel[grid](*tensors, *numbers, *constants, **options)
        return
    device = tensors[0].get_device()
    addresses = [tensor.data_ptr() for tensor in tensors]
    # Triton compiles for dtypes, for addresses and numbers that divide by 16, and for ones. Numbers stand in the key as
    # they are: to ask each for what matters takes longer than the launch.
    facts = [(tensor.dtype, address & 15) for tensor, address in zip(tensors, addresses, strict=True)]
    key = (kernel.fn, device, grid, numbers, constants, *options.values(), *facts)
    remembered = _launches.get(key)
    with nullcontext() if device == torch.cuda.current_device() else torch.cuda.device(device):
        if remembered is None:
            if len(_launches) >= _REMEMBERED:
                _launches.clear()
            _launches[key] = kernel[grid](*tensors, *numbers, *constants, **options)[grid]
        else:
            remembered(*addresses, *numbers, *constants)


def interpreted(kernel: Any) -> bool:
    """Whether Triton runs this kernel in Python on the CPU."""
    return not isinstance(kernel, triton.JITFunction)


def beyond_32_bits(*extents: tuple[int, int]) -> bool:
    """Whether an offset may pass 2³¹, (count, stride) each: then kernels compute their offsets in 64 bits.

    Otherwise 32 bits are enough: they take half the registers, and most calls are far below the limit.
    """
    return sum(count * stride for count, stride in extents) >= 2**31


def divide_up(number: int, by: int) -> int:
    """⌈number / by⌉."""
    return -(-number // by)


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least ``number``."""
    return 1 << (number - 1).bit_length()
