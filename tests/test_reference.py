"""The reference names every public name, and the table of contents every page. Sphinx is not needed for that."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

import lipschitz_rnn as lr

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGES = sorted(path.parent for path in (ROOT / "src/lipschitz_rnn").glob("*/__init__.py"))
DIRECTIVE = re.compile(r"^\.\. (autoclass|autofunction|autoexception|py:data):: lipschitz_rnn\.([\w.]+)$", re.MULTILINE)
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def public_names(package: Path) -> list[str]:
    """What the package re-exports, as `from … import name as name`."""
    tree = ast.parse((package / "__init__.py").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return [alias.name for node in imports for alias in node.names if alias.asname == alias.name]


def all_public_names() -> set[str]:
    own = {name for name in lr.__all__ if not inspect.ismodule(getattr(lr, name))}
    return own | {f"{package.name}.{name}" for package in PACKAGES for name in public_names(package)}


def documented() -> dict[str, str]:
    """Each name of the reference, without `lipschitz_rnn.`, and the directive that shows it."""
    pages = [path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md")]
    return {name: kind for page in pages for kind, name in DIRECTIVE.findall(page)}


def toctree_entries(page: Path) -> list[str]:
    """The pages that a page's tables of contents list, as paths below docs; patterns stay patterns."""
    folder = page.parent.relative_to(DOCS).as_posix()
    blocks = TOCTREE.findall(page.read_text(encoding="utf-8"))
    lines = [line for block in blocks for line in block.splitlines() if line and not line.startswith(":")]
    return [line if folder == "." else f"{folder}/{line}" for line in lines]


def test_every_public_name_is_in_the_reference() -> None:
    missing = all_public_names() - documented().keys()
    assert not missing, f"add e.g. '.. autofunction:: lipschitz_rnn.NAME' to a page in docs/reference for: {missing}"
    assert len(documented()) > 100


def test_every_name_of_the_reference_exists() -> None:
    """And is shown as what it is; some have a class or a function of another package as their home."""
    for path, kind in documented().items():
        module, _, name = f"lipschitz_rnn.{path}".rpartition(".")
        target = getattr(importlib.import_module(module), name)
        if kind == "autoexception":
            assert issubclass(target, BaseException), path
        elif kind == "autoclass":
            assert inspect.isclass(target), path
            assert not issubclass(target, BaseException), path
        elif kind == "autofunction":
            assert inspect.isfunction(target), path


def test_every_public_name_has_a_docstring() -> None:
    shown = {path for path, kind in documented().items() if kind != "py:data"}
    for path in shown:
        module, _, name = f"lipschitz_rnn.{path}".rpartition(".")
        assert (getattr(importlib.import_module(module), name).__doc__ or "").strip(), path


def test_every_page_is_in_the_table_of_contents() -> None:
    pages = sorted(DOCS.glob("**/*.md"))
    entries = [entry for page in pages for entry in toctree_entries(page)]
    for page in pages:
        name = page.relative_to(DOCS).with_suffix("").as_posix()
        found = name == "index" or any(fnmatch(name, entry) for entry in entries)
        assert found, f"add a line '{name}' to a toctree in docs/index.md, or to that of its folder"
    missing = [entry for entry in entries if "*" not in entry and not (DOCS / f"{entry}.md").exists()]
    assert not missing, f"docs/index.md lists pages that do not exist: {missing}"


def test_licences_are_listed_for_every_pinned_package() -> None:
    """Their text comes from docs/_ext/licences.py; here only that no package and no version is missing."""
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").replace("==", " | ").splitlines()
    rows = re.findall(r"^\| (\S+ \| \S+) \| \S.* \|$", (DOCS / "licences.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert rows[2:] == pinned, "run: python docs/_ext/licences.py"


@pytest.mark.parametrize("name", ["_version.py", "pyproject.toml", "CHANGELOG.md"])
def test_the_version_has_one_place(name: str) -> None:
    """`_version.py`; everything else reads it, and the changelog has a heading for it or for what comes next."""
    if name == "pyproject.toml":
        text = (ROOT / name).read_text(encoding="utf-8")
        assert 'version = { attr = "lipschitz_rnn._version.__version__" }' in text
        assert not re.search(r'^version = "', text, re.MULTILINE)
    elif name == "CHANGELOG.md":
        headings = re.findall(r"^## \[(.+?)\]", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
        assert headings[0] in ("Unreleased", lr.__version__)
    else:
        assert re.fullmatch(r"\d+\.\d+\.\d+(rc\d+|\.dev\d+)?", lr.__version__)
