"""Spectra, the paper's theorem, and contraction certificates for the network that runs."""

from lipschitz_rnn.stability.certification import certify as certify
from lipschitz_rnn.stability.proof.certificate import Certificate as Certificate
from lipschitz_rnn.stability.proof.gain import IncrementalGain as IncrementalGain
from lipschitz_rnn.stability.proof.gain import incremental_gain as incremental_gain
from lipschitz_rnn.stability.proof.running import PeakBound as PeakBound
from lipschitz_rnn.stability.proof.theorem import CaseA as CaseA
from lipschitz_rnn.stability.proof.theorem import CaseB as CaseB
from lipschitz_rnn.stability.proof.theorem import CohenGrossbergHopfield as CohenGrossbergHopfield
from lipschitz_rnn.stability.proof.theorem import Theorem1 as Theorem1
from lipschitz_rnn.stability.proof.theorem import cohen_grossberg_hopfield as cohen_grossberg_hopfield
from lipschitz_rnn.stability.proof.theorem import theorem1 as theorem1
from lipschitz_rnn.stability.radius import CertifiedRadii as CertifiedRadii
from lipschitz_rnn.stability.radius import NoCertificate as NoCertificate
from lipschitz_rnn.stability.radius import certified_radius as certified_radius
from lipschitz_rnn.stability.running import RoundingBound as RoundingBound
from lipschitz_rnn.stability.running import rounding_bound as rounding_bound
from lipschitz_rnn.stability.search.clock import Progress as Progress
from lipschitz_rnn.stability.steps import largest_contracting_step as largest_contracting_step
from lipschitz_rnn.stability.studies.spectra import Spectrum as Spectrum
from lipschitz_rnn.stability.studies.spectra import log_norm as log_norm
from lipschitz_rnn.stability.studies.spectra import proposition1_bounds as proposition1_bounds
from lipschitz_rnn.stability.studies.spectra import spectrum as spectrum
from lipschitz_rnn.stability.studies.spectra import symmetric_part as symmetric_part
from lipschitz_rnn.stability.studies.spectra import track as track
from lipschitz_rnn.units.readout import StatedClassifier as StatedClassifier
