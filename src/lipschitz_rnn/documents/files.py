"""Pages as files: written only inside one folder, and compared with the committed files.

Text is compared directly. Pictures are not, because their bytes depend on the versions of matplotlib and fonts. Instead
a picture contains the checksum of the data it was drawn from, and the checksums are compared.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lipschitz_rnn.documents.blocks import Block, pictures, to_markdown
from lipschitz_rnn.training.checkpoint import atomic_write

_STUDY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=,/-]{0,199}")
_LINE = 150  # characters
_CHECKSUM = re.compile(rb"<!-- drawn from ([0-9a-f]{64}) -->")
_MARKED = re.compile(r"(<!-- results:([\w-]+) -->\n)(.*?)(<!-- /results:\2 -->)", re.DOTALL)


def check_study(study: object) -> None:
    if not isinstance(study, str) or not _STUDY.fullmatch(study):
        raise ValueError(f"the study is {study!r:.200}; it must be a plain name of letters, digits, - and _")


def check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or any(part in ("", "..") for part in name.split("/")):
        raise ValueError(
            f"the name is {name!r:.200}; it must be one or more plain names of letters and digits, joined by /"
        )


def file_inside(folder: Path, name: str) -> Path:
    """folder/name; ValueError if it is not in the folder, after following links."""
    path = folder / name
    try:
        inside = (
            "\0" not in name and path.parent.resolve().is_relative_to(folder.resolve()) and path.name not in ("", "..")
        )
    except OSError:
        inside = False
    if not inside:
        raise ValueError(f"{name!r:.200} is not in {folder}; nothing is written outside of it")
    return path


def write_page(blocks: Sequence[Block], path: Path) -> list[Path]:
    """Write a page as Markdown, with its pictures in figures/ next to it; returns the paths."""
    contents = {path: to_markdown(blocks).encode()}
    contents |= {file_inside(path.parent, picture.file): picture.svg for picture in pictures(blocks)}
    return write_files(contents)


def write_files(contents: dict[Path, bytes]) -> list[Path]:
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, content)
    return list(contents)


def checksum(paths: Sequence[Path]) -> str:
    """SHA-256 of the names and contents of files."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def stamp(svg: bytes, checksum: str) -> bytes:
    """The picture with the checksum of its data added."""
    return svg + f"<!-- drawn from {checksum} -->\n".encode()


def compare_file(path: Path, expected: bytes) -> list[str]:
    """How a committed file differs from the expected one, as text; empty if it does not."""
    if not path.exists():
        return [f"{path} is missing"]
    if path.suffix == ".svg":
        found = [_CHECKSUM.findall(content) for content in (path.read_bytes(), expected)]
        return [] if found[0] == found[1] else [f"{path} was drawn from other records"]
    return compare_text(path, path.read_text(encoding="utf-8"), expected.decode())


def compare_text(path: Path, found: str, expected: str) -> list[str]:
    if found == expected:
        return []
    lines = difflib.unified_diff(
        found.splitlines(), expected.splitlines(), f"{path} (committed)", f"{path} (from the results)", lineterm="", n=1
    )
    return ["\n".join(lines)]


def fill_marks(text: str, fill: Callable[[str], str]) -> str:
    """Put ``fill("mnist")`` between ``<!-- results:mnist -->`` and ``<!-- /results:mnist -->``, and so on."""
    return _MARKED.sub(lambda match: match[1] + fill(match[2]) + match[4], text)


def has_marks(path: Path) -> bool:
    return path.is_file() and _MARKED.search(path.read_text(encoding="utf-8")) is not None


def readable_json(value: Any, margin: str = "") -> str:
    """JSON with one line per list of numbers and per value that fits on a line, so that diffs are readable."""
    flat = json.dumps(value, ensure_ascii=False)
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    if len(flat) <= _LINE or not any(isinstance(item, Mapping | list | tuple) for item in items):
        return flat
    inner = margin + " "
    if isinstance(value, Mapping):
        lines = [f"{json.dumps(key)}: {readable_json(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(inner + line for line in lines) + f"\n{margin}}}"
    return "[\n" + ",\n".join(inner + readable_json(item, inner) for item in items) + f"\n{margin}]"
