"""Spectra, the paper's theorem, and contraction certificates for the network that runs."""

from lipschitz_rnn.stability.certificate import Certificate as Certificate
from lipschitz_rnn.stability.certify import certify as certify
from lipschitz_rnn.stability.gain import IncrementalGain as IncrementalGain
from lipschitz_rnn.stability.gain import incremental_gain as incremental_gain
from lipschitz_rnn.stability.spectra import Spectrum as Spectrum
from lipschitz_rnn.stability.spectra import log_norm as log_norm
from lipschitz_rnn.stability.spectra import proposition1_bounds as proposition1_bounds
from lipschitz_rnn.stability.spectra import spectrum as spectrum
from lipschitz_rnn.stability.spectra import symmetric_part as symmetric_part
from lipschitz_rnn.stability.spectra import track as track
from lipschitz_rnn.stability.steps import largest_contracting_step as largest_contracting_step
from lipschitz_rnn.stability.theorem import CaseA as CaseA
from lipschitz_rnn.stability.theorem import CaseB as CaseB
from lipschitz_rnn.stability.theorem import CohenGrossbergHopfield as CohenGrossbergHopfield
from lipschitz_rnn.stability.theorem import Theorem1 as Theorem1
from lipschitz_rnn.stability.theorem import cohen_grossberg_hopfield as cohen_grossberg_hopfield
from lipschitz_rnn.stability.theorem import theorem1 as theorem1
