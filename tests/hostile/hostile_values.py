"""Values that no caller should pass, and the answers that are documented for them."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Callable, Iterator
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

SECONDS = 60  # far beyond what any of the calls takes, on a busy machine too
MEMORY = 6 * 2**30  # what a call may take beside the memory that is already in use

NUMBERS: tuple[Any, ...] = (
    0, 1, 2, -1, 10**9, 2**63, -(2**63), 10**400, 0.0, -0.0, 0.5, -3.5, 1e-300, 1e300, float("nan"), float("inf"),
    float("-inf"), True, complex(1, 1),
)  # fmt: skip
WORDS: tuple[Any, ...] = (
    "",
    " ",
    "euler",
    "tanh",
    "nonsense",
    "ε̈ü🙂",
    "../..",
    "a" * 300,
    "\x00",
    "None",
    "-1",
    "1e999",
)
OTHERS: tuple[Any, ...] = (None, (), [], {}, (1, 2), (0.5, 0.5, 0.5), [None], {"a": 1}, b"bytes", object(), len, int)


class Hang(BaseException):
    """A call did not come back; no `except Exception` may swallow it."""


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Ends a call that hangs, and refuses memory before the machine is out of it."""

    def ring(*_: Any) -> None:
        raise Hang(f"no answer within {SECONDS} s")

    before = signal.signal(signal.SIGALRM, ring)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@st.composite
def tensors(draw: st.DrawFn) -> Any:
    """Tensors of any rank, type, memory layout and content, on a device that computes or on one that does not."""
    shape = draw(st.lists(st.sampled_from((0, 1, 2, 3, 4, 5)), max_size=4))
    dtype = draw(
        st.sampled_from(
            (torch.float32,) * 4
            + (torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64, torch.uint8)
        )
    )
    fill = draw(st.sampled_from((0.0, 0.5, 1.0, -2.0, 3.4e38, float("nan"), float("inf"))))
    if dtype in (torch.int64, torch.bool, torch.uint8):
        fill = int(abs(fill)) if fill == fill and abs(fill) < 200 else 1
    tensor = torch.full(tuple(shape), fill, dtype=dtype)
    kind = draw(st.sampled_from(("plain",) * 6 + ("transposed", "expanded", "meta", "sparse", "grad")))
    if kind == "transposed" and tensor.dim() > 1:
        return tensor.transpose(0, -1)
    if kind == "expanded":
        return tensor.new_ones(()).expand(tuple(shape))
    if kind == "meta":
        return tensor.to("meta")
    if kind == "sparse" and tensor.dim() == 2 and tensor.is_floating_point():
        return tensor.to_sparse()
    return tensor.requires_grad_() if kind == "grad" and tensor.is_floating_point() else tensor


def anything() -> st.SearchStrategy[Any]:
    """Numbers, words, other objects and tensors."""
    return st.one_of(st.sampled_from(NUMBERS), st.sampled_from(WORDS), st.sampled_from(OTHERS), tensors())


def mostly(*good: Any) -> st.SearchStrategy[Any]:
    """A right value three times out of four: a call with one wrong argument goes deeper than one with ten."""
    return st.one_of(*[st.sampled_from(good)] * 3, anything())


def is_documented(error: BaseException, *further: type[BaseException]) -> bool:
    """Whether a caller was told what is wrong: an error of the documented kinds, with words."""
    if not str(error).strip():
        return False
    if isinstance(error, (ValueError, TypeError, *further)):
        return True
    # PyTorch's own word for too little memory, and for a size beyond 2⁶³.
    return isinstance(error, (MemoryError, RuntimeError)) and any(
        word in str(error).lower() for word in ("memory", "overflow", "storage size", "too large")
    )


def campaign(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """So many drawn cases, the same in every run."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),  # a failing example is small as it is
        suppress_health_check=list(HealthCheck),
    )
