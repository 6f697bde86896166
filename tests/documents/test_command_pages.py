"""The pages of report, compare and sweep: what they hold, and how they look in a real browser."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from browser import serious_faults, watched_page
from optional import needs
from test_pages_in_a_browser import THEMES, WIDTHS, check_layout

from lipschitz_rnn.experiments.comparison import compare, write_comparison
from lipschitz_rnn.experiments.pages.joint_curves import CurvePanel, joint_curves
from lipschitz_rnn.experiments.report import write_report
from lipschitz_rnn.experiments.sweeps import Sweep, run_sweep
from lipschitz_rnn.experiments.sweeps.page import write_sweep_page
from lipschitz_rnn.experiments.sweeps.reading import make_sweep
from lipschitz_rnn.experiments.sweeps.running import Outcome

pytestmark = needs("matplotlib", "scipy")

SWEEP: dict[str, Any] = {
    "sweep": {"best_per": ["unit"]},
    "settings": {
        "task": "adding", "hidden_size": 3, "epochs": 2, "batch_size": 16, "eval_batch_size": 16, "device": "cpu",
        "schedule": "constant", "seeds": [0, 1],
        "task_options": {"length": 4, "train_size": 32, "eval_size": 16},
    },
    "space": {
        "unit": ["lipschitz", "gru"],
        "learning_rate": {"low": 0.001, "high": 0.1, "log": True, "count": 2},
        "unit_options": {"beta": {"values": [0.5, 0.8], "when": {"unit": ["lipschitz"]}}},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sweep, Outcome, Path]:
    """A sweep of six trials with its page."""
    folder = tmp_path_factory.mktemp("sweep")
    sweep = make_sweep(SWEEP)
    outcome = run_sweep(sweep, folder)
    return sweep, outcome, write_sweep_page(sweep, outcome, folder)[1]


@pytest.fixture(scope="module")
def pages(swept: tuple[Sweep, Outcome, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The runs of the sweep, compared and reported as well."""
    folder, page = tmp_path_factory.mktemp("pages"), swept[2]
    return {
        "sweep": page,
        "compare": write_comparison(compare([page.parent]), folder)["html"],
        "report": write_report([page.parent], folder)["html"],
    }


@pytest.mark.full
def test_a_sweep_has_a_page(swept: tuple[Sweep, Outcome, Path]) -> None:
    page = swept[2]
    text = page.with_suffix(".md").read_text()
    assert "A grid over unit, learning rate, beta: 6 trials (6 complete)." in text
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# Sweep", "## Winners", "## adding, lipschitz", "### All 4 trials, best first",
        "## adding, gru", "### All 2 trials, best first",
    ]  # fmt: skip
    rows = [line for line in text.splitlines() if line.startswith("| ") and "| complete |" in line]
    assert len(rows) == 6
    scores = [float(row.split(" | ")[4]) for row in rows[:4]]
    assert scores == sorted(scores)  # mean squared errors: the best first
    names = {path.stem for path in (page.parent / "figures").glob("*.svg")}
    assert names == {f"group-{group}-{kind}" for group in (1, 2) for kind in ("scores-1", "learning")}
    assert page.read_text().count("<figure data-panels") == 4


def test_a_sweep_without_matplotlib_has_a_page_without_pictures(
    swept: tuple[Sweep, Outcome, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    text = write_sweep_page(*swept[:2], tmp_path)[0].read_text()
    assert "This page has no pictures: pictures need matplotlib" in text
    assert "### All 4 trials" in text


@pytest.mark.full
def test_many_configurations_of_a_task_are_one_section(pages: dict[str, Path]) -> None:
    text = pages["report"].with_suffix(".md").read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## Units and tasks", "## adding"]
    assert text.count("](figures/") == 2
    assert "Learning curves on adding: all 6 configurations." in text


@pytest.mark.full
@pytest.mark.parametrize("name", ["report", "compare", "sweep"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", THEMES)
def test_the_pages_of_commands_in_a_browser(
    browser: Any, pages: dict[str, Path], tmp_path: Path, name: str, width: int, theme: str
) -> None:
    with watched_page(browser, pages[name], width, theme) as page:
        check_layout(page, tmp_path)
        if pytest.importorskip("axe_playwright_python"):
            assert serious_faults(page) == []


def test_names_are_no_mathematics_and_long_curves_are_thinned() -> None:
    name = r"cost in $\\frac{$, a < b"
    picture = joint_curves("curves", "Curves.", [CurvePanel("loss", [(name, [[float(n) for n in range(4001)]])])])
    ((shown, _, points),) = picture.panels[0].curves
    assert shown == name
    assert len(points) == 364  # every eleventh of 4001
    assert points[1][2:] == (12.0, 11.0)
