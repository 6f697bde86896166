"""Pages of reports in a real browser: sorting, reading curves, narrow screens, dark mode, print, and no script."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from browser import serious_faults, watched_page

pytestmark = pytest.mark.needs("matplotlib")

WIDTHS = (400, 1280)
THEMES = ("light", "dark")
ORDER = "() => [...document.querySelector('tbody').rows].map((row) => row.cells[0].textContent.split(' ')[0])"

# Whatever is wider than its place must be inside a box that scrolls.
LAYOUT = """() => {
    const faults = [];
    const whole = document.documentElement.scrollWidth;
    if (whole > innerWidth) faults.push(`the page is ${whole} wide`);
    for (const element of document.querySelectorAll("main *")) {
        const box = element.getBoundingClientRect();
        if (!box.width || element.parentElement.closest(".scroll")) continue;
        const name = element.className || element.tagName;
        if (box.left < 0 || box.right > innerWidth + 1) faults.push(`${name} leaves the page`);
        if (element.clientWidth && element.scrollWidth > element.clientWidth + 1 && !element.matches(".scroll")) {
            faults.push(`${name} is too wide`);
        }
    }
    return faults;
}"""


def check_layout(page: Any, folder: Path) -> None:
    page.evaluate("() => document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert page.evaluate(LAYOUT) == []
    assert len(page.screenshot(path=folder / "page.png", full_page=True)) > 10_000


def test_tables_are_sorted_by_numbers(browser: Any, page_file: Path) -> None:
    """By keys: upwards, downwards, and as written. Durations have units, and what is missing stays last."""
    orders = {
        "configuration": (["first", "second", "tenth"], ["tenth", "second", "first"]),
        "time": (["tenth", "second", "first"], ["first", "second", "tenth"]),  # 90 s, 2 min, 1.5 h
        "score": (["first", "second", "tenth"], ["second", "first", "tenth"]),
        "p": (["second", "tenth", "first"], ["tenth", "second", "first"]),
    }
    with watched_page(browser, page_file) as page:
        for column, (up, down) in orders.items():
            header = page.locator("th", has_text=column).first
            for order, state in ((up, "ascending"), (down, "descending"), (["second", "tenth", "first"], None)):
                header.locator("button").focus()
                page.keyboard.press("Enter")
                assert page.evaluate(ORDER) == order, column
                assert header.get_attribute("aria-sort") == state


def test_curves_show_their_numbers(browser: Any, page_file: Path) -> None:
    """By pointer at the last epoch of the second panel, and by keys from the first epoch of the first."""
    with watched_page(browser, page_file) as page:
        svg = page.locator("figure svg").first
        svg.scroll_into_view_if_needed()
        box = svg.bounding_box()
        left, top, right, bottom = page.evaluate(
            "() => JSON.parse(document.querySelector('figure').dataset.panels)[1].box"
        )
        page.mouse.move(box["x"] + 0.98 * right * box["width"], box["y"] + (top + 0.1 * (bottom - top)) * box["height"])
        assert page.locator(".reading").inner_text().split() == ["epoch", "3", "b", "7", "a", "4"]
        assert page.locator(".reading tr.near").inner_text().split() == ["b", "7"]
        assert page.locator("svg circle.dot").count() == 2
        page.mouse.move(0, 0)
        assert not page.locator(".reading").is_visible()
        page.locator("figure .scroll").focus()
        page.keyboard.press("ArrowRight")
        assert page.locator(".reading").inner_text().split() == ["epoch", "1", "a", "1.5"]
        page.keyboard.press("ArrowRight")
        assert page.locator(".reading").inner_text().split() == ["epoch", "2", "a", "2.5"]
        page.keyboard.press("Escape")
        assert not page.locator(".reading").is_visible()
        assert 0 < left < right < 1


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", [THEMES[0], pytest.param(THEMES[1], marks=pytest.mark.full)])
def test_nothing_runs_out_of_the_page_and_axe_finds_no_fault(
    browser: Any, page_file: Path, tmp_path: Path, width: int, theme: str
) -> None:
    with watched_page(browser, page_file, width, theme) as page:
        check_layout(page, tmp_path)
        table = page.locator(".scroll").first
        assert table.evaluate("(box) => box.scrollWidth > box.clientWidth")
        paper, ink = page.evaluate("() => ['backgroundColor', 'color'].map((n) => getComputedStyle(document.body)[n])")
        assert (paper, ink) == {
            "light": ("rgb(251, 251, 249)", "rgb(28, 32, 36)"),
            "dark": ("rgb(20, 23, 26)", "rgb(232, 235, 237)"),
        }[theme]
        assert page.locator("figure svg").first.evaluate("(svg) => getComputedStyle(svg).fill") == ink
        if width == 1280 and find_spec("axe_playwright_python"):
            assert serious_faults(page) == []


def test_the_layout_check_sees_faults(browser: Any, page_file: Path) -> None:
    with watched_page(browser, page_file) as page:
        page.evaluate("() => { document.querySelector('h1').style.width = '3000px'; }")
        assert page.evaluate(LAYOUT)


def test_the_page_is_complete_without_script(browser: Any, page_file: Path) -> None:
    with watched_page(browser, page_file, java_script_enabled=False) as page:
        assert page.locator("th button").count() == 0
        assert page.locator("td", has_text="97.5 ± 0.3 %").is_visible()
        assert page.locator("figure svg").first.is_visible()
        assert not page.locator("td", has_text="2").last.is_visible()
        page.locator("summary").click()
        assert page.locator("details td").last.is_visible()


def test_paper_is_white_and_shows_everything(browser: Any, page_file: Path) -> None:
    with watched_page(browser, page_file, theme="dark") as page:
        page.emulate_media(media="print", color_scheme="dark")
        assert page.locator("figure svg").first.evaluate("(svg) => getComputedStyle(svg).fill") == "rgb(28, 32, 36)"
        assert page.locator("details td").last.evaluate("(cell) => cell.getBoundingClientRect().height") > 0
        assert not page.locator("nav").is_visible()
        assert page.pdf().startswith(b"%PDF")
