"""The first minute."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lipschitz_rnn.experiments.quickstart import Quickstart, quickstart_settings, run_quickstart
from lipschitz_rnn.units.registry import count_parameters


def test_the_lstm_is_of_about_the_same_size_and_trained_the_same_way() -> None:
    ours, theirs = quickstart_settings()
    sizes = [count_parameters(s.unit, s.hidden_size, 1, 10) for s in (ours, theirs)]
    assert abs(sizes[0] - sizes[1]) < 0.05 * sizes[0]
    assert set(ours.differences(theirs)) == {"unit", "unit_options", "hidden_size"}


def test_a_short_one_draws_its_picture_and_can_be_repeated(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    done = run_quickstart(tmp_path, (0, 1), epochs=1)
    assert done.picture.read_bytes().startswith(b"\x89PNG")
    again = run_quickstart(tmp_path, (0, 1), epochs=1)
    assert again.lipschitz.seeds == done.lipschitz.seeds


def result(*scores: float) -> Any:
    return SimpleNamespace(seeds=[SimpleNamespace(test=score) for score in scores])


def conclude(ours: tuple[float, ...], theirs: tuple[float, ...]) -> str:
    return Quickstart(result(*ours), result(*theirs), Path("none")).conclusion()


def test_the_sentence_claims_what_the_seeds_support() -> None:
    assert "Lipschitz RNN is better" in conclude((0.97, 0.975, 0.972, 0.971), (0.94, 0.945, 0.95, 0.942))
    assert "LSTM is better" in conclude((0.94, 0.945, 0.95, 0.942), (0.97, 0.975, 0.972, 0.971))
    assert "is better" not in conclude((0.97, 0.93, 0.95, 0.96), (0.95, 0.955, 0.94, 0.96))
    assert "--seeds" in conclude((0.99,), (0.9,))
    assert "Lipschitz RNN is better" in conclude((0.99, 0.99), (0.9, 0.9))


def test_the_interval_is_that_of_paired_seeds() -> None:
    """Differences 3, 2 and 1: mean 2, variance 1; the formula written out."""
    from scipy.stats import t

    low, high = Quickstart(result(2.0, 3.0, 4.0), result(-1.0, 1.0, 3.0), Path("none")).difference() or (0.0, 0.0)
    half = t.ppf(0.975, 2) / 3**0.5
    assert (low, high) == pytest.approx((2 - half, 2 + half))
    diverged = Quickstart(result(2.0, 3.0), result(1.0, None), Path("none"))  # type: ignore[arg-type]
    assert diverged.difference() is None


@pytest.mark.slow
def test_the_lipschitz_rnn_reads_most_digits_after_a_short_training(tmp_path: Path) -> None:
    """The promise of the README, for two of its seeds: at least 93 % on the test split."""
    from lipschitz_rnn.experiments.runner import train

    torch.set_num_threads(1)
    found = train(quickstart_settings((0, 1))[0], tmp_path / "run")
    assert min(seed.test or 0.0 for seed in found.seeds) >= 0.93
