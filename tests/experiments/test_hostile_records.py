"""Records from anywhere: no name leads out of the folders, and wrong content is refused by the file's name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from invented_records import invented
from typer.testing import CliRunner

from lipschitz_rnn.cli import app
from lipschitz_rnn.documents.blocks import Picture
from lipschitz_rnn.documents.files import file_inside, write_page
from lipschitz_rnn.experiments.pages.committed import write_pages
from lipschitz_rnn.experiments.results import Record, ResultsError, read_record, read_records, write_record
from lipschitz_rnn.experiments.studies import mnist

pytest.importorskip("hypothesis", reason="hypothesis is not installed")
pytest.importorskip("matplotlib", reason="matplotlib is not installed")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

BAD_STUDIES = [
    "",
    ".",
    "..",
    "../mnist",
    "a/b",
    "a\\b",
    "mnist\0",
    "x" * 5000,
    "étude",
    "研究",
    "a b",
    "a.b",
    "-",
    "mnist\n",
]


@pytest.fixture
def record() -> Record:
    return invented(mnist.STUDY.plans(["ordered-mnist/lipschitz/128/euler"])[0], [0.9, 0.91, 0.92])


def stored(folder: Path, record: Record, **changes: Any) -> Path:
    """A record below results/mnist, changed behind the back of `write_record`."""
    path = write_record(record, folder / "results")
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("study", [*BAD_STUDIES, "<absolute>", None, 3, ["mnist"]], ids=lambda study: repr(study)[:20])
def test_a_study_that_is_not_a_plain_name_writes_nothing(tmp_path: Path, record: Record, study: Any) -> None:
    study = str(tmp_path / "elsewhere") if study == "<absolute>" else study
    path = stored(tmp_path, record, study=study)
    before = everything(tmp_path)
    with pytest.raises(ResultsError, match=f"{re.escape(str(path))}.*the study is"):
        write_pages(tmp_path / "results", tmp_path / "docs")
    done = CliRunner().invoke(app, ["report", str(tmp_path / "results"), "-o", str(tmp_path / "docs")])
    assert done.exit_code == 1
    assert "plain name" in " ".join(done.output.split())
    assert everything(tmp_path) == before


@pytest.mark.parametrize("name", ["", "/etc/x", "../x", "a/../b", "a//b", "a\0", "x" * 300, "ü", "a b", "a\\b", 3])
def test_a_name_that_is_not_plain_is_neither_read_nor_written(tmp_path: Path, record: Record, name: Any) -> None:
    path = stored(tmp_path, record, name=name)
    with pytest.raises(ResultsError, match="the name is"):
        read_record(path)
    before = everything(tmp_path)
    with pytest.raises(ValueError, match="the name is"):
        write_record(Record(**{**vars(record), "name": name}), tmp_path / "results")
    assert everything(tmp_path) == before


def test_a_record_in_the_folder_of_another_study(tmp_path: Path, record: Record) -> None:
    path = stored(tmp_path, record)
    (tmp_path / "results" / "other").mkdir()
    path.rename(tmp_path / "results" / "other" / path.name)
    with pytest.raises(ResultsError, match=r"other.*'mnist'"):
        read_records(tmp_path / "results")


def test_a_second_file_of_the_same_run(tmp_path: Path, record: Record) -> None:
    """The last file name would decide what the tables say."""
    path = stored(tmp_path, record)
    copy = path.with_name(f"{path.stem} (copy).json")
    copy.write_bytes(path.read_bytes())
    with pytest.raises(ResultsError, match=r"\(copy\)\.json holds the run .*; rename or delete it"):
        read_records(tmp_path / "results")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seconds": -5.0}, "seconds is -5.0"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"test": 2.0}, "test of seed 0 is 2.0; it must be a fraction"),
        ({"selected_epoch": 1000}, "selected_epoch of seed 0 is 1000"),
        ({"seed": 1}, "seed 1 occurs twice"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_numbers_that_no_run_can_have(tmp_path: Path, record: Record, change: dict[str, float], message: str) -> None:
    (name, value), seeds = next(iter(change.items())), [dict(seed) for seed in record.seeds]
    if name == "seconds":
        path = stored(tmp_path, record, seconds=value)
    else:
        seeds[0][name] = value
        path = stored(tmp_path, record, seeds=seeds)
    with pytest.raises(ResultsError, match=message):
        read_record(path)


def test_notes_in_a_folder_with_an_odd_name(tmp_path: Path) -> None:
    (tmp_path / "results" / "a b").mkdir(parents=True)
    (tmp_path / "results" / "a b" / "notes.md").write_text("text")
    with pytest.raises(ResultsError, match="it must be"):
        write_pages(tmp_path / "results", tmp_path / "docs")
    assert not (tmp_path / "docs").exists()


def test_a_link_that_leads_out_of_the_report_is_not_followed(tmp_path: Path, record: Record) -> None:
    stored(tmp_path, record)
    (tmp_path / "outside").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "figures").symlink_to(tmp_path / "outside")
    with pytest.raises(ResultsError, match="nothing is written outside"):
        write_pages(tmp_path / "results", tmp_path / "docs")
    assert list((tmp_path / "outside").iterdir()) == []
    # A page that is a link becomes a file; what it pointed to stays.
    (tmp_path / "docs" / "figures").unlink()
    (tmp_path / "mine.md").write_text("mine")
    (tmp_path / "docs" / "mnist.md").symlink_to(tmp_path / "mine.md")
    write_pages(tmp_path / "results", tmp_path / "docs")
    assert (tmp_path / "mine.md").read_text() == "mine"
    assert not (tmp_path / "docs" / "mnist.md").is_symlink()


@pytest.mark.parametrize("name", ["../x.svg", "/x.svg", "figures/../../x.svg", "a\0b", "", ".."])
def test_files_are_written_inside_only(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="outside"):
        file_inside(tmp_path / "page", name)
    with pytest.raises(ValueError, match="outside"):
        write_page([Picture(f"../../{name}", b"", "")], tmp_path / "page" / "page.md")
    assert not (tmp_path / "x.svg").exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"3", b"null", b"\xff\xfe", b"\x1f\x8b\x08", b"PK\x03\x04", b"[" * 100_000, b'{"schema": 2}',
     b'{"schema": 1}', b'{"a": 1}'],
    ids=lambda content: repr(content[:12]),
)  # fmt: skip
def test_files_that_are_no_records(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "results" / "mnist" / "x.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(ResultsError, match=re.escape(str(path))):
        read_records(tmp_path / "results")
    assert path.read_bytes() == content
    path.unlink()
    path.mkdir()
    with pytest.raises(ResultsError, match="Is a directory"):
        read_records(tmp_path / "results")


_PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
_JSON = st.recursive(_PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
_FIELDS = list(Record.__dataclass_fields__)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(field=st.sampled_from(_FIELDS), value=_JSON)
def test_a_field_with_any_other_value(tmp_path: Path, record: Record, field: str, value: Any) -> None:
    """The pages are made, or the study is named that cannot be shown."""
    stored(tmp_path, record, **{field: value})
    told = "mnist"
    try:
        write_pages(tmp_path / "results", tmp_path / "docs")
    except ResultsError as error:
        told = str(error)
    assert "mnist" in told
    assert {path.name for path in tmp_path.iterdir()} <= {"results", "docs"}
