"""Labels and categories that are numbers, as their file writes them: 1.0, 1e3, +1, 12345678901234567."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt

_MOST = 10_000  # different ones; more are quantities, whose spelling nobody asks for
Spelled = tuple[npt.NDArray[np.int64], tuple[str, ...]]
"""The position of every row in the texts, -1 if it is missing; and the texts, by increasing number."""


class Spellings:
    """Collects the texts of a column of numbers, in chunks. float64 forgets them: 1.0 is 1 there, and 12345678901234567
    is 12345678901234568."""

    def __init__(self) -> None:
        self._table: dict[str, int] = {}
        self._parts: list[npt.NDArray[np.int64]] | None = []
        self._plain = True

    def add(self, values: Any) -> None:
        """Add a chunk (a pandas Series) of numbers, or of texts that are numbers; missing ones are None or NaN."""
        import pandas as pd

        if self._parts is None:
            return
        codes, index = pd.factorize(values)
        distinct = np.asarray(index)  # whose numbers keep their type: in float32, 0.1 is the text of another number
        if len(distinct) > _MOST or len(self._table) > _MOST:
            self._parts = None
            return
        texts = [str(plain_text(value)) for value in distinct]
        self._plain &= all(text == plain_text(float(value)) for text, value in zip(texts, distinct, strict=True))
        places = [self._table.setdefault(text, len(self._table)) for text in texts]
        self._parts.append(np.array([*places, -1], dtype=np.int64)[codes])  # -1 is the last of them

    def finish(self) -> Spelled | None:
        """None if the numbers alone give the same texts, as nearly always."""
        if self._parts is None or self._plain:
            return None
        texts = list(self._table)
        try:
            numbers = [Decimal(text) for text in texts]
        except InvalidOperation:
            return None
        names: dict[Decimal, str] = {}
        for text, number in sorted(zip(texts, numbers, strict=True), key=lambda pair: (len(pair[0]), pair[0])):
            names.setdefault(number, text)  # 1 and 1.0 are one label, under its shortest text
        order = sorted(names)
        place = {number: index for index, number in enumerate(order)}
        moved = np.array([*(place[number] for number in numbers), -1], dtype=np.int64)
        return moved[np.concatenate(self._parts)], tuple(names[number] for number in order)


def spelled_integers(values: npt.NDArray[Any]) -> Spelled | None:
    """Whole numbers that float64 cannot hold, as texts; None if it holds all."""
    if values.ndim != 1 or values.dtype.kind not in "iu":
        return None
    distinct, codes = np.unique(values, return_inverse=True)
    if all(int(float(each)) == each for each in distinct.tolist()):
        return None
    return codes.astype(np.int64), tuple(map(str, distinct.tolist()))


def plain_text(value: Any) -> str | None:
    """A label as text: whole numbers without ".0", others with the fewest digits that give them back; None if it is
    missing."""
    if value is None or value != value or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def position_in(table: Mapping[str, int], text: str, label: bool = False) -> int | None:
    """The position of a text in a table that an earlier version may have saved.

    Those wrote numbers with 17 digits, 0.1 as 0.10000000000000001; and labels of files too, which lost their form.
    """
    found = table.get(text)
    if found is not None:
        return found
    try:
        number = float(text)
    except ValueError:
        return None
    if label or text == str(number):
        return table.get(str(int(number)) if number.is_integer() else f"{number:.17g}")
    return None
