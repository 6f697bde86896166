"""Numbers, dates, durations and names that can be written in several ways are read in one, or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from optional import needs

from lipschitz_rnn import data
from lipschitz_rnn.data.series import SeriesSet

pytestmark = needs("pandas")


def read(folder: Path, names: str, rows: list[str], **columns: object) -> SeriesSet:
    path = folder / "table.csv"
    path.write_text("\n".join([names, *rows]) + "\n", encoding="utf-8")
    return data.read(path, **columns)  # type: ignore[arg-type]


@pytest.mark.parametrize("cells", [["1.234,5", "2.345,5"], ["1.234,5", "-12.234"], ["1.234.567", "2.345.678"]])
def test_separators_of_thousands_are_refused_with_semicolons_too(tmp_path: Path, cells: list[str]) -> None:
    with pytest.raises(data.SeriesError, match=r"column 'x' has '1\.234.*at line 2.*thousands.*--categories x"):
        read(tmp_path, "t;x", [f"{t};{cell}" for t, cell in enumerate(cells)])
    found = read(tmp_path, "t;x", [f"{t};{cell}" for t, cell in enumerate(cells)], categories=["x"])
    assert set(found.categories) == {"x"}


@pytest.mark.parametrize("part", ["feature", "target"])
@pytest.mark.parametrize("cells", [["999,5", "1.234"], ["1.5", "999,5"], ["999,5", "1.234,5"]])
def test_a_column_of_decimal_points_and_commas_is_refused(tmp_path: Path, cells: list[str], part: str) -> None:
    columns = {"target": "x"} if part == "target" else {}
    rows = [f"{t};{cell}" for t, cell in enumerate(cells)]
    with pytest.raises(data.SeriesError, match=r"column 'x' has .* at line [23].*mixes decimal points and commas"):
        read(tmp_path, "t;x", rows, **columns)


def test_a_text_among_numbers_with_a_decimal_comma_makes_no_categories(tmp_path: Path) -> None:
    with pytest.raises(data.SeriesError, match=r"column 'x' has 'abc' at line 4 of .*, but numbers in other rows"):
        read(tmp_path, "t;x", ["0;1,5", "1;2,5", "2;abc"])
    found = read(tmp_path, "t;x;c;b", ["0;1,5;1,5;True", "1;NA;2,5;False"], categories=["c"])
    assert found.categories == {"c": ("1,5", "2,5")}


@pytest.mark.parametrize(
    ("dates", "days"),
    [
        (["01.02.26", "02.02.26", "01.03.26"], [0, 1, 28]),
        (["1.2.26", "13.2.26"], [0, 12]),
        (["01.02.26 12:30", "02.02.26 12:30"], [0, 1]),
        (["26.02.01", "27.02.01"], [0, 1]),
        (["1/2/26", "2/2/26"], [0, 31]),
        (["1/2/2026", "2/2/2026"], [0, 31]),
        (["01.02.2026", "01.03.2026"], [0, 28]),
        (["1/2/2026 5pm", "2/2/2026 5pm"], [0, 31]),
        (["01/02/2026 05:00 PM", "02/02/2026 05:00 pm"], [0, 31]),
        (["1/2/26 5:00:01.5 pm", "2/2/26 5:00:01.5 pm"], [0, 31]),
        (["1.2.2026 5:00 am", "13.2.2026 5:00 am"], [0, 12]),
        (["1-2-26 12:00", "2-2-26 12:00"], [0, 31]),
        (["1 Feb 2026 5pm", "13 February 2026 5:00 pm"], [0, 12]),
        (["2026/02/01 5pm", "2026/02/13 5:00 pm"], [0, 12]),
    ],
)
def test_dates_are_read_in_one_way(tmp_path: Path, dates: list[str], days: list[int]) -> None:
    found = read(tmp_path, "t,x", [f"{date},{row}" for row, date in enumerate(dates)], time="t")
    np.testing.assert_array_equal(found.times, 86400.0 * np.array(days))
    day_first = "2001-02-26" if dates[0].startswith("26") else "2026-02-01"
    month_first = dates[0][2] in "/-" or dates[0][1] in "/-"
    assert found.clock.show(0.0).startswith("2026-01-02" if month_first else day_first)


def test_the_halves_of_a_day(tmp_path: Path) -> None:
    cells = ["1/2/2026 12:30 AM", "1/2/2026 11:30 AM", "1/2/2026 12:30 PM", "1/2/2026 11:30 PM"]
    found = read(tmp_path, "t,x", [f"{cell},{row}" for row, cell in enumerate(cells)], time="t")
    np.testing.assert_array_equal(found.times, 3600.0 * np.array([0, 11, 12, 23]))


@pytest.mark.parametrize(
    ("dates", "line", "how"),
    [
        (["01.02.26", "01.13.26"], 3, "%d.%m.%y"),
        (["99.12.31", "99.12.30"], 2, "%d.%m.%y"),
        (["1/2/26", "13/2/26"], 3, "%m/%d/%y"),
        (["1/2/2026 5pm", "13/2/2026 5pm"], 3, "%m/%d/%Y"),
        (["01/02/2026 05:00 PM", "13/02/2026 05:00 PM"], 3, "%m/%d/%Y"),
        (["1-2-26 12:00", "13-2-26 12:00"], 3, "%m-%d-%y"),
        (["13/2/2026 5pm", "1/2/2026 5pm", "2/14/2026 5pm"], 4, "%d/%m/%Y"),
        (["1/2/2026 12:00:00:123", "1/3/2026 12:00:00:123"], 2, "%m/%d/%Y"),
        (["1/2 2026", "13/2 2026"], 3, "%m/%d %Y"),
    ],
)
def test_dates_that_do_not_fit_are_named(tmp_path: Path, dates: list[str], line: int, how: str) -> None:
    with pytest.raises(data.SeriesError, match=f"at line {line}.*not a date.*read as {how}"):
        read(tmp_path, "t,x", [f"{date},{row}" for row, date in enumerate(dates)], time="t")


@pytest.mark.parametrize("odd", ["P1M", "P1Y", "P1Y2M", "P1DT1H", "-P1M", "P1MT1M"])
def test_durations_without_a_fixed_length_are_refused(tmp_path: Path, odd: str) -> None:
    rows = ["PT1M,0", f"{odd},1", "P2D,2"]
    if "T1H" in odd:
        found = read(tmp_path, "t,x", rows, time="t")
        np.testing.assert_array_equal(found.times, [60.0, 90000.0, 172800.0])
        return
    for order in (rows, [rows[1], rows[0]]):
        with pytest.raises(data.SeriesError, match=f"column 't' .*'{odd}' counts in months or years"):
            read(tmp_path, "t,x", order, time="t")


def test_a_delimiter_within_quotes_does_not_count(tmp_path: Path) -> None:
    found = read(tmp_path, 'id;t;"x, y, z, w"', ["a;0;1,5", "a;1;2,5"], series="id", time="t")
    assert found.columns == ("x, y, z, w",)
    np.testing.assert_array_equal(found.values[:, 0], [1.5, 2.5])


@pytest.mark.parametrize(("late", "said"), [(["zz"], "'zz' of column 'cat' occurs"), (["zz", "yy"], "'yy', 'zz' of")])
def test_texts_outside_the_training_series_are_said(tmp_path: Path, late: list[str], said: str) -> None:
    parts = ["train"] * 8 + ["validation"] * 2 + ["test"] * 2
    rows = []
    for index, part in enumerate(parts):
        text = "uv"[index % 2] if part == "train" else late[index % len(late)]
        rows += [f"{index},{part},{index % 3 + step},{text},{'pq'[index % 2]}" for step in range(3)]
    series = read(tmp_path, "id,part,x,cat,y", rows, series="id", split="part", target="y")
    notes = data.SeriesTask(series).notes()
    assert [note for note in notes if note.startswith(said) and "not trained" in note]
    assert not [note for note in notes if "'u' of" in note or "'v' of" in note]
