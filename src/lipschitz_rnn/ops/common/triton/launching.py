"""Launches without Triton's search for the right program at every call.

Triton looks at each argument of a launch to find the program compiled for such arguments, and asks the driver about
every address. Python spends longer on that than a short kernel runs, so what was found is remembered here under the
facts on which the search depends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
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
    key = _key(kernel, grid, tensors, numbers, constants, options)
    remembered = _launches.get(key)
    with nullcontext() if device == torch.cuda.current_device() else torch.cuda.device(device):
        if remembered is None:
            if len(_launches) >= _REMEMBERED:
                _launches.clear()
            _launches[key] = _runner(kernel[grid](*tensors, *numbers, *constants, **options), grid, device)
        else:
            remembered(*[tensor.data_ptr() for tensor in tensors], *numbers, *constants)


class Launch:
    """A launch of which all but the tensors is settled, for a kernel that is called again and again.

    The tensors must be on one device, which is the current one, and of the same dtypes at every call. What Triton found
    for aligned addresses, which PyTorch's allocator gives out, is then taken without asking any further.
    """

    __slots__ = ("_aligned", "_given", "_rest")

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        numbers: tuple[int | float, ...],
        constants: tuple[Any, ...],
        **options: int,
    ) -> None:
        self._given = kernel, grid, numbers, constants, options
        self._rest = numbers + constants
        self._aligned: Callable[..., None] | None = None

    def __call__(self, *tensors: Tensor) -> None:
        run = self._aligned
        if run is None:
            self._search(tensors)
            return
        addresses = [tensor.data_ptr() for tensor in tensors]
        for address in addresses:
            if address & 15:
                self._search(tensors)
                return
        run(*addresses, *self._rest)

    def _search(self, tensors: tuple[Tensor, ...]) -> None:
        kernel, grid, numbers, constants, options = self._given
        launch(kernel, grid, tensors, numbers, constants, **options)
        if not interpreted(kernel) and not any(tensor.data_ptr() & 15 for tensor in tensors):
            self._aligned = _launches.get(_key(kernel, grid, tensors, numbers, constants, options))


def _key(
    kernel: Any,
    grid: tuple[int, int, int],
    tensors: Sequence[Tensor],
    numbers: tuple[int | float, ...],
    constants: tuple[Any, ...],
    options: dict[str, int],
) -> tuple[Any, ...]:
    """What a compiled program and its launch depend on.

    Triton compiles for dtypes, for addresses and numbers that divide by 16, and for ones. Numbers stand in the key as
    they are: to ask each for what matters takes longer than the launch.
    """
    facts = [(tensor.dtype, tensor.data_ptr() & 15) for tensor in tensors]
    return (kernel.fn, tensors[0].get_device(), grid, numbers, constants, *options.values(), *facts)


def _runner(compiled: Any, grid: tuple[int, int, int], device: int) -> Callable[..., None]:
    """A function that launches a compiled program with addresses in place of tensors.

    Triton's own prepares at each launch what its profilers' hooks would be told. Where there are no hooks, the launcher
    below that is called with nothing to tell; it has the same arguments in Triton 3.6 to 3.9.
    """
    usual: Callable[..., None] = compiled[grid]
    try:
        hooks: Any = triton.knobs.runtime
        enter, leave = hooks.launch_enter_hook, hooks.launch_exit_hook
        enter.calls, leave.calls  # noqa: B018
        run, function, packed = compiled.run, compiled.function, compiled.packed_metadata
        stream_of = triton.runtime.driver.active.get_current_stream
    except AttributeError:  # a version of Triton with other names
        return usual

    def call(*arguments: Any) -> None:
        if hooks.launch_enter_hook is not enter or enter.calls or leave.calls:
            usual(*arguments)
        else:
            run(*grid, stream_of(device), function, packed, None, None, None, *arguments)

    return call


def on_device(tensor: Tensor) -> AbstractContextManager[object]:
    """The device of the tensor as the current one; asking is cheaper than setting it again."""
    device = tensor.get_device()
    return nullcontext() if device < 0 or device == torch.cuda.current_device() else torch.cuda.device(device)


def interpreted(kernel: Any) -> bool:
    """Whether Triton runs this kernel in Python on the CPU."""
    return not isinstance(kernel, triton.JITFunction)


def allocator(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Callable[[], Tensor]:
    """A function that returns fresh memory of this kind; ``torch.empty`` takes two to three times as long to call."""
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return partial(torch.empty_strided, tuple(shape), tuple(strides), dtype=dtype, device=device)


def with_rows(tensor: Tensor) -> Tensor:
    """(S, T, B, N) whose steps are rows without gaps; networks and steps may lie anywhere, or be shared."""
    return tensor if tensor[0, 0].is_contiguous() else tensor.contiguous()


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
