"""Training, validation and test: by series, stratified by class, by a column of the file, or by time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lipschitz_rnn.data.errors import SeriesError
from lipschitz_rnn.data.series import SeriesSet
from lipschitz_rnn.tasks.base import SPLITS, Split

Integers = npt.NDArray[np.int64]
Fractions = tuple[float, float, float]
DEFAULT: Fractions = (0.7, 0.15, 0.15)
WARMUP = 1000  # longer than most networks remember, so that scores are those of the whole series


def check_fractions(fractions: Sequence[float]) -> Fractions:
    """Three positive shares that add up to 1."""
    shares = tuple(float(share) for share in fractions)
    if len(shares) != 3 or not all(0.0 < share < 1.0 for share in shares) or not math.isclose(sum(shares), 1.0):
        raise ValueError(
            f"fractions are {list(fractions)}; give three positive shares for training, validation and test that add "
            "up to 1, e.g. 0.7,0.15,0.15"
        )
    return shares[0], shares[1], shares[2]


def split_series(
    series: SeriesSet, fractions: Sequence[float] = DEFAULT, *, seed: int = 0, stratify: bool = True
) -> dict[Split, Integers]:
    """Indices of the series of every split, each sorted.

    The split column of the file decides, if there is one. Otherwise series are drawn by `seed`; with `stratify` and one
    class per series, each class is divided in the same proportions, and no class is left out of training.
    """
    if series.splits is not None:
        found = {split: np.flatnonzero(series.splits == split) for split in SPLITS}
        for split, indices in found.items():
            if len(indices) == 0:
                raise SeriesError(f"the split column of {series.source} names no series for {split}; add some")
        return found
    shares = check_fractions(fractions)
    if len(series) < 3:
        raise SeriesError(
            f"{series.source} has {len(series)} series, too few for training, validation and test; give at least 3, or "
            "use --task forecast or sequence, which can split one series by time"
        )
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"split_seed is {seed!r}; it must be a whole number, at least 0")
    generator = np.random.default_rng(seed)
    by_class = stratify and series.classes is not None and series.target_level == "series"
    groups = _groups(series) if by_class else [np.arange(len(series))]
    # One order of all series in which every class is spread evenly; cutting it keeps the proportions of all classes.
    place = np.empty(len(series))
    for group in groups:
        place[group] = (generator.permutation(len(group)) + generator.random()) / len(group)
    order = np.argsort(place, kind="stable")
    counts = _counts(len(series), shares)
    ends = np.cumsum(counts)
    return {split: np.sort(order[end - count : end]) for split, count, end in zip(SPLITS, counts, ends, strict=True)}


def _groups(series: SeriesSet) -> list[Integers]:
    assert series.targets is not None
    assert series.classes is not None
    groups = [np.flatnonzero(series.targets == label) for label in range(len(series.classes))]
    for label, group in enumerate(groups):
        if len(group) == 1:
            raise SeriesError(
                f"class {series.classes[label]!r} has one series only ({str(series.ids[group[0]])!r}), so training "
                "and test cannot both have it; add series of this class, or remove it"
            )
    return [group for group in groups if len(group)]


def _counts(total: int, shares: Fractions) -> list[int]:
    """Whole numbers with these shares, each at least 1."""
    validation, test = (max(1, round(total * share)) for share in shares[1:])
    return [total - validation - test, validation, test]


@dataclass(frozen=True)
class Windows:
    """Parts of series: `length` samples from the flat position `start`; the first `skip` are read but not scored."""

    series: Integers
    start: Integers
    length: Integers
    skip: Integers

    def __len__(self) -> int:
        return len(self.start)

    def select(self, indices: Integers) -> Windows:
        return Windows(self.series[indices], self.start[indices], self.length[indices], self.skip[indices])

    def joined(self) -> Windows:
        """The parts of series that the windows cover: those that overlap or touch are one, so that every sample counts
        once."""
        order = np.argsort(self.start, kind="stable")
        series, start, end = self.series[order], self.start[order], (self.start + self.length)[order]
        reached = np.maximum.accumulate(end)
        begins = np.ones(len(order), dtype=bool)
        begins[1:] = (start[1:] > reached[:-1]) | (series[1:] != series[:-1])
        first = np.flatnonzero(begins)
        last = np.append(first[1:], len(order)) - 1
        return Windows(series[first], start[first], reached[last] - start[first], np.zeros(len(first), dtype=np.int64))

    def samples(self) -> Integers:
        """Flat positions of all samples of all windows, one window after another."""
        spans = zip(self.start, self.start + self.length, strict=True)
        return np.concatenate([np.arange(low, high) for low, high in spans])


def whole_series(series: SeriesSet, indices: Integers) -> Windows:
    """Every series as one window."""
    starts = series.offsets[:-1][indices]
    return Windows(indices, starts, series.lengths[indices], np.zeros(len(indices), dtype=np.int64))


def long_windows(series: SeriesSet, indices: Integers, window: int) -> Windows:
    """Series cut into windows of at most `window` samples, each of which begins half a window after the one before."""
    lengths = series.lengths[indices]
    found = cut_windows(series.offsets[:-1][indices], np.zeros_like(lengths), lengths, window, 0, overlap=True)
    return Windows(indices[found.series], found.start, found.length, found.skip)


def split_times(
    series: SeriesSet, fractions: Sequence[float] = DEFAULT, *, window: int = 100, warmup: int = WARMUP
) -> dict[Split, Windows]:
    """Windows of every split when each series is cut in time: training first, then validation, then test.

    Windows have at most `window` scored samples; those of training overlap by half, so that more can be learned from
    one series. Those of validation and test begin up to `warmup` samples earlier, which are not scored: their state is
    the one that the whole series leads to, unless the network remembers more.
    """
    shares = check_fractions(fractions)
    starts, lengths = series.offsets[:-1], series.lengths
    first = np.floor(lengths * shares[0]).astype(np.int64)
    second = np.floor(lengths * (shares[0] + shares[1])).astype(np.int64)
    short = np.flatnonzero((first < 2) | (second - first < 1) | (lengths - second < 1))
    if len(short):
        raise SeriesError(
            f"series {str(series.ids[short[0]])!r} of {series.source} has {lengths[short[0]]} samples, too few to cut "
            "it in time into training, validation and test; remove it, or split by series"
        )
    bounds = {"train": (0 * first, first), "validation": (first, second), "test": (second, lengths)}
    found: dict[Split, Windows] = {}
    for split in SPLITS:
        low, high = bounds[split]
        train = split == "train"
        # Validation follows every epoch: with windows as long as the warm-up it costs twice its samples at most.
        size = max(window, warmup) if split == "validation" else window
        found[split] = cut_windows(starts, low, high, size, 0 if train else warmup, overlap=train)
    return found


def cut_windows(
    starts: Integers, low: Integers, high: Integers, window: int, warmup: int, *, overlap: bool = False
) -> Windows:
    """Windows of the samples `low` to `high` of series that begin at `starts`; `overlap`: by half, for training."""
    if window < 2 or warmup < 0:
        raise ValueError(
            f"window is {window} and warmup {warmup}; a window has at least 2 samples, a warm-up at least 0"
        )
    stride = window // 2 if overlap else window
    # A last window that lies within the one before it adds nothing.
    pieces = np.maximum(1, -(-(high - low - (window - stride)) // stride))
    series = np.repeat(np.arange(len(starts)), pieces)
    number = np.arange(len(series)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin = low[series] + number * stride
    end = np.minimum(begin + window, high[series])
    early = np.maximum(begin - warmup, 0)
    return Windows(series, starts[series] + early, end - early, begin - early)
