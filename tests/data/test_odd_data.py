"""Data that can be read, but may not mean what they say: other units of time, codes with zeros, dates as numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_models import irregular, make_model
from optional import needs
from series_files import waves, write_csv
from typer.testing import CliRunner, Result

from lipschitz_rnn import data
from lipschitz_rnn.cli import app
from lipschitz_rnn.data.prediction_tables import prediction_table
from lipschitz_rnn.stability import certify

pytestmark = needs("pandas")
SMALL = ["--device", "cpu", "-e", "1", "-n", "4", "--no-report"]


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def in_unit(factor: float) -> data.SeriesSet:
    made = waves(6, seed=5)
    values = [one["values"].T for one in made]
    return data.from_arrays(values, times=[factor * one["times"] for one in made], columns=["x", "y"])


@pytest.mark.parametrize(("factor", "said"), [(60.0, "88% of the gaps are above 10"), (1e-3, "hardly moves")])
def test_times_in_another_unit_are_said_with_numbers_and_remedy(factor: float, said: str) -> None:
    saved = data.SavedModels((make_model(),))
    typical, trained = float(np.median(in_unit(factor).gaps)), saved.preprocessing.fitted.gap
    with pytest.warns(data.SeriesWarning, match=said) as found:
        saved.predict(in_unit(factor))
    (message,) = [str(each.message) for each in found]
    assert f"{typical:.4g}" in message
    assert f"{trained:.4g}" in message
    assert "another unit" in message


def test_times_of_the_same_unit_are_not_commented() -> None:
    for factor in (0.3, 1.0, 3.0):  # another rate of sampling, within what a unit of time would change
        data.SavedModels((make_model(),)).predict(in_unit(factor))
    ignored = make_model(times="ignored")
    data.SavedModels((ignored,)).predict(in_unit(1e6))
    single = data.from_arrays([np.zeros((2, 1))], times=[np.zeros(1)], columns=["x", "y"])
    data.SavedModels((make_model(),)).predict(single)  # no gap to compare


def test_predict_says_it_on_one_line_and_writes_the_table(tmp_path: Path) -> None:
    make_model().save(tmp_path / "model.safetensors", {"reading": {"series": "machine", "time": "clock"}})
    made = waves(5, seed=5)
    for one in made:
        one["times"] = 1000.0 * one["times"]
    path, out = write_csv(tmp_path / "new.csv", made), tmp_path / "out.csv"
    result = call("predict", tmp_path / "model.safetensors", path, "-o", out)
    assert result.exit_code == 0
    assert [line for line in result.stderr.splitlines() if line.startswith("warning: the typical gap")]
    assert ".py" not in result.stderr
    assert len(out.read_text().splitlines()) == 6


CODES = "id,t,x,kind,state\n" + "".join(
    f"{case},{t},{t + case % 3}.5,{case % 2:02d},{('01', '02', '10')[case % 3]}\n"
    for case in range(24)
    for t in range(4)
)


@pytest.mark.parametrize("rows_per_chunk", [8, 1000])
def test_labels_and_categories_keep_their_zeros(tmp_path: Path, rows_per_chunk: int) -> None:
    (tmp_path / "codes.csv").write_text(CODES)
    columns: dict[str, Any] = {"series": "id", "time": "t", "rows_per_chunk": rows_per_chunk}
    found = data.read(tmp_path / "codes.csv", target="state", categories=["kind"], **columns)
    assert found.classes == ("01", "02", "10")
    assert found.categories == {"kind": ("00", "01")}
    task = data.SeriesTask(found)
    assert (task.kind, task.target.classes) == ("classify", ("01", "02", "10"))
    # In a frame too; numbers, and numbers with a decimal comma, stay numbers.
    import pandas as pd

    frame = pd.read_csv(tmp_path / "codes.csv", dtype={"state": str})
    assert data.from_frame(frame, target="state", series="id").classes == ("01", "02", "10")
    (tmp_path / "commas.csv").write_text("id;x;y\n" + "".join(f"{i};{i},5;{i % 2},25\n" for i in range(9)))
    numbers = data.read(tmp_path / "commas.csv", target="y", series="id")
    assert numbers.targets is not None
    np.testing.assert_array_equal(numbers.targets[:, 0], [0.25, 1.25] * 4 + [0.25])


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["12345678901234567", "12345678901234568", "42"], ("42", "12345678901234567", "12345678901234568")),
        (["0.1", "0.2"], ("0.1", "0.2")),
        (["2.0", "1.0"], ("1.0", "2.0")),
        (["1e3", "+1"], ("+1", "1e3")),
        (["1.0", "1", "2.50", "2.5"], ("1", "2.5")),  # one number is one label
        (["10", "9"], ("9", "10")),
    ],
)
@pytest.mark.parametrize("rows_per_chunk", [100_000, 7])
def test_labels_that_are_numbers_keep_their_form(
    tmp_path: Path, labels: list[str], classes: tuple[str, ...], rows_per_chunk: int
) -> None:
    rows = [f"s{i},{t},{i + t},{labels[i % len(labels)]}" for t in range(3) for i in range(24)]  # series alternate
    path = tmp_path / "labels.csv"
    path.write_text("\n".join(["id,t,x,y", *rows]) + "\n")
    found = data.read(path, target="y", series="id", time="t", rows_per_chunk=rows_per_chunk)
    task = data.SeriesTask(found.select([*range(5, 24), *range(5)]), "classify")
    assert task.target.classes == classes
    assert task.series.targets is not None
    numbers = [int(text) if text.isdigit() else float(text) for text in classes]
    for name, code in zip(task.series.ids, task.series.targets.tolist(), strict=True):
        label = labels[int(str(name)[1:]) % len(labels)]
        assert numbers[code] == (int(label) if label.isdigit() else float(label))
    assert data.target.guess_kind(found) == ("regress" if "." in "".join(classes).replace(".0", "") else "classify")


def test_labels_of_typed_tables_keep_their_digits() -> None:
    import pandas as pd

    long = [12345678901234567, 12345678901234568, 42]
    for labels, classes in (
        (np.array(long), ("42", "12345678901234567", "12345678901234568")),
        (np.array(long, dtype=object), ("42", "12345678901234567", "12345678901234568")),
        (np.array([0.1, 0.2, 3.0]), ("0.1", "0.2", "3")),
        (np.array([0.1, 0.2, 3.0], dtype=np.float32), ("0.1", "0.2", "3")),
    ):
        frame = pd.DataFrame(
            {"id": np.repeat(range(24), 2), "x": np.arange(48.0), "y": np.repeat(np.tile(labels, 8), 2)}
        )
        assert data.SeriesTask(data.from_frame(frame, target="y", series="id"), "classify").target.classes == classes
    found = data.from_arrays(np.arange(48.0).reshape(24, 2), np.tile(long, 8))
    assert data.SeriesTask(found, "classify").target.classes == ("42", "12345678901234567", "12345678901234568")


def test_a_series_with_two_labels_that_float64_cannot_tell_apart_is_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    rows = [f"s{i},{t},{i + t},1234567890123456{7 + (i == t == 1)}" for i in range(6) for t in range(2)]
    path.write_text("\n".join(["id,t,x,y", *rows]) + "\n")
    with pytest.raises(data.SeriesError, match=r"is 12345678901234568 at line 5.*but 12345678901234567 at line 4"):
        data.SeriesTask(data.read(path, target="y", series="id", time="t"), "classify")


def test_models_that_wrote_categories_with_17_digits_read_them() -> None:
    import pandas as pd

    frame = pd.DataFrame({"id": np.repeat(range(6), 2), "c": np.tile([0.1, 0.25], 6), "y": np.repeat(["a", "b"], 6)})
    found = data.from_frame(frame, target="y", series="id", categories=["c"])
    assert found.categories == {"c": ("0.1", "0.25")}
    again = found.with_categories({"c": ("0.10000000000000001", "0.25", "0.10")})
    np.testing.assert_array_equal(again.values[:, 0], np.tile([0, 1], 6))


def test_codes_after_numbers_are_a_mistake_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "codes.csv"
    path.write_text("id,x,y\n1,1,10\n2,2,11\n3,3,01\n")
    with pytest.raises(data.SeriesError, match=r"'01' at line 4.*--categories y"):
        data.read(path, target="y", series="id", rows_per_chunk=2)
    found = data.read(path, target="y", series="id", rows_per_chunk=2, categories=["y"])
    assert found.classes == ("01", "10", "11")
    path.write_text("id,x,y\n1,1,2.0\n2,2,\n3,3,10\n")  # as pandas writes whole numbers beside a missing one
    assert data.read(path, target="y", series="id", categories=["y"]).classes == ("10", "2")
    path.write_text("id,x,y\n1,1,007\n2,2,010\n")
    found = data.read(path, target="y", series="id")
    with pytest.raises(data.SeriesError, match="leading zeros"):
        data.SeriesTask(found, "regress")


def test_names_with_commas_are_quoted_on_the_command_line(tmp_path: Path) -> None:
    rows = "".join(f"{i},{t},{t * i % 5},{i % 2},{i % 2}\n" for i in range(20) for t in range(5))
    (tmp_path / "log.csv").write_text(f'id,t,"speed, raw",b,"state, true"\n{rows}')
    asked = ["--series", "id", "--time", "t", "--target", '"state, true"', "--features", '"speed, raw", b']
    result = call("train", tmp_path / "log.csv", *asked, *SMALL, "-o", tmp_path / "run", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "run" / "task.json").read_text())["series"]
    assert record["reading"]["features"] == ["speed, raw", "b"]
    assert record["target"]["names"] == ["state, true"]
    assert call("predict", tmp_path / "run", tmp_path / "log.csv", "-o", tmp_path / "out.csv").exit_code == 0
    wrong = call("train", tmp_path / "log.csv", "--features", '"speed', "-o", tmp_path / "other")
    assert wrong.exit_code == 2
    assert "names with commas" in " ".join(wrong.output.split())


def test_whole_numbers_on_every_row_are_regressed_and_it_is_said(tmp_path: Path) -> None:
    path = tmp_path / "gears.csv"
    rows = "".join(f"{i},{t},{t % 4}.5,{t % 4},{t % 4}.25\n" for i in range(8) for t in range(12))
    path.write_text(f"id,t,x,gear,load\n{rows}")
    columns: dict[str, Any] = {"series": "id", "time": "t", "features": ["x"]}
    task = data.SeriesTask(data.read(path, target="gear", **columns))
    assert (task.kind, task.target.classes) == ("sequence", None)
    assert [note for note in task.notes() if "'gear'" in note and "--categories gear" in note]
    named = data.SeriesTask(data.read(path, target="gear", categories=["gear"], **columns))
    assert named.target.classes == ("0", "1", "2", "3")
    other = data.SeriesTask(data.read(path, target="load", **columns))
    assert not [note for task in (named, other) for note in task.notes() if "--categories" in note]


@pytest.mark.parametrize(
    ("times", "dates"),
    [
        ([20260130, 20260131, 20260201], True),
        ([202601302359, 202601310000, 202602010130], True),
        ([20260130235959, 20260131000000, 20260201013000], True),
        ([20260130, 20260131, 20260132], False),
        ([20260130, 20260230.5, 20260301], False),
        ([20261330, 20261331, 20261401], False),
        ([1, 2, 3], False),
        ([1769817600, 1769817601, 1769817602], False),  # seconds since 1970
        ([99990101, 99990102, 99990103], False),
    ],
)
def test_dates_written_as_numbers_are_named(times: list[float], dates: bool) -> None:
    series = data.from_arrays([np.arange(3.0)[None] * k for k in (1, 2, 3, 4)], ["a", "b"] * 2, times=np.array(times))
    notes = data.SeriesTask(series, fractions=(0.5, 0.25, 0.25)).notes()
    said = [note for note in notes if "look like dates" in note]
    assert bool(said) == dates
    if said:
        assert f"{times[0]:.0f}" in said[0]
        assert "2026-01-31" in said[0]


@needs("scipy")
def test_a_model_of_regular_times_is_certified_for_all_that_it_takes() -> None:
    """At gamma 8 the Euler map contracts with a step of 0.1, but not with 0.2, which irregular times lead to."""
    regular = data.from_arrays(np.random.default_rng(0).normal(size=(6, 2, 9)), times=60.0 * np.arange(9))
    options = {"step_size": 0.1, "gamma": 8.0, "max_step": 0.2}
    model = make_model(options=options, series=regular)
    assert model.preprocessing.fitted.regular
    found = certify(model)
    assert not found.holds
    assert certify(model, step_size=0.1).holds
    contracting = make_model(options={"step_size": 0.1, "stability": "contracting", "max_step": 0.1}, series=regular)
    whole = certify(contracting)
    assert whole.holds
    assert whole.step_range is not None
    assert whole.step_range[0] < 0.1 <= whole.step_range[1]
    without = make_model(options=options, series=data.from_arrays(irregular().padded()[0].mT.numpy()))
    assert certify(without).holds  # no times: no other step


def test_forecasts_beyond_the_longest_gap_are_said(tmp_path: Path) -> None:
    saved = data.SavedModels((make_model(kind="forecast"),))
    gap = saved.preprocessing.fitted.gap
    assert gap is not None
    with pytest.warns(data.SeriesWarning, match=r"1 of 1 forecasts are up to .* count as that"):
        prediction_table(saved, irregular(), horizon=2, every=11.0 * gap)
    prediction_table(saved, irregular(), horizon=2, every=10.0 * gap)


@needs("sklearn")
def test_hostile_calls_of_a_forecaster() -> None:
    from lipschitz_rnn.estimators import LipschitzRNNForecaster

    generator = np.random.default_rng(0)
    times = np.cumsum(generator.exponential(size=120) + 0.1)
    quick: dict[str, Any] = {"hidden_size": 4, "epochs": 1, "random_state": 0}
    model = LipschitzRNNForecaster(**quick, horizon=3, validation_fraction=0.3).fit(np.sin(times), times=times)
    with pytest.warns(data.SeriesWarning, match="1 of 2 forecasts"):
        model.predict(2, future_times=times[-1] + np.array([1.0, 1e6]))
    for wrong, named in (
        ("abc", "future_times"),
        ([times[-1], times[-1] + 1.0], "must be finite and increase"),
        ([np.nan, np.nan], "must be finite and increase"),
        ([1.0], r"\(2,\) or \(1, 2\)"),
    ):
        with pytest.raises(ValueError, match=named):
            model.predict(2, future_times=wrong)
    with pytest.raises(ValueError, match=r"coverage=0\.5"):
        model.predict_interval(2, 0.5)
    # Far beyond the validation part nothing is known: fit takes no longer for it, and the near steps have intervals.
    far = LipschitzRNNForecaster(**quick, horizon=50_000, validation_fraction=0.3).fit(np.sin(times), times=times)
    assert far.predict_interval(3, coverage=0.5).shape == (3, 2)
    with pytest.raises(ValueError, match="validation errors"):
        far.predict_interval(40, coverage=0.5)
    # A validation part without a known value chooses no epoch; one channel without any has no intervals.
    hidden = np.stack([np.where(np.arange(120) < 84, np.sin(times), np.nan), np.cos(times)])
    blind = LipschitzRNNForecaster(**quick, channels=(0,), validation_fraction=0.3)
    with pytest.raises(ValueError, match="validation part of X has no value of 'channel 0'"):
        blind.fit(hidden[None], times=times)
    half = LipschitzRNNForecaster(**quick, validation_fraction=0.3).fit(hidden[None], times=times)
    with pytest.raises(ValueError, match="there are 0"):
        half.predict_interval(1, coverage=0.5)


@needs("sklearn")
def test_a_contracting_unit_cannot_be_told_not_to_contract() -> None:
    from lipschitz_rnn.estimators import LipschitzRNNClassifier
    from lipschitz_rnn.experiments.presets import preset_settings

    X, y = np.random.default_rng(0).normal(size=(8, 1, 5)), np.arange(8) % 2
    for stability in (None, "none"):
        with pytest.raises(ValueError, match="'contracting', but its option stability"):
            LipschitzRNNClassifier(unit="contracting", unit_options={"stability": stability}).fit(X, y)
        with pytest.raises(ValueError, match="'contracting', but its option stability"):
            preset_settings("digits", changes={"unit": "contracting", "unit_options": {"stability": stability}})
    assert preset_settings("digits", changes={"unit": "contracting"}).unit_options["stability"] == "contracting"


@needs("sklearn", "scipy")
def test_a_contracting_forecast_of_irregular_series_is_one_model_everywhere(tmp_path: Path) -> None:
    """Free run, stream and file of two seeds agree, and the certificate holds for all times."""
    import torch

    from lipschitz_rnn.estimators import LipschitzRNNForecaster

    generator = np.random.default_rng(1)
    times = np.cumsum(generator.exponential(size=60) + 0.1)
    values = np.stack([np.sin(times), np.cos(0.3 * times)])
    values[1, 7] = np.nan
    quick: dict[str, Any] = {"hidden_size": 4, "epochs": 1, "random_state": 0, "n_seeds": 2, "horizon": 3}
    model = LipschitzRNNForecaster(**quick, unit="contracting", channels=(0,), validation_fraction=0.4)
    model.fit(values[None], times=times)
    assert model.certify().holds
    model.save(tmp_path / "model.safetensors")
    saved = data.load_model(tmp_path / "model.safetensors")
    later = times[-1] + 0.7
    expected = model.predict(1, future_times=[later])[0, 0, 0]
    stream = saved.stream()
    for index, time in enumerate(times):
        found = stream(values[:, index], time, later if index + 1 == len(times) else None)
    assert float(found) == pytest.approx(expected, abs=1e-5)
    again = LipschitzRNNForecaster.load(tmp_path / "model.safetensors")
    assert again.predict(values[None], 1, times=times, future_times=[later])[0, 0, 0] == pytest.approx(expected)
    ends = again.predict_interval(values[None], 3, coverage=0.5, times=times)
    np.testing.assert_allclose(ends, model.predict_interval(3, coverage=0.5), rtol=1e-4)
    whole = saved.ensemble(
        torch.tensor(values.T)[None], torch.tensor(times)[None], None, torch.tensor([later], dtype=torch.float64)
    )
    assert float(whole[0, -1, 0].detach()) == pytest.approx(expected, abs=1e-5)


@pytest.mark.full
@needs("onnx", "onnxscript", "onnxruntime")
@pytest.mark.parametrize("step", [False, True])
def test_a_contracting_forecast_of_irregular_series_as_onnx(tmp_path: Path, step: bool) -> None:
    options = {"step_size": 0.1, "stability": "contracting", "max_step": 0.1}
    models = [make_model(kind="forecast", options=options, seed=seed) for seed in (0, 1)]
    done = data.export_model(tmp_path / "model.onnx", models, step=step, series=irregular())
    assert done.difference <= 1e-5
    assert "next_times" in done.about["inputs"]
