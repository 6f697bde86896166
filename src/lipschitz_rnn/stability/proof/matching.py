"""Whether a certificate that was passed in is about the recurrence that runs."""

from __future__ import annotations

import numpy as np

from lipschitz_rnn.ops.lipschitz.nonlinearities import Nonlinearity
from lipschitz_rnn.stability.proof.certificate import Certificate
from lipschitz_rnn.stability.proof.rounding import Matrix


def require_about(
    certificate: Certificate,
    name: str,
    A: Matrix,
    W: Matrix,
    alpha: float,
    integrator: str,
    nonlinearity: Nonlinearity,
) -> None:
    """Raise if a setting of the recurrence called ``name`` is not that of the certificate.

    A certificate with wider slopes than those of the nonlinearity is about this map among others; with narrower ones it
    is about a part of the states only.
    """
    slopes = nonlinearity.slope_range
    differs = {
        "another A": certificate.A is None or not np.array_equal(certificate.A, A),
        "another W": certificate.W is None or not np.array_equal(certificate.W, W),
        "another alpha": certificate.alpha != alpha,
        "another integrator": certificate.dynamics != integrator,
        "other slopes": not (certificate.slopes[0] <= slopes[0] and slopes[1] <= certificate.slopes[1]),
    }
    for what, found in differs.items():
        if found:
            raise ValueError(
                f"the certificate is about {what} than {name} has; leave certificate out, or certify this network again"
            )
