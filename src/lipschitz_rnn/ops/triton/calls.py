"""Launches without Triton's search for the right program at every call.

Triton looks at each argument of a launch to find the program compiled for such arguments. Python spends as long on that
as a short kernel runs, so what was found is remembered here under the few facts on which the search depends.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lipschitz_rnn.ops.triton.support import interpreting

_REMEMBERED = 4096  # launches; sequences of ever new lengths must not fill the memory
_compiled: dict[tuple[Any, ...], Any] = {}


def launch(
    kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: tuple[Any, ...], **options: Any
) -> None:
    """``kernel[grid](*arguments, *constants, **options)``: tensors and numbers first, then what is compiled in.

    The order is that of the kernel's signature; ``options`` are Triton's own, such as ``num_warps``.
    """
    if interpreting():
        kernel[grid](*arguments, *constants, **options)
        return
    # Triton compiles for dtypes, for addresses and numbers that divide by 16, and for ones. Numbers stand in the key as
    # they are: to ask each for what matters takes longer than the launch.
    facts = [(a.dtype, a.data_ptr() & 15, a.device) if isinstance(a, Tensor) else a for a in arguments]
    key = (kernel.fn, constants, *options.values(), *facts)
    program = _compiled.get(key)
    if program is None:
        if len(_compiled) >= _REMEMBERED:
            _compiled.clear()
        _compiled[key] = kernel[grid](*arguments, *constants, **options)
    else:
        program[(*grid, 1, 1)[:3]](*arguments, *constants)


def divide_up(number: int, by: int) -> int:
    """⌈number / by⌉."""
    return -(-number // by)


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least ``number``."""
    return 1 << (number - 1).bit_length()
