"""Two real data sets that come with aeon, for the tables of docs/estimators.md.

    make test-peers                                                   # sets up the environment with aeon
    .venv-peers/bin/python benchmarks/own_data_sets.py                # both data sets, all models, 5 seeds
    .venv-peers/bin/python benchmarks/own_data_sets.py --choose       # how the settings were chosen: training part only

Settings were chosen by cross-validation on the training part with the Lipschitz unit; GRU and LSTM get the same ones.
The test part is read once per model and seed. ROCKET is aeon's transform with a ridge classifier. It needs equal
lengths, so its series are padded; padding and normalisation were chosen by cross-validation too (aeon's default, to
normalise every series, loses the level that tells speakers apart).
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from aeon.datasets import load_basic_motions, load_japanese_vowels
from aeon.transformations.collection.convolution_based import Rocket
from sklearn.linear_model import RidgeClassifierCV
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lipschitz_rnn.estimators import LipschitzRNNClassifier

DATA: dict[str, Callable[..., Any]] = {"JapaneseVowels": load_japanese_vowels, "BasicMotions": load_basic_motions}
CHOSEN: dict[str, dict[str, Any]] = {
    "JapaneseVowels": {"hidden_size": 128, "input_noise": 0.5},
    "BasicMotions": {},
}
TRIED: dict[str, list[dict[str, Any]]] = {
    "JapaneseVowels": [
        {},
        {"validation_fraction": 0.15},
        {"input_noise": 0.3},
        {"input_noise": 0.6},
        {"input_noise": 0.5, "dropout": 0.5},
        {"input_noise": 0.5, "hidden_size": 128},
        {"input_noise": 0.8, "hidden_size": 128},
    ],
    "BasicMotions": [{}, {"validation_fraction": 0.15}, {"input_noise": 0.3}],
}
UNITS = ("lipschitz", "gru", "lstm")


FOLDS = {"JapaneseVowels": 5, "BasicMotions": 4}  # with which CHOSEN was chosen
LONGEST = {"JapaneseVowels": 29, "BasicMotions": 100}
PADDING = ("edge", "constant")  # with the last value, or with zeros


def rocket(seed: int, normalise: bool = False) -> Any:
    transform = Rocket(normalise=normalise, random_state=seed)
    return make_pipeline(transform, StandardScaler(with_mean=False), RidgeClassifierCV(np.logspace(-3, 3, 10)))


def equal_lengths(name: str, X: Any, mode: Any = "edge") -> Any:
    return np.stack([np.pad(case, ((0, 0), (0, LONGEST[name] - case.shape[1])), mode=mode) for case in X])


def choose(name: str, count: int) -> None:
    """Cross-validation on the training part with `count` folds."""
    X, y = DATA[name](split="train")
    models: dict[str, tuple[Any, Callable[[int], Any]]] = {}
    for settings in TRIED[name]:
        models[f"lipschitz {settings}"] = (X, partial(_classifier, settings))
    for normalise in (False, True):
        for mode in PADDING if name == "JapaneseVowels" else PADDING[:1]:
            shown = f"rocket, {'normalised' if normalise else 'not normalised'}, padding {mode}"
            models[shown] = (equal_lengths(name, X, mode), partial(rocket, normalise=normalise))
    for shown, (series, make) in models.items():
        scores = []
        folds = StratifiedKFold(count, shuffle=True, random_state=0).split(np.zeros(len(y)), y)
        for seed, (train, held) in enumerate(folds):
            known, unseen = ([series[i] for i in part] for part in (train, held))
            if isinstance(series, np.ndarray):
                known, unseen = np.stack(known), np.stack(unseen)
            scores.append(float((make(seed).fit(known, y[train]).predict(unseen) == y[held]).mean()))
        print(f"{name} {shown}: {100 * np.mean(scores):.1f} %", flush=True)


def _classifier(settings: dict[str, Any], seed: int) -> Any:
    return LipschitzRNNClassifier(**settings, random_state=seed)


def measure(name: str, seeds: int, units: list[str], changes: dict[str, Any]) -> None:
    X, y = DATA[name](split="train")
    unseen, labels = DATA[name](split="test")
    for unit in units:
        scores, seconds = [], []
        for seed in range(seeds):
            start = time.perf_counter()
            if unit == "rocket":
                model: Any = rocket(seed).fit(equal_lengths(name, X), y)
                scores.append(float((model.predict(equal_lengths(name, unseen)) == labels).mean()))
            else:
                model = LipschitzRNNClassifier(**CHOSEN[name] | changes, unit=unit, random_state=seed).fit(X, y)
                scores.append(model.score(unseen, labels))
            seconds.append(time.perf_counter() - start)
        shown = " ".join(f"{100 * score:.1f}" for score in scores)
        spread = 100 * np.std(scores, ddof=1) if seeds > 1 else 0.0
        print(
            f"{name} {unit}: {100 * np.mean(scores):.1f} ± {spread:.1f} % ({shown}), {np.median(seconds):.0f} s each",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--folds", type=int, help="of --choose; by default those with which the settings were chosen")
    parser.add_argument("--input-noise", type=float, help="instead of the chosen one")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=tuple(DATA))
    parser.add_argument("--units", nargs="+", default=[*UNITS, "rocket"])
    options = parser.parse_args()
    changes = {} if options.input_noise is None else {"input_noise": options.input_noise}
    print(
        f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} thread(s), torch {torch.__version__}"
    )
    for name in [options.only] if options.only else list(DATA):
        if options.choose:
            choose(name, options.folds or FOLDS[name])
        else:
            measure(name, options.seeds, options.units, changes)


if __name__ == "__main__":
    main()
