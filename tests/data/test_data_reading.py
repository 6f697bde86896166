"""Readers: every kind of file gives the same series, and mistakes are named with their row, column and value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from optional import needs
from series_files import waves, write_csv

from lipschitz_rnn import data

pytestmark = needs("pandas", "pyarrow")


def frame(text: str):  # type: ignore[no-untyped-def]
    import io

    import pandas as pd

    return pd.read_csv(io.StringIO(text))


def csv(folder: Path, text: str) -> Path:
    path = folder / "log.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize("rows_per_chunk", [7, 200_000])
def test_a_csv_file_gives_back_the_series_that_were_written(tmp_path: Path, rows_per_chunk: int) -> None:
    made = waves(9)
    path = write_csv(tmp_path / "waves.csv", made)
    read = data.read(path, target="state", series="machine", time="clock", rows_per_chunk=rows_per_chunk)
    assert len(read) == 9
    assert read.columns == ("x", "y")
    assert read.classes == ("a", "b", "c")
    assert read.times is not None
    assert read.targets is not None
    for index, one in enumerate(made):
        part = slice(read.offsets[index], read.offsets[index + 1])
        np.testing.assert_allclose(read.values[part], one["values"], atol=1e-6)
        np.testing.assert_allclose(read.times[part], one["times"], atol=1e-6)
        assert set(read.targets[part]) == {index % 3}
    assert read.ids.tolist() == [one["id"] for one in made]


def test_parquet_frames_and_csv_agree(tmp_path: Path) -> None:
    import pandas as pd

    path = write_csv(tmp_path / "waves.csv", waves(5))
    table = pd.read_csv(path).sample(frac=1.0, random_state=0)  # rows in any order
    table.to_parquet(tmp_path / "waves.parquet")
    columns = {"target": "state", "series": "machine", "time": "clock", "sort": True}
    first = data.read(path, **columns)  # type: ignore[arg-type]
    for other in (data.read(tmp_path / "waves.parquet", **columns), data.from_frame(table, **columns)):  # type: ignore[arg-type]
        order = [other.ids.tolist().index(name) for name in first.ids.tolist()]
        again = other.select(order)
        np.testing.assert_array_equal(again.values, first.values)
        np.testing.assert_array_equal(again.times, first.times)
        np.testing.assert_array_equal(again.targets, first.targets)


@pytest.mark.parametrize(
    "dates",
    [
        ["2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z", "2026-03-29T03:30:00Z"],
        ["2026-03-29T01:30:00+01:00", "2026-03-29T03:30:00+02:00", "2026-03-29T05:30:00+02:00"],  # summer time begins
        ["2026-03-29 00:30:00", "2026-03-29 01:30:00", "2026-03-29 03:30:00"],
        ["Sun, 29 Mar 2026 00:30:00", "Sun, 29 Mar 2026 01:30:00", "Sun, 29 Mar 2026 03:30:00"],
        ["29.03.2026 00:30", "29.03.2026 01:30", "29.03.2026 03:30"],
        ["2.3.2026 00:30", "2.3.2026 01:30", "2.3.2026 03:30"],
        ["03/29/2026 00:30", "03/29/2026 01:30", "03/29/2026 03:30"],
        ["00:30:00", "01:30:00", "03:30:00"],
        ["30min", "90 min", "3.5h"],
        ["0 days 00:30:00", "0 days 01:30:00", "0 days 03:30:00"],
    ],
)
def test_dates_and_durations_become_seconds(tmp_path: Path, dates: list[str]) -> None:
    rows = "".join(f'"{date}",{value}\n' for value, date in enumerate(dates))
    read = data.read(csv(tmp_path, "when,x\n" + rows), time="when")
    assert read.times is not None
    np.testing.assert_array_equal(np.diff(read.times), [3600.0, 7200.0])


@pytest.mark.parametrize(("step", "days"), [("1ns", 90), ("1us", 1000), ("1ms", 3650), ("1s", 40000)])
def test_dates_are_shown_as_they_are_in_the_file(step: str, days: int) -> None:
    import pandas as pd

    generator = np.random.default_rng(0)
    unit = pd.Timedelta(step).value
    nanoseconds = np.sort(generator.integers(0, days * 86_400_000_000_000 // unit, 2000)) * unit
    when = pd.to_datetime(np.unique(nanoseconds), unit="ns", origin="1950-01-01", utc=True)
    frame = pd.DataFrame({"when": when, "x": np.arange(len(when)) % 7.0})
    found = data.from_frame(frame, time="when")
    assert found.times is not None
    shown = pd.to_datetime(pd.Series([found.clock.show(time) for time in found.times.tolist()]), utc=True)
    np.testing.assert_array_equal(shown.dt.as_unit("ns").astype("int64"), when.as_unit("ns").astype("int64"))


def test_nanoseconds_of_dates_survive(tmp_path: Path) -> None:
    text = "when,x\n2026-01-01T00:00:00.000000001Z,1\n2026-01-01T00:00:00.000000004Z,2\n"
    read = data.read(csv(tmp_path, text), time="when")
    assert read.times is not None
    np.testing.assert_allclose(np.diff(read.times), [3e-9], rtol=1e-12)


def test_text_columns_become_categories_with_a_sorted_table(tmp_path: Path) -> None:
    text = "id,gear,code,x\na,low,7,1\na,high,3,2\nb,,7,3\nb,mid,,4\n"
    read = data.read(csv(tmp_path, text), series="id", categories=["code"], rows_per_chunk=2)
    assert read.categories == {"gear": ("high", "low", "mid"), "code": ("3", "7")}
    np.testing.assert_array_equal(read.values[:, 0], [1, 0, np.nan, 2])
    np.testing.assert_array_equal(read.values[:, 1], [1, 0, 1, np.nan])
    other = read.with_categories({"gear": ("low", "mid"), "code": ("3", "7")})
    np.testing.assert_array_equal(other.values[:, 0], [0, -1, np.nan, 1])


def test_true_and_false_are_labels_and_blank_lines_at_the_end_are_none(tmp_path: Path) -> None:
    read = data.read(csv(tmp_path, "id,x,y\na,1,True\nb,2,False\nc,3,True\n\n\n"), series="id", target="y")
    assert read.classes == ("False", "True")
    assert read.targets is not None
    assert read.targets.tolist() == [1, 0, 1]
    assert len(read) == 3


def test_a_day_comes_before_the_month_if_there_are_dots(tmp_path: Path) -> None:
    read = data.read(csv(tmp_path, "t,x\n01.02.2026,1\n01.03.2026,2\n"), time="t")
    assert read.times is not None
    assert np.diff(read.times)[0] == 28 * 86400


@pytest.mark.parametrize("column", [[1 + 2j, 2, 3], [[1], [2], [3]], ["2026-01-01"] * 3])
def test_columns_of_a_frame_that_are_no_numbers(column: list) -> None:
    import pandas as pd

    table = pd.DataFrame({"x": pd.Series(column), "z": [1.0, 2.0, 3.0]})
    table["x"] = pd.to_datetime(table["x"]) if isinstance(column[0], str) else table["x"]
    with pytest.raises(data.SeriesError, match="'x'"):
        data.from_frame(table)


def test_ids_keep_their_zeros_and_semicolons_have_decimal_commas(tmp_path: Path) -> None:
    read = data.read(csv(tmp_path, "id;x\n007;1,5\n007;2\n08;3\n"), series="id")
    assert read.ids.tolist() == ["007", "08"]
    np.testing.assert_array_equal(read.values[:, 0], [1.5, 2.0, 3.0])


def test_arrays_lists_and_npz_agree_and_padding_is_dropped(tmp_path: Path) -> None:
    made = waves(4)
    listed = [one["values"].T for one in made]
    times = [one["times"] for one in made]
    longest = max(len(row) for row in times)
    X = np.full((4, 2, longest), np.nan)
    T = np.full((4, longest), np.nan)
    for index, case in enumerate(listed):
        X[index, :, : case.shape[1]] = case
        T[index, : case.shape[1]] = times[index]
    y = np.array([one["label"] for one in made])
    np.savez(tmp_path / "waves.npz", X=X, y=y, times=T)
    first = data.from_arrays(listed, y, times=times)
    for other in (data.from_arrays(X, y, times=T), data.read(tmp_path / "waves.npz")):
        # A last step in which every value happens to be missing is padding, in a list as well.
        np.testing.assert_array_equal(other.offsets, first.offsets)
        np.testing.assert_array_equal(other.values, first.values)
        np.testing.assert_array_equal(other.times, first.times)
        np.testing.assert_array_equal(other.targets, first.targets)
    assert first.target_level == "series"


TS = """# a comment
@problemName Made
@timeStamps {stamps}
@missing true
@univariate false
@dimensions 2
@equalLength false
@classLabel true up down
@data
"""


def test_ts_files_with_unequal_length_and_missing_values(tmp_path: Path) -> None:
    path = tmp_path / "made.ts"
    path.write_text(TS.format(stamps="false") + "1,2,?:4,5,6:up\n7,8:?,10:down\n")
    read = data.read(path)
    np.testing.assert_array_equal(read.lengths, [3, 2])
    np.testing.assert_array_equal(read.values, [[1, 4], [2, 5], [np.nan, 6], [7, np.nan], [8, 10]])
    assert read.classes == ("down", "up")
    assert read.targets is not None
    assert read.targets.tolist() == [1, 0]


def test_ts_files_with_times_join_the_dimensions(tmp_path: Path) -> None:
    path = tmp_path / "made.ts"
    path.write_text(TS.format(stamps="true") + "(0,1),(2,3):(0,4),(1,5):up\n(0,7):(5,8):down\n")
    read = data.read(path)
    assert read.times is not None
    np.testing.assert_array_equal(read.times, [0, 1, 2, 0, 5])
    np.testing.assert_array_equal(read.values, [[1, 4], [np.nan, 5], [3, np.nan], [7, np.nan], [np.nan, 8]])
    dated = "(2026-01-01 00:00:00,1),(2026-01-01 00:01:00,3):(2026-01-01 00:00:00,4):up\n"
    path.write_text(TS.format(stamps="true") + dated)
    assert data.read(path).times.tolist() == [0.0, 60.0]  # type: ignore[union-attr]


def test_ts_files_with_a_target_number(tmp_path: Path) -> None:
    path = tmp_path / "made.ts"
    path.write_text("@problemName M\n@timeStamps false\n@targetlabel true\n@data\n1,2:0.5\n3,4:1.5\n")
    read = data.read(path)
    assert read.classes is None
    np.testing.assert_array_equal(read.targets, [[0.5], [1.5]])


def test_selections_are_views_where_possible() -> None:
    read = data.from_arrays(
        [np.arange(6.0).reshape(2, 3), np.ones((2, 2)), np.zeros((2, 4))], np.array([0.0, 1.0, 2.0])
    )
    assert np.shares_memory(read[1:3].values, read.values)
    assert np.shares_memory(read.select([1, 2]).values, read.values)
    picked = read.select([2, 0])
    np.testing.assert_array_equal(picked.lengths, [4, 3])
    np.testing.assert_array_equal(picked.values[4:], [[0, 3], [1, 4], [2, 5]])
    assert picked.targets is not None
    assert picked.targets[:, 0].tolist() == [2.0, 0.0]
    values, times, lengths = picked.padded()
    assert values.shape == (2, 4, 2)
    assert times is None
    assert lengths.tolist() == [4, 3]
    assert values[1, 3].isnan().all()


@pytest.mark.parametrize(
    ("text", "columns", "named"),
    [
        ("id,x\na,1\n", {"series": "machine"}, ["'machine'", "'id'"]),
        ("id,x\na,1\n", {"features": ["z"]}, ["'z'"]),
        ("id,x\na,1\na,1.5.2\na,3\n", {"series": "id"}, ["'x'", "1.5.2", "line 3"]),
        ("id,x\na,on\na,off\na,3\n", {"series": "id"}, ["'x'", "line"]),
        ("id,x\na,1\n,2\n", {"series": "id"}, ["'id'", "line 3"]),
        ("id,t,x\na,1,1\na,3,1\na,2,1\n", {"series": "id", "time": "t"}, ["'t'", "line 4", "2 after 3", "--sort"]),
        ("id,t,x\na,1,1\nb,3,1\nb,3,1\n", {"series": "id", "time": "t"}, ["'t'", "line 3", "line 4", "'b'"]),
        ("id,t,x\na,1,1\na,,1\n", {"series": "id", "time": "t"}, ["'t'", "line 3"]),
        ("id,t,x\na,1,1\na,soon,1\n", {"series": "id", "time": "t"}, ["'t'", "line 3", "'soon'"]),
        ("t,x\n2026-01-01,1\n2026-13-01,1\n", {"time": "t"}, ["line 3", "2026-13-01"]),
        ("id,x\na,inf\n", {"series": "id"}, ["'x'", "inf", "line 2"]),
        ("id,x\n", {"series": "id"}, ["no rows"]),
        ("", {}, []),
        ("id\na\n", {"series": "id"}, ["'id'"]),
        ("id,x\na,1\na,1,2,3\n", {"series": "id"}, ["line 3"]),
        ("id,x\na,1,5\na,1,5\n", {"series": "id"}, ["line 2"]),
        ("id,s,x\na,train,1\na,test,1\n", {"series": "id", "split": "s"}, ["'s'", "line 3"]),
        ("id,s,x\na,dev,1\n", {"series": "id", "split": "s"}, ["'s'", "'dev'", "line 2"]),
        ("id,id,x\na,b,1\n", {"series": "id"}, ["'id'"]),
        ("id,x\na,1\n", {"features": ["x", "x"]}, ["'x'"]),
        ("t,x\n01/02/2026,1\n13/02/2026,2\n", {"time": "t"}, ["line 3", "13/02/2026", "%m/%d/%Y"]),
        ('id,x\na,"1,5"\na,"2,5"\n', {"series": "id"}, ["line 2", "'1,5'", "--categories x"]),
        ('id,x\na,"1,234.5"\na,"2,234.5"\n', {"series": "id"}, ["line 2", "'1,234.5'"]),
        ("id,x\nNA,1\n", {"series": "id"}, ["line 2", "'id'", "NA"]),
    ],
)
@pytest.mark.parametrize("rows_per_chunk", [1, 1000])
def test_mistakes_in_a_table_are_named(
    tmp_path: Path, text: str, columns: dict, named: list[str], rows_per_chunk: int
) -> None:
    with pytest.raises(data.SeriesError) as caught:
        data.read(csv(tmp_path, text), rows_per_chunk=rows_per_chunk, **columns)
    for part in named:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("1,2:4,5,6:up\n", "line 10"),
        ("1,x:4,5:up\n", "'x'"),
        ("1,2:up\n", "dimensions"),
        ("1,2:3,4:left\n", "'left'"),
        (":1:up", "line 10"),
    ],
)
def test_mistakes_in_a_ts_file_are_named(tmp_path: Path, lines: str, named: str) -> None:
    path = tmp_path / "made.ts"
    path.write_text(TS.format(stamps="false") + lines)
    with pytest.raises(data.SeriesError, match=named):
        data.read(path)


def test_empty_and_infinite_arrays_are_named() -> None:
    with pytest.raises(ValueError, match="case 1"):
        data.from_arrays([np.ones((1, 3)), np.full((1, 2), np.nan)])
    with pytest.raises(ValueError, match="case 1"):
        data.from_arrays([np.ones((1, 3)), np.ones((2, 3))])
    with pytest.raises(ValueError, match="inf"):
        data.from_arrays([np.array([[1.0, np.inf]])])
    with pytest.raises(ValueError, match="sample 1"):
        data.from_arrays([np.ones((1, 3))], times=[[0.0, 0.0, 1.0]])


def test_a_column_without_a_name_is_no_feature(tmp_path: Path) -> None:
    assert data.read(csv(tmp_path, ",id,x\n0,a,1\n1,b,2\n"), series="id").columns == ("x",)


def test_dates_and_durations_in_arrays_count_in_seconds() -> None:
    hours = np.array([0, 1, 3])
    for unit, factor in (("h", 1), ("m", 60), ("ms", 3_600_000)):
        for kind in "Mm":
            read = data.from_arrays(np.ones((2, 1, 3)), times=(hours * factor).astype(f"{kind}8[{unit}]"))
            assert read.times is not None
            np.testing.assert_array_equal(read.times, np.tile(hours * 3600.0, 2))
    with pytest.raises(data.SeriesError, match="finite"):
        data.from_arrays(np.ones((1, 1, 2)), times=np.array(["2026-01-01", "NaT"], dtype="M8[s]"))
