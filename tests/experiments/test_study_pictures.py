"""Pictures of any study: a reader can tell the curves apart, and captions speak only of what is drawn."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from invented_records import invented
from optional import needs

from lipschitz_rnn.documents.blocks import Picture, to_markdown
from lipschitz_rnn.experiments.pages.pictures import compare_units, distributions
from lipschitz_rnn.experiments.pages.sections import learning
from lipschitz_rnn.experiments.results import Record, read_records
from lipschitz_rnn.experiments.studies import STUDIES, radius

pytestmark = needs("matplotlib")

RESULTS = Path(__file__).parents[2] / "results"


def texts(picture: Picture) -> list[str]:
    """All that is written in the picture, in order."""
    return re.findall(r"<!-- (.*?) -->", picture.svg.decode())


def of(study: str, *names: str) -> list[Record]:
    """Invented records of some rows."""
    return [invented(plan, [0.91, 0.92, 0.93]) for name in names for plan in STUDIES[study].plans([name])]


@pytest.mark.parametrize("study", ["irregular", "radius", "contracting", "mnist", "ptb", "speech"])
def test_the_legend_of_learning_curves_tells_rows_apart(study: str) -> None:
    picture = learning(STUDIES[study], read_records(RESULTS, study))[-1]
    assert isinstance(picture, Picture)
    legend = picture.svg.decode().partition('id="legend_1"')[2]
    names = re.findall(r"<!-- (.*?) -->", legend)
    assert len(names) == len(set(names)) >= 2


def test_names_are_what_differs_between_the_rows() -> None:
    picture = learning(STUDIES["irregular"], read_records(RESULTS, "irregular"))[-1]
    assert isinstance(picture, Picture)
    shown = texts(picture)
    assert {"times-step, gru-d", "times-ignored, gru"} <= set(shown)
    assert "irregular-digits" in shown  # a group of its own, and yet a part of the study
    picture = learning(STUDIES["mnist"], of("mnist", "lipschitz/128", "lipschitz/64"))[-1]
    assert isinstance(picture, Picture)
    assert "N = 128, euler" in texts(picture)


def test_candidates_and_other_units_have_no_learning_curves_here() -> None:
    records = of("mnist", "ordered-mnist/lipschitz/128")
    (lstm,) = of("mnist", "ordered-mnist/lstm/128")
    both = learning(STUDIES["mnist"], [*records, lstm, replace(records[0], kind="sweep", name="sweep/x")])
    assert to_markdown(both) == to_markdown(learning(STUDIES["mnist"], records))
    assert isinstance(both[-1], Picture)
    assert "lstm" not in " ".join(texts(both[-1]))


def test_captions_explain_grey_only_where_there_is_some() -> None:
    printed, unprinted = of("mnist", "ordered-mnist/lipschitz/128/euler"), of("contracting", "digits/free")
    for draw, word in ((distributions, "grey"), (compare_units, "Grey")):
        assert word not in draw(STUDIES["contracting"], unprinted).caption
    assert "Grey" in compare_units(STUDIES["mnist"], printed).caption


def test_networks_without_a_bounded_gain_have_hollow_dots() -> None:
    records = [record for record in read_records(RESULTS, "radius") if record.setup.task == "digits"]
    figure = radius.draw(records)
    (axis,) = figure.axes
    dots = [line for line in axis.lines if line.get_linestyle() == "None"]
    hollow = [line for line in dots if line.get_markerfacecolor() == "none"]
    assert len(dots) == 3 * len(records)  # three radii
    assert len(hollow) == 3 * sum(not record.setup.unit_options.get("bounded_gain") for record in records)
    figure.draw_without_rendering()
    assert figure.legends[0].get_window_extent().y1 < axis.get_tightbbox().y0  # hides no dot
