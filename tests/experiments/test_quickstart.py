"""The first minute."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lipschitz_rnn.experiments.quickstart import quickstart_settings, run_quickstart
from lipschitz_rnn.units.registry import count_parameters


def test_the_lstm_is_of_about_the_same_size_and_trained_the_same_way() -> None:
    ours, theirs = quickstart_settings()
    sizes = [count_parameters(s.unit, s.hidden_size, 1, 10) for s in (ours, theirs)]
    assert abs(sizes[0] - sizes[1]) < 0.05 * sizes[0]
    assert set(ours.differences(theirs)) == {"unit", "unit_options", "hidden_size"}


def test_a_short_one_draws_its_picture_and_can_be_repeated(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    done = run_quickstart(tmp_path, epochs=1)
    assert done.picture.read_bytes().startswith(b"\x89PNG")
    again = run_quickstart(tmp_path, epochs=1)
    assert again.lipschitz.seeds == done.lipschitz.seeds


@pytest.mark.slow
def test_the_lipschitz_rnn_reads_95_of_100_digits_after_a_short_training(tmp_path: Path) -> None:
    """The promise of the README: at least 95 % on the test split, in at most 90 seconds of processor time."""
    import time

    from lipschitz_rnn.experiments.runner import train

    torch.set_num_threads(1)
    started = time.process_time()
    result = train(quickstart_settings()[0], tmp_path / "run")
    assert result.seeds[0].test is not None
    assert result.seeds[0].test >= 0.95
    assert time.process_time() - started < 90.0
