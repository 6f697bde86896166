"""Spoken digits as raw waveforms, for the table of docs/estimators.md: thousands of steps, no spectrogram.

    make test-peers                                                          # sets up the environment with aeon
    LIPSCHITZ_RNN_DATA=… .venv-peers/bin/python benchmarks/spoken_digits.py              # one sample a step
    LIPSCHITZ_RNN_DATA=… .venv-peers/bin/python benchmarks/spoken_digits.py --fold 16    # 16 samples a step; or 64
    LIPSCHITZ_RNN_DATA=… .venv-peers/bin/python benchmarks/spoken_digits.py --choose     # how settings were chosen

The Free Spoken Digit Dataset: ten digits, six speakers, 8 kHz. Training: the takes 10 to 14 of every digit and speaker
(300 recordings, so that two cores train a network in minutes; --takes has more). Settings were chosen with one seed of
the Lipschitz unit on the takes 5 to 9; GRU and LSTM get the same ones. Test: the takes 0 to 4, the official part, read
once per model and seed. MiniRocket is aeon's transform with a ridge classifier; it needs equal lengths, so recordings
are padded with silence, or cut, to one second.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lipschitz_rnn.estimators import LipschitzRNNClassifier
from lipschitz_rnn.tasks.audio import read_recordings
from lipschitz_rnn.tasks.sources import FSDD

Floats = npt.NDArray[np.float32]
CHOSEN: dict[int, dict[str, Any]] = {
    1: {"epochs": 15, "lr": 0.002, "unit_options": {"step_size": 0.01}},
    16: {"epochs": 30},
    64: {"epochs": 30},  # as for 16
}
TRIED: dict[int, list[dict[str, Any]]] = {
    1: [
        {"epochs": 15, "unit": "contracting"},
        {"epochs": 15, "unit": "contracting", "unit_options": {"step_size": 0.5}},
        {"epochs": 15, "unit_options": {"step_size": 0.5, "gamma": 0.1, "beta": 0.6, "integrator": "midpoint"}},
        {"epochs": 15, "unit_options": {"step_size": 0.03, "gamma": 0.01}},
        {"epochs": 15, "unit_options": {"step_size": 0.01}, "lr": 0.002},
    ],
    16: [
        {"epochs": 30},
        {"epochs": 30, "unit_options": {"step_size": 0.03}},
        {"epochs": 30, "unit_options": {"step_size": 0.03}, "lr": 0.002},
        {"epochs": 30, "unit_options": {"step_size": 0.03}, "input_noise": 0.3},
    ],
}
UNITS = ("lipschitz", "gru", "lstm", "minirocket")
SECOND = 8_000  # samples


class Digits:
    """The recordings, by their takes."""

    def __init__(self) -> None:
        self.sounds = read_recordings(FSDD, None, offline=True)

    def part(self, takes: range, fold: int) -> tuple[list[Floats], npt.NDArray[Any]]:
        """Series (fold, steps), and digits."""
        names = sorted(name for name in self.sounds if int(name.rpartition("_")[2]) in takes)
        return [_folded(self.sounds[name] / np.float32(2**15), fold) for name in names], np.array([n[0] for n in names])


def _folded(sound: Floats, fold: int) -> Floats:
    """Each step has the next `fold` samples as its channels; the last one is filled up with silence."""
    return np.pad(sound, (0, -len(sound) % fold)).reshape(-1, fold).T.astype(np.float32)


def _one_second(series: list[Floats]) -> Floats:
    """(cases, 1, 8000): padded with silence, or cut."""
    flat = [case.T.reshape(1, -1)[:, :SECOND] for case in series]
    return np.stack([np.pad(case, ((0, 0), (0, SECOND - case.shape[1]))) for case in flat])


def score(settings: dict[str, Any], seed: int, known: Any, unseen: Any) -> float:
    if settings.get("unit") != "minirocket":
        return float(LipschitzRNNClassifier(**settings, random_state=seed).fit(*known).score(*unseen))
    from aeon.transformations.collection.convolution_based import MiniRocket
    from sklearn.linear_model import RidgeClassifierCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    ridge = RidgeClassifierCV(np.logspace(-3, 3, 10))
    model = make_pipeline(MiniRocket(random_state=seed), StandardScaler(with_mean=False), ridge)
    return float(model.fit(_one_second(known[0]), known[1]).score(_one_second(unseen[0]), unseen[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--choose", action="store_true", help="score the settings tried on the validation takes")
    parser.add_argument("--fold", type=int, choices=tuple(CHOSEN), default=1, help="samples a step")
    parser.add_argument("--takes", type=int, default=5, help="of each digit and speaker to train on, at most 40")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--units", nargs="+", default=list(UNITS), choices=UNITS)
    options = parser.parse_args()
    print(f"{torch.get_num_threads()} thread(s), torch {torch.__version__}")
    digits = Digits()
    known = digits.part(range(10, 10 + options.takes), options.fold)
    unseen = digits.part(range(5, 10) if options.choose else range(5), options.fold)
    steps = [case.shape[1] for case in known[0]]
    print(f"{len(steps)} series of {min(steps):,} to {max(steps):,} steps, {np.mean(steps):,.0f} on average")
    chosen = [{"unit": unit, **CHOSEN[options.fold]} for unit in options.units]
    for settings in chosen:
        if settings["unit"] != "lipschitz":
            settings.pop("unit_options", None)  # a step size, which other units do not have
    for settings in TRIED.get(options.fold, []) if options.choose else chosen:
        start, scores = time.perf_counter(), []
        for seed in range(1 if options.choose else options.seeds):
            scores.append(score(settings, seed, known, unseen))
            print(f"  seed {seed}: {100 * scores[-1]:.1f} %", flush=True)
        spread = f" ± {100 * np.std(scores, ddof=1):.1f}" if len(scores) > 1 else ""
        seconds = (time.perf_counter() - start) / len(scores)
        print(f"{settings}: {100 * np.mean(scores):.1f}{spread} %, {seconds:.0f} s each", flush=True)


if __name__ == "__main__":
    main()
