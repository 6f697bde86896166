"""Spectra, the paper's theorem, and contraction certificates for the network that runs."""

from lipschitz_rnn.stability.certificate import Certificate as Certificate
from lipschitz_rnn.stability.certify import certify as certify
