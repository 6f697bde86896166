"""How many clusters run at once on a GPU that is not there."""

from __future__ import annotations

# As the driver of one H200 reports it, with one block on a multiprocessor.
_AT_ONCE = {2: 66, 4: 30, 8: 15, 12: 7, 16: 7}


def h200_clusters(blocks: int) -> int:
    return _AT_ONCE[blocks]
