"""A page as one HTML file, with style, script and pictures inside; it loads nothing and can be read without script."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from typing import Any

from lipschitz_rnn.documents.assets import read_asset
from lipschitz_rnn.documents.blocks import Block, Details, Heading, Picture, Table
from lipschitz_rnn.documents.inline_svg import inline_svg, page_colour

_CONTENTS = 3  # sections from which on a page has a table of contents


def to_html(title: str, blocks: Sequence[Block]) -> str:
    """A single file. HTML in the text of a block is shown as text."""
    writer = _Writer()
    body = "\n".join(writer.block(block) for block in blocks)
    style = "\n".join(map(read_asset, ("theme.css", "page.css")))
    script = read_asset("page.js")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<main>
{body.replace(_PLACE, writer.contents(), 1)}
</main>
<script>{script}</script>
</body>
</html>
"""


_PLACE = "<!-- contents -->"


def _policy(script: str) -> str:
    """Nothing may be loaded, and only this script may run."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"


class _Writer:
    """Turns blocks into HTML, and remembers the sections for the table of contents."""

    def __init__(self) -> None:
        from markdown_it import MarkdownIt

        self._parser = MarkdownIt("commonmark", {"html": False}).enable("table")
        self._parser.add_render_rule("image", _no_image)
        self._sections: list[str] = []
        self._title = ""
        self._pictures = 0

    def block(self, block: Block) -> str:
        match block:
            case Heading():
                return self._heading(block)
            case Table():
                return self._table(block)
            case Picture():
                return self._picture(block)
            case Details():
                outer, self._title = self._title, f"{self._title}, {block.title}"
                inner = "\n".join(map(self.block, block.blocks))
                self._title = outer
                return f"<details><summary>{self._inline(block.title)}</summary>\n{inner}\n</details>"
            case _:
                return str(self._parser.render(block.markdown()))

    def contents(self) -> str:
        if len(self._sections) < _CONTENTS:
            return ""
        links = (f'<li><a href="#section-{n}">{text}</a></li>' for n, text in enumerate(self._sections, 1))
        return f'<nav aria-label="Contents"><ul>{"".join(links)}</ul></nav>'

    def _inline(self, text: str) -> str:
        return str(self._parser.renderInline(text))

    def _heading(self, heading: Heading) -> str:
        text, self._title = self._inline(heading.text), heading.text
        if heading.level == 1:
            return f"<h1>{text}</h1>\n{_PLACE}"
        if heading.level > 2:
            return f"<h{heading.level}>{text}</h{heading.level}>"
        self._sections.append(text)
        return f'<h2 id="section-{len(self._sections)}">{text}</h2>'

    def _table(self, table: Table) -> str:
        """In a box that scrolls on its own if the screen is too narrow, by keys too."""
        text = self._parser.render(table.markdown())
        return f'<div class="scroll" role="group" aria-label="{_label("Table", self._title)}" tabindex="0">{text}</div>'

    def _picture(self, picture: Picture) -> str:
        self._pictures += 1
        svg = inline_svg(picture.svg, f"p{self._pictures}-", picture.caption)
        panels = [
            {
                "box": panel.box,
                "label": panel.label,
                "curves": [(name, page_colour(colour), points) for name, colour, points in panel.curves],
            }
            for panel in picture.panels
        ]
        readings = f' data-panels="{escape(json.dumps(panels, separators=(",", ":")))}"' if panels else ""
        box = f'<div class="scroll" role="group" aria-label="{_label("Picture", self._title)}" tabindex="0">'
        caption = f"<figcaption>{self._inline(picture.caption)}</figcaption>"
        return f'<figure{readings}>{box}<div class="plot">{svg}</div></div>{caption}</figure>'


def _label(kind: str, title: str) -> str:
    return escape(f"{kind}: {title}" if title else kind)


def _no_image(_: Any, tokens: Sequence[Any], index: int, *__: Any) -> str:
    """An image in a text would be loaded from elsewhere; its description takes its place."""
    return escape(tokens[index].content)
