"""Columns of DataFrames: found by name, as in files, not by their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from lipschitz_rnn.data import SeriesError


def by_name(X: Any, names: Sequence[str] | None) -> tuple[Any, tuple[str, ...] | None]:
    """X with the columns of its DataFrames in the order of `names`, those of the fit; without them, in that of the
    first DataFrame. And these names, if all series have some."""
    several = isinstance(X, list | tuple) or (isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1)
    found = [_names_of(case) for case in X] if several else []
    named = [each for each in found if each is not None]
    if not named:
        return X, None
    order, owner = (named[0], "the series before") if names is None else (tuple(names), "the series of the fit")
    for index, own in enumerate(found):
        if own is not None:
            _require_same(own, order, index, owner)
    cases = [case if own in (None, order) else case[list(order)] for case, own in zip(X, found, strict=True)]
    return cases, order if len(named) == len(found) else None


def _names_of(case: Any) -> tuple[str, ...] | None:
    """The names of a DataFrame's columns; None if there are none, or others than texts, as pandas numbers them."""
    names = list(case.columns) if hasattr(case, "iloc") and np.ndim(case) == 2 else []
    return tuple(map(str, names)) if names and all(isinstance(name, str) for name in names) else None


def _require_same(own: tuple[str, ...], order: tuple[str, ...], index: int, owner: str) -> None:
    missing, unknown = list(Counter(order) - Counter(own)), list(Counter(own) - Counter(order))
    if missing:
        raise SeriesError(
            f"series {index} of X has no column {', '.join(map(repr, missing))}; it has {', '.join(map(repr, own))}, "
            f"but {owner} have {', '.join(map(repr, order))}: rename or add columns, or give arrays, whose channels "
            "are taken in order"
        )
    if unknown:
        raise SeriesError(
            f"series {index} of X has the column {', '.join(map(repr, unknown))} too, which {owner} do not have; leave "
            f"it out: frame[{list(order)}]"
        )
