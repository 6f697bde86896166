"""Prediction intervals: their ranks by hand, their coverage on made data, and who may have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_models import make_model
from optional import needs

from lipschitz_rnn import data, units
from lipschitz_rnn.data.calibration import calibrate, errors_of
from lipschitz_rnn.data.intervals import Intervals
from lipschitz_rnn.data.prediction_tables import prediction_table
from lipschitz_rnn.training import Settings, fit


def test_the_rank_is_that_of_split_conformal_prediction() -> None:
    errors = np.arange(1.0, 20.0)[np.random.default_rng(0).permutation(19)]
    found = Intervals.fit(-errors[:, None, None], 19)
    # 19 errors: the k-th smallest covers a new exchangeable one with probability k / 20.
    for k in range(1, 20):
        assert found.half_widths(k / 20)[0, 0] == k
    assert found.half_widths(0.901)[0, 0] == 19.0
    with pytest.raises(ValueError, match="24"):
        found.half_widths(0.96)
    for wrong in (0.0, 1.0, -0.5, float("nan"), True):
        with pytest.raises(ValueError, match="coverage"):
            found.half_widths(wrong)


def test_thinned_and_stored_errors_are_never_too_small() -> None:
    errors = np.random.default_rng(1).exponential(size=(5_003, 2, 1))
    errors[4_000:, 1] = np.nan
    found = Intervals.fit(errors, 7)
    stored = Intervals.from_dict(json.loads(json.dumps(found.to_dict())))
    assert (stored.counts, stored.series) == (((5_003,), (4_000,)), 7)
    for coverage in (0.5, 0.9, 0.99):
        for step, count in enumerate((5_003, 4_000)):
            exact = np.sort(errors[:count, step, 0])[int(np.ceil((count + 1) * coverage)) - 1]
            for each in (found, stored):
                width = each.half_widths(coverage, 2)[step, 0]
                assert exact <= width <= exact + np.quantile(errors[:count, step], coverage + 0.005) - exact + 1e-4
    with pytest.raises(ValueError, match="3"):
        found.half_widths(0.9, 3)


def test_coverage_of_new_series_from_the_same_source() -> None:
    """The mean over many calibrations: 0.8 or a little more, for a network that learned nothing and skewed errors."""
    generator = np.random.default_rng(2)
    covered = []
    for _ in range(400):
        y = generator.exponential(size=(60, 1, 1))
        width = Intervals.fit(y[:30] - 1.0, 30).half_widths(0.8)[0, 0]
        covered.append(np.mean(np.abs(y[30:] - 1.0) <= width))
    # ceil(31 · 0.8) / 31 = 25 / 31; the standard error of the mean is about 0.004.
    assert np.mean(covered) == pytest.approx(25 / 31, abs=0.016)


def noisy_means(count: int, seed: int) -> tuple[list[Any], Any]:
    generator = np.random.default_rng(seed)
    X = [generator.normal(size=(1, int(generator.integers(5, 9)))) + level for level in generator.normal(size=count)]
    return X, np.array([case.mean() for case in X]) + 0.5 * generator.normal(size=count)


def test_a_trained_regression_covers_what_it_says(tmp_path: Path) -> None:
    X, y = noisy_means(900, 0)
    series = data.from_arrays(X, y)
    task = data.SeriesTask(series, "regress", fractions=(0.3, 0.4, 0.3), step_size=0.1)
    settings = Settings(task=task.name, unit_options={"step_size": 0.1}, hidden_size=8, epochs=2, batch_size=64)
    result = fit(settings, task)
    models = [data.SeriesModel.from_record(network, task.record()) for network in result.models]
    intervals = calibrate(models, task)
    assert intervals is not None
    assert intervals.counts == ((360,),)
    errors = np.abs(errors_of(models, task, "test"))
    for coverage in (0.5, 0.9):
        found = float((errors <= intervals.half_widths(coverage)).mean())
        assert found == pytest.approx(coverage, abs=0.08)  # 270 test series: ± 0.03 at 0.5
    saved = data.SavedModels(tuple(models), {"intervals": intervals.to_dict()})
    saved.save(tmp_path / "model.safetensors")
    new = series.select(task.windows["test"].series)
    table = prediction_table(data.load_model(tmp_path / "model.safetensors"), new, interval=0.9)
    assert new.targets is not None
    inside = (table["lower"] <= new.targets[:, 0]) & (new.targets[:, 0] <= table["upper"])
    assert float(inside.mean()) == pytest.approx(0.9, abs=0.08)
    np.testing.assert_allclose(0.5 * (table["lower"] + table["upper"]), table["prediction"])
    with pytest.raises(ValueError, match="no intervals"):
        prediction_table(data.SavedModels(tuple(models)), new, interval=0.9)
    with pytest.raises(ValueError, match="classes"):
        _ = data.SavedModels((make_model(),)).intervals


@pytest.mark.parametrize("by", ["time", "series"])
def test_errors_of_free_runs_are_those_of_the_series_cut_there(by: Any) -> None:
    """Every error against a free run of the cut series alone, at the times when the samples came."""
    generator = np.random.default_rng(3)
    times = [np.cumsum(generator.exponential(size=length) + 0.1) for length in (40, 25, 30, 35)]
    values = [np.stack([np.sin(t), np.cos(t)]) for t in times]
    values[0][0, 37] = np.nan
    series = data.from_arrays(values, times=times, columns=["x", "y"])
    task = data.SeriesTask(series, "forecast", split_by=by, forecast=["y"], step_size=0.1)
    unit = units.build("gru", task.preprocessing_module.output_size, 4)
    model = data.SeriesModel(task.preprocessing_module, unit, torch.nn.Linear(4, 1), task.target).double().eval()
    found = errors_of([model], task, "test", 3)
    expected = []
    for owner in np.unique(task.windows["test"].series):
        part = task.windows["test"].select(np.flatnonzero(task.windows["test"].series == owner))
        start = int((part.start + part.skip).min() - series.offsets[owner])
        length = len(times[owner])
        for known in range(start if by == "time" else length // 2, length):
            x, t = (torch.tensor(each[owner]) for each in (values, times))
            ahead = min(3, length - known)
            future = torch.cat((t[known : known + ahead], t[known + ahead - 1] + torch.arange(1, 4 - ahead)))[None]
            future[:, ahead:] = t[known + ahead - 1] + torch.arange(1, 4 - ahead) * task.preprocessing_module.fitted.gap
            run = model.free_run(x[None, :, :known].transpose(1, 2), t[None, :known], None, 3, future)[0, :, 0]
            row = torch.full((3,), torch.nan, dtype=torch.float64)
            row[:ahead] = x[1, known : known + ahead] - run[:ahead]
            expected.append(row.numpy())
    np.testing.assert_allclose(found[:, :, 0], np.stack(expected), atol=1e-9)


def _after(values: Any, start: int, stop: int, step: int, count: int) -> list[Any]:
    return [values[known : known + count] for known in range(start, stop, step)]


@needs("sklearn")
def test_estimators_have_intervals_if_they_have_a_validation_part(tmp_path: Path) -> None:
    from lipschitz_rnn.estimators import LipschitzRNNForecaster, LipschitzRNNRegressor

    quick: dict[str, Any] = {"hidden_size": 8, "epochs": 3, "random_state": 0}
    X, y = noisy_means(400, 4)
    model = LipschitzRNNRegressor(**quick, validation_fraction=0.5).fit(X[:200], y[:200])
    ends = model.predict_interval(X[200:], coverage=0.8)
    inside = (ends[:, 0] <= y[200:]) & (y[200:] <= ends[:, 1])
    assert float(inside.mean()) == pytest.approx(0.8, abs=0.12)  # 100 validation and 200 new series
    model.save(tmp_path / "model.safetensors")
    again = LipschitzRNNRegressor.load(tmp_path / "model.safetensors")
    np.testing.assert_allclose(again.predict_interval(X, 0.8), model.predict_interval(X, 0.8), rtol=1e-4)
    both = LipschitzRNNRegressor(**quick, validation_fraction=0.5).fit(X[:50], np.stack([y, -y], 1)[:50])
    assert both.predict_interval(X[:3]).shape == (3, 2, 2)
    with pytest.raises(ValueError, match="validation_fraction"):
        LipschitzRNNRegressor(**quick).fit(X[:50], y[:50]).predict_interval(X)

    generator = np.random.default_rng(5)
    noise, values = generator.normal(size=800), np.zeros(800)
    for step in range(1, 800):
        values[step] = 0.8 * values[step - 1] + noise[step]
    forecaster = LipschitzRNNForecaster(**quick, unit="gru", horizon=4, validation_fraction=0.4).fit(values[:500])
    ends = forecaster.predict_interval(4)
    assert ends.shape == (4, 2)
    widths = (ends[:, 1] - ends[:, 0]) / 2
    # The best forecasts have errors with deviations of 1 and 1.52, one and four steps ahead; the last value 1.05, 1.81.
    assert 1.4 < widths[0] < 2.2
    assert 2.1 < widths[3] < 4.0
    later = [forecaster.predict_interval(values[:known], 4) for known in range(500, 796, 8)]
    inside = [(e[:, 0] <= t) & (t <= e[:, 1]) for e, t in zip(later, _after(values, 500, 796, 8, 4), strict=True)]
    assert float(np.mean(inside)) == pytest.approx(0.9, abs=0.1)
    with pytest.raises(ValueError, match="5"):
        forecaster.predict_interval(5)
