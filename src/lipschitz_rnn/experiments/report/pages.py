"""The pages of committed results: written from the JSON below results/, and checked against what is committed.

Text is compared as it stands. Pictures are not: the same data give other bytes with another version of matplotlib or of
a font. Instead each picture carries the checksum of the records that it was drawn from, and that is compared; it is
drawn again all the same, so that a picture that can no longer be drawn is found.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from lipschitz_rnn.experiments.record_checks import check_study, file_inside
from lipschitz_rnn.experiments.report.document import Block, Heading, Paragraph, Picture, Table, to_markdown
from lipschitz_rnn.experiments.results import Record, ResultsError, read_records
from lipschitz_rnn.experiments.scores import show_duration, show_score, spread
from lipschitz_rnn.training.checkpoint import atomic_write

_ORDER = ("mnist", "robustness", "ablation", "figures")
_NOTES = "notes.md"
_MADE = ("*.md", "figures/*.svg")  # what is made here; pictures of other commands may lie beside it
_CHECKSUM = re.compile(rb"<!-- drawn from ([0-9a-f]{64}) -->")
_MARKED = re.compile(r"(<!-- results:(\w+) -->\n)(.*?)(<!-- /results:\2 -->)", re.DOTALL)
Files = dict[str, bytes]  # by path below docs/results


def write_pages(results: Path, folder: Path, readme: Path | None = None) -> list[Path]:
    """Write all pages into `folder`, and the tables between marks in `readme`; the paths written."""
    files = {_inside(folder, name): content for name, content in make_pages(results).items()}
    written = []
    for path, content in files.items():
        written.append(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, content)
    if readme is not None:
        before = readme.read_text(encoding="utf-8")
        after = fill_marks(before, read_records(results))
        if after != before:
            atomic_write(readme, after.encode())
            written.append(readme)
    return written


def _inside(folder: Path, name: str) -> Path:
    try:
        return file_inside(folder, name)
    except ValueError as error:
        raise ResultsError(f"the results cannot be shown: {error}") from error


def check_pages(results: Path, folder: Path, readme: Path | None = None) -> list[str]:
    """What differs from the pages that `results` gives now, as text; nothing when all is as committed."""
    expected = make_pages(results)
    found = {str(path.relative_to(folder)) for kind in _MADE for path in folder.glob(kind)}
    problems = [f"{folder / name} is not made from {results}" for name in sorted(found - set(expected))]
    for name, content in expected.items():
        path = folder / name
        if not path.exists():
            problems.append(f"{path} is missing")
        elif path.suffix == ".svg":
            problems += _compare_pictures(path, content)
        else:
            problems += _compare_text(path, path.read_text(encoding="utf-8"), content.decode())
    if readme is not None:
        text = readme.read_text(encoding="utf-8")
        problems += _compare_text(readme, text, fill_marks(text, read_records(results)))
    return problems


def make_pages(results: Path) -> Files:
    """Every page and picture. Without results there is none."""
    records = read_records(results)
    files: Files = {}
    for study in _studies(results, records):
        own = [record for record in records if record.study == study]
        blocks = [*_blocks(study, own, results), *_notes(results / study / _NOTES), Paragraph(_origin(study))]
        files[f"{study}.md"] = to_markdown(blocks).encode()
        mark = f"<!-- drawn from {checksum(results, study)} -->\n".encode()
        files |= {f"figures/{block.name}.svg": block.svg + mark for block in blocks if isinstance(block, Picture)}
    if files:
        files["README.md"] = to_markdown(_index(_studies(results, records), records)).encode()
    return files


def checksum(results: Path, study: str) -> str:
    """SHA-256 over the names and contents of a study's records."""
    digest = hashlib.sha256()
    for path in sorted((results / study).glob("*.json")):
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def fill_marks(text: str, records: Sequence[Record]) -> str:
    """Put each study's short table between ``<!-- results:mnist -->`` and ``<!-- /results:mnist -->``."""

    def fill(match: re.Match[str]) -> str:
        own = [record for record in records if record.study == match[2]]
        if not own:
            return f"{match[1]}No results of this study are committed yet.\n{match[4]}"
        summary = getattr(_page(match[2]), "summary", lambda records: [plain_table(records)])
        return match[1] + to_markdown(summary(own)) + match[4]

    return _MARKED.sub(fill, text)


def has_marks(path: Path) -> bool:
    return path.is_file() and _MARKED.search(path.read_text(encoding="utf-8")) is not None


def _studies(results: Path, records: Sequence[Record]) -> list[str]:
    """Those with records, and those that a person wrote down alone."""
    written = {path.parent.name for path in results.glob(f"*/{_NOTES}")}
    for study in written:
        _check_study(study, results)
    found = {record.study for record in records} | written
    return [*(study for study in _ORDER if study in found), *sorted(found - set(_ORDER))]


def _check_study(study: str, results: Path) -> None:
    try:
        check_study(study)
    except ValueError as error:
        raise ResultsError(f"{results / study} cannot be shown: {error}") from error


def _page(study: str) -> ModuleType | None:
    """The module that knows how a study is shown, where there is one."""
    name = f"lipschitz_rnn.experiments.{study}_page"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


def _blocks(study: str, records: Sequence[Record], results: Path) -> list[Block]:
    if not records:
        return []
    page = _page(study)
    if page is None:
        return [Heading(study.capitalize(), 1), plain_table(records)]
    try:
        return page.blocks(records)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise ResultsError(
            f"the records in {results / study} cannot be shown ({type(error).__name__}: {error}); "
            "one of them lacks what the page shows: export it again"
        ) from error


def plain_table(records: Sequence[Record]) -> Table:
    """What can be said of any run."""
    rows = []
    for record in records:
        shown = [show_score(value, record.percent) for value in spread(record.scores())]
        time, device = show_duration(record.seconds), str(record.environment.get("device", "?"))
        rows.append([record.name, record.why or "–", record.metric, str(len(record.seeds)), *shown, time, device])
    return Table(
        ["run", "what it is", "metric", "networks", "test min", "mean", "max", "time", "hardware"], rows, left=3
    )


def _notes(path: Path) -> list[Block]:
    return [Paragraph(path.read_text(encoding="utf-8").strip())] if path.exists() else []


def _origin(study: str) -> str:
    return (
        f"*This page is made from `results/{study}` by `lipschitz-rnn report results`; "
        "`lipschitz-rnn report --check results` compares.*"
    )


def _index(studies: Sequence[str], records: Sequence[Record]) -> list[Block]:
    rows = []
    for study in studies:
        own = [record for record in records if record.study == study]
        networks, seconds = sum(len(record.seeds) for record in own), sum(record.seconds for record in own)
        hardware = ", ".join(dict.fromkeys(str(record.environment.get("device", "?")) for record in own))
        counts = [str(len(own)), str(networks), show_duration(seconds)] if own else ["–"] * 3
        rows.append([f"[{study}]({study}.md)", *counts, hardware or "–"])
    text = (
        "What this project trained and measured. Every number comes from a file below `results`, and every page says "
        "which command made it."
    )
    header = ["study", "runs", "networks", "time", "hardware"]
    return [Heading("Results", 1), Paragraph(text), Table(header, rows, left=1)]


def _compare_pictures(path: Path, content: bytes) -> list[str]:
    marks = [_CHECKSUM.findall(data) for data in (path.read_bytes(), content)]
    return [] if marks[0] == marks[1] else [f"{path} was drawn from other records"]


def _compare_text(path: Path, found: str, expected: str) -> list[str]:
    if found == expected:
        return []
    lines = difflib.unified_diff(
        found.splitlines(), expected.splitlines(), f"{path} (committed)", f"{path} (from the results)", lineterm="", n=1
    )
    return ["\n".join(lines)]
