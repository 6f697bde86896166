"""The Chromium of this machine, and pages open in it; tests are skipped where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str:
    """The path of an installed Chromium or Chrome."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    return found


@contextmanager
def started_browser() -> Iterator[Any]:
    pytest.importorskip("playwright", reason="needs playwright, which is not installed")
    from playwright.sync_api import sync_playwright

    path = find_browser()
    with sync_playwright() as playwright:
        # Chromium refuses its sandbox to root, which is who runs in containers.
        arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@contextmanager
def watched_page(browser: Any, file: Path, width: int = 1280, theme: str = "light", **options: Any) -> Iterator[Any]:
    """The file in a window of its own, without any network; a complaint or a request of the page is an error."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, offline=True, **options)
    page = context.new_page()
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    try:
        page.goto(file.as_uri())
        yield page
    finally:
        context.close()
    assert complaints == [], complaints
    assert requests == [file.as_uri()], requests  # nothing but the page itself


def serious_faults(page: Any) -> list[Any]:
    """What axe-core finds wrong with a page, with the first elements that are concerned."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [(each["id"], [node["html"][:120] for node in each["nodes"]]) for each in found]
