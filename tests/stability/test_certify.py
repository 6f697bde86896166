"""What certify accepts, says and refuses; that it is useful; and that it is quick."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from stability_examples import Setting, advance, random_pair, worst_jacobians_share_a_metric

import lipschitz_rnn as lr
from lipschitz_rnn.stability import certify, incremental_gain, largest_contracting_step
from lipschitz_rnn.stability.proof.rounding import Ball, largest_eigenvalue_bound

# Systems in the test of usefulness; 100 for the full run: LIPSCHITZ_RNN_USEFUL=100 pytest tests/stability
USEFUL = int(os.environ.get("LIPSCHITZ_RNN_USEFUL", "8"))


@pytest.fixture(scope="module")
def pair() -> tuple[np.ndarray, np.ndarray]:
    return random_pair(np.random.default_rng(0), 5, "easy")


def test_scalar_system_has_the_rate_of_its_worst_slope() -> None:
    """ḣ = −h + tanh(w h): slopes give −1 + d w, so the rate is 1 − max(w, 0); Euler's factors are |1 − ε(1 − d w)|."""
    for w in (-2.0, 0.3, 0.9):
        expected = 1 - max(w, 0.0)
        assert certify(([[-1.0]], [[w]])).rate == pytest.approx(expected, rel=1e-6)
        step = 0.25
        factors = [abs(1 + step * (-1 + d * w)) for d in (0, 1)]
        assert certify(([[-1.0]], [[w]]), step_size=step).factor == pytest.approx(max(factors), rel=1e-6)
    assert not certify(([[-1.0]], [[1.1]])).holds
    assert not certify(([[-1.0]], [[-9.0]]), step_size=0.25).holds


def test_linear_systems_reach_their_spectral_rate() -> None:
    A, W = random_pair(np.random.default_rng(1), 6, "easy")
    exact = -np.linalg.eigvals(A + W).real.max()
    assert certify((A, W), nonlinearity="identity").rate == pytest.approx(exact, rel=5e-3)


def test_slopes_alpha_and_the_size_of_sigma_are_taken_into_account(pair: tuple[np.ndarray, np.ndarray]) -> None:
    A, W = pair
    assert certify((A, W), nonlinearity="sigmoid").rate == pytest.approx(certify((A, W / 4)).rate, rel=2e-3)
    assert certify((A / 2, W), alpha=2.0).rate == pytest.approx(certify((A, W)).rate, rel=2e-3)
    shifted = certify((A - 0.25 * W, W), nonlinearity=(0.25, 1.25))
    assert shifted.rate == pytest.approx(certify((A, W)).rate, rel=2e-3)


def test_continuous_is_the_limit_of_short_steps(pair: tuple[np.ndarray, np.ndarray]) -> None:
    continuous = certify(pair)
    for integrator in ("euler", "midpoint", "heun", "rk4"):
        assert certify(pair, step_size=1e-4, integrator=integrator).rate == pytest.approx(continuous.rate, rel=0.01)


def test_ranges_cover_all_steps_inside(pair: tuple[np.ndarray, np.ndarray]) -> None:
    for integrator in ("euler", "midpoint", "heun"):
        ranged = certify(pair, step_size=(0.0, 0.1), integrator=integrator)
        assert ranged.holds
        assert ranged.step_range == (0.0, 0.1)
        assert ranged.rate <= certify(pair, step_size=0.1, integrator=integrator).rate * 1.001
    with pytest.raises(ValueError, match="range of steps"):
        certify(pair, step_size=(0.0, 0.1), integrator="rk4")


@pytest.mark.parametrize("solver", ["clarabel", "scs", "structured"])
def test_general_solvers_agree_with_the_structured_search(solver: str, pair: tuple[np.ndarray, np.ndarray]) -> None:
    A, W = pair[0][:3, :3], pair[1][:3, :3]
    assert certify((A, W), solver=solver, accuracy=0.01).rate == pytest.approx(certify((A, W)).rate, rel=0.02)


def test_asked_for_rate(pair: tuple[np.ndarray, np.ndarray]) -> None:
    best = certify(pair)
    assert certify(pair, rate=0.5 * best.rate).holds
    refused = certify(pair, rate=2 * best.upper_bound)
    assert not refused.holds
    assert refused.cause == "rate"


def test_layers_directions_and_models() -> None:
    rnn = lr.LipschitzRNN(2, 6, num_layers=2, bidirectional=True, gamma=2.0, step_size=0.05)
    whole = certify(torch.nn.Sequential(rnn))
    assert whole.holds
    assert len(whole.parts) == 4
    assert whole.dynamics == "euler"
    assert whole.step_range == (0.05, 0.05)
    assert whole.rate == min(part.rate for part in whole.parts)
    A, W = rnn.hidden_matrices(1, 1)
    alone = certify((A, W), step_size=0.05, precision="float32")
    assert whole.parts[3].rate == pytest.approx(alone.rate)
    assert "reverse" in whole.parts[3].name
    assert "4" in whole.sentence()
    cell = lr.LipschitzRNNCell(2, 6, gamma=2.0, integrator="midpoint", step_size=0.1)
    assert certify(cell).dynamics == "midpoint"
    assert certify(cell, continuous=True).dynamics == "continuous"
    untrained = lr.LipschitzRNN(2, 16, gamma=0.0)
    assert not certify(untrained).holds


def test_files(tmp_path: Path, pair: tuple[np.ndarray, np.ndarray]) -> None:
    A, W = pair
    save_file({"layer.A": A, "layer.W": W}, tmp_path / "pair.safetensors")
    np.savez(tmp_path / "pair.npz", A=A, W=W)
    torch.save({"A": torch.from_numpy(A), "W": torch.from_numpy(W)}, tmp_path / "pair.pt")
    expected = certify(pair).rate
    assert all(certify(path).rate == expected for path in sorted(tmp_path.iterdir()))
    assert certify(tmp_path / "pair.safetensors").name == "layer"
    np.savez(tmp_path / "other.npz", M=A)
    with pytest.raises(ValueError, match=r"other\.npz.*A and W"):
        certify(tmp_path / "other.npz")
    with pytest.raises(FileNotFoundError):
        certify(tmp_path / "missing.npz")


def test_answers_are_plain_and_readable(pair: tuple[np.ndarray, np.ndarray]) -> None:
    for certificate in (certify(pair), certify(pair, step_size=0.1), certify((-np.eye(2), 3 * np.eye(2)))):
        decoded = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
        assert decoded["holds"] is certificate.holds
        assert decoded["sentence"] == certificate.sentence()
    failed = certify((-np.eye(2), 3 * np.eye(2)))
    assert failed.cause == "slopes"
    assert failed.reason.endswith("the linearized system grows at 2 per unit of time")
    assert np.linalg.eigvals(-np.eye(2) + failed.slope_pattern[:, None] * 3 * np.eye(2)).real.max() > 0


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"nonlinearity": "swish"}, "swish"),
        ({"nonlinearity": np.sin}, "slopes"),
        ({"nonlinearity": (1.0, 0.0)}, "slopes"),
        ({"step_size": -0.1}, "step_size"),
        ({"step_size": (0.2, 0.1)}, "step_size"),
        ({"step_size": 0.1, "integrator": "leapfrog"}, "leapfrog"),
        ({"step_size": 0.1, "continuous": True}, "continuous"),
        ({"continuous": False}, "step_size"),
        ({"alpha": float("nan")}, "alpha"),
        ({"rate": -1.0}, "rate"),
        ({"rate": float("nan")}, "rate"),
        ({"solver": "mosek"}, "mosek"),
        ({"solver": None}, "solver"),
        ({"accuracy": 0.0}, "accuracy"),
        ({"accuracy": -1e-3}, "accuracy"),
        ({"accuracy": float("nan")}, "accuracy"),
        ({"accuracy": 1.0}, "accuracy"),
        ({"time_limit": -1.0}, "time_limit"),
        ({"time_limit": float("nan")}, "time_limit"),
        ({"time_limit": "soon"}, "time_limit"),
        ({"precision": "int8"}, "int8"),
        ({"step_size": (0.1, 0.2, 0.3)}, "step_size"),
        ({"step_size": "long"}, "step_size"),
        ({"step_size": float("inf")}, "step_size"),
        ({"alpha": "two"}, "alpha"),
        ({"nonlinearity": (0.0, float("inf"))}, "slopes"),
    ],
)
def test_wrong_arguments_are_named(keywords: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        certify((-np.eye(2), np.eye(2)), **keywords)


def test_wrong_targets_are_named() -> None:
    with pytest.raises(TypeError, match="int"):
        certify(3)
    with pytest.raises(TypeError, match="Linear"):
        certify(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="complex"):
        certify((1j * np.eye(2), np.eye(2)))
    for wrong, message in (
        (np.eye(0), "shape"),
        (np.ones((2, 3)), "shape"),
        (np.full((2, 2), np.nan), "not finite"),
        (torch.full((2, 2), -torch.inf), "not finite"),
        ([["a", "b"], ["c", "d"]], "numbers"),
        (torch.eye(2, device="meta"), "numbers"),
        (1e120 * np.eye(2), "nothing can be proved"),
        (np.broadcast_to(0.0, (5000, 5000)), "5000"),
    ):
        with pytest.raises(ValueError, match=message):
            certify((wrong, wrong))


@pytest.mark.parametrize("size", [1, 2, pytest.param(40, marks=pytest.mark.full)])
def test_the_time_limit_ends_everything(size: int) -> None:
    """An accuracy beyond float64 and a time limit of a second; none at all is said to be the reason."""
    A, W = random_pair(np.random.default_rng(7), size, "easy")
    for keywords in ({}, {"step_size": 0.1, "integrator": "midpoint"}, {"step_size": (0.0, 0.1), "integrator": "heun"}):
        started = time.monotonic()
        certificate = certify((A, W), accuracy=1e-300, time_limit=1.0, **keywords)
        assert time.monotonic() - started < 15.0
        assert certificate.holds or certificate.reason
        at_once = certify((A, W), time_limit=0.0, **keywords)
        assert not at_once.holds
        assert at_once.cause == "time"
        assert "time_limit" in at_once.next_step
    assert certify((A, W), time_limit=float("inf"), accuracy=0.1).holds


@pytest.mark.parametrize("scale", [1e-100, 1e-30, 1e30, 1e90])
def test_extreme_numbers_are_certified_or_refused(scale: float) -> None:
    for matrices in ((-scale * np.eye(3), scale * np.eye(3) / 2), (-np.eye(3), scale * np.ones((3, 3)))):
        for keywords in ({}, {"step_size": 0.1 / scale if scale > 1 else 0.1}):
            certificate = certify(matrices, time_limit=5.0, **keywords)
            assert certificate.holds or certificate.reason


def test_a_failure_says_what_to_try_and_shows_the_direction() -> None:
    growing = certify((np.diag([-1.0, 0.5, -1.0]), 0.1 * np.eye(3)), step_size=0.1)
    assert "unit 1 (" in growing.sentence()
    assert "-u stability=contracting" in growing.next_step
    assert "gamma" in growing.next_step
    coarse = certify(([[-1.0]], [[-9.0]]), step_size=0.25)
    assert "largest_contracting_step" in coarse.next_step
    ambitious = certify(([[-1.0]], [[0.5]]), rate=0.7)
    assert ambitious.cause == "rate"
    assert "0.5" in ambitious.next_step
    assert certify(([[-1.0]], [[0.5]])).next_step == ""
    fresh = certify(lr.LipschitzRNN(1, 16, gamma=0.0))
    assert "stability='contracting'" in fresh.next_step


def test_rounding_is_enclosed() -> None:
    """Balls hold the exact results, computed with integers, and an eigenvalue bound is one."""
    rng = np.random.default_rng(2)
    X, Y = (rng.integers(-(2**40), 2**40, (6, 6)) for _ in range(2))
    exact = X.astype(object) @ Y.astype(object)
    product = Ball.exact(X.astype(float)) @ Ball.exact(Y.astype(float))
    error = np.array(
        [[abs(int(a) - int(b)) for a, b in zip(p, q, strict=True)] for p, q in zip(product.mid, exact, strict=True)]
    )
    assert np.all(error <= product.rad)
    assert error.max() > 0
    singular = Ball.exact(np.ones((5, 5)))
    assert 5.0 < largest_eigenvalue_bound(singular) < 5.0 + 1e-12
    # A matrix that is only just not negative definite must not pass.
    assert largest_eigenvalue_bound(-Ball.exact(np.diag([1.0, 1e-18]))) > 0


@pytest.mark.parametrize("integrator", ["euler", "midpoint", "heun"])
def test_gain_bounds_what_simulations_do(integrator: str, pair: tuple[np.ndarray, np.ndarray]) -> None:
    rng = np.random.default_rng(3)
    U, C, step = rng.normal(size=(5, 2)), rng.normal(size=(3, 5)), 0.1
    certificate = certify(pair, step_size=step, integrator=integrator)
    gain = incremental_gain(certificate, input_matrix=U, output_matrix=C)
    assert gain == incremental_gain(certificate, pair, input_matrix=U, output_matrix=C, alpha=1.0)
    h, other = np.zeros(5), 0.3 * rng.normal(size=5)
    first, apart, sizes = float(np.linalg.norm(h - other)), [], []
    for _ in range(300):
        x, change = rng.normal(size=2), 0.1 * rng.normal(size=2)
        h, other = advance(*pair, h, U @ x, integrator, step), advance(*pair, other, U @ (x + change), integrator, step)
        sizes.append(np.linalg.norm(change))
        apart.append(np.linalg.norm(C @ (h - other)))
    bounds = gain.bound(sizes, first_state=first)
    assert np.all(apart <= bounds)
    assert max(apart) <= gain.peak * max(sizes) + gain.from_state * first
    assert gain.peak == pytest.approx(gain.per_step / (1 - gain.factor))
    with pytest.raises(ValueError, match="non-negative"):
        gain.bound([-1.0])


def test_gain_in_continuous_time_is_the_static_gain_of_a_linear_unit() -> None:
    """ḣ = −2h + (h + x) settles at x; the bound is exact for one unit with a fixed slope."""
    pair = ([[-2.0]], [[1.0]])
    gain = incremental_gain(certify(pair, nonlinearity="identity"), pair)
    assert gain.peak == pytest.approx(1.0, rel=1e-6)
    assert gain.peak >= 1.0
    failed = certify((-np.eye(2), 3 * np.eye(2)))
    with pytest.raises(ValueError, match="does not hold"):
        incremental_gain(failed, (-np.eye(2), np.eye(2)))
    with pytest.raises(ValueError, match="continuous time"):
        gain.bound([0.1])


@pytest.mark.parametrize("name", ["weight_ih", "bias_ih"])
def test_parametrizations_that_give_no_numbers(name: str) -> None:
    """No certificate reads them, and their own parameters are finite, but all states are NaN."""

    class Divided(torch.nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return values / torch.zeros(())

    layer = lr.LipschitzRNN(2, 3, stability="contracting", step_size=0.1)
    torch.nn.utils.parametrize.register_parametrization(layer.cell(), name, Divided())
    with pytest.raises(ValueError, match=f"l0.{name} of this LipschitzRNN has . entries that are not finite"):
        certify(layer)


def test_gain_takes_alpha_from_the_certificate(pair: tuple[np.ndarray, np.ndarray]) -> None:
    """(A/2, W) with α = 2 is (A, W) with α = 1, for the stages of the midpoint rule too."""
    A, W = pair
    options = {"step_size": 0.3, "integrator": "midpoint"}
    plain, scaled = certify((A, W), **options), certify((A / 2, W), alpha=2.0, **options)
    assert incremental_gain(scaled).per_step == pytest.approx(incremental_gain(plain).per_step, rel=1e-6)
    with pytest.raises(ValueError, match=r"alpha is 1\.0.*alpha=2"):
        incremental_gain(scaled, alpha=1.0)
    with pytest.raises(ValueError, match="A of the pair"):
        incremental_gain(scaled, (A, W))
    with pytest.raises(ValueError, match="input_matrix"):
        incremental_gain(scaled, input_matrix=np.ones((3, 2)))
    with pytest.raises(ValueError, match="not finite"):
        incremental_gain(scaled, input_matrix=np.full((5, 2), np.nan))
    both = certify(lr.LipschitzRNN(2, 3, 2, gamma=2.0, step_size=0.05))
    with pytest.raises(ValueError, match=r"certificate\.parts"):
        incremental_gain(both)
    assert incremental_gain(both.parts[1]).peak > 0


def test_largest_step_of_a_scalar_system() -> None:
    """ḣ = −h + tanh(−w h) contracts under Euler up to ε = 2/(1 + w), midpoint up to the same slope pattern's limit."""
    step, certificate = largest_contracting_step(([[-1.0]], [[-3.0]]), integrator="euler")
    assert step == pytest.approx(0.5, rel=0.011)
    assert step <= 0.5
    assert certificate is not None
    assert certificate.holds
    step, _ = largest_contracting_step(([[-1.0]], [[-3.0]]), integrator="midpoint")
    assert 0.25 < step <= 0.5
    assert largest_contracting_step(([[-1.0]], [[2.0]])) == (0.0, None)


@pytest.mark.full
@pytest.mark.parametrize(
    "setting",
    [Setting("", None), Setting("euler", (0.2, 0.2))],
    ids=["continuous", "euler"],
)
def test_useful_at_eight_units(setting: Setting) -> None:
    """At least 95 % of random systems whose sampled worst Jacobians contract in a common metric are certified."""
    rng = np.random.default_rng(4)
    shared = certified = 0
    while shared < USEFUL // 2:
        A, W = random_pair(rng, 8, "borderline")
        if worst_jacobians_share_a_metric(A, W, setting, 1e-3, rng):
            shared += 1
            certified += certify((A, W), rate=1e-6, **setting.keywords()).holds
    print(f"{certified} of {shared} certified")
    assert certified >= 0.95 * shared


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "seconds", "keywords"),
    [
        (64, 20.0, {}),
        (64, 20.0, {"step_size": 0.03}),
        pytest.param(64, 20.0, {"step_size": 0.03, "integrator": "midpoint"}, marks=pytest.mark.full),
        pytest.param(128, 180.0, {"step_size": 0.03}, marks=pytest.mark.full),
    ],
    ids=["64 continuous", "64 euler", "64 midpoint", "128 euler"],
)
def test_large_systems_in_time(n: int, seconds: float, keywords: dict) -> None:
    A, W = random_pair(np.random.default_rng(5), n, "easy")
    started = time.process_time()
    certificate = certify((A, W), accuracy=0.01, **keywords)
    assert certificate.holds
    assert time.process_time() - started < seconds
