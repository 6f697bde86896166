"""No committed number changes: records by checksum, and every number on the pages as it was frozen.

`frozen_numbers.json` holds, for each record, the SHA-256 of its numbers, and for each page the numbers of every table
row and the decimals in its text. A page may gain rows and say things in other words, but not lose or change a number.
Run this file as a program to freeze the numbers of new results.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FROZEN = Path(__file__).parent / "frozen_numbers.json"
_NUMBER = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)*")
_DECIMAL = re.compile(r"[-−]?\d+\.\d+")


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """Every plain value of a record with its place."""
    if isinstance(value, dict):
        for key in sorted(value):
            yield from leaves(value[key], f"{path}/{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}/{index}")
    elif not isinstance(value, str):
        yield f"{path} {value!r}"


def record_digest(path: Path) -> str:
    return hashlib.sha256("\n".join(leaves(json.loads(path.read_text()))).encode()).hexdigest()


def page_numbers(text: str) -> dict[str, list[str]]:
    lines = text.splitlines()
    rows = [" ".join(_NUMBER.findall(line)) for line in lines if line.startswith("|")]
    told = {number for line in lines if not line.startswith("|") for number in _DECIMAL.findall(line)}
    every = {number for line in lines for number in _DECIMAL.findall(line)}
    return {"rows": sorted(row for row in rows if row), "text": sorted(told), "all": sorted(every)}


def readme_tables(root: Path) -> str:
    marked = r"<!-- results:\w+ -->\n(.*?)<!-- /results"
    return "\n".join(re.findall(marked, (root / "README.md").read_text(), re.DOTALL))


def numbers(root: Path) -> dict[str, Any]:
    pages = {path.name: page_numbers(path.read_text()) for path in sorted((root / "docs" / "results").glob("*.md"))}
    records = {str(path.relative_to(root)): record_digest(path) for path in sorted(root.glob("results/*/*.json"))}
    return {"records": records, "pages": pages | {"README": page_numbers(readme_tables(root))}}


@pytest.fixture(scope="module")
def frozen() -> dict[str, Any]:
    return dict(json.loads(FROZEN.read_text()))


def test_every_number_of_every_record_is_as_it_was(frozen: dict[str, Any]) -> None:
    found = numbers(ROOT)["records"]
    assert {name: found.get(name) for name in frozen["records"]} == frozen["records"]


def lost(before: dict[str, list[str]], after: dict[str, list[str]]) -> list[str]:
    """Rows and decimals that are no longer there."""
    rows = Counter(before["rows"]) - Counter(after["rows"])
    return [*rows.elements(), *sorted(set(before["text"]) - set(after["all"]))]


def test_every_number_of_every_page_is_as_it_was(frozen: dict[str, Any]) -> None:
    found = numbers(ROOT)["pages"]
    assert {name: lost(page, found[name]) for name, page in frozen["pages"].items()} == {
        name: [] for name in frozen["pages"]
    }


def test_one_changed_digit_is_found(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "results" / "mnist.md").read_text()
    assert lost(page_numbers(page), page_numbers(page.replace("99.18", "99.19", 1)))
    record = next(ROOT.glob("results/mnist/*.json"))
    changed = tmp_path / record.name
    changed.write_text(re.sub(r'("test": 0\.\d+)', r"\g<1>1", record.read_text(), count=1))
    assert record_digest(changed) != record_digest(record)


if __name__ == "__main__":
    FROZEN.write_text(json.dumps(numbers(ROOT), indent=0, ensure_ascii=False) + "\n")
