"""Splits keep proportions, never share a series or a scored sample, and depend on nothing but their seed."""

from __future__ import annotations

import numpy as np
import pytest
from optional import needs

from lipschitz_rnn import data
from lipschitz_rnn.data.splits import split_series, split_times
from lipschitz_rnn.data.target import Kind
from lipschitz_rnn.tasks.base import SPLITS


def classes(counts: list[int]) -> data.SeriesSet:
    labels = np.repeat([f"c{index}" for index in range(len(counts))], counts)
    return data.from_arrays([np.arange(3.0)] * len(labels), labels)


@pytest.mark.parametrize("seed", range(5))
def test_stratified_splits_keep_the_share_of_every_class(seed: int) -> None:
    series = classes([100, 40, 10])
    found = split_series(series, (0.6, 0.2, 0.2), seed=seed)
    assert sorted(np.concatenate(list(found.values())).tolist()) == list(range(150))
    assert series.targets is not None
    for split, share in (("train", 0.6), ("validation", 0.2), ("test", 0.2)):
        counts = np.bincount(series.targets[found[split]], minlength=3)  # type: ignore[index]
        assert (np.abs(counts - share * np.array([100, 40, 10])) <= 1.0 + 1e-9).all()
    again = split_series(series, (0.6, 0.2, 0.2), seed=seed)
    assert all((found[split] == again[split]).all() for split in found)


def test_small_classes_are_always_trained() -> None:
    for seed in range(20):
        series = classes([30, 2])
        assert series.targets is not None
        assert 1 in series.targets[split_series(series, seed=seed)["train"]]
    with pytest.raises(data.SeriesError, match="'c1'"):
        split_series(classes([30, 1]))


@pytest.mark.parametrize("fractions", [(0.7, 0.3), (0.7, 0.2, 0.2), (1.0, 0.0, 0.0), (0.5, 0.75, -0.25)])
def test_wrong_fractions_are_named(fractions: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="fractions are"):
        split_series(classes([5, 5]), fractions)


def test_splits_in_time_score_every_sample_and_train_on_the_past() -> None:
    series = data.from_arrays([np.arange(103.0), np.arange(57.0)])
    found = split_times(series, (0.5, 0.25, 0.25), window=10, warmup=4)
    scored: dict[str, list[int]] = {}
    for split, windows in found.items():
        assert int((windows.length - windows.skip).max()) <= 10
        scored[split] = [
            int(sample)
            for start, length, skip in zip(windows.start, windows.length, windows.skip, strict=True)
            for sample in range(start + skip, start + length)
        ]
    assert len(scored["test"]) == len(set(scored["test"]))
    assert len(scored["train"]) > 1.5 * len(set(scored["train"]))  # training windows overlap
    assert sorted({sample for samples in scored.values() for sample in samples}) == list(range(160))
    assert not set(scored["train"]) & set(scored["validation"])
    assert not set(scored["validation"]) & set(scored["test"])
    for low, high in ((0, 103), (103, 160)):
        parts = [
            [sample for sample in scored[split] if low <= sample < high] for split in ("train", "validation", "test")
        ]
        assert max(parts[0]) < min(parts[1]) <= max(parts[1]) < min(parts[2])
    assert (found["train"].skip == 0).all()
    starts = series.offsets[found["test"].series]
    assert (found["test"].start >= starts).all()


@needs("pandas")
@pytest.mark.parametrize("kind", ["classify", "sequence", "forecast"])
def test_a_column_gives_the_splits(kind: Kind) -> None:
    import pandas as pd

    words = ["train", "test", "Valid", "training", "val", "test"]  # as people write them
    rows = [(name, t, 0.1 * t + place) for t in range(5) for place, name in enumerate("fedcba")]  # series alternate
    frame = pd.DataFrame(rows, columns=["id", "t", "x"])
    frame["part"] = frame["id"].map(dict(zip("fedcba", words, strict=True)))
    label = frame["id"].map(ord) + (frame["t"] if kind == "sequence" else 0)
    frame["y"] = (label % 2).map({0: "even", 1: "odd"})
    target = None if kind == "forecast" else "y"
    series = data.from_frame(frame, series="id", time="t", target=target, split="part", features=["x"])
    task = data.SeriesTask(series, kind)
    found = {split: {str(name) for name in series.ids[task.windows[split].series]} for split in SPLITS}
    assert found == {"train": {"f", "c"}, "validation": {"d", "b"}, "test": {"e", "a"}}
    center = frame.loc[frame["id"].isin(["f", "c"]), "x"].mean()
    np.testing.assert_allclose(task.preprocessing_module.fitted.center, center)  # learned from these series only
    with pytest.raises(data.SeriesError, match="names no series for validation"):
        data.SeriesTask(series.select([0, 1, 3, 5]), kind)
