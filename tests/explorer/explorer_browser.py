"""A page of the explorer in the Chromium of this machine; tests are skipped where there is none."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str:
    """The path of an installed Chromium or Chrome."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    return found


class Opened:
    """One open page, what it said on its console, and what it asked the network for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def set(self, **values: Any) -> None:
        """Move sliders and choose from lists by the events that a hand would cause, then let the page compute."""
        script = """(values) => {
            for (const [id, value] of Object.entries(values)) {
                const element = document.getElementById(id);
                element.value = value;
                element.dispatchEvent(new Event(element.tagName === "SELECT" ? "change" : "input", { bubbles: true }));
            }
            explorer.settle();
        }"""
        self.page.evaluate(script, values)

    def ask(self, expression: str) -> Any:
        """The value of an expression about `explorer`."""
        return self.page.evaluate(f"() => {expression}")

    def array(self, expression: str) -> np.ndarray:
        return np.asarray(self.ask(expression), dtype=np.float64)

    def wait_until(self, condition: str, seconds: float = 30.0) -> None:
        """Playwright's own waiting evaluates text inside the page, which the page's policy forbids."""
        end = time.monotonic() + seconds
        while not self.ask(condition):
            assert time.monotonic() < end, f"after {seconds} s still not: {condition}"
            self.page.wait_for_timeout(20)

    def text(self, selector: str) -> str:
        return str(self.page.text_content(selector))


@contextmanager
def open_page(browser: Any, file: Path, width: int = 1280, theme: str = "light", **options: Any) -> Iterator[Opened]:
    """The file in a window of its own, without any network, closed afterwards; a complaint of the page is an error."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, offline=True, **options)
    opened = Opened(context.new_page())
    try:
        opened.page.goto(file.as_uri())
        opened.wait_until("window.explorer && explorer.frames() > 2")
        yield opened
    finally:
        context.close()
    assert opened.complaints == [], opened.complaints
    assert opened.requests == [file.as_uri()], opened.requests  # nothing but the page itself


@contextmanager
def started_browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium refuses its sandbox to root, which is who runs in containers.
        arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=find_browser(), args=arguments)
        yield browser
        browser.close()
