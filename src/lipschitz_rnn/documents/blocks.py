"""The blocks of a page. A page is a list of blocks, written as Markdown; HTML is made from the Markdown."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2

    def markdown(self) -> str:
        return f"{'#' * self.level} {self.text}"


@dataclass(frozen=True)
class Paragraph:
    text: str

    def markdown(self) -> str:
        return self.text


@dataclass(frozen=True)
class Table:
    """`left`: how many columns hold words; the others hold numbers and are right-aligned, except those in `words`."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    words: Sequence[str] = ()

    def markdown(self) -> str:
        numbers = [index >= self.left and title not in self.words for index, title in enumerate(self.header)]
        lines = [list(self.header), ["---:" if number else "---" for number in numbers], *self.rows]
        return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    """On one line: a break would end the table."""
    return " ".join(text.splitlines()).replace("|", "\\|")


@dataclass(frozen=True)
class Commands:
    """Shell commands, one per line."""

    lines: Sequence[str]

    def markdown(self) -> str:
        return "\n".join(["```sh", *self.lines, "```"])


@dataclass(frozen=True)
class Picture:
    """An SVG. Markdown links to a file next to the page; HTML embeds the picture."""

    name: str
    svg: bytes
    caption: str

    @property
    def file(self) -> str:
        return f"figures/{self.name}.svg"

    def markdown(self) -> str:
        return f"![{self.caption}]({self.file})\n\n*{self.caption}*"


Block = Heading | Paragraph | Table | Commands | Picture

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #8884; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { padding: .3rem .5rem; border-bottom: 1px solid #8884; text-align: left; vertical-align: top; }
td { overflow-wrap: break-word; max-width: 22rem; font-variant-numeric: tabular-nums; }
img { max-width: 100%; }
@media (prefers-color-scheme: dark) { img { filter: invert(1) hue-rotate(180deg); } }
"""


def to_markdown(blocks: Sequence[Block]) -> str:
    return "\n\n".join(block.markdown() for block in blocks) + "\n"


def to_html(title: str, blocks: Sequence[Block]) -> str:
    """A single file with embedded pictures. HTML in the text of a block is shown as text."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    for name, rule in (("image", _image), ("table_open", _table_open), ("table_close", _table_close)):
        parser.add_render_rule(name, rule)
    pictures = {block.file: block.svg for block in blocks if isinstance(block, Picture)}
    body = parser.render(to_markdown(blocks), {"pictures": pictures})
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n'
    )


def _image(renderer: Any, tokens: Sequence[Any], index: int, options: Any, env: Mapping[str, Any]) -> str:
    """Embed a picture of the page; other images are not linked."""
    svg = env["pictures"].get(tokens[index].attrs["src"])
    source = "" if svg is None else f' src="data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"'
    return f'<img alt="{escape(tokens[index].content)}"{source}>'


def _table_open(*_: Any) -> str:
    return '<div class="scroll"><table>\n'  # scrolls on its own if the screen is too narrow


def _table_close(*_: Any) -> str:
    return "</table></div>\n"
