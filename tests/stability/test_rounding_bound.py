"""The bound on the distance between computed and exact states: never exceeded, never far off, and no term is idle."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from proof.exact import fractions

import lipschitz_rnn as lr
from lipschitz_rnn.ops.common.precision import float32_products
from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.ops.lipschitz.nonlinearities import get_nonlinearity
from lipschitz_rnn.ops.lipschitz.reference import integrate_step
from lipschitz_rnn.stability import certify, rounding_bound
from lipschitz_rnn.stability.proof.arithmetic import arithmetic
from lipschitz_rnn.stability.proof.running import RunningPart, trajectory

SETTINGS = {"float32": "highest", "high": "high", "medium": "medium"}
DTYPES = {"float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


def stable_pair(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X, Y = rng.normal(size=(2, n, n)) / np.sqrt(n)
    return X - X.T - 1.2 * np.eye(n), 0.5 * Y - 0.3 * np.eye(n)


def lengths_of(differences: np.ndarray, P: np.ndarray) -> np.ndarray:
    return np.sqrt(np.einsum("...i,ij,...j->...", differences, P, differences))


@pytest.mark.parametrize("nonlinearity", ["identity", "relu"])
@pytest.mark.parametrize("integrator", ["euler", "midpoint", "rk4"])
def test_it_holds_against_exact_rationals_and_is_within_a_thousand(nonlinearity: str, integrator: str) -> None:
    """The exact trajectory in rational numbers, for nonlinearities that keep rational numbers rational."""
    A, W = (torch.tensor(M).float().double().numpy() for M in stable_pair(3, 1))
    T, step = 24, 0.125
    u = torch.randn(T, 2, 3, generator=torch.Generator().manual_seed(0))
    certificate = certify((A, W), step_size=step, integrator=integrator, nonlinearity=nonlinearity)
    bound = rounding_bound(certificate, u, precision="float32", backend="cpu")
    exact_A, exact_W = fractions(A), fractions(W)

    def field(h: np.ndarray, drive: np.ndarray) -> np.ndarray:
        z = h @ exact_W.T + drive
        return h @ exact_A.T + (np.maximum(z, Fraction(0)) if nonlinearity == "relu" else z)

    h = fractions(np.zeros((2, 3)))
    exact = []
    for drive in fractions(u.double().numpy()):
        slopes: list[np.ndarray] = []
        tableau = get_integrator(integrator)
        third, sixth = Fraction(1, 3), Fraction(1, 6)
        weights = (sixth, third, third, sixth) if integrator == "rk4" else [Fraction(b) for b in tableau.weights]
        for row in tableau.stages:
            point = sum((Fraction(step) * Fraction(a) * k for a, k in zip(row, slopes, strict=True)), start=h)
            slopes.append(field(point, drive))
        h = h + sum(Fraction(step) * b * k for b, k in zip(weights, slopes, strict=True))
        h = np.vectorize(lambda number: number.limit_denominator(10**40), otypes=[object])(h)
        exact.append(h)
    for backend in ("reference", "cpu"):
        matrices = (torch.tensor(M).float() for M in (A, W))
        states, _ = lr.lipschitz_scan(u, *matrices, None, step, 1.0, integrator, nonlinearity, backend=backend)
        differences = (fractions(states.double().numpy()) - np.array(exact)).astype(float)
        seen = lengths_of(differences, certificate.metric)
        assert np.all(seen <= bound.states)
        assert np.all(np.abs(differences) <= bound.coordinates)
        assert bound.states.max() < 1000 * seen.max()


@pytest.mark.parametrize("integrator", ["euler", "heun"])
@pytest.mark.parametrize("precision", ["float64", "float32", "high", "medium", "bfloat16", "float16"])
@pytest.mark.parametrize("backend", ["reference", "cpu", "triton"])
def test_no_backend_exceeds_it(backend: str, precision: str, integrator: str) -> None:
    if backend == "triton":
        pytest.importorskip("triton")
        if precision == "float64":
            pytest.skip("the kernels have no float64")
    N = 40  # takes two bfloat16 parts where ``high`` is set
    A, W = stable_pair(N, 2)
    dtype = DTYPES.get(precision, torch.float32)
    A, W = (torch.tensor(M).to(dtype) for M in (A, W))
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(12, 3, 2, generator=generator)
    U, b = torch.randn(N, 2, generator=generator).to(dtype), torch.randn(N, generator=generator).to(dtype)
    h0 = torch.randn(3, N, generator=generator).to(dtype)
    certificate = certify((A, W), step_size=0.1, integrator=integrator, precision=precision, rate=0.05)
    assert certificate.holds
    kind = {"reference": "any", "cpu": "cpu", "triton": "triton"}[backend]
    bound = rounding_bound(certificate, x, h0, input_weight=U, bias=b, backend=kind)
    exact, _ = lr.lipschitz_scan(
        *(t.double() for t in (x, A, W, h0)), 0.1, integrator=integrator, backend="reference",
        input_weight=U.double(), bias=b.double(),
    )  # fmt: skip
    with float32_products(SETTINGS.get(precision, "highest")):
        states, _ = lr.lipschitz_scan(
            x.to(dtype), A, W, h0, 0.1, integrator=integrator, backend=backend, input_weight=U, bias=b
        )
    differences = (states.double() - exact).numpy()
    assert np.all(np.abs(differences) <= bound.coordinates + 1e-13)
    if backend == "reference" and precision != "float32":
        return  # made for GPUs, which round more; a CPU need not round at all
    if backend == "triton" or precision in ("float32", "bfloat16", "float16"):
        # Sums of 44 terms are off by a few units where they might be off by 110; for 16 bits operands decide.
        most = 5000 if precision == "float32" and backend != "cpu" else 1000
        assert bound.states.max() < most * lengths_of(differences, certificate.metric).max()


LAYERS = {
    "stack": {"num_layers": 2, "gamma": 1.0, "step_size": 0.1},
    "both directions": {"num_layers": 2, "bidirectional": True, "gamma": 1.0, "step_size": 0.1},
    "contracting": {"stability": "contracting", "rate": 0.2, "step_size": 0.1},
    "divided": {"gamma": 1.0, "step_size": 0.05, "max_step": 0.05},
    "recomputed": {"gamma": 1.0, "step_size": 0.1, "recompute_every": 3},
}


def exact_run(layer: lr.LipschitzRNN, x: torch.Tensor, hx: torch.Tensor, **call: torch.Tensor) -> torch.Tensor:
    """The output of the same layer in float64, with the matrices that the layer itself computes."""
    outputs = x
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
    with torch.autocast("cpu", enabled=False):
        for number in range(layer.num_layers):
            sides = []
            for direction in range(layer.num_directions):
                cell = layer.cell(number, direction)
                kept = torch.float32 if cell.contracting else dtype
                A, W, U, b = (
                    t.detach().to(kept).double() for t in (*cell.hidden_matrices(), cell.weight_ih, cell.bias_ih)
                )
                lengths = call.get("lengths")
                spans = call.get("timespans")
                seen, times = outputs.double(), cell.step_size if spans is None else spans.double()
                if direction:
                    from lipschitz_rnn.units.sequences import reverse

                    seen = reverse(seen, lengths)
                    times = times if spans is None else reverse(times, lengths)
                row = number * layer.num_directions + direction
                states, _ = lr.lipschitz_scan(
                    seen, A, W, hx[row].double(), times, cell.alpha, cell.integrator, lengths=lengths,
                    backend="reference", input_weight=U, bias=b, max_step=cell.max_step,
                )  # fmt: skip
                sides.append(reverse(states, lengths) if direction else states)
            outputs = torch.cat(sides, -1)
    return outputs


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_it_holds_for_layers_with_lengths_and_times(name: str, half: bool) -> None:
    torch.manual_seed(3)
    layer = lr.LipschitzRNN(2, 6, **LAYERS[name]).eval()
    x, hx = torch.randn(15, 3, 2), torch.randn(layer.num_layers * layer.num_directions, 3, 6)
    call = {"lengths": torch.tensor([15, 4, 9])}
    spans = torch.rand(15, 3) * (0.3 if name == "divided" else 0.1)
    spans[5] = 0.0
    call["timespans"] = spans
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half), torch.no_grad():
        bound = rounding_bound(layer, x, hx, **call)
        output, _ = layer(x, hx, **call)
        exact = exact_run(layer, x, hx, **call)
    inside = (torch.arange(15)[:, None] < call["lengths"]).numpy()
    differences = np.abs((output.double() - exact).numpy())[inside]
    assert np.all(differences <= bound.coordinates[inside])
    assert bound.coordinates[inside].max() < 5000 * differences.max()
    head = torch.randn(4, output.shape[-1])
    ends = call["lengths"] - 1
    read, exact_read = (t[ends, torch.arange(3)] @ head.to(t.dtype).T for t in (output.float(), exact))
    assert np.all(np.abs((read.double() - exact_read).numpy()) <= bound.reading(head))
    pairs, exact_pairs = (t[:, :, None] - t[:, None] for t in (read.double(), exact_read))
    both = bound.differences(head)
    assert np.all(np.abs((pairs - exact_pairs).numpy()) <= both + 1e-9)
    assert np.all(both <= bound.reading(head)[:, :, None] + bound.reading(head)[:, None] + 1e-12)


def test_it_covers_all_inputs_within_a_distance() -> None:
    torch.manual_seed(4)
    layer = lr.LipschitzRNN(2, 5, num_layers=2, gamma=1.0, step_size=0.2)
    x = torch.randn(30, 1, 2)
    near, far = (rounding_bound(layer, x, within=radius) for radius in (0.0, 2.0))
    other = x + 2.0 * torch.nn.functional.normalize(torch.randn(30, 1, 2), dim=-1)
    there = rounding_bound(layer, other)
    assert np.all(far.states >= near.states)
    assert np.all(far.coordinates >= there.coordinates)  # what is said about that input alone
    assert not np.all(near.coordinates >= there.coordinates)


def test_a_run_that_was_measured_has_a_far_sharper_bound() -> None:
    torch.manual_seed(5)
    layer = lr.LipschitzRNN(3, 24, stability="contracting", rate=0.1, step_size=0.1)
    x, hx = torch.randn(200, 2, 3), torch.randn(1, 2, 24)
    certificate = certify(layer, rate=0.1)
    bound = rounding_bound(layer, x, hx, certificate=certificate, measured=True)
    with torch.no_grad():
        output, _ = layer(x, hx)
    differences = (output.double() - exact_run(layer, x, hx)).numpy()
    seen = lengths_of(differences, certificate.metric)
    assert np.all(seen <= bound.states)
    assert bound.states.max() < 100 * seen.max()
    assert np.all(bound.states <= rounding_bound(layer, x, hx, certificate=certificate).states)


def test_the_peak_holds_for_all_inputs_of_a_size() -> None:
    torch.manual_seed(6)
    layer = lr.LipschitzRNN(2, 5, gamma=1.0, step_size=0.2)
    peak = rounding_bound(layer, input_bound=3.0)
    runs = rounding_bound(layer, 3.0 * torch.sign(torch.randn(300, 4, 2)))
    assert runs.states.max() <= peak.peak
    assert np.all(runs.coordinates <= peak.coordinates)
    assert peak.peak < 100 * runs.states.max()


# ---- an arithmetic that is as bad as the model allows, in one direction


def worst_scalar_run(part: RunningPart, u: float, T: int, step: float) -> np.ndarray:
    """Errors of a scalar linear network in which every operation is off upwards by as much as its model says."""
    a, m = part.step_model.arithmetic, part.step_model
    A, W = float(part.certificate.A[0, 0]), float(part.certificate.W[0, 0])
    h = exact = 0.0
    errors = []
    for _ in range(T):
        terms = a.product(m.terms)
        linear = A * h + abs(A * h) * terms + abs(h) * float(m.A_off[0, 0])
        drive = u + a.received * abs(u)
        z = W * h + abs(W * h) * terms + abs(h) * float(m.W_off[0, 0]) + drive
        z += abs(z) * (a.stored + 2 * a.unit)
        slope = linear + z
        slope += abs(slope) * (a.stored + 2 * a.unit)
        change = step * slope
        change += abs(change) * m.scalars
        h = (h + change) + abs(h + change) * a.unit
        exact = exact + step * (A * exact + W * exact + u)
        errors.append(h - exact)
    return np.array(errors)


TERMS = ("operand", "stored", "received", "sums", "unit")


@pytest.mark.parametrize("precision", ["float32", "medium", "bfloat16"])
def test_the_bound_is_attained_by_the_worst_arithmetic_and_no_term_is_idle(precision: str) -> None:
    # A positive feedback and a decay of the state: all magnitudes add up, so the model itself is almost attained.
    certificate = certify(([[-0.5]], [[0.25]]), step_size=0.5, nonlinearity="identity", precision=precision)
    T, u = 200, 1.0
    drive = np.full((T, 1, 1), u)
    part = RunningPart(certificate, precision)
    steps = np.full((T, 1), 0.5)
    states = part.float64_states(drive, np.zeros((1, 1)), steps)
    scale = float(np.sqrt(certificate.metric[0, 0]))
    seen = worst_scalar_run(part, u, T, 0.5) * scale
    bound = trajectory(part, drive, steps, states, np.zeros((1, 1))).states[:, 0]
    assert np.all(seen <= bound)
    assert bound[-1] < 2.5 * seen[-1]  # |A||h| + |W||h| + |u| against their sum, in which A has the other sign
    for term in TERMS:
        size = getattr(part.model, term)
        if size == 0.0:
            continue
        weaker = RunningPart(certificate, precision)
        weaker.step_model = replace(weaker.step_model, arithmetic=replace(weaker.model, **{term: 0.0}))
        less = trajectory(weaker, drive, steps, states, np.zeros((1, 1))).states[:, 0]
        assert less[-1] < bound[-1]


def test_the_factor_is_attained() -> None:
    """A constant error d in every step of a linear system adds up to d/(1 − ρ), to one per cent."""
    certificate = certify(([[-0.125]], [[0.0]]), step_size=0.125, nonlinearity="identity")
    part = RunningPart(certificate, "float32")
    T = 800
    found = trajectory(part, np.zeros((T, 1, 1)), np.full((T, 1), 0.125), np.zeros((T, 1, 1)), np.ones((1, 1)))
    error, seen = 0.0, []
    for added in found.added[:, 0]:
        error = (1 - 0.125**2) * error + added
        seen.append(error)
    assert seen[-1] <= found.states[-1, 0] < 1.01 * seen[-1] + 1e-12


JUST_BELOW_HALF = 1 + 0.98 * 2.0**-8  # of a unit of bfloat16: it is rounded by almost all that the format allows


@pytest.mark.parametrize(
    ("term", "precision", "A", "h0", "u", "step"),
    [
        ("operand", "medium", -JUST_BELOW_HALF, JUST_BELOW_HALF, 0.0, 0.25),
        ("matrices", "medium", -JUST_BELOW_HALF, JUST_BELOW_HALF, 0.0, 0.25),
        ("unit", "float32", -1.0, 1.0 + 2.0**-20, 0.0, 2.0**-8),
        ("returned", "bfloat16", -1.0, 1.0, 0.0, 0.25),
        ("received", "bfloat16", -1.0, 0.0, JUST_BELOW_HALF, 0.25),
    ],
)
def test_a_real_kernel_exceeds_the_bound_without_the_term(
    term: str, precision: str, A: float, h0: float, u: float, step: float
) -> None:
    if term in ("operand", "matrices"):
        pytest.importorskip("triton")
    n, T = 1, 8
    dtype = DTYPES.get(precision, torch.float32)
    matrix = torch.full((n,), A).float().diag()
    nothing = torch.zeros(n, n)
    certificate = certify((matrix, nothing), step_size=step, nonlinearity="identity", precision="float32")
    drive, start = torch.full((T, 2, n), u), torch.full((2, n), h0)
    exact, _ = lr.lipschitz_scan(
        *(t.double() for t in (drive, matrix, nothing, start)), step, nonlinearity="identity", backend="reference"
    )
    with float32_products(SETTINGS.get(precision, "highest")):
        backend = "triton" if term in ("operand", "matrices") else "cpu"
        states, _ = lr.lipschitz_scan(
            *(t.to(dtype) for t in (drive, matrix, nothing, start)), step, nonlinearity="identity", backend=backend
        )
    seen = np.abs((states.double() - exact).numpy())

    def coordinates(**change: float) -> np.ndarray:
        part = RunningPart(certificate, precision, "triton" if backend == "triton" else "cpu")
        part.model = replace(part.model, **change)
        part.inputs = part.model
        part.step_model = part._step_model(part.precision.name, part.model, 0)
        arguments = (drive.double().numpy(), np.full((T, 2), step), exact.numpy(), start.double().numpy())
        return trajectory(part, *arguments).coordinates()

    assert np.all(seen <= coordinates())
    without = coordinates(**({"unit": 0.0, "returned": 0.0} if term == "unit" else {term: 0.0}))
    assert np.any(seen > without)


def test_a_kernel_that_stores_in_16_bits_exceeds_the_bound_without_that_term() -> None:
    """The reference's own step with bfloat16 matrices, as it runs on a GPU, needs ``stored``."""
    A, W = (torch.tensor(M).bfloat16() for M in stable_pair(8, 7))
    certificate = certify((A, W), step_size=0.1, precision="bfloat16", rate=0.05)
    u = torch.randn(40, 2, 8, generator=torch.Generator().manual_seed(2)).bfloat16()
    h, exact, states, truth = torch.zeros(2, 8), torch.zeros(2, 8).double(), [], []
    euler, tanh = get_integrator("euler"), get_nonlinearity("tanh")
    for drive in u:
        h = integrate_step(h, drive, A, W, 0.1, 1.0, euler, tanh)
        exact = integrate_step(exact, drive.double(), A.double(), W.double(), 0.1, 1.0, euler, tanh)
        states.append(h.double())
        truth.append(exact)
    differences = (torch.stack(states) - torch.stack(truth)).numpy()
    bound = rounding_bound(certificate, u)
    assert np.all(lengths_of(differences, certificate.metric) <= bound.states)
    assert bound.states.max() < 1000 * lengths_of(differences, certificate.metric).max()


# ---- hostile values


def test_saturated_inputs_do_not_blow_it_up_and_overflow_is_infinite() -> None:
    layer = lr.LipschitzRNN(1, 4, gamma=1.0, step_size=0.1)
    saturated = rounding_bound(layer, torch.full((20, 1, 1), 1e30))
    assert np.all(np.isfinite(saturated.states))
    assert saturated.states.max() < 40  # an error of σ is at most 2, whatever its argument
    linear = lr.LipschitzRNN(1, 4, gamma=2.0, step_size=0.1, nonlinearity="relu")
    torch.nn.init.constant_(linear.cell().weight_ih, 10.0)  # U x is 1e39, which float32 has not
    assert np.all(np.isinf(rounding_bound(linear, torch.full((20, 1, 1), 1e38)).last))
    A, W = stable_pair(4, 8)
    certificate = certify((A, W), step_size=0.1, nonlinearity="relu")
    drive = torch.full((20, 1, 4), 3e5)
    assert np.all(np.isfinite(rounding_bound(certificate, drive, precision="float32").states))
    assert np.all(np.isinf(rounding_bound(certificate, drive, precision="float16").last))


def test_denormals_are_covered() -> None:
    A, W = (torch.tensor(M).float() for M in stable_pair(4, 9))
    certificate = certify((A, W), step_size=0.1, precision="float32")
    h0 = torch.full((1, 4), 1e-42)
    bound = rounding_bound(certificate, torch.zeros(5, 1, 4), h0)
    states, _ = lr.lipschitz_scan(torch.zeros(5, 1, 4), A, W, h0, 0.1)
    exact, _ = lr.lipschitz_scan(
        torch.zeros(5, 1, 4).double(), A.double(), W.double(), h0.double(), 0.1, backend="reference"
    )
    assert np.all(np.abs((states.double() - exact).numpy()) <= bound.coordinates)


def test_refusals_name_what_is_wrong() -> None:
    layer = lr.LipschitzRNN(1, 4, gamma=1.0, step_size=0.1)
    x = torch.zeros(3, 1, 1)
    with pytest.raises(ValueError, match="not finite"):
        rounding_bound(layer, torch.full((3, 1, 1), float("nan")))
    with pytest.raises(ValueError, match="no certificate"):
        rounding_bound(lr.LipschitzRNN(1, 4, gamma=0.0), x)
    with pytest.raises(ValueError, match="input_bound"):
        rounding_bound(layer)
    with pytest.raises(TypeError, match="Linear"):
        rounding_bound(torch.nn.Linear(1, 1), x)
    with pytest.raises(ValueError, match="exact"):
        rounding_bound(certify(stable_pair(3, 0), step_size=0.1), torch.zeros(2, 1, 3))
    with pytest.raises(ValueError, match="continuous"):
        rounding_bound(certify(stable_pair(3, 0)), torch.zeros(2, 1, 3), precision="float32")
    with pytest.raises(ValueError, match="another A than the layer has"):
        rounding_bound(layer, x, certificate=certify(lr.LipschitzRNN(1, 4, gamma=1.0, step_size=0.1)))
    with pytest.raises(ValueError, match="backend is 'gpu'"):
        arithmetic("float32", "gpu")
    other = certify(layer, step_size=0.05)
    with pytest.raises(ValueError, match="certificate covers"):
        rounding_bound(layer, x, certificate=other)
