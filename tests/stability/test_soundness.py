"""No certificate is ever wrong: every one that is issued is attacked by optimised slopes and by simulation."""

import os

import numpy as np
import pytest
from stability_examples import random_systems, simulate, worst_growth

from lipschitz_rnn.stability import Certificate, certify

# 2,000 for the full run (about half an hour on one core): LIPSCHITZ_RNN_SOUNDNESS=2000 pytest tests/stability
COUNT = int(os.environ.get("LIPSCHITZ_RNN_SOUNDNESS", "60"))
CHUNKS = 8


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_certificate_is_wrong(chunk: int) -> None:
    rng = np.random.default_rng(1000 + chunk)
    issued = 0
    for kind, A, W, setting in random_systems(COUNT // CHUNKS, seed=chunk, largest=32 if COUNT > 1000 else 14):
        certificate = certify((A, W), accuracy=0.01, **setting.keywords())
        grows = worst_growth(A, W, setting, rng, starts=2)
        label = f"{kind}, N={len(A)}, {setting}, {certificate.method}"
        # What a slope pattern disproves must not be certified, and the other way round.
        if grows > 0:
            assert not certificate.holds, label
        if not certificate.holds:
            assert certificate.reason
            continue
        issued += 1
        ranged = setting.steps is not None and setting.steps[0] < setting.steps[1]

        def claim(step: float, certificate: Certificate = certificate, ranged: bool = ranged) -> float:
            """What the certificate says about one step, as a bound on the growth of ln ‖δ‖_P."""
            return np.log1p(-certificate.rate * step) if ranged else -certificate.rate * step

        longest = 1.0 if setting.steps is None else setting.steps[1]
        shortest = longest if not ranged else max(setting.steps[0], 1e-3 * longest)
        attacked = worst_growth(A, W, setting, rng, metric=certificate.metric, starts=4)
        assert attacked <= claim(shortest) + 1e-9, label
        root = np.linalg.cholesky(certificate.metric)
        differences, lengths = simulate(A, W, setting, rng)
        norms = np.linalg.norm(differences @ root, axis=1)
        allowed = norms[:-1] * np.exp([claim(step) for step in lengths]) * (1 + 1e-8) + 1e-12 * (1 + norms[0])
        assert np.all(norms[1:] <= allowed), label
    assert issued > 0
    print(f"chunk {chunk}: {issued} of {COUNT // CHUNKS} certified")
