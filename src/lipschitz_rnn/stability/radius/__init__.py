"""Certified radii: how far an input may change before a prediction can. docs/stability.md has the proofs."""

from lipschitz_rnn.stability.radius.proving import NoCertificate as NoCertificate
from lipschitz_rnn.stability.radius.radius import CertifiedRadii as CertifiedRadii
from lipschitz_rnn.stability.radius.radius import certified_radius as certified_radius
