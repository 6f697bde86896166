"""Dates and numbers as times are not mixed, and dates that are not used are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_series import QUICK, waves

from lipschitz_rnn.data import SeriesError, SeriesModel, SeriesTask, from_arrays, save_model
from lipschitz_rnn.training import Settings, build_model

estimators = pytest.importorskip("lipschitz_rnn.estimators", reason="needs scikit-learn", exc_type=ImportError)
LipschitzRNNClassifier = estimators.LipschitzRNNClassifier
LipschitzRNNForecaster = estimators.LipschitzRNNForecaster


def times_of(series: list[Any], kind: str) -> list[Any]:
    steps = [np.cumsum(1 + np.arange(case.shape[1]) % 3) for case in series]
    if kind == "number":
        return steps
    durations = [row.astype("m8[s]") for row in steps]
    return durations if kind == "duration" else [np.datetime64("2026-01-01") + row for row in durations]


@pytest.mark.parametrize(("fitted", "other"), [("date", "number"), ("number", "date"), ("number", "duration")])
def test_times_stay_dates_or_numbers(fitted: str, other: str, tmp_path: Path) -> None:
    X, y = waves(12)
    model = LipschitzRNNClassifier(**QUICK, warm_start=True).fit(X, y, times=times_of(X, fitted))
    expected = model.predict_proba(X, times=times_of(X, fitted))
    loaded = LipschitzRNNClassifier.load(model.save(tmp_path / "model.safetensors"))
    for each in (model, loaded):
        np.testing.assert_array_equal(each.predict_proba(X, times=times_of(X, fitted)), expected)
        with pytest.raises(SeriesError, match=f"times are {other}s, .* was fitted with {fitted}s; give {fitted}s"):
            each.predict(X, times=times_of(X, other))
        with pytest.raises(SeriesError, match=f"times are {other}s"):
            each.fit(X, y, times=times_of(X, other))
    fresh = model.set_params(warm_start=False).fit(X, y, times=times_of(X, other))
    assert len(fresh.predict(X, times=times_of(X, other))) == 12


def test_future_times_are_as_those_of_the_fit() -> None:
    X, _ = waves(4)
    dates, numbers = times_of(X, "date"), times_of(X, "number")
    model = LipschitzRNNForecaster(**QUICK).fit(X, times=dates)
    after = np.stack([row[-1] + np.array([1, 5], dtype="m8[s]") for row in dates])
    assert model.predict(X, 2, times=dates, future_times=after).shape == (4, 2, 2)
    with pytest.raises(SeriesError, match=r"future_times are numbers, .* was fitted with dates"):
        model.predict(X, 2, times=dates, future_times=np.stack([row[-1] + np.array([1.0, 5.0]) for row in numbers]))
    with pytest.raises(SeriesError, match="times are numbers"):
        model.score(X, times=numbers)


def test_the_times_of_all_cases_are_of_one_kind() -> None:
    X, _ = waves(3)
    mixed = [*times_of(X, "date")[:2], times_of(X, "number")[2]]
    with pytest.raises(SeriesError, match="the times of case 2 are numbers, but those of case 0 are dates"):
        from_arrays(X, times=mixed)


def test_dates_of_an_index_are_used_if_they_are_passed() -> None:
    pd = pytest.importorskip("pandas", reason="needs pandas")
    X, y = waves(12)
    index = [pd.DatetimeIndex(row) for row in times_of(X, "date")]
    frames = [pd.DataFrame(case.T, columns=["a", "b"], index=when) for case, when in zip(X, index, strict=True)]
    said = "the dates in the index of X are not used"
    assert [note for note in LipschitzRNNClassifier(**QUICK).fit(frames, y).notes_ if said in note]
    with_times = LipschitzRNNClassifier(**QUICK).fit(frames, y, times=[frame.index for frame in frames])
    plain = LipschitzRNNClassifier(**QUICK).fit([frame.reset_index(drop=True) for frame in frames], y)
    for one in (frames[0], frames[0]["a"]):
        forecaster = LipschitzRNNForecaster(**QUICK).fit(one)
        assert [note for note in forecaster.notes_ if said in note]
    passed = LipschitzRNNForecaster(**QUICK).fit(frames[0], times=frames[0].index)
    ahead = pd.Series(frames[0].index[-1] + pd.to_timedelta([1, 4], unit="s"), index=[7, 8])
    assert passed.predict(2, future_times=ahead).shape == (2, 2)
    for model in (with_times, plain, passed):
        assert not [note for note in model.notes_ if said in note]


@pytest.mark.parametrize("columns", [["p", "q"], None])
def test_a_model_of_a_table_knows_its_times(columns: list[str] | None, tmp_path: Path) -> None:
    """Dates in a file of arrays are read as numbers, so what such a model had is not known."""
    X, y = waves(12)
    task = SeriesTask(from_arrays(X, y, times=times_of(X, "date"), columns=columns), step_size=0.1)
    network = SeriesModel.from_record(build_model(Settings(task="file", hidden_size=4), task, 0), task.record())
    path = save_model(
        tmp_path / "model.safetensors", [network], {"reading": {"clock": "date" if columns else "number"}}
    )
    model = LipschitzRNNClassifier.load(path)
    assert len(model.predict(X, times=times_of(X, "date"))) == 12
    if columns:
        with pytest.raises(SeriesError, match="fitted with dates"):
            model.predict(X, times=times_of(X, "number"))
