"""Files and arrays as people have them: units in cells, masks, frames, odd headers, large offsets, zeros as options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_models import irregular, make_model
from optional import needs
from typer.testing import CliRunner

from lipschitz_rnn import data
from lipschitz_rnn.cli import app
from lipschitz_rnn.data.export_checks import lost_in_float32

pytestmark = needs("pandas")


def frame(**columns: Any) -> Any:
    """Six series of four samples with the feature x."""
    import pandas as pd

    x = np.random.default_rng(3).normal(size=24)
    return pd.DataFrame({"id": np.repeat(list("abcdef"), 4), "t": np.tile(np.arange(4.0), 6), "x": x} | columns)


def test_a_model_with_categories_in_any_order_is_saved(tmp_path: Path) -> None:
    series = data.from_frame(frame(valve=["open", "shut"] * 12, code=["u", "v", "w"] * 8), series="id", time="t")
    model = make_model(series=series)
    assert list(model.preprocessing.fitted.categories) == ["valve", "code"]
    model.save(tmp_path / "model.safetensors")
    again = data.load_model(tmp_path / "model.safetensors").models[0]
    assert again.preprocessing.output_names == model.preprocessing.output_names
    np.testing.assert_array_equal(data.predict(again, series), data.predict(model, series))


def test_the_texts_of_a_column_are_said() -> None:
    series = data.from_frame(frame(valve=["open", "shut"] * 12), series="id", time="t")
    (said,) = [note for note in data.Preprocessing.fit(series).fitted.notes if "'valve'" in note]
    assert "'open', 'shut', one input each" in said


@pytest.mark.parametrize(
    ("cells", "categories"),
    [
        ([f"{0.5 * k:.1f} kg" for k in range(24)], False),
        ([f"{k}%" for k in range(24)], False),
        ([f"{k} °C" for k in range(24)], False),
        ([f"{k} m/s" for k in range(24)], False),
        (["5V", "12V"] * 12, True),  # sizes
        (["2D", "3D", "flat"] * 8, True),
        ([f"{k}{'AB'[k % 2]}" for k in range(24)], True),
    ],
)
def test_numbers_with_a_unit_are_no_categories(cells: list[str], categories: bool) -> None:
    if categories:
        assert data.from_frame(frame(m=cells), series="id").categories
        return
    with pytest.raises(data.SeriesError, match=r"column 'm' has .* at row 1.*--categories m"):
        data.from_frame(frame(m=cells), series="id")
    assert data.from_frame(frame(m=cells), series="id", categories=["m"]).categories


@pytest.mark.parametrize("column", ["x", "id"])
@pytest.mark.parametrize("cell", [[1.0, 2.0], b"ab", {"a": 1}], ids=["list", "bytes", "mapping"])
def test_cells_with_several_values_are_named(column: str, cell: object) -> None:
    with pytest.raises(data.SeriesError, match=f"column '{column}' has .* at row 1.*one number or text"):
        data.from_frame(frame(**{column: [cell] * 24}), series="id")


def test_headers(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text('id,"speed\n(m/s)",x\na,1,2\na,3,4\n')  # as spreadsheets write it
    assert data.read(path, series="id").columns == ("speed\n(m/s)", "x")
    for text, named in (("", "is empty"), ("\nid,x\na,1\n", "empty line")):
        path.write_text(text)
        with pytest.raises(data.SeriesError, match=named):
            data.read(path, series="id")


def test_times_that_float64_cannot_tell_apart(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("t,x\n1767225600000000000,1\n1767225600000000010,2\n")
    with pytest.raises(data.SeriesError, match="last digits differ: subtract the first time"):
        data.read(path, time="t")
    path.write_text("t,x\n1,1\n2,2\n1,3\n2,4\n")  # two series in one file
    with pytest.raises(data.SeriesError, match=r"--sort.*--series"):
        data.read(path, time="t")
    with pytest.raises(data.SeriesError, match=r"times have 1 after 2 .*sort the samples by time$"):
        data.from_arrays(np.zeros((1, 1, 3)), times=[1.0, 2.0, 1.0])


PAIRS = "@timeStamps true\n@classLabel true a b\n@data\n(0,1),(1,2):a\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (PAIRS + "(0,1),(1,2:a\n", "line 5.*beside its pairs"),
        (PAIRS + "(2026-01-01,1),(2026-01-02,2):b\n", "line 5.*dates, after numbers"),
        (PAIRS.replace("(0,1),(1,2)", "(2026-01-01,1)") + "(0,1):b\n", "line 5.*numbers, after dates"),
    ],
)
def test_mixed_and_broken_pairs_of_a_ts_file(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "cases.ts").write_text(text)
    with pytest.raises(data.SeriesError, match=named):
        data.read(tmp_path / "cases.ts")


def test_arrays_that_would_lose_something() -> None:
    X = np.random.default_rng(0).normal(size=(4, 2, 5))
    for wrong in (X + 1j, X.astype("M8[s]"), [X[0] + 1j]):
        with pytest.raises(data.SeriesError, match="dtype is"):
            data.from_arrays(wrong)
    with pytest.raises(data.SeriesError, match="'a' twice"):
        data.from_arrays(X, columns=["a", "a"])
    with pytest.raises(data.SeriesError, match="missing"):
        data.SeriesTask(data.from_arrays(X, np.array(["u", "", "v", "u"])))
    with pytest.raises(data.SeriesError, match="sample 3 of case 0 is nan"):
        data.from_arrays(X, times=[0.0, 1.0, 2.0, np.nan, 4.0])


@pytest.mark.parametrize("columns", [{}, {"series": "id"}])
@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_line_is_no_sample(tmp_path: Path, columns: dict[str, str], blank: str) -> None:
    path = tmp_path / "table.csv"
    rows = ["id,x,y", "a,1,2", "a,2,3", "a,3,5"]
    path.write_text("\n".join([*rows[:3], blank, *rows[3:], blank, ""]))
    for rows_per_chunk in (1, 100):
        with pytest.raises(data.SeriesError, match=r"line 4 of table\.csv is blank; remove it"):
            data.read(path, rows_per_chunk=rows_per_chunk, **columns)  # type: ignore[arg-type]
    path.write_text("\n".join([*rows[:3], ",,", *rows[3:], blank, ""]))
    if not columns:
        assert np.isnan(data.read(path, features=["x", "y"]).values[:, 0]).tolist() == [False, False, True, False]
    path.write_text("x\n1\n\n3\n")  # in a single column it is an empty cell
    assert np.isnan(data.read(path).values[:, 0]).tolist() == [False, True, False]


@pytest.mark.parametrize("word", ["NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "<NA>", "#NA"])
def test_words_for_missing_values_are_those_of_the_documents(tmp_path: Path, word: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(f"c,x\na,1\n{word},{word}\nb,3\nnone,4\n")
    for categories in ([], ["c"]):
        found = data.read(path, categories=categories)
        assert found.categories == {"c": ("a", "b", "none")}
        assert np.isnan(found.values).all(1).tolist() == [False, True, False, False]
    assert f"`{word}`" in Path("docs/own-data.md").read_text()


def test_masks_frames_and_tensors_are_read_as_what_they_are() -> None:
    import pandas as pd

    X = np.random.default_rng(0).normal(size=(4, 2, 5))
    holes = np.where(X > 0.5, np.nan, X)
    for masked in (np.ma.masked_greater(X, 0.5), [np.ma.masked_greater(case, 0.5) for case in X]):
        np.testing.assert_array_equal(data.from_arrays(masked).values, data.from_arrays(holes).values)
    frames = [pd.DataFrame(case.T, columns=["a", "b"]) for case in X]  # a row a sample
    np.testing.assert_array_equal(data.from_arrays(frames).values, data.from_arrays(X).values)
    grown = torch.from_numpy(X).requires_grad_()
    np.testing.assert_array_equal(data.from_arrays(list(grown)).values, data.from_arrays(X).values)


def test_times_with_zones_and_python_s_own() -> None:
    import pandas as pd

    hours = pd.date_range("2026-03-29", periods=5, freq="h", tz="Europe/Berlin")  # over the change to summer time
    X = np.zeros((1, 1, 5)) + np.arange(5.0)
    for times in (hours, hours.to_pydatetime(), hours.tz_convert("UTC").tz_localize(None), hours - hours[0]):
        np.testing.assert_allclose(data.from_arrays(X, times=times).gaps, 3600.0)


def test_targets_with_a_large_offset_keep_their_digits() -> None:
    series = irregular(targets="numbers")
    model = make_model(kind="regress")
    offset = (1.7e9, -3e12)
    near, far = (
        data.SeriesModel(
            model.preprocessing, model.unit, model.head, data.Target("regress", ("u", "v"), None, center, (1.0, 1.0))
        )
        for center in ((0.0, 0.0), offset)
    )
    expected = data.predict(near, series) + np.array(offset)
    np.testing.assert_allclose(data.predict(far, series), expected, rtol=0, atol=1e-3)
    single = data.from_arrays(
        [case.T.astype(np.float32) for case in np.split(series.values, series.offsets[1:-1])],
        times=np.split(series.times, series.offsets[1:-1]),  # type: ignore[arg-type]
        columns=["x", "y"],
    )
    np.testing.assert_allclose(data.predict(far, single), expected, rtol=0, atol=1e-3)
    stream = far.stream()
    assert series.times is not None
    for row, time in zip(series.values[: series.lengths[0]], series.times, strict=False):
        last = stream(row, float(time))
    np.testing.assert_allclose(last, expected[0], rtol=0, atol=1e-3)


def far_away() -> data.SeriesModel:
    model = make_model(kind="regress")
    target = data.Target("regress", ("u", "v"), None, (0.0, 1.7e9), (1.0, 1.0))
    return data.SeriesModel(model.preprocessing, model.unit, model.head, target)


def test_what_float32_would_round_is_known() -> None:
    assert lost_in_float32(make_model(kind="regress")) is None
    assert lost_in_float32(make_model(kind="forecast")) is None
    assert "the target 'v'" in str(lost_in_float32(far_away()))
    wide = np.random.default_rng(0).normal(1e9, 0.01, (4, 1, 5))
    assert "column 'channel 0'" in str(lost_in_float32(make_model(series=data.from_arrays(wide))))


@pytest.mark.full
def test_an_export_says_what_float32_would_round(tmp_path: Path) -> None:
    far = far_away()
    with pytest.warns(data.SeriesWarning, match=r"the target 'v' is 1.7e\+09 ± 1.* steps of 128; .*--float64"):
        data.export_model(tmp_path / "model.pt2", [far])
    data.export_model(tmp_path / "model.pt2", [far], float64=True)
    values, times, lengths = irregular().padded()
    program = torch.export.load(tmp_path / "model.pt2").module()
    found = program(values, times, lengths).detach().numpy()
    np.testing.assert_allclose(found, data.predict(far, irregular()), rtol=0, atol=1e-3)


def test_a_stream_reads_categories_as_a_file_does() -> None:
    series = data.from_frame(frame(code=[1, 2, None] * 8), series="id", categories=["code"])
    assert series.categories == {"code": ("1", "2")}
    model = make_model("gru", series=series)
    expected = model.stream()
    codes = [0.0, 1.0, np.nan]
    for given in ([1, 2, None], [1.0, 2.0, np.nan], ["1", "2", np.nan], [np.int64(1), "2.0", None]):
        stream = model.stream()
        expected.reset()
        for value, code in zip(given, codes, strict=True):
            torch.testing.assert_close(stream({"x": 0.3, "t": 1.0, "code": value}), expected([1.0, 0.3, code]))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--longest-gap", "0"], "longest_gap is 0"),
        (["--horizon", "0"], "horizon is 0"),
        (["--split-seed", "-1"], "split_seed is -1"),
        (["--target", "x", "--task", "regress", "--class-weights", "balanced"], "holds numbers, not classes"),
        (["--fractions", "1,0,0"], "fractions are [1.0, 0.0, 0.0]"),
        (["--split", "z", "--fractions", "0.5,0.25,0.25"], "--fractions has no effect"),
    ],
)
def test_options_out_of_range_are_refused(tmp_path: Path, options: list[str], named: str) -> None:
    path = tmp_path / "log.csv"
    made = frame(y=np.repeat(["u", "v"] * 3, 4), z=np.arange(24.0))
    made["x"] = made.groupby("id")["x"].transform("first")
    made.to_csv(path, index=False)
    columns = ["--series", "id", "--time", "t", "--target", "y", "-o", str(tmp_path / "run")]
    done = CliRunner().invoke(app, ["train", str(path), *columns, *options])
    assert done.exit_code == 2, done.output
    assert named in " ".join(done.output.split())
    assert not (tmp_path / "run").exists()


def test_a_file_of_series_in_place_of_a_model(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    frame().to_csv(path, index=False)
    for command in (["predict", path, path, "-o", tmp_path / "out.csv"], ["export", path, tmp_path / "model.onnx"]):
        done = CliRunner().invoke(app, [str(part) for part in command])
        assert done.exit_code == 1
        assert "is a file of series" in done.output


def test_frames_with_numbers_for_names_or_times_in_the_index() -> None:
    made = frame()
    expected = data.from_frame(made, series="id", time="t")
    numbered = data.from_frame(made.set_axis(range(3), axis=1), series=0, time=1)  # type: ignore[arg-type]
    indexed = data.from_frame(made.set_index(["id", "t"]), series="id", time="t")
    for found in (numbered, indexed):
        np.testing.assert_array_equal(found.values, expected.values)
        np.testing.assert_array_equal(found.times, expected.times)
    one: Any = "x"
    assert data.from_frame(frame(speed=1.0), series="id", features=one).columns == ("x",)
    with pytest.raises(TypeError, match="the table is a list"):
        data.from_frame([[1.0]])
    import pandas as pd

    with pytest.raises(data.SeriesError, match="holds period"):
        data.from_frame(frame(x=pd.period_range("2026-01", periods=24, freq="M")), series="id")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sep=;\nid;x\na;1\n", "begins with 'sep=;'"),
        ("# logger 7\nid,x\na,1\n", "begins with '# logger 7'"),
        ("id x\na 1\n", "separate columns"),
    ],
)
def test_what_stands_above_or_between_the_names_is_said(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(data.SeriesError, match=named):
        data.read(tmp_path / "log.csv", series="id")
    (tmp_path / "log.csv").write_text("#id,x\na,1\na,2\n")
    assert data.read(tmp_path / "log.csv", series="#id").columns == ("x",)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_file_that_stops_within_a_row_is_refused(tmp_path: Path, end: str) -> None:
    path = tmp_path / "cut.csv"
    rows = ["id,t,x,y", "a,0,1.5,2.5", "a,1,1.5,", "a,2,-0.7,3.5", "a,3,-0.6"]
    path.write_bytes(end.join(rows).encode())
    with pytest.raises(data.SeriesError, match=r"cut\.csv stops within its last row: 'a,3,-0\.6' has 3 cells, not 4"):
        data.read(path, series="id", time="t")
    for rest in (end, ",", ",3.5"):  # spreadsheets leave out empty cells at the end of a row
        path.write_bytes((end.join(rows) + rest).encode())
        assert data.read(path, series="id", time="t").values.shape == (4, 2)
    path.write_bytes(b"id,t,x,y")
    with pytest.raises(data.SeriesError, match="has no rows"):
        data.read(path, series="id", time="t")
