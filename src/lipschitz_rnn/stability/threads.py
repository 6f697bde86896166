"""How many threads linear algebra may take."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


def one_blas_thread() -> AbstractContextManager[object]:
    """Many small factorizations are several times faster on one thread each, above all on a busy machine."""
    try:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError:
        return nullcontext()
    return threadpool_limits(limits=1, user_api="blas")
