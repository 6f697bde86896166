"""A picture of matplotlib as part of a page: its colours follow the page, so that it suits a dark screen and paper."""

from __future__ import annotations

import re
from html import escape

# Colours that pictures are drawn with, and the variables of page.css that stand for them.
VARIABLES = {
    "#000000": "--ink", "#ffffff": "--card", "#b0b0b0": "--field",
    "#c8553d": "--red", "#2d6a9f": "--blue", "#8a8a8a": "--grey", "#3a7d44": "--green", "#7d5ba6": "--purple",
    "#1f77b4": "--c0", "#ff7f0e": "--c1", "#2ca02c": "--c2", "#d62728": "--c3", "#9467bd": "--c4",
    "#8c564b": "--c5", "#e377c2": "--c6", "#7f7f7f": "--c7", "#bcbd22": "--c8", "#17becf": "--c9",
}  # fmt: skip
# What stands before the picture, what repeats in every picture, and what only programs read.
_LEFT_OUT = re.compile(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>|<!--.*?-->|\n\s*", re.DOTALL)
_COLOUR = re.compile(r"(?<=[:\"] )#[0-9a-f]{6}|(?<=[:\"])#[0-9a-f]{6}(?=[;\"])")
_LEAST = 0.62  # of its width: 8 pt are then 6.6 pixels
_NAMED = re.compile(r'(\bid="|href="#|url\(#)')
_OPENING = re.compile(r"<svg\b[^>]*?(/?)>", re.DOTALL)


def inline_svg(svg: bytes, prefix: str, description: str) -> str:
    """The SVG element alone. `prefix` keeps its names apart from those of other pictures on the page."""
    text = svg.decode()
    text = _LEFT_OUT.sub(lambda found: " " if found[0].isspace() else "", text[text.index("<svg") :])
    text = _NAMED.sub(rf"\g<1>{prefix}", text.replace("xlink:href", "href"))
    text = _COLOUR.sub(lambda found: page_colour(found[0]), text)
    opening = _OPENING.match(text)
    assert opening is not None, "an SVG starts with its own element"
    box = re.search(r'viewBox="([\d. -]+)"', opening[0])
    width = _pixels(box[1]) if box else 0
    # On a narrow screen a picture shrinks as far as its text can still be read, then its box scrolls.
    least = f"min({round(_LEAST * width)}px, 34rem)"
    size = f' viewBox="{box[1]}" style="width: {width}px; min-width: {least}"' if box else ""
    return f'<svg role="img" aria-label="{escape(description)}"{size}{opening[1]}>{text[opening.end() :]}'


def page_colour(colour: str) -> str:
    """The variable that stands for a colour on the page, or the colour itself."""
    return f"var({VARIABLES[colour]})" if colour in VARIABLES else colour


def _pixels(box: str) -> int:
    """The width at which the picture has the size that it was drawn for: points are 1/72 inch, pixels 1/96."""
    return round(float(box.split()[2]) * 96 / 72)
