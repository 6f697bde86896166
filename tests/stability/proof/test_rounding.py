"""Every step of a check is enclosed: exact rational arithmetic finds nothing outside."""

import decimal
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from exact import contains, fractions, identity, is_positive_definite, two_stage_system

from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.stability.proof.inequality import quadratic_form, verified_margin
from lipschitz_rnn.stability.proof.inputs import Subject
from lipschitz_rnn.stability.proof.norms import MetricNorms, product, total
from lipschitz_rnn.stability.proof.proving import heun_level
from lipschitz_rnn.stability.proof.rates import proved_decay, proved_factor, proved_rate
from lipschitz_rnn.stability.proof.rounding import Ball, largest_eigenvalue_bound, smallest_eigenvalue_bound
from lipschitz_rnn.stability.proof.systems import bezier_corner, runge_kutta_system, sector_form
from lipschitz_rnn.stability.search.levels import best_level


def matrix(rng: np.random.Generator, *shape: int, spread: float = 3.0) -> np.ndarray:
    """Full mantissas over many orders of magnitude."""
    return rng.normal(size=shape) * 10.0 ** rng.uniform(-spread, spread, shape)


def test_sums_and_products_of_balls_hold_the_exact_ones() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        n = int(rng.integers(1, 4))
        X, Y = matrix(rng, n, n), matrix(rng, n, n)
        x, y = Ball.exact(X), Ball.exact(Y)
        exact_x, exact_y = fractions(X), fractions(Y)
        assert contains(x + y, exact_x + exact_y)
        assert contains(x - y, exact_x - exact_y)
        assert contains(x @ y, exact_x @ exact_y)
        assert contains((x @ y) @ (x + y).T, (exact_x @ exact_y) @ (exact_x + exact_y).T)
        assert contains(float(X[0, 0]) * y, exact_x[0, 0] * exact_y)
        third = Fraction(int(rng.integers(1, 100)), 97)
        assert contains(Ball.number(third) * (x @ y), third * (exact_x @ exact_y))
        assert contains(x.widened(1e-3), exact_x * Fraction(1.0009))


def test_products_near_underflow_stay_in_their_ball() -> None:
    rng = np.random.default_rng(1)
    for scale in (1e-150, 1e-160, 1e-200, 5e-324):
        X, Y = scale * rng.normal(size=(3, 3)), 1e-155 * rng.normal(size=(3, 3))
        assert contains(Ball.exact(X) @ Ball.exact(Y), fractions(X) @ fractions(Y))
        assert contains(Ball.exact(X) + Ball.exact(Y), fractions(X) + fractions(Y))


@pytest.mark.parametrize("seed", range(3))
def test_slope_ranges_are_enclosed(seed: int) -> None:
    """A ← αA + l W and W ← (u − l) W for 1,000 random ranges: differences such as 0.7 − 0.1 are no floats."""
    rng = np.random.default_rng(seed)
    for _ in range(1000):
        A, W, alpha = matrix(rng, 1, 1), matrix(rng, 1, 1), float(rng.normal())
        low, high = sorted(float(slope) for slope in rng.normal(size=2).round(int(rng.integers(1, 17))))
        linear, feedback = sector_form(alpha * Ball.exact(A), Ball.exact(W), (low, high))
        assert contains(linear, Fraction(alpha) * fractions(A) + Fraction(low) * fractions(W))
        assert contains(feedback, (Fraction(high) - Fraction(low)) * fractions(W))


@pytest.mark.parametrize("integrator", ["midpoint", "heun"])
def test_bezier_corners_and_steps_are_enclosed(integrator: str) -> None:
    rng = np.random.default_rng(2)
    tableau = get_integrator(integrator)
    a, (b1, b2) = Fraction(tableau.stages[1][0]), (Fraction(b) for b in tableau.weights)
    for _ in range(500):
        A, W = matrix(rng, 1, 1, spread=1.0), matrix(rng, 1, 1, spread=1.0)
        s, t = sorted(float(step) for step in rng.random(2).round(int(rng.integers(1, 17))) + 1e-3)
        first, last = Fraction(s), Fraction(t)
        middle = (first + last) / 2
        corner = bezier_corner(Ball.exact(A), Ball.exact(W), tableau, s, t)
        assert corner.time == middle
        exact = two_stage_system(fractions(A), fractions(W), a * first * last / middle, (b1 * middle, b2 * middle))
        for part, whole in zip((corner.F, corner.G, corner.C, corner.E), exact, strict=True):
            assert contains(part, whole)
        step = runge_kutta_system(Ball.exact(A), Ball.exact(W), tableau, t)
        exact = two_stage_system(fractions(A), fractions(W), a * last, (b1 * last, b2 * last))
        for part, whole in zip((step.F, step.G, step.C, step.E), exact, strict=True):
            assert contains(part, whole)


def test_rk4_holds_the_map_with_thirds_and_with_their_floats() -> None:
    """Σ b = 1 exactly, so for a scalar without feedback F is the Taylor polynomial of e^{εa}."""
    rng, tableau = np.random.default_rng(3), get_integrator("rk4")
    for _ in range(200):
        a, step = float(rng.normal()), float(rng.random())
        system = runge_kutta_system(Ball.exact([[a]]), Ball.exact([[0.0]]), tableau, step)
        z = Fraction(a) * Fraction(step)
        assert contains(system.F, np.array([[sum(z**k / math.factorial(k) for k in range(5))]]))


def test_no_matrix_that_is_not_positive_definite_passes() -> None:
    """2,000 matrices at and around the border, each decided exactly; those far inside must pass."""
    rng = np.random.default_rng(4)
    accepted = refused = 0
    for _ in range(2000):
        n = int(rng.integers(1, 6))
        B = rng.integers(-50, 50, (n, max(1, n - int(rng.integers(0, 2)))))
        X = (B @ B.T).astype(float)
        shift = rng.choice([-1.0, 1.0]) * 2.0 ** rng.integers(-60, 4) * rng.integers(0, 2)
        X += shift * np.eye(n)
        definite = is_positive_definite(fractions(X))
        bound = smallest_eigenvalue_bound(Ball.exact(X))
        assert not bound > 0 or definite
        # What is said is also true as a number: X − bound · I has no negative eigenvalue.
        assert is_positive_definite(fractions(X) - (Fraction(bound) - Fraction(1, 10**30)) * identity(n))
        if definite and np.linalg.eigvalsh(X)[0] > 1e-9:
            assert bound > 0
            accepted += 1
        refused += not definite
    assert min(accepted, refused) > 300


def test_eigenvalue_bounds_cover_the_ball_and_refuse_what_is_not_finite() -> None:
    rng = np.random.default_rng(5)
    for _ in range(100):
        X = rng.normal(size=(4, 4))
        X, R = X + X.T, np.abs(rng.normal(size=(4, 4))) * 1e-3
        R = np.maximum(R, R.T)
        bound = largest_eigenvalue_bound(Ball(X, R))
        signs = rng.choice([-1.0, 1.0], (4, 4))
        member = X + np.triu(signs * R) + np.triu(signs * R, 1).T
        assert np.linalg.eigvalsh(member)[-1] <= bound
        assert bound <= np.linalg.eigvalsh(X)[-1] + R.sum(axis=1).max() + 1e-12
    bad = np.array([[np.nan, 0.0], [0.0, 1.0]])
    assert smallest_eigenvalue_bound(Ball.exact(bad)) == -np.inf
    assert largest_eigenvalue_bound(Ball(np.eye(2), np.full((2, 2), np.inf))) == np.inf


def test_an_inequality_that_passes_holds_exactly() -> None:
    """Levels a hair above and below the best one: where the check passes, the rational form is negative definite."""
    rng = np.random.default_rng(6)
    passed = 0
    for _ in range(150):
        A, W = rng.normal(size=(2, 2, 2))
        A = A - 2.0 * np.eye(2)
        X = rng.normal(size=(2, 2))
        P = X @ X.T + 0.1 * np.eye(2)
        P = 0.5 * (P + P.T)
        step, tableau = float(rng.uniform(0.01, 0.2)), get_integrator("midpoint")
        multiplier = rng.uniform(0.1, 2.0, 4)
        plain = runge_kutta_system(A, W, tableau, step)
        best = best_level(plain, P, multiplier)
        if not math.isfinite(best):
            continue
        last = Fraction(step)
        F, G, C, E = two_stage_system(fractions(A), fractions(W), last / 2, (Fraction(0), last))
        exact_P, L = fractions(P), np.diag(fractions(multiplier))
        L = np.where(np.eye(4, dtype=bool), L, Fraction(0))
        rows = np.block(
            [[F.T @ exact_P @ F, F.T @ exact_P @ G + (L @ C).T], [G.T @ exact_P @ F + L @ C, G.T @ exact_P @ G]]
        )
        rows[2:, 2:] += L @ E + (L @ E).T - 2 * L
        enclosed = runge_kutta_system(Ball.exact(A), Ball.exact(W), tableau, step)
        assert contains(quadratic_form(enclosed, Ball.exact(P), Ball.exact(np.diag(multiplier))), rows)
        for share in (-1e-13, 0.0, 1e-15, 1e-14, 1e-13, 1e-12, 1e-9):
            level = best + share * max(1.0, abs(best))
            if verified_margin(enclosed, P, multiplier, level) > 0:
                padded = rows.copy()
                padded[:2, :2] -= Fraction(level) * exact_P
                assert is_positive_definite(-padded)
                passed += 1
    assert passed > 50


def test_rates_and_factors_are_rounded_towards_the_weaker_claim() -> None:
    rng = np.random.default_rng(7)
    pair = Subject(-np.eye(1), np.eye(1), integrator="heun", step_range=(0.1, 0.1))
    with decimal.localcontext(decimal.Context(prec=120)):
        for _ in range(1000):
            level = float(1 - 10.0 ** rng.uniform(-16, -0.01))
            step = Fraction(float(10.0 ** rng.uniform(-4, 1)))
            length = Decimal(step.numerator) / Decimal(step.denominator)
            rate = proved_rate(level, step)
            assert (-2 * Decimal(rate) * length).exp() >= Decimal(level)
            assert rate >= -math.log(level) / (2 * float(step)) * (1 - 1e-12) - 1e-300
            linear = proved_rate(level, step, linear=True)
            assert (1 - Fraction(linear) * step) ** 2 >= Fraction(level)
            assert Fraction(proved_factor(level)) ** 2 >= Fraction(level)
            assert Decimal(proved_decay(rate)) >= (-Decimal(rate)).exp()
            factor = math.sqrt(level)
            assert Fraction(heun_level(pair, factor, np.eye(1))) >= ((1 + Fraction(factor) ** 2) / 2) ** 2
    assert proved_rate(-3.0, None) == 1.5
    assert Fraction(product(0.1, 0.1, 3.0)) >= Fraction(0.1) * Fraction(0.1) * 3
    assert Fraction(total(0.1, 0.2, 0.3)) >= Fraction(0.1) + Fraction(0.2) + Fraction(0.3)


@pytest.mark.parametrize("condition", [1e2, 1e6, 1e10])
def test_norms_in_a_metric_are_upper_bounds_whatever_its_condition(condition: float) -> None:
    """‖Mx‖² ≤ bound² · ‖x‖² in rationals, for the vectors that come closest."""
    rng = np.random.default_rng(8)
    for _ in range(20):
        n = int(rng.integers(2, 5))
        Q = np.linalg.qr(rng.normal(size=(n, n)))[0]
        P = (Q * np.geomspace(1.0, 1.0 / condition, n)) @ Q.T
        P = 0.5 * (P + P.T)
        metric, M = MetricNorms(P), rng.normal(size=(n, n))
        exact_P, exact_M = fractions(P), fractions(M)
        root = np.linalg.cholesky(P)
        inverse = np.linalg.inv(root).T
        radius = np.abs(M) * 1e-3
        for bound, left, right, matrix_ in (
            (metric.reading(Ball.exact(M)), np.eye(n), inverse, exact_M),
            (metric.operator(Ball.exact(M)), root.T, inverse, exact_M),
            (metric.length(Ball.exact(M)), root.T, np.eye(n), exact_M),
            (metric.entrywise(radius), root.T, inverse, fractions(radius * rng.choice([-1.0, 1.0], (n, n)))),
        ):
            floating = matrix_.astype(float)
            _, _, directions = np.linalg.svd(left @ floating @ right)
            x = fractions(right @ directions[0])
            y = matrix_ @ x
            out = y @ y if left is not root.T and np.array_equal(left, np.eye(n)) else y @ exact_P @ y
            size = x @ x if np.array_equal(right, np.eye(n)) else x @ exact_P @ x
            assert out <= Fraction(bound) ** 2 * size


@pytest.mark.parametrize("diagonal", [True, False])
def test_no_slopes_exceed_the_bound_for_all_slopes(diagonal: bool) -> None:
    rng = np.random.default_rng(9)
    for _ in range(50):
        A, W, X = rng.normal(size=(3, 4, 4))
        P = np.diag(10.0 ** rng.uniform(-3, 0, 4)) if diagonal else X @ X.T + 0.01 * np.eye(4)
        P = 0.5 * (P + P.T)
        metric, root = MetricNorms(P), np.linalg.cholesky(P)
        low, high = sorted(float(slope) for slope in rng.normal(size=2))
        bound = metric.slope(Ball.exact(A), Ball.exact(W), (low, high))
        fed = metric.fed(Ball.exact(W))
        for _ in range(30):
            d = low + (high - low) * rng.choice([0.0, 1.0, rng.random()], 4)
            K = root.T @ (A + d[:, None] * W) @ np.linalg.inv(root.T)
            assert np.linalg.norm(K, 2) <= bound * (1 + 1e-9)
            q = rng.choice([-1.0, 1.0], 4)
            assert np.linalg.norm(root.T @ (q[:, None] * W), 2) <= fed * (1 + 1e-9)


def test_a_metric_that_is_singular_is_refused() -> None:
    with pytest.raises(ValueError, match=r"singular|definite"):
        MetricNorms(np.array([[1.0, 1.0], [1.0, 1.0]]))
