"""A search may hand over anything: what is not true is not certified."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lipschitz_rnn.stability import Certificate
from lipschitz_rnn.stability.proof.candidate import Candidate
from lipschitz_rnn.stability.proof.certificate import Refusal
from lipschitz_rnn.stability.proof.inputs import subjects
from lipschitz_rnn.stability.proof.issuing import Examiner

LEVELS = (-math.inf, -1e300, -1.0, 0.0, 1e-300, 0.5, 1.0 - 1e-12, 1.0, 2.0, math.inf, math.nan)
STEPS = (None, 0.1, (0.02, 0.1))


def metrics(size: int, generator: np.random.Generator) -> list[np.ndarray]:
    root = generator.standard_normal((size, size))
    good = np.eye(size) + root @ root.T
    good = 0.5 * (good + good.T)
    crooked = good.copy()
    crooked[0, 1] += 1e-3
    undefined = good.copy()
    undefined[0, 0] = math.nan
    singular = np.outer(root[0], root[0])
    return [good, np.eye(size), 1e-200 * np.eye(size), -good, crooked, undefined, singular, np.zeros((size, size))]


def guesses(examiner: Examiner, generator: np.random.Generator) -> list[Candidate]:
    """Every metric with every level and multiplier, most of them nonsense; () asks for the corners."""
    systems = examiner.systems
    found = []
    for P in metrics(systems[0].size, generator):
        for level in LEVELS:
            found.append(Candidate(P, (), (level,) * len(systems), "guess"))
            for scale in (1.0, 1e-12, 0.0, -1.0, math.inf, math.nan):
                multipliers = tuple(np.full(system.channels, scale) for system in systems)
                found.append(Candidate(P, multipliers, (level,) * len(systems), "guess"))
    return found


@pytest.mark.parametrize("integrator", ["euler", "midpoint"])
@pytest.mark.parametrize("step_size", STEPS)
def test_no_guess_certifies_a_map_that_grows(step_size: object, integrator: str) -> None:
    generator = np.random.default_rng(5)
    A = np.diag([0.01, -1.0])  # the first unit grows by itself
    W = np.array([[0.0, 0.3], [0.2, 0.0]])
    (item,) = subjects((A, W), step_size=step_size, integrator=integrator)
    with np.errstate(all="ignore"):
        examiner = Examiner(item, panels=1)
        for guess in guesses(examiner, generator):
            assert isinstance(examiner.issue(guess, 0.0), Refusal), guess


@pytest.mark.parametrize("step_size", STEPS)
def test_a_guess_proves_no_more_than_is_true(step_size: object) -> None:
    """ḣ = −h + tanh(W h) with W = −½: slopes 0 give the rate 1 exactly, and no other slopes a slower one."""
    (item,) = subjects((-np.eye(2), -0.5 * np.eye(2)), step_size=step_size)
    step = None if item.step_range is None else item.step_range[1]
    possible = 1.0 if step is None or item.is_range else -math.log1p(-step) / step
    proved = []
    with np.errstate(all="ignore"):
        examiner = Examiner(item, panels=1)
        for guess in guesses(examiner, np.random.default_rng(6)):
            certificate = examiner.issue(guess, 0.0)
            if isinstance(certificate, Certificate):
                proved.append(certificate.rate)
    assert proved
    assert max(proved) <= possible
