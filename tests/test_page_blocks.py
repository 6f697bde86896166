"""Blocks of a page: Markdown and HTML hold the same, and text never becomes markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from lipschitz_rnn.documents.blocks import Commands, Heading, Paragraph, Picture, Table, to_html, to_markdown

BLOCKS = [
    Heading("Title", 1),
    Paragraph("<script>alert(1)</script> and a < b"),
    Table(["unit", "mean", "where"], [["a|b", "99.18", "GPU"], ["<b>", "–", "CPU"]], words=("where",)),
    Commands(["lipschitz-rnn train digits"]),
    Picture("curve", b"<svg/>", "A curve"),
]


class Cells(HTMLParser):
    """Tags with their attributes, and the text of every cell."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("td", "th") and data.strip():
            self.cells[-1] += data


def read() -> Cells:
    parser = Cells()
    parser.feed(to_html("Page", BLOCKS))
    return parser


def test_every_cell_of_a_table_is_in_the_html_with_numbers_to_the_right() -> None:
    page = read()
    assert page.cells == ["unit", "mean", "where", "a|b", "99.18", "GPU", "<b>", "–", "CPU"]
    styles = [attributes.get("style", "") for tag, attributes in page.tags if tag in ("td", "th")]
    assert ["right" in (style or "") for style in styles] == [False, True, False] * 3


def test_text_is_never_markup_and_pictures_are_inside() -> None:
    tags = [tag for tag, _ in read().tags]
    assert "script" not in tags
    assert "b" not in tags
    (image,) = (attributes for tag, attributes in read().tags if tag == "img")
    assert re.fullmatch(r"data:image/svg\+xml;base64,[A-Za-z0-9+/=]+", str(image["src"]))
    assert image["alt"] == "A curve"
    assert "(figures/curve.svg)" in to_markdown(BLOCKS)
    foreign = to_html("Page", [Paragraph("![x](https://example.org/x.svg)")])
    assert "src=" not in foreign  # a page loads nothing from elsewhere
