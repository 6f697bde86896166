"""Blocks of a page: Markdown and HTML hold the same, and text never becomes markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from lipschitz_rnn.documents.blocks import (
    Block,
    Commands,
    Details,
    Heading,
    Paragraph,
    Picture,
    Table,
    pictures,
    to_markdown,
)
from lipschitz_rnn.documents.html import to_html
from lipschitz_rnn.documents.inline_svg import VARIABLES, inline_svg
from lipschitz_rnn.drawing import BLUE, GREEN, GREY, PURPLE, RED

SVG = b"""<?xml version="1.0"?><!DOCTYPE svg PUBLIC "a" "http://b">
<svg xmlns:xlink="http://c" width="72pt" height="36pt" viewBox="0 0 72 36" xmlns="http://d" version="1.1">
 <metadata><rdf:RDF>http://e</rdf:RDF></metadata>
 <defs>
  <style type="text/css">*{stroke-linejoin: round}</style>
 </defs>
 <!-- &lt;script> -->
 <g id="line"><path d="M 0 0" clip-path="url(#clip)" style="fill: none; stroke: #1f77b4"/></g>
 <use xlink:href="#line" style="stroke:#000000;fill: #abcdef"/>
</svg>
"""
BLOCKS: list[Block] = [
    Heading("Title", 1),
    Paragraph("<script>alert(1)</script> and a < b"),
    Table(["unit", "mean", "where"], [["a|b", "99.18", "GPU"], ["<b>", "–", "CPU"]], words=("where",)),
    Commands(["lipschitz-rnn train digits"]),
    Picture("curve", SVG, "A <curve>"),
    Details("More", [Table(["a"], [["<i>"]])]),
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
    assert page.cells == ["unit", "mean", "where", "a|b", "99.18", "GPU", "<b>", "–", "CPU", "a", "<i>"]
    styles = [attributes.get("style", "") for tag, attributes in page.tags if tag in ("td", "th")]
    assert ["right" in (style or "") for style in styles] == [*[False, True, False] * 3, False, False]


def test_text_is_never_markup_and_pictures_are_inside() -> None:
    page = read()
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 1  # the page's own, of which the policy knows the checksum
    assert not {"b", "i", "img"} & set(tags)
    (picture,) = (attributes for tag, attributes in page.tags if tag == "svg")
    assert picture["aria-label"] == "A <curve>"
    assert "(figures/curve.svg)" in to_markdown(BLOCKS)
    foreign = to_html("Page", [Paragraph("![x](https://example.org/x.svg)")])
    assert "example.org" not in foreign  # a page loads nothing from elsewhere
    (policy,) = (a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a)
    assert str(policy).startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-")


def test_a_picture_takes_the_colours_of_the_page_and_names_of_its_own() -> None:
    svg = inline_svg(SVG, "p7-", "A picture")
    assert svg.startswith(
        '<svg role="img" aria-label="A picture" viewBox="0 0 72 36" style="width: 96px; min-width: min(60px, 34rem)">'
    )
    assert "http" not in svg
    assert "script" not in svg
    assert 'id="p7-line"' in svg
    assert 'href="#p7-line"' in svg
    assert "url(#p7-clip)" in svg
    assert "stroke: var(--c0)" in svg
    assert "stroke:var(--ink)" in svg
    assert "fill: #abcdef" in svg  # a colour that no variable stands for
    assert {RED, BLUE, GREY, GREEN, PURPLE} <= set(VARIABLES)
    page = to_html("Page", [])
    assert all(f"{name}: #" in page for name in VARIABLES.values())


def test_a_narrow_screen_shows_a_whole_small_picture() -> None:
    """One of 442 pixels fits on a phone; a row of panels keeps its text readable, and its box scrolls."""
    for points, least in ((331.2, 274), (662.4, 547)):
        svg = f'<svg viewBox="0 0 {points} 244.8"></svg>'.encode()
        assert f"min-width: min({least}px, 34rem)" in inline_svg(svg, "p1-", "A picture")


def test_folded_blocks_are_a_subsection_in_markdown_and_keep_their_pictures() -> None:
    inner = Picture("inner", SVG, "Inside")
    page = [Heading("One"), Details("More", [inner]), Picture("outer", SVG, "Outside")]
    assert "### More\n\n![Inside](figures/inner.svg)" in to_markdown(page)
    assert [picture.name for picture in pictures(page)] == ["inner", "outer"]
    html = to_html("Page", page)
    assert re.search(r"<details><summary>More</summary>\s*<figure>.*</figure>\s*</details>", html, re.DOTALL)


def test_long_pages_have_contents_and_tables_say_where_they_are() -> None:
    sections: list[Block] = [Heading("Page", 1), *(Heading(f"Part <{number}>") for number in range(3))]
    html = to_html("Page", [*sections, Table(["a"], [["1"]])])
    assert re.findall(r'href="#(section-\d)"', html) == re.findall(r'<h2 id="(section-\d)"', html)
    assert html.count("Part &lt;1&gt;</a>") == 1
    assert 'aria-label="Table: Part &lt;2&gt;" tabindex="0"' in html
    assert "<nav" not in to_html("Page", sections[:3])
