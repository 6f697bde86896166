"""The blocks of a page. A page is a list of blocks, written as Markdown here and as HTML by `documents.html`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lipschitz_rnn.drawing import Panel


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
    """An SVG. Markdown links to a file next to the page; HTML embeds the picture.

    panels: what to read off its curves, for pages that show the numbers under the pointer.
    """

    name: str
    svg: bytes
    caption: str
    panels: Sequence[Panel] = ()

    @property
    def file(self) -> str:
        return f"figures/{self.name}.svg"

    def markdown(self) -> str:
        return f"![{self.caption}]({self.file})\n\n*{self.caption}*"


@dataclass(frozen=True)
class Details:
    """Blocks that few readers need: folded away in HTML, a subsection in Markdown."""

    title: str
    blocks: Sequence[Heading | Paragraph | Table | Commands | Picture]

    def markdown(self) -> str:
        return "\n\n".join([f"### {self.title}", *(block.markdown() for block in self.blocks)])


Block = Heading | Paragraph | Table | Commands | Picture | Details


def to_markdown(blocks: Sequence[Block]) -> str:
    return "\n\n".join(block.markdown() for block in blocks) + "\n"


def pictures(blocks: Sequence[Block]) -> list[Picture]:
    """All pictures of a page."""
    inner = [each for block in blocks for each in (block.blocks if isinstance(block, Details) else (block,))]
    return [block for block in inner if isinstance(block, Picture)]
