"""The statistics of a comparison, against SciPy and against numbers computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lipschitz_rnn.experiments.comparison.statistics import adjust, mean_interval, paired_p, rank, summarise

stats = pytest.importorskip("scipy.stats")


def test_summary_by_hand() -> None:
    found = summarise([1.0, 2.0, 3.0, 4.0])
    assert found is not None
    assert (found.count, found.mean, found.smallest, found.largest) == (4, 2.5, 1.0, 4.0)
    assert found.deviation == pytest.approx(math.sqrt(5 / 3))
    half = 3.182446305284263 * math.sqrt(5 / 3) / 2  # t of 3 degrees of freedom at 97.5 %, from a table
    assert (found.low, found.high) == pytest.approx((2.5 - half, 2.5 + half))


def test_summary_of_few_values() -> None:
    assert summarise([]) is None
    one = summarise([0.5])
    assert one is not None
    assert (one.mean, one.deviation, one.low, one.high) == (0.5, None, None, None)


def test_interval_is_scipys() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, 9).tolist()
    expected = stats.t.interval(0.95, 8, loc=np.mean(values), scale=stats.sem(values))
    assert mean_interval(values) == pytest.approx(expected)


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    draws = np.random.default_rng(2).normal(1.0, 0.5, (2000, 5))
    covered = sum(low <= 1.0 <= high for low, high in (mean_interval(row.tolist()) for row in draws))
    assert 0.93 < covered / 2000 < 0.97


def test_paired_tests_are_scipys() -> None:
    draw = np.random.default_rng(3)
    one, other = draw.normal(0.0, 1.0, 8), draw.normal(0.5, 1.0, 8)
    differences = (one - other).tolist()
    assert paired_p(differences) == pytest.approx(stats.ttest_rel(one, other).pvalue)
    assert paired_p(differences, "wilcoxon") == pytest.approx(stats.wilcoxon(one, other).pvalue)


def test_paired_t_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, standard error 1/√3, t = 2√3 with 2 degrees of freedom.
    t = 2 * math.sqrt(3)
    by_hand = 1 - t / math.sqrt(2 + t * t)  # the distribution with 2 degrees of freedom in closed form
    assert paired_p([1.0, 2.0, 3.0]) == pytest.approx(by_hand)


def test_wilcoxon_by_hand() -> None:
    assert paired_p([1.0, 2.0, 3.0, 4.0, 5.0], "wilcoxon") == pytest.approx(2 / 2**5)  # the most extreme of 32 signs


@pytest.mark.parametrize("test", ["t", "wilcoxon"])
def test_what_cannot_be_tested(test: str) -> None:
    assert paired_p([0.1], test) is None
    assert paired_p([0.0, 0.0, 0.0], test) == 1.0
    with pytest.raises(ValueError, match="one of t, wilcoxon"):
        paired_p([1.0, 2.0], "sign")


def test_equal_differences_are_not_called_certain() -> None:
    assert paired_p([0.1, 0.1, 0.1]) is None
    assert paired_p([0.3 - 0.2, 0.4 - 0.3, 0.5 - 0.4]) is None  # equal up to rounding


def test_holm_by_hand() -> None:
    assert adjust([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert adjust([0.02, None, 0.5, 0.6]) == [pytest.approx(0.06), None, 1.0, 1.0]
    assert adjust([None, None]) == [None, None]
    assert adjust([0.2, 0.001], "none") == [0.2, 0.001]


def test_false_discovery_rate_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.04 times 3/1, 3/2, 3/3, then the smallest from the right.
    assert adjust([0.04, 0.01, 0.02], "bh") == pytest.approx([0.04, 0.03, 0.03])
    with pytest.raises(ValueError, match="one of holm, bh, none"):
        adjust([0.1], "bonferroni")


def test_critical_difference_of_the_literature() -> None:
    """Demšar (2006) prints 1.25 for four classifiers on 14 data sets at 0.05."""
    scores = np.random.default_rng(4).normal(size=(14, 4)).tolist()
    assert rank(["a", "b", "c", "d"], scores).critical_difference == pytest.approx(1.25, abs=0.005)


def test_ranks_by_hand() -> None:
    found = rank(["a", "b", "c"], [[0.9, 0.8, 0.7], [0.9, 0.9, 0.1], [0.5, 0.6, 0.4]])
    assert found.names == ("a", "b", "c")
    assert found.ranks == pytest.approx((4.5 / 3, 4.5 / 3, 3.0))
    assert found.blocks == 3
    assert found.groups == (("a", "b", "c"),)  # three blocks tell nothing apart


def test_friedman_is_scipys_and_clear_differences_are_found() -> None:
    scores = np.random.default_rng(5).normal(size=(30, 4)) + np.array([3.0, 0.0, 2.9, -3.0])
    found = rank(["a", "b", "c", "d"], scores.tolist())
    expected = stats.friedmanchisquare(*scores.T)
    assert (found.statistic, found.p) == pytest.approx((expected.statistic, expected.pvalue))
    assert {found.names[0], found.names[1]} == {"a", "c"}
    assert [set(group) for group in found.groups] == [{"a", "c"}]


def test_ranks_of_ties_and_of_too_little() -> None:
    found = rank(["a", "b", "c"], [[1.0, 1.0, 1.0]] * 4)
    assert (found.ranks, found.p) == ((2.0, 2.0, 2.0), 1.0)
    with pytest.raises(ValueError, match="at least 3 names and 2 blocks"):
        rank(["a", "b"], [[1.0, 2.0]])
