"""Launches without Triton's search for the right program at every call.

Triton looks at each argument of a launch to find the program compiled for such arguments. Python spends as long on that
as a short kernel runs, so what was found is remembered here under the few facts on which the search depends.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lipschitz_rnn.ops.triton.support import interpreting

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
    device = next(argument.device for argument in arguments if isinstance(argument, Tensor))
    key = (kernel.fn, device, constants, *options.values(), *[_facts(argument) for argument in arguments])
    program = _compiled.get(key)
    if program is None:
        _compiled[key] = kernel[grid](*arguments, *constants, **options)
    else:
        program[(*grid, 1, 1)[:3]](*arguments, *constants)


def _facts(argument: Any) -> Any:
    """What Triton compiles for: types, whether addresses and numbers divide by 16, and whether a number is 1."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return argument == 1, argument % 16 == 0, argument >= 2**31
    return float


def divide_up(number: int, by: int) -> int:
    """⌈number / by⌉."""
    return -(-number // by)


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least ``number``."""
    return 1 << (number - 1).bit_length()
