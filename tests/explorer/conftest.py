"""One page and one browser for all tests of the explorer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import started_browser
from explorer_browser import Opened, open_page

from lipschitz_rnn.explorer import build_page


@pytest.fixture(scope="session")
def page_text() -> str:
    return build_page()


@pytest.fixture(scope="session")
def page_file(page_text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("explorer") / "explorer.html"
    file.write_text(page_text, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as found:
        yield found


@pytest.fixture(scope="module")
def shared(browser: Any, page_file: Path) -> Iterator[Opened]:
    with open_page(browser, page_file, reduced_motion="reduce") as opened:
        yield opened


@pytest.fixture
def explorer(shared: Opened) -> Opened:
    """The page, still, with the settings that it starts with."""
    shared.page.evaluate("() => { document.getElementById('reset').click(); explorer.settle(); }")
    return shared
