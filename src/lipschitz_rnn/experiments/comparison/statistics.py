"""The statistics of a comparison: intervals, paired tests with a correction, ranks with a critical difference.

Everything rests on SciPy. Holm's correction, which SciPy does not have, is written out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

PairedTest = Literal["t", "wilcoxon"]
Correction = Literal["holm", "bh", "none"]


@dataclass(frozen=True)
class Summary:
    """Scores over seeds. The interval is Student's, for the mean; None for fewer than two values."""

    count: int
    mean: float
    deviation: float | None
    low: float | None
    high: float | None
    smallest: float
    largest: float


def summarise(values: Sequence[float], confidence: float = 0.95) -> Summary | None:
    """None if there are no values. `deviation` is that of a sample (n − 1)."""
    if not values:
        return None
    mean, deviation, low, high = math.fsum(values) / len(values), None, None, None
    if len(values) > 1:
        deviation = float(np.std(values, ddof=1))
        low, high = mean_interval(values, confidence)
    return Summary(len(values), mean, deviation, low, high, min(values), max(values))


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Student's interval for the mean of at least two values."""
    from scipy import stats

    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(stats.t.ppf(0.5 + confidence / 2, len(values) - 1)) * error
    mean = math.fsum(values) / len(values)
    return mean - half, mean + half


def paired_p(differences: Sequence[float], test: PairedTest = "t") -> float | None:
    """Two-sided p-value that the differences of pairs are centred at 0; None if they cannot tell.

    Fewer than two differences cannot. Equal differences other than 0 cannot either: their spread is estimated as 0, and
    a t-test would call any difference certain.
    """
    from scipy import stats

    if test not in get_args(PairedTest):
        raise ValueError(f"test is {test!r}; it must be one of {', '.join(get_args(PairedTest))}")
    if len(differences) < 2:
        return None
    if not any(differences):
        return 1.0
    if test == "wilcoxon":
        return float(stats.wilcoxon(differences).pvalue)
    size = max(map(abs, differences))
    if max(differences) - min(differences) <= 1e-12 * size:
        return None
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def adjust(values: Sequence[float | None], method: Correction = "holm") -> list[float | None]:
    """p-values corrected for their number. Those that are None stay so and do not count.

    holm: Holm's step-down correction of the family-wise error; bh: Benjamini and Hochberg's false discovery rate.
    """
    if method not in get_args(Correction):
        raise ValueError(f"correction is {method!r}; it must be one of {', '.join(get_args(Correction))}")
    known = [value for value in values if value is not None]
    corrected = iter(_corrected(known, method) if known else ())
    return [None if value is None else next(corrected) for value in values]


def _corrected(values: list[float], method: Correction) -> list[float]:
    if method == "none":
        return values
    if method == "bh":
        from scipy import stats

        return [float(value) for value in stats.false_discovery_control(values)]
    result, largest = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[index]))
        result[index] = largest
    return result


@dataclass(frozen=True)
class Ranking:
    """Mean ranks over blocks (rank 1 is best), Friedman's test, and Nemenyi's critical difference.

    groups: sets of names, best first, whose mean ranks differ by less than the critical difference.
    """

    names: tuple[str, ...]
    ranks: tuple[float, ...]
    blocks: int
    statistic: float
    p: float
    critical_difference: float
    groups: tuple[tuple[str, ...], ...]


def rank(names: Sequence[str], scores: Sequence[Sequence[float]], alpha: float = 0.05) -> Ranking:
    """Rank `names` by their scores in every block, higher being better (Demšar, 2006). Names come back best first.

    Args:
        scores: one row per block, e.g. a task, with one score per name. At least 2 blocks and 3 names.
    """
    from scipy import stats

    count, blocks = len(names), len(scores)
    if count < 3 or blocks < 2:
        raise ValueError(f"there are {count} names and {blocks} blocks; ranks need at least 3 names and 2 blocks")
    table = np.array([stats.rankdata([-score for score in row]) for row in scores])
    mean = table.mean(axis=0)
    if (table == table[:, :1]).all():  # all tied everywhere: the statistic is 0/0
        statistic, p = 0.0, 1.0
    else:
        found = stats.friedmanchisquare(*np.array(scores).T)
        statistic, p = float(found.statistic), float(found.pvalue)
    quantile = float(stats.studentized_range.ppf(1 - alpha, count, np.inf)) / math.sqrt(2)
    difference = quantile * math.sqrt(count * (count + 1) / (6 * blocks))
    order = sorted(range(count), key=lambda index: (mean[index], index))
    ordered = [(names[index], float(mean[index])) for index in order]
    groups = _cliques([value for _, value in ordered], difference)
    return Ranking(
        tuple(name for name, _ in ordered),
        tuple(value for _, value in ordered),
        blocks,
        statistic,
        p,
        difference,
        tuple(tuple(name for name, _ in ordered[first : last + 1]) for first, last in groups),
    )


def _cliques(ranks: Sequence[float], difference: float) -> list[tuple[int, int]]:
    """The longest runs of sorted ranks whose ends differ by less than `difference`, of at least two."""
    found: list[tuple[int, int]] = []
    for first in range(len(ranks)):
        last = max(index for index in range(first, len(ranks)) if ranks[index] - ranks[first] < difference)
        if last > first and not any(start <= first and last <= end for start, end in found):
            found.append((first, last))
    return found
