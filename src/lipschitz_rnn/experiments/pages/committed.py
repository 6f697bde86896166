"""The pages of committed results: written from the JSON files in results/, and compared with the committed pages.

A check draws the pictures again, so it also finds one that can no longer be drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lipschitz_rnn.documents.blocks import Block, Heading, Paragraph, Picture, Table, to_markdown
from lipschitz_rnn.documents.files import (
    check_study,
    checksum,
    compare_file,
    compare_text,
    file_inside,
    fill_marks,
    stamp,
    write_files,
)  # fmt: skip
from lipschitz_rnn.documents.numbers import show_duration
from lipschitz_rnn.experiments.pages import whole_paper
from lipschitz_rnn.experiments.pages.sections import blocks, plain_table
from lipschitz_rnn.experiments.results import Record, ResultsError, read_records
from lipschitz_rnn.experiments.studies import STUDIES
from lipschitz_rnn.experiments.study import Study

_NOTES = "notes.md"
_MADE = ("*.md", "figures/*.svg")  # files made here; pictures of other commands may be in the same folder


def write_pages(results: Path, folder: Path, readme: Path | None = None) -> list[Path]:
    """Write all pages into `folder`, and the tables between the marks in `readme`; returns the paths."""
    try:
        files = {file_inside(folder, name): content for name, content in make_pages(results).items()}
    except ValueError as error:
        raise ResultsError(f"the results cannot be shown: {error}") from error
    if readme is not None:
        before = readme.read_text(encoding="utf-8")
        after = fill_readme(before, read_records(results))
        files |= {readme: after.encode()} if after != before else {}
    return write_files(files)


def check_pages(results: Path, folder: Path, readme: Path | None = None) -> list[str]:
    """The differences between the committed pages and those made from `results`, as text; empty if there are none."""
    expected = make_pages(results)
    found = {str(path.relative_to(folder)) for kind in _MADE for path in folder.glob(kind)}
    problems = [f"{folder / name} is not made from {results}; delete it" for name in sorted(found - set(expected))]
    problems += [problem for name, content in expected.items() for problem in compare_file(folder / name, content)]
    if readme is not None:
        text = readme.read_text(encoding="utf-8")
        problems += compare_text(readme, text, fill_readme(text, read_records(results)))
    return problems


def make_pages(results: Path, studies: Mapping[str, Study] = STUDIES) -> dict[str, bytes]:
    """Every page and picture, by its path in docs/results; empty if there are no results."""
    records = read_records(results)
    named = _names(results, records, studies)
    files: dict[str, bytes] = {}
    for name in named:
        page = _page(name, [record for record in records if record.study == name], results, studies)
        files[f"{name}.md"] = to_markdown(page).encode()
        drawn_from = checksum(sorted((results / name).glob("*.json")))
        files |= {block.file: stamp(block.svg, drawn_from) for block in page if isinstance(block, Picture)}
    return files | ({"README.md": to_markdown(_index(named, records, studies)).encode()} if files else {})


def fill_readme(text: str, records: Sequence[Record], studies: Mapping[str, Study] = STUDIES) -> str:
    """The text with each study's summary, or the table of the whole paper, filled in between its marks."""

    def fill(name: str) -> str:
        if name == whole_paper.MARK:
            return to_markdown(whole_paper.whole_paper(records))
        own = [record for record in records if record.study == name]
        if not own:
            return "No results of this study are committed yet.\n"
        study = studies.get(name)
        return to_markdown([plain_table(own)] if study is None or study.summary is None else study.summary(study, own))

    return fill_marks(text, fill)


def _names(results: Path, records: Sequence[Record], studies: Mapping[str, Study]) -> list[str]:
    """Studies with records, and those that have only notes."""
    written = {path.parent.name for path in results.glob(f"*/{_NOTES}")}
    for name in written:
        try:
            check_study(name)
        except ValueError as error:
            raise ResultsError(f"{results / name} cannot be shown: {error}") from error
    found = {record.study for record in records} | written
    return [*(name for name in studies if name in found), *sorted(found - set(studies))]


def _page(name: str, records: Sequence[Record], results: Path, studies: Mapping[str, Study]) -> list[Block]:
    page: list[Block] = []
    if records and name not in studies:
        page = [Heading(name.capitalize(), 1), plain_table(records)]
    elif records:
        try:
            page = blocks(studies[name], records)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
            raise ResultsError(
                f"the records in {results / name} cannot be shown ({type(error).__name__}: {error}); "
                "one of them lacks what the page shows: export it again"
            ) from error
    notes = results / name / _NOTES
    page += [Paragraph(notes.read_text(encoding="utf-8").strip())] if notes.exists() else []
    made = f"*This page is made from `results/{name}` by `lipschitz-rnn report results`; "
    return [*page, Paragraph(f"{made}`lipschitz-rnn report --check results` compares.*")]


def _index(names: Sequence[str], records: Sequence[Record], studies: Mapping[str, Study]) -> list[Block]:
    rows = []
    for name in names:
        own = [record for record in records if record.study == name]
        networks, seconds = sum(len(record.seeds) for record in own), sum(record.seconds for record in own)
        hardware = ", ".join(dict.fromkeys(str(record.environment.get("device", "?")) for record in own))
        counts = [str(len(own)), str(networks), show_duration(seconds)] if own else ["–"] * 3
        title = studies[name].title if name in studies else "–"
        rows.append([f"[{name}]({name}.md)", title, *counts, hardware or "–"])
    text = (
        "What this project trained and measured. Every table comes from files in `results`, and every page names "
        "the command that produced it."
    )
    header = ["study", "what it is about", "runs", "networks", "time", "hardware"]
    return [Heading("Results", 1), Paragraph(text), Table(header, rows, left=2, words=("hardware",))]
