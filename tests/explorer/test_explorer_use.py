"""The page in use: sliders, keys, touch, narrow screens, dark mode, and a check of its accessibility."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browser import serious_faults
from explorer_browser import Opened, open_page

from lipschitz_rnn.explorer import build_page
from lipschitz_rnn.explorer.records import network_record
from lipschitz_rnn.units.lipschitz import LipschitzRNN

SLIDERS = ("beta", "gamma", "alpha", "step", "size", "scale")
WIDTHS = (400, 1280)
THEMES = ("light", "dark")

# Text that leaves its box, boxes that leave the window, and controls that cover each other.
LAYOUT = """() => {
    const faults = [];
    const name = (element) => element.id || element.className || element.textContent.trim().slice(0, 30);
    const whole = document.documentElement.scrollWidth;
    if (whole > innerWidth) faults.push(`the page is ${whole} wide`);
    for (const element of document.querySelectorAll("form *, section *, header *, footer *")) {
        const box = element.getBoundingClientRect();
        if (!box.width || element.closest(".unseen")) continue;
        const outer = element.closest("form, section, header, footer").getBoundingClientRect();
        if (box.left < outer.left - 1 || box.right > outer.right + 1) faults.push(`${name(element)} leaves its card`);
        const inner = element.clientWidth && !["OPTION", "SELECT"].includes(element.tagName);
        if (inner && element.scrollWidth > element.clientWidth + 1) faults.push(`${name(element)} is too wide`);
    }
    const kinds = "label, output, input, select, button, canvas, h1, h2, p, li, figcaption";
    const all = [...document.querySelectorAll(kinds)]
        .filter((element) => element.textContent.trim() || ["INPUT", "CANVAS"].includes(element.tagName))
        .filter((element) => !element.matches(".skip, .unseen"));
    const boxes = all.map((element) => [element, element.getBoundingClientRect()]).filter(([, box]) => box.width);
    for (const [one, a] of boxes) for (const [two, b] of boxes) {
        if (one === two || one.contains(two) || two.contains(one)) continue;
        if (one.closest("form") !== two.closest("form")) continue;  // the form stays in place while the rest scrolls
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 1 && high > 1) faults.push(`${name(one)} covers ${name(two)}`);
    }
    return faults;
}"""

# How many different colours a canvas shows; one means that nothing was drawn.
COLOURS = """() => Object.fromEntries([...document.querySelectorAll("canvas")].map((canvas) => {
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
    return [canvas.id, new Set(new Uint32Array(data.buffer)).size];
}))"""


def test_sliders_change_what_is_shown(explorer: Opened) -> None:
    """Each by its own key press: the number beside it, the matrices or states, and the text for screen readers."""
    for slider in SLIDERS:
        before = explorer.text(f"#{slider}-value"), explorer.ask("explorer.states().a[5]")
        explorer.page.focus(f"#{slider}")
        explorer.page.keyboard.press("ArrowRight")
        explorer.page.keyboard.press("ArrowRight")
        explorer.ask("explorer.settle()")
        after = explorer.text(f"#{slider}-value"), explorer.ask("explorer.states().a[5]")
        assert before[0] != after[0], slider
        assert before[1] != after[1], slider
    assert explorer.ask("explorer.settings().size") == 4
    assert "4 units" in explorer.text("#portrait-reading") or explorer.ask("explorer.states().a[0].length") == 4


@pytest.mark.parametrize(("choice", "value"), [("integrator", "rk4"), ("nonlinearity", "relu"), ("input", "sine")])
def test_lists_change_what_is_shown(explorer: Opened, choice: str, value: str) -> None:
    before = explorer.ask("explorer.states().a[9]")
    explorer.page.select_option(f"#{choice}", value)
    explorer.ask("explorer.settle()")
    assert explorer.ask("explorer.states().a[9]") != before
    assert explorer.ask(f"explorer.settings().{choice}") == value


def test_readings_follow(explorer: Opened) -> None:
    assert "Certified factor per step" in explorer.text("#distance-reading")
    explorer.set(gamma="0", scale="3")
    assert "Not certified" in explorer.text("#distance-reading")
    explorer.set(integrator="rk4", size="5")
    assert "lipschitz-rnn certify" in explorer.text("#distance-reading")
    explorer.set(network="1")
    assert "proved by lipschitz-rnn certify" in explorer.text("#distance-reading")
    assert explorer.page.is_disabled("#beta")
    explorer.set(network="0")
    assert not explorer.page.is_disabled("#beta")
    assert explorer.text("#beta-value") == "0.65"
    assert explorer.page.is_disabled("#size")


def test_states_that_overflow_are_borne(explorer: Opened) -> None:
    explorer.set(nonlinearity="identity", beta="0", gamma="0", scale="3", step="0.5", alpha="2", size="20")
    explorer.page.evaluate("() => explorer.settle()")
    assert "∞" in explorer.text("#distance-reading") or "not a number" in explorer.text("#distance-reading")


def test_a_trajectory_by_keys(explorer: Opened) -> None:
    before = explorer.ask("explorer.started()")
    explorer.page.focus("#portrait")
    for key in ("ArrowRight", "ArrowUp", "Enter"):
        explorer.page.keyboard.press(key)
    assert explorer.ask("explorer.started()") == before + 1


def test_digits_under_attack(explorer: Opened) -> None:
    """An attack keeps to its size and lowers the probability of the digit; noise changes the image."""
    explorer.page.click("#examples button:nth-child(9)")
    clean = explorer.ask("explorer.digit()")
    seen = max(range(10), key=lambda digit: clean["chances"][digit])
    assert seen == 8
    explorer.set(attack="0.2")
    moved = explorer.ask("explorer.digit()")
    assert moved["chances"][seen] < 0.5 * clean["chances"][seen]
    changes = [abs(a - b) for a, b in zip(moved["image"], clean["image"], strict=True)]
    assert 0.19 < max(changes) <= 0.2 + 1e-12
    assert all(0 <= pixel <= 1 for pixel in moved["image"])
    assert "with the change" in explorer.text("#digits-reading")
    assert explorer.text("#digits-reading").startswith("After all 64 pixels: reads 8")  # the bars may be elsewhere
    explorer.set(attack="0", noise="0.5")
    assert explorer.ask("explorer.digit()")["image"] != clean["image"]
    explorer.set(noise="0")
    assert explorer.ask("explorer.digit()") == clean


def test_circles_are_round(explorer: Opened) -> None:
    """A unit is as long across as up in every plot of a plane: the frames of its axes are squares."""
    explorer.page.evaluate("""() => {
        window.frames_seen = {};
        const drawn = CanvasRenderingContext2D.prototype.strokeRect;
        CanvasRenderingContext2D.prototype.strokeRect = function (x, y, width, height) {
            if (width > 100) frames_seen[this.canvas.id] = [width, height];
            drawn.call(this, x, y, width, height);
        };
    }""")
    for name in ("portrait", "plane", "circle", "pendulum"):
        explorer.page.locator(f"#{name}").scroll_into_view_if_needed()
        explorer.page.wait_for_timeout(100)  # only what is seen is drawn, and the page learns of it a frame later
        explorer.set(gamma="0.3")
        explorer.wait_until(f"window.frames_seen.{name}")
        width, height = explorer.ask(f"window.frames_seen.{name}")
        assert width == height, name


def test_drawing_a_digit(explorer: Opened) -> None:
    explorer.page.click("#examples button:last-child")
    assert sum(explorer.ask("explorer.digit().image")) == 0
    explorer.page.focus("#pad")
    for key in ("ArrowRight", "ArrowDown", " "):
        explorer.page.keyboard.press(key)
    assert explorer.ask("explorer.digit().image")[9] == 1
    box = explorer.page.locator("#pad").bounding_box()
    explorer.page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.95 * box["height"])
    explorer.page.mouse.down()
    explorer.page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 0.95 * box["height"], steps=12)
    explorer.page.mouse.up()
    assert sum(explorer.ask("explorer.digit().image")[56:]) == 6


def test_the_pendulum_by_keys(explorer: Opened) -> None:
    before = explorer.ask("explorer.pendulum.last()")
    explorer.page.focus("#pendulum-choices [aria-checked=true]")
    explorer.page.keyboard.press("ArrowRight")
    assert explorer.ask("explorer.pendulum.last()") != before
    assert explorer.page.locator("#pendulum-choices [aria-checked=true]").count() == 1


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", [THEMES[0], pytest.param(THEMES[1], marks=pytest.mark.full)])
def test_nothing_overlaps_and_all_is_drawn(
    browser: Any, page_file: Path, tmp_path: Path, width: int, theme: str
) -> None:
    with open_page(browser, page_file, width, theme, reduced_motion="reduce") as opened:
        assert opened.page.evaluate(LAYOUT) == []
        opened.set(network="0", attack="0.2")
        opened.wait_until("explorer.frames() > 6")
        assert opened.page.evaluate(LAYOUT) == []
        assert min(opened.page.evaluate(COLOURS).values()) > 1
        picture = opened.page.screenshot(path=tmp_path / f"{width}-{theme}.png", full_page=True)
        assert len(picture) > 50_000


def test_the_layout_check_sees_faults(explorer: Opened) -> None:
    explorer.page.evaluate("() => { document.getElementById('beta').style.marginTop = '-20px'; }")
    assert explorer.page.evaluate(LAYOUT)
    explorer.page.evaluate("() => { document.getElementById('beta').style.marginTop = ''; }")
    assert explorer.page.evaluate(LAYOUT) == []


@pytest.mark.needs("axe_playwright_python")
@pytest.mark.parametrize("theme", THEMES)
def test_axe_finds_no_serious_fault(browser: Any, page_file: Path, theme: str) -> None:
    with open_page(browser, page_file, 1280, theme, reduced_motion="reduce") as opened:
        assert serious_faults(opened.page) == []


def test_it_moves_and_stops(browser: Any, page_file: Path) -> None:
    """A touch screen: frames go on, and the button stops what they show."""
    with open_page(browser, page_file, 400, has_touch=True) as opened:
        opened.page.locator("#circle").scroll_into_view_if_needed()
        reading = opened.text("#circle-reading")
        opened.wait_until(f"document.getElementById('circle-reading').textContent !== {reading!r}")
        opened.page.locator("#play").tap()
        opened.page.locator("#portrait").tap()
        assert opened.ask("explorer.started()") == 1
        stopped, frames = opened.text("#circle-reading"), opened.ask("explorer.frames()")
        opened.wait_until(f"explorer.frames() > {frames + 5}")
        assert opened.text("#circle-reading") == stopped


def test_a_network_of_ones_own(browser: Any, tmp_path: Path) -> None:
    """Two inputs, no head, another name for midpoint: it is chosen at once, with its settings."""
    layer = LipschitzRNN(
        2, 6, beta=(0.6, 0.9), gamma=0.5, step_size=0.2, alpha=0.9, integrator="rk2", nonlinearity="relu"
    )
    file = tmp_path / "mine.html"
    file.write_text(build_page([network_record("<mine>", layer.cell())]), encoding="utf-8")
    with open_page(browser, file, reduced_motion="reduce") as opened:
        assert opened.text("#network option:checked") == "<mine>"
        shown = opened.ask("explorer.settings()")
        assert (shown["beta"], shown["integrator"], shown["alpha"]) == ([0.6, 0.9], "midpoint", 0.9)
        assert opened.text("#beta-value") == "0.6 (A), 0.9 (W)"
        assert opened.array("explorer.states().a").shape == (401, 6)
        assert opened.ask("explorer.readers()") == ["Digits, free", "Digits, contracting"]
