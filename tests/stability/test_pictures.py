"""The pictures of docs/stability.md are those of the script, and the page shows each of them."""

import re

import pytest
from stability_pictures import FOLDER, PICTURES, draw_forgetting, draw_rounding

PAGE = (FOLDER.parent / "stability.md").read_text(encoding="utf-8")


def test_the_page_shows_every_picture() -> None:
    assert set(re.findall(r"images/(stability-[a-z]+)\.svg", PAGE)) >= set(PICTURES)
    for name in PICTURES:
        assert (FOLDER / f"{name}.svg").read_bytes().startswith(b"<?xml"), name


@pytest.mark.full
def test_certificates_in_the_picture_hold_and_bounds_are_bounds() -> None:
    pytest.importorskip("matplotlib")
    left, right = draw_forgetting(steps=60).axes
    for axis in (left, right):
        lines = {
            colour: [line for line in axis.lines if line.get_color() == colour] for colour in ("#2d6a9f", "#3a7d44")
        }
        for seen, claim in lines.values():  # the contracting layer and ren
            assert all(seen.get_ydata() <= claim.get_ydata() * (1 + 1e-9))
    for axis in draw_rounding(steps=60).axes:
        seen, measured, bound = (line.get_ydata() for line in axis.lines)
        assert all(seen <= measured)
        assert all(measured <= bound)
