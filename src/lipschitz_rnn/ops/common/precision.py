"""How PyTorch computes float32 products: reading the setting, and changing it within a block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only


def rounds_float32(device: torch.device) -> bool:
    """Whether PyTorch may round the operands of float32 products on this device, to TF32 or bfloat16."""
    if device.type == "mps":  # has no such setting, and no float64
        return False
    settings = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    return settings.matmul.fp32_precision not in ("ieee", "none")


SETTINGS = ("highest", "high", "medium")
_PLAIN = {"matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "addmm", "baddbmm", "linear", "einsum"}
_PRODUCTS = _PLAIN | {"matrix_exp", "linalg_matrix_exp", "linalg_solve", "linalg_solve_triangular"}
_WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}


class _InFloat64(TorchFunctionMode):
    """Products of float32 in float64 and rounded back; a mode belongs to the thread that enters it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") not in _PRODUCTS:
            return func(*args, **kwargs)
        given = next((leaf.dtype for leaf in tree_leaves(args) if isinstance(leaf, Tensor)), None)
        if given not in _WIDE:
            return func(*args, **kwargs)
        wide = tree_map_only(Tensor, lambda tensor: tensor.to(_WIDE.get(tensor.dtype, tensor.dtype)), args)
        return func(*wide, **kwargs).to(given)


def full_products(device: torch.device) -> AbstractContextManager[object]:
    """float32 products in this block are computed in at least float32, here and in the backward pass.

    For the products that a module's forward pass forms by PyTorch's functions; other threads are not affected.
    """
    return _InFloat64() if rounds_float32(device) else nullcontext()


def float32_setting() -> str:
    """How float32 products may be taken, as ``torch.get_float32_matmul_precision()`` says it.

    PyTorch has a newer interface, ``torch.backends.cuda.matmul.fp32_precision``. Where the two contradict each other
    the older one refuses to answer, or is out of date, and the newer one counts.
    """
    newer = torch.backends.cuda.matmul.fp32_precision
    if newer == "ieee":
        return "highest"
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:
        older = "highest"
    return "high" if newer == "tf32" and older == "highest" else older


def coarsest_float32() -> str:
    """The coarsest float32 product that PyTorch may take now; each backend can be set on its own."""
    try:
        found = {torch.get_float32_matmul_precision()}
    except RuntimeError:  # raised if a backend has its own setting; the backends are asked below
        found = set()
    found |= {str(matmul.fp32_precision) for matmul in _newer_settings()}
    if found & {"medium", "bf16"}:
        return "medium"
    return "high" if found & {"high", "tf32"} else "float32"


def _newer_settings() -> list[Any]:
    """Of each backend that has one of its own."""
    return [backend.matmul for backend in (torch.backends.cuda, torch.backends.mkldnn)]


def _restorer() -> Callable[[], None]:
    """What brings both interfaces back to what they say now."""
    older, newer = float32_setting(), [(matmul, matmul.fp32_precision) for matmul in _newer_settings()]

    def restore() -> None:
        torch.set_float32_matmul_precision(older)
        for matmul, precision in newer:
            if matmul.fp32_precision != precision:
                matmul.fp32_precision = precision

    return restore


_lock = threading.Lock()
_asked_for: list[list[str]] = []  # one entry for each open block, in any thread; the last one applies
_restore: Callable[[], None]  # to what the user had set before the first of them


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """Set ``torch.set_float32_matmul_precision(precision)``, and restore the previous setting at the end.

    The setting belongs to the whole process. Blocks may be nested, overlap in different threads and end in any
    order: the one that began last applies, and after all of them have ended the user's setting is restored.
    """
    global _restore
    if precision not in SETTINGS:
        raise ValueError(f"precision is {precision!r}; choose one of {', '.join(SETTINGS)}")
    entry = [precision]
    with _lock:
        if not _asked_for:
            _restore = _restorer()
        torch.set_float32_matmul_precision(precision)
        _asked_for.append(entry)
    try:
        yield
    finally:
        with _lock:
            place = next(i for i, other in enumerate(_asked_for) if other is entry)
            del _asked_for[place]
            if _asked_for:
                torch.set_float32_matmul_precision(_asked_for[-1][0])
            else:
                _restore()
