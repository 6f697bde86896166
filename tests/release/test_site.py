"""The site: built without a warning, every public name on it, and every internal link leads to a place that exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from optional import needs

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.full, needs("sphinx", "furo", "myst_parser", "sphinx_design", "sphinx_copybutton")]


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.links += [values[name] for name in ("href", "src") if name in values]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", folder / "doctrees"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [*map(str, command), str(ROOT / "docs"), str(folder / "html")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_every_public_name_is_on_the_site(site: Path) -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "docs/reference").glob("*.md")]
    named = {name for text in sources for name in re.findall(r"^\.\. (?:auto\w+|py:data):: (\S+)$", text, re.MULTILINE)}
    pages = [Page(path.read_text(encoding="utf-8")) for path in (site / "reference").glob("*.html")]
    again = {"lipschitz_rnn.training.load_run", "lipschitz_rnn.ops.lipschitz_scan"}  # shown twice, indexed once
    assert named - again <= set.union(*(page.anchors for page in pages))
    assert "Search.setIndex" in (site / "searchindex.js").read_text(encoding="utf-8")


def test_internal_links_lead_somewhere_and_nothing_is_fetched(site: Path) -> None:
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.glob("**/*.html")}
    assert len(pages) > 40
    broken = []
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:|//", link):
                continue
            target, _, anchor = unquote(link).partition("#")
            other = (path.parent / target.partition("?")[0]).resolve() if target else path
            if not other.exists() or (anchor and other in pages and anchor not in pages[other].anchors):
                broken.append((str(path.relative_to(site)), link))
    assert not broken
    fetched = [
        link
        for path in pages
        for link in re.findall(r'<(?:script|img)[^>]* src="(https?:[^"]+)"', path.read_text(encoding="utf-8"))
    ]
    assert not fetched


def test_licences_are_up_to_date() -> None:
    script = ROOT / "docs" / "_ext" / "licences.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
