"""For every unit: certify refuses it, or an optimised attack on the module itself stays within the certificate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from module_attack import Attack
from stability_examples import Setting, worst_growth
from torch import Tensor, nn

import lipschitz_rnn as lr
from lipschitz_rnn.stability import Certificate, certify
from lipschitz_rnn.stability.proof.precision import as_precision, held
from lipschitz_rnn.units import available, build, info
from lipschitz_rnn.units.oscillatory import CoRNNCell
from lipschitz_rnn.units.recurrence import UnstatedRecurrenceError

STATED = ("lipschitz", "rnn", "rnn-orth", "fastrnn", "irnn", "cornn", "lru", "ren")
FLAT = ("nais", "antisymmetric", "residual", "neural-ode")  # they state a recurrence whose factor is 1 at best
UNSTATED = [name for name in available() if name not in (*STATED, *FLAT)]
HALF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}


def as_step(module: nn.Module, row: int) -> Any:
    """The module's forward as the attack takes it; a unit of several layers runs them all."""

    def step(x: Tensor, h: Tensor, times: Tensor | None) -> Tensor:
        if isinstance(module, lr.LipschitzRNNCell):
            states = [h[0]]
            for t, inputs in enumerate(x):
                states.append(module(inputs, states[-1], None if times is None else times[t]))
            return torch.stack(states[1:])
        options = {} if times is None else {"timespans": times}
        if not isinstance(module, lr.LipschitzRNN):  # states may come as several tensors
            widths, kept = module.state_sizes(), []
            for inputs in x:
                after = module(inputs[None], h.split(widths, -1) if len(widths) > 1 else h)[1]
                h = torch.cat(after, -1) if len(widths) > 1 else after
                kept.append(h[row])
            return torch.stack(kept)
        if len(x) == 1:
            return module(x, h, **options)[1][row][None]
        # Only the last layer gives out all its states; others are followed one step after another.
        states, kept = h, []
        for t in range(len(x)):
            times_now = {} if times is None else {"timespans": times[t : t + 1]}
            states = module(x[t : t + 1], states, **times_now)[1]
            kept.append(states[row])
        return torch.stack(kept)

    return step


def draw(index: int, **options: Any) -> lr.LipschitzRNN:
    """A Lipschitz RNN with every setting anywhere, damped enough that many are certified."""
    rng = np.random.default_rng(index)
    torch.manual_seed(index)
    contracting = index % 4 == 3
    settings: dict[str, Any] = {
        "num_layers": 1 + index % 3 // 2,
        "bidirectional": index % 5 == 4,
        "step_size": float(rng.choice([0.03, 0.1, 0.3])),
        "alpha": float(rng.choice([1.0, 1.0, 0.5, 1.3, 0.7])),
        "integrator": ("euler", "midpoint", "heun", "rk4")[index % 3 if contracting else (index + index // 4) % 4],
        "nonlinearity": ("tanh", "relu", "sigmoid", "identity", "tanh")[index % 5],
    }
    if contracting:
        settings |= {"stability": "contracting", "rate": 0.05, "init_scale": 1.0}
    else:
        settings |= {"gamma": (float(rng.uniform(1, 4)), 0.1), "beta": float(rng.uniform(0.5, 1)), "init_scale": 3.0}
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(index)
        return lr.LipschitzRNN(2, int(rng.integers(1, 6)), **{**settings, **options})


@contextmanager
def running(mode: str, module: nn.Module) -> Iterator[tuple[nn.Module, torch.dtype, float]]:
    """A module in one of the ways it can run: with the dtype of its data and u of what comes back."""
    before = torch.get_float32_matmul_precision()
    kind, _, name = mode.partition(" ")
    if kind == "parameters":
        dtype = getattr(torch, name)
        yield module.to(dtype), dtype, HALF.get(dtype, torch.finfo(dtype).eps / 2)
        return
    lowered = kind == "autocast"
    dtype = getattr(torch, name) if lowered else torch.float32
    try:
        if not lowered:
            torch.set_float32_matmul_precision(name)
        with torch.autocast("cpu", dtype=dtype) if lowered else nullcontext():
            unit = {"medium": 2.0**-8, "high": 2.0**-10}.get(name, HALF.get(dtype, 2.0**-24))
            yield module, torch.float32, unit
    finally:
        torch.set_float32_matmul_precision(before)


MODES = {
    "parameters float64": "float64",
    "parameters float32": "float32",
    "parameters bfloat16": "bfloat16",
    "parameters float16": "float16",
    "autocast bfloat16": "bfloat16",
    "autocast float16": "float16",
    "products high": "high",
    "products medium": "medium",
}


def parts_of(certificate: Certificate) -> tuple[Certificate, ...]:
    return certificate.parts or (certificate,)


def attacked(module: nn.Module, mode: str, seed: int, steps: tuple[float, float] | None = None) -> int:
    """Certify the module as it runs in a mode and attack every part that holds; how many did."""
    held_parts = 0
    with running(mode, module) as (running_module, dtype, unit):
        certificate = certify(running_module, step_size=steps, solver="structured", accuracy=0.02, time_limit=5.0)
        for row, part in enumerate(parts_of(certificate)):
            if not part.holds:
                assert part.reason
                assert part.next_step
                continue
            held_parts += 1
            rows = len(parts_of(certificate))
            shape = (rows, len(part.metric), 2)
            attack = Attack(as_step(running_module, row), part, shape, row, unit, dtype, seed)
            assert attack.excess_of_jacobians() <= 0, f"{mode}, {part.sentence()}"
            assert attack.excess_of_trajectories() <= 0, f"{mode}, {part.sentence()}"
            if not part.map_matrices:
                assert _excess_of_held_matrices(part, seed) <= 1e-9, f"{mode}, {part.sentence()}"
            else:
                added = any(isinstance(one, CoRNNCell) for one in running_module.modules())
                assert excess_of_held_maps(part, seed, added) <= 1e-9, f"{mode}, {part.sentence()}"
    return held_parts


def _excess_of_held_matrices(part: Certificate, seed: int) -> float:
    """Optimised slopes in float64 against the matrices in every form in which a kernel may hold them."""
    rng = np.random.default_rng(seed)
    low, high = part.slopes
    setting = Setting(part.dynamics, part.step_range)
    worst = -math.inf
    for A, W in forms(part.A, part.W, part.alpha, part.precision):
        growth = worst_growth(A + low * W, (high - low) * W, setting, rng, metric=part.metric, starts=1)
        longest, ranged = part.step_range[1], part.step_range[0] < part.step_range[1]
        shortest = max(part.step_range[0], 1e-3 * longest)
        claim = math.log1p(-part.rate * shortest) if ranged else math.log(part.factor)
        worst = max(worst, growth - claim)
    return worst


def excess_of_held_maps(part: Certificate, seed: int, added: bool = False) -> float:
    """Coordinate ascent over the slopes of F + G (I − D E)⁻¹ D C, as given and rounded at random.

    ``added``: the step adds to the state, so that the ones of F are not held anywhere.
    """
    rng = np.random.default_rng(seed)
    units = {"high": 2.0**-10, "medium": 2.0**-8, "bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
    unit = units.get(part.precision, 2.0**-53)
    root = np.linalg.cholesky(part.metric)
    worst = -math.inf
    for share in (0.0, 0.9 * unit):
        whole = np.eye(len(part.metric)) if added else 0.0
        parts = (part.map_matrices[0] - whole, *part.map_matrices[1:])
        F, G, C, E = (matrix * (1 + share * rng.choice([-1, 1], matrix.shape)) for matrix in parts)
        F = F + whole

        def stretch(slopes: np.ndarray, held: tuple[np.ndarray, ...] = (F, G, C, E)) -> float:
            F, G, C, E = held
            J = F + G @ np.linalg.solve(np.eye(len(E)) - slopes[:, None] * E, slopes[:, None] * C)
            return float(np.linalg.norm(np.linalg.solve(root, (root.T @ J).T), 2))

        for _ in range(4):
            slopes = rng.integers(0, 2, len(C)).astype(float)
            value = stretch(slopes)
            for place in rng.permutation(len(C)):
                flipped = slopes.copy()
                flipped[place] = 1 - slopes[place]
                if (reached := stretch(flipped)) > value:
                    slopes, value = flipped, reached
            worst = max(worst, value - part.factor)
    return worst


def forms(A: np.ndarray, W: np.ndarray, alpha: float, precision: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """αA and W as kernels hold them: multiplied before and after rounding, rounded and cut off."""

    def cast(matrix: np.ndarray, dtype: torch.dtype) -> np.ndarray:
        return torch.from_numpy(matrix).to(dtype).double().numpy()

    def cut(matrix: np.ndarray, bits: int) -> np.ndarray:
        whole = matrix.astype(np.float32).view(np.int32)
        return (whole & np.int32(-(1 << bits))).view(np.float32).astype(float)

    single = torch.float64 if precision in ("exact", "float64") else torch.float32
    linear = cast(alpha * A, single)
    yield alpha * A, W
    yield linear, cast(W, single)
    if precision == "high":
        yield cut(linear, 13), cut(W, 13)
    elif precision == "medium":
        yield cast(linear, torch.bfloat16), cast(W, torch.bfloat16)
        yield cut(linear, 13), cut(W, 13)
    elif precision in ("bfloat16", "float16"):
        half = getattr(torch, precision)
        assert np.array_equal(cast(A, half), A)
        yield cast(linear, half), W


@pytest.mark.parametrize("index", range(len(MODES)))
def test_certified_layers_withstand_the_attack(index: int) -> None:
    modes = list(MODES)
    assert (
        attacked(draw(index), modes[index % len(modes)], index) + attacked(draw(index + 8), "parameters float32", 1) > 0
    )


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
def test_certified_layers_withstand_the_attack_in_every_mode(mode: str) -> None:
    """20 draws, all layers and directions."""
    assert sum(attacked(draw(index), mode, index) for index in range(20)) >= 10


@pytest.mark.parametrize("integrator", ["euler", "midpoint", "heun"])
def test_ranges_of_steps_withstand_the_attack(integrator: str) -> None:
    module = draw(2, integrator=integrator, nonlinearity="tanh", num_layers=2, alpha=1.3, gamma=(3.0, 0.1))
    assert attacked(module, "parameters float32", 0, steps=(0.0, 0.2)) == 2


@pytest.mark.full
@pytest.mark.parametrize("integrator", ["euler", "midpoint", "heun"])
def test_more_ranges_of_steps_withstand_the_attack(integrator: str) -> None:
    held_parts = 0
    for index in range(20):
        options = {} if index % 4 == 3 else {"integrator": integrator}
        steps = (0.0, 0.03) if index % 4 == 3 else (0.01, 0.2)
        module = draw(index, **options)
        if module.integrator != "rk4":
            held_parts += attacked(module, list(MODES)[index % len(MODES)], index, steps)
    assert held_parts > 5


def test_cells_withstand_the_attack() -> None:
    torch.manual_seed(0)
    cell = lr.LipschitzRNNCell(2, 4, gamma=(2.0, 0.1), alpha=0.7, step_size=0.1, integrator="midpoint", init_scale=2.0)
    assert attacked(cell, "parameters float32", 0) == 1
    assert attacked(cell, "parameters float32", 0, steps=(0.02, 0.15)) == 1


def refused(name: str, index: int) -> None:
    rng = np.random.default_rng(index)
    torch.manual_seed(index)
    options: dict[str, Any] = {"num_layers": int(rng.integers(1, 3)), "bidirectional": bool(rng.integers(0, 2))}
    for option in set(info(name).options()) & {"step_size", "alpha", "gamma"}:
        options[option] = float(rng.uniform(0.05, 0.9))
    size = 4 * int(rng.integers(1, 3))
    module = build(name, 2, size, **options)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(float(10.0 ** rng.uniform(-2, 1)))
    with pytest.raises(UnstatedRecurrenceError, match="does not state its recurrence"):
        certify(module, time_limit=1.0)


@pytest.mark.parametrize("name", UNSTATED)
def test_other_units_are_refused_whatever_their_parameters(name: str) -> None:
    for index in range(2):
        refused(name, index)


@pytest.mark.full
@pytest.mark.parametrize("name", UNSTATED)
def test_other_units_are_refused_for_20_draws(name: str) -> None:
    for index in range(20):
        refused(name, index)


def test_the_attack_finds_a_false_certificate() -> None:
    """What was certified for the plain unit is false for the gated one, and by far: the same A, W and step."""
    torch.manual_seed(0)
    gated = build("lipschitz-gated", 2, 4, gamma=(2.0, 0.001), step_size=0.1, init_scale=8.0)
    A, W = gated.cell().hidden_matrices()
    false = certify((A, W), step_size=0.1)
    if not false.holds:  # the draw does not matter, as long as there is a claim to break
        A, W = A - 5 * torch.eye(4), W
        false = certify((A, W), step_size=0.1)
    assert false.holds
    attack = Attack(as_step(gated, 0), false, (1, 4, 2), 0, 2.0**-24, torch.float32)
    assert attack.excess_of_jacobians() > 1.0


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
@pytest.mark.parametrize(("integrator", "share"), [("euler", 0.99), ("midpoint", 0.95), ("heun", 0.95)])
def test_the_attack_finds_a_factor_that_is_a_little_too_small(integrator: str, share: float, nonlinearity: str) -> None:
    """Stages have slopes of their own in a proof, but never quite in one short step: there the claim is less sharp."""
    for index in range(2):
        torch.manual_seed(index)
        options: dict[str, Any] = {"integrator": integrator, "nonlinearity": nonlinearity}
        module = lr.LipschitzRNN(2, 2 + index, gamma=2.0, step_size=0.1, **options)
        true = certify(module)
        assert true.factor is not None
        attack = Attack(as_step(module, 0), true, (1, 2 + index, 2), 0, 2.0**-24, torch.float32, rounds=8)
        assert attack.excess_of_jacobians() <= 0
        attack.certificate = replace(true, factor=share * true.factor)
        assert attack.excess_of_jacobians() > 0


@pytest.mark.parametrize("integrator", ["euler", "midpoint"])
def test_trajectories_show_a_factor_that_is_one_percent_too_small(integrator: str) -> None:
    """A linear unit turns every difference towards its slowest direction, where the claim is sharp."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"gamma": 0.5, "step_size": 0.1, "nonlinearity": "identity", "init_scale": 1.0}
    module = lr.LipschitzRNN(2, 3, integrator=integrator, **options).double()
    true = certify(module)
    attack = Attack(as_step(module, 0), true, (1, 3, 2), 0, 2.0**-53, torch.float64)
    assert attack.excess_of_trajectories() <= 0
    attack.certificate = replace(true, factor=0.99 * true.factor)
    assert attack.excess_of_trajectories() > 0


@pytest.mark.parametrize("name", sorted(set(MODES.values())))
def test_held_matrices_lie_in_the_ball(name: str) -> None:
    """Every form of αA and W, for α of all kinds, and half precision as the scan itself casts it."""
    rng = np.random.default_rng(0)
    precision = as_precision(name)
    for alpha in (1.0, -1.0, 0.5, 1.3, -0.7, 0.0, 3.0):
        dtype = getattr(torch, name, torch.float32)
        A, W = (torch.from_numpy(rng.normal(size=(20, 20))).to(dtype).double().numpy() for _ in range(2))
        balls = held(A, W, alpha, precision)
        for form in forms(A, W, alpha, name):
            for ball, matrix in zip(balls, form, strict=True):
                assert np.all(np.abs(matrix - ball.mid) <= ball.rad)


@pytest.mark.parametrize("mode", MODES)
def test_precision_is_read_where_certify_is_called(mode: str) -> None:
    with running(mode, lr.LipschitzRNN(2, 3, gamma=2.0)) as (module, _, _):
        certificate = certify(module, time_limit=5.0)
        assert certificate.precision == MODES[mode]
        assert certify(module, precision="float64", time_limit=5.0).precision == "float64"
    overflowing = lr.LipschitzRNN(2, 3, gamma=2.0)
    with torch.no_grad():
        overflowing.cell().hidden.M_A.mul_(0).add_(1e6)
    with pytest.raises(ValueError, match="float16 cannot hold"):
        certify(overflowing, precision="float16")
