"""The paper's studies and their figures."""

import numpy as np
import pytest

from lipschitz_rnn.stability.studies import plots as figures
from lipschitz_rnn.stability.studies.paper import PENDULUM_SETTINGS, fit_pendulum, measure_lemma2, spectrum_against_beta


@pytest.fixture(scope="module")
def pendulums() -> list:
    return [fit_pendulum(beta, gamma) for beta, gamma in PENDULUM_SETTINGS]


def test_pendulum_shows_the_four_cases(pendulums: list) -> None:
    unstable, attracting, also_attracting, circling = pendulums
    assert unstable.growth > 0.01
    assert attracting.growth < -1e-3
    assert also_attracting.growth < -1e-3
    assert abs(circling.growth) < 1e-9
    for fit in pendulums:
        np.testing.assert_allclose(fit.field(fit.equilibrium), 0.0, atol=1e-10)
        assert fit.error < 0.1  # against a field of root mean square about 0.7


def test_trajectories_do_what_the_equilibrium_says(pendulums: list) -> None:
    for fit in pendulums[:3]:
        path = fit.trajectory(np.add(fit.equilibrium, (1e-3, 0.0)), time=100.0, step=0.05) - fit.equilibrium
        size = np.linalg.norm(path, axis=1)
        # Whole turns are compared, as a turn is an ellipse.
        change = np.log(size[-400:].max() / size[:400].max())
        assert np.sign(change) == np.sign(fit.growth)
    circle = pendulums[3].trajectory((1.0, 0.0), time=200.0)
    assert 0.3 < np.linalg.norm(circle, axis=1)[-1000:].max() < 3.0


def test_spectra_shrink_with_beta_inside_their_bound() -> None:
    study = spectrum_against_beta(24, trials=2)
    assert np.all(study.real_max <= study.upper_bound + 1e-10)
    assert np.all(study.real_min >= study.lower_bound - 1e-10)
    assert np.all(np.diff(study.upper_bound, axis=1) < 0)
    np.testing.assert_allclose(study.real_max[:, -1], -0.001, atol=1e-8)


def test_lemma_2_is_seen() -> None:
    study = measure_lemma2()
    assert study.slope == pytest.approx(2.0, abs=0.2)
    last = np.log(study.change[-1] / study.change[-2]) / np.log(0.5)
    assert last == pytest.approx(2.0, abs=0.05)


def test_figures_hold_what_they_should(pendulums: list) -> None:
    pendulum = figures.draw_pendulum(pendulums)
    assert len(pendulum.axes) == 4
    titles = [axis.get_title() for axis in pendulum.axes]
    assert not any("-" in title or title.endswith("+0") for title in titles), titles  # a minus sign, and 0 without sign
    assert all(axis.get_aspect() == 1.0 for axis in pendulum.axes)
    spectra = {size: spectrum_against_beta(size, trials=2) for size in (8, 12)}
    assert [axis.get_title() for axis in figures.draw_spectrum_against_beta(spectra).axes] == ["N = 8", "N = 12"]
    assert len(figures.draw_lemma2().axes[0].lines) == 2
    epochs = [{"A.real_max": 0.1 * k, "W.real_max": 0.2, "A.symmetric_max": 1.0} for k in range(3)]
    drawn = figures.draw_spectrum_over_training({0.65: epochs, 0.95: epochs})
    assert [len(axis.lines) for axis in drawn.axes] == [3, 3]
    with pytest.raises(ValueError, match="empty"):
        figures.draw_spectrum_over_training({})
    with pytest.raises(ValueError, match="real_max"):
        figures.draw_spectrum_over_training({0.65: [{}]})
