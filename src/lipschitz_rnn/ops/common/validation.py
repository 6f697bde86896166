"""Input checks of the scan: every message names the value, what is allowed and the fix."""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def shape_of(tensor: Tensor) -> str:
    return f"({', '.join(str(size) for size in tensor.shape)})"


def require_tensor(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; pass a torch.Tensor")
    if value.is_nested:
        raise TypeError(f"{name} is a nested tensor; pass a dense one, or torch.nn.utils.rnn.pack_sequence(sequences)")
    if value.layout != torch.strided:
        raise TypeError(f"{name} has the layout {value.layout}; pass a dense tensor: {name}.to_dense()")
    return value


def require_shape(name: str, tensor: Tensor, expected: tuple[int, ...], meaning: str) -> None:
    if tuple(tensor.shape) != expected:
        wanted = f"({', '.join(map(str, expected))})"
        raise ValueError(f"{name} has shape {shape_of(tensor)}; it must be {wanted}, {meaning}")


def require_like(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Same dtype and device, because a silent conversion hides a mistake and costs a copy."""
    if tensor.dtype != other.dtype:
        raise TypeError(
            f"{name} is {tensor.dtype} but {other_name} is {other.dtype}; convert one, e.g. {name}.to({other.dtype})"
        )
    require_device(name, tensor, other_name, other)


def require_device(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    if tensor.device != other.device:
        raise ValueError(
            f"{name} is on {tensor.device} but {other_name} is on {other.device}; "
            f"move one, e.g. {name}.to('{other.device}')"
        )


def require_floating(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in FLOATING:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOATING)
        raise TypeError(f"{name} is {tensor.dtype}; it must be one of {allowed}. Convert it, e.g. with {name}.float()")


def require_number(name: str, value: object, *, low: float, high: float = math.inf, open_low: bool = False) -> float:
    """A finite real number in [low, high], or (low, high] with ``open_low``."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} is {value!r}, a {type(value).__name__}; pass a number")
    try:
        number = float(value)
    except OverflowError:  # an integer beyond 1e308
        number = -math.inf if value < 0 else math.inf  # type: ignore[operator]
    # Comparisons only, which NaN fails: for a compiler the number may be a symbol, which math.isfinite does not accept.
    inside = -math.inf < number < math.inf and (number > low if open_low else number >= low) and number <= high
    if not inside:
        if math.isinf(high):
            allowed = (
                "finite" if math.isinf(low) else f"{'greater than' if open_low else 'at least'} {low:g} and finite"
            )
        else:
            allowed = f"in {'(' if open_low else '['}{low:g}, {high:g}]"
        raise ValueError(f"{name} is {value!r}; it must be {allowed}")
    return number


def require_count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; it must be a whole number")
    if value < 1:
        raise ValueError(f"{name} is {value}; it must be at least 1")
    return value


def has_values(tensor: Tensor) -> bool:
    """Whether values can be read: not while tracing, capturing a CUDA graph, or under a function transform."""
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return False
    if tensor.is_meta or isinstance(tensor, torch._subclasses.FakeTensor):
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def seen_values(tensor: Tensor) -> Tensor | None:
    """The values of all that function transforms run at once; None while tracing, and where there are only shapes."""
    if torch.compiler.is_compiling():
        return None
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.detach() if has_values(tensor) else None


def require_timespans(timespans: Tensor) -> None:
    """Finite and not negative; NaN fails the comparison too."""
    values = seen_values(timespans)
    if values is not None and values.numel() > 0:
        good = (values >= 0) & (values < math.inf)
        if not bool(good.all()):
            place = tuple(int(i) for i in (~good).nonzero()[0])
            raise ValueError(
                f"timespans{list(place)} is {float(values[place])!r}; "
                "times between samples must be finite and at least 0. "
                "Sort the samples by time and pass differences, e.g. torch.diff"
            )


def require_lengths(lengths: Tensor, steps: int) -> Tensor:
    """The lengths as int64: products with them may not fit into a smaller type."""
    if lengths.is_floating_point() or lengths.dtype == torch.bool or lengths.is_complex():
        raise TypeError(f"lengths is {lengths.dtype}; it must be an integer tensor, e.g. lengths.long()")
    lengths = lengths.long()
    if has_values(lengths) and lengths.numel() > 0:
        low, high = int(lengths.min()), int(lengths.max())
        if low < 1 or high > steps:
            bad = low if low < 1 else high
            raise ValueError(
                f"lengths contains {bad}; each must be between 1 and the number of steps, {steps}. "
                "Drop empty sequences and pad to the longest"
            )
    return lengths
