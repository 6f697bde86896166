"""The paper's studies of stability, in plain floating point: spectra, pendulum, Lemma 2 and their plots."""

from lipschitz_rnn.stability.studies.paper import PENDULUM_SETTINGS as PENDULUM_SETTINGS
from lipschitz_rnn.stability.studies.paper import fit_pendulum as fit_pendulum
from lipschitz_rnn.stability.studies.paper import measure_lemma2 as measure_lemma2
from lipschitz_rnn.stability.studies.paper import spectrum_against_beta as spectrum_against_beta
