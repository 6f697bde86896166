"""Pages as the commands write them, and one browser to open them in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import started_browser

from lipschitz_rnn.documents.blocks import Commands, Details, Heading, Paragraph, Picture, Table
from lipschitz_rnn.documents.html import to_html
from lipschitz_rnn.experiments.pages.joint_curves import CurvePanel, joint_curves


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as found:
        yield found


@pytest.fixture(scope="session")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of block, wider than any screen, with what is hard to sort and long names."""
    file = tmp_path_factory.mktemp("page") / "page.html"
    wide = Table(
        ["configuration", "time", "score", "p", *(f"column {n}" for n in range(30))],
        [
            ["second", "2 min", "97.5 ± 0.3 %", "< 0.0001", *["1"] * 30],
            ["tenth unit_with_a_long_name_that_has_no_space_at_all_in_it", "90 s", "–", "0.5000", *["2"] * 30],
            ["first", "1.5 h", "-1,234.5", "–", *["3"] * 30],
        ],
    )
    blocks = [
        Heading("A page", 1),
        Paragraph("Words, and /a/path/that/is/very/long/" + "folder/" * 30),
        Heading("One"),
        wide,
        curves(),
        Heading("Two"),
        Commands(["lipschitz-rnn train digits " + "--option value " * 20]),
        Heading("Three"),
        Details("Every seed", [Table(["seed", "score"], [["0", "1"], ["1", "2"]])]),
    ]
    file.write_text(to_html("A page", blocks), encoding="utf-8")
    return file


def curves() -> Picture:
    rising = [[1.0, 2.0, 4.0], [2.0, 3.0, None]]
    panels = [CurvePanel("loss", [("a", rising)]), CurvePanel("score", [("a", rising), ("b", [[5.0, 6.0, 7.0]])])]
    return joint_curves("curves", "Two panels.", panels)
