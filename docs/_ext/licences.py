"""Writes docs/licences.md: the licence of every package in constraints.txt, from the metadata of what is installed.

`python docs/_ext/licences.py` writes the page, `--check` compares it. Run it in the environment of `make install`
with the extra `docs`: a package that is not installed keeps its old row, and is an error if it has none.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "licences.md"
HEAD = """# Licences of the dependencies

This package is under the Apache License 2.0. Below is every package that `constraints.txt` names: what the core and the
extras need, and the tools for tests, checks and this site. None of them is part of the wheel, and nothing was copied
from them. `python docs/_ext/licences.py` writes this page from the metadata of the installed packages.

| package | version | licence |
| --- | --- | --- |
"""


def licence(name: str) -> str:
    """An SPDX expression where the package has one, else its classifier, else the first line that it states."""
    about = distribution(name).metadata
    if about.get("License-Expression"):
        return about["License-Expression"]
    classifiers = [each.split(" :: ")[-1] for each in about.get_all("Classifier") or [] if each.startswith("License")]
    stated = [each for each in classifiers if each != "OSI Approved"]
    text = (about.get("License") or "").strip().splitlines()
    return " or ".join(stated) or (text[0] if text and len(text[0]) < 60 else "")


def page(old: str) -> str:
    kept = dict(re.findall(r"^\| (\S+) \| \S+ \| (.+) \|$", old, re.MULTILINE))
    rows = []
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        name, _, version = line.partition("==")
        try:
            found = licence(name) or kept.get(name, "")
        except PackageNotFoundError:
            found = kept.get(name, "")
        if not found:
            raise SystemExit(f"{name} states no licence; look it up and write its row into {PAGE.name}")
        rows.append(f"| {name} | {version} | {found} |\n")
    return HEAD + "".join(rows)


def main() -> None:
    old = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    new = page(old)
    if "--check" not in sys.argv:
        PAGE.write_text(new, encoding="utf-8")
    elif new != old:
        raise SystemExit("docs/licences.md is out of date; run: python docs/_ext/licences.py")


if __name__ == "__main__":
    main()
