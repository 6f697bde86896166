"""A page of the explorer in the Chromium of this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from browser import watched_page


class Opened:
    """One open page."""

    def __init__(self, page: Any) -> None:
        self.page = page

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
    """The file in a window of its own, once it draws."""
    with watched_page(browser, file, width, theme, **options) as page:
        opened = Opened(page)
        opened.wait_until("window.explorer && explorer.frames() > 2")
        yield opened
