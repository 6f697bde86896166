"""A small document that is written once and rendered twice, as Markdown and as HTML."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2

    def markdown(self) -> str:
        return f"{'#' * self.level} {self.text}"

    def html(self) -> str:
        return f"<h{self.level}>{escape(self.text)}</h{self.level}>"


@dataclass(frozen=True)
class Paragraph:
    text: str

    def markdown(self) -> str:
        return self.text

    def html(self) -> str:
        return f"<p>{escape(self.text)}</p>"


@dataclass(frozen=True)
class Table:
    """`left`: how many columns hold words; the others hold numbers and stand to the right, but for those in `words`."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    words: Sequence[str] = ()

    def _is_number(self, index: int) -> bool:
        return index >= self.left and self.header[index] not in self.words

    def markdown(self) -> str:
        marks = ["---:" if self._is_number(index) else "---" for index in range(len(self.header))]
        lines = [list(self.header), marks, *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)

    def html(self) -> str:
        def cells(row: Sequence[str], tag: str) -> str:
            classes = [' class="number"' if self._is_number(index) else "" for index in range(len(row))]
            return "".join(f"<{tag}{kind}>{escape(c)}</{tag}>" for c, kind in zip(row, classes, strict=True))

        body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in self.rows)
        table = f"<table><thead><tr>{cells(self.header, 'th')}</tr></thead><tbody>{body}</tbody></table>"
        return f'<div class="scroll">{table}</div>'  # scrolls by itself where a screen is too narrow for it


@dataclass(frozen=True)
class Commands:
    """Lines for a shell."""

    lines: Sequence[str]

    def markdown(self) -> str:
        return "\n".join(["```sh", *self.lines, "```"])

    def html(self) -> str:
        text = "\n".join(self.lines)
        return f"<pre>{escape(text)}</pre>"


@dataclass(frozen=True)
class Picture:
    """An SVG. Markdown links to a file beside it; HTML carries it inside."""

    name: str
    svg: bytes
    caption: str

    def markdown(self) -> str:
        return f"![{self.caption}](figures/{self.name}.svg)\n\n*{self.caption}*"

    def html(self) -> str:
        data = base64.b64encode(self.svg).decode()
        text = escape(self.caption)
        image = f'<img alt="{text}" src="data:image/svg+xml;base64,{data}">'
        return f"<figure>{image}<figcaption>{text}</figcaption></figure>"


Block = Heading | Paragraph | Table | Commands | Picture

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #8884; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { padding: .3rem .5rem; border-bottom: 1px solid #8884; text-align: left; vertical-align: top; }
td { overflow-wrap: break-word; max-width: 22rem; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
figure { margin: 1.5rem 0; } figure img { max-width: 100%; }
@media (prefers-color-scheme: dark) { figure img { filter: invert(1) hue-rotate(180deg); } }
figcaption { font-size: .85rem; opacity: .75; }
"""


def to_markdown(blocks: Sequence[Block]) -> str:
    return "\n\n".join(block.markdown() for block in blocks) + "\n"


def to_html(title: str, blocks: Sequence[Block]) -> str:
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    body = "\n".join(block.html() for block in blocks)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n'
    )
