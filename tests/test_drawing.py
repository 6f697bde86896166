"""What all figures share: rows of panels, legends below, readable ticks."""

from __future__ import annotations

import numpy as np
import pytest
from optional import needs

from lipschitz_rnn.drawing import PALETTE, legend_below, log_ticks, look_of, new_figure, percent_limit, plain_log_ticks

pytestmark = needs("matplotlib")


@pytest.mark.parametrize(
    "limits", [(0.17, 5.5), (0.41, 8.3), (2.3, 2.6), (1e-4, 9e-4), (0.031, 2.9), (120.0, 170.0), (3e3, 2e5)]
)
def test_a_short_logarithmic_axis_has_plain_labels(limits: tuple[float, float]) -> None:
    figure, (axis,) = new_figure(1)
    axis.plot([1, 2], limits)
    axis.set(yscale="log", ylim=limits)
    plain_log_ticks(axis)
    figure.draw_without_rendering()
    texts = [label.get_text() for label in axis.get_yticklabels()]
    assert len(texts) >= 2
    assert [float(text) for text in texts] == pytest.approx(log_ticks(limits))
    assert all(limits[0] <= float(text) <= limits[1] for text in texts)
    assert not any(label.get_text() for label in axis.get_yticklabels(minor=True))


def test_a_long_axis_keeps_its_powers_of_ten() -> None:
    figure, (axis,) = new_figure(1)
    axis.loglog([1, 2], [0.01, 30.0])
    plain_log_ticks(axis)
    figure.draw_without_rendering()
    assert r"$\mathdefault{10^{0}}$" in [label.get_text() for label in axis.get_yticklabels()]


def test_panels_stand_in_rows_and_the_last_row_may_be_short() -> None:
    figure, axes = new_figure(3, width=2.0, height=1.0, across=2)
    assert len(axes) == len(figure.axes) == 3
    assert tuple(figure.get_size_inches()) == (4.0, 2.0)
    figure.draw_without_rendering()
    lefts, bottoms = zip(*(axis.get_position().min for axis in axes), strict=True)
    assert bottoms[0] == pytest.approx(bottoms[1])
    assert bottoms[2] < bottoms[0]
    assert lefts[0] == pytest.approx(lefts[2])


def test_the_legend_names_every_curve_once_and_hides_none() -> None:
    figure, axes = new_figure(2)
    for axis in axes:
        for number in range(12):
            axis.plot([0, 1], [0, number], label=f"a curve with a long name, {number}", **look_of(number))
    legend_below(figure)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 12
    box = legend.get_window_extent()
    assert box.y1 < min(axis.get_tightbbox().y0 for axis in axes)
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1


def test_many_curves_look_different() -> None:
    looks = [tuple(look_of(number).values()) for number in range(2 * len(PALETTE))]
    assert len(set(looks)) == len(looks)


def test_no_room_above_100_percent() -> None:
    _, (axis,) = new_figure(1)
    axis.plot([1, 2], [50.0, 100.0])
    assert axis.get_ylim()[1] > 100
    low = axis.get_ylim()[0]
    percent_limit(axis)
    np.testing.assert_allclose(axis.get_ylim(), (low, 100.0), atol=0.5)
