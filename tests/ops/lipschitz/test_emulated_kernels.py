"""The CUDA kernels on an emulated machine, against the reference in float64: see ``emulated_kernels``."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
import torch
from emulated_kernels import EmulatorError, emulated
from test_kernels import Case, check

from lipschitz_rnn.ops.common import cublas
from lipschitz_rnn.ops.lipschitz.cuda import launch
from lipschitz_rnn.ops.lipschitz.cuda.plan import CLUSTERS, CudaPlan, Kernel, block_plan
from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme

__all__ = ["emulated"]
pytestmark = pytest.mark.usefixtures("kernels")

Choose = Callable[[CudaPlan], None]
CPU = torch.device("cpu")
ROOM = 227 * 1024
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "medium": "bf16", "high": "bf16x3", "highest": "bf16x6"}
ALONE = (1, 8)  # one block, and what it always has: 8 samples
SHAPES = (ALONE, *(shape[:2] for shape in CLUSTERS))


def plan_of(case: Case, shape: tuple[int, int]) -> CudaPlan:
    """A plan of ``shape`` blocks and samples, whether or not a GPU would choose it for this case."""
    precision, N = PRECISIONS[case.precision], case.hidden
    kernel = Kernel(len(get_integrator(case.integrator)), case.dtype.itemsize)
    if shape == ALONE:
        found = block_plan(N, precision, kernel, ROOM)
        assert found is not None
        return found
    (blocks, samples), depth = shape, -(-N // 32) * 32
    plan = CudaPlan(precision, blocks, 2 * -(-depth // (16 * blocks)), depth, samples)
    assert plan.fits(ROOM, kernel)
    return plan


@pytest.mark.parametrize(
    ("shape", "case"),
    [
        (ALONE, Case(11, 10, 72, precision="bfloat16", one_feature=True)),  # further than memory is fetched ahead
        (ALONE, Case(3, 9, 21, networks=2, integrator="midpoint", precision="high", timespans=True)),
        ((2, 16), Case(3, 20, 20, precision="bfloat16", one_feature=True, timespans=True)),
        ((4, 8), Case(3, 9, 33, networks=2, integrator="midpoint", precision="highest", lengths=True)),
        ((8, 16), Case(2, 18, 40, integrator="rk4", nonlinearity="sigmoid", precision="float16", timespans=True)),
        ((12, 24), Case(3, 27, 50, precision="bfloat16", one_feature=True)),
        pytest.param((8, 16), Case(2, 17, 512, precision="float16", timespans=True), marks=pytest.mark.full),
        pytest.param((12, 24), Case(2, 26, 750, precision="bfloat16", one_feature=True), marks=pytest.mark.full),
    ],
    ids=str,
)
def test_values_and_gradients(shape: tuple[int, int], case: Case, emulated: Choose) -> None:
    emulated(plan_of(case, shape))
    check(case, CPU)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(28))
def test_random_cases(seed: int, emulated: Choose) -> None:
    draw, shape = random.Random(seed), SHAPES[seed % len(SHAPES)]
    most = 130 if shape == ALONE else 70
    precision = draw.choice(["bfloat16", "float16", "medium", "high"])
    # Where z is next to zero, the slope of relu depends on its last bit, which half precision does not settle.
    nonlinearities = ["tanh", "tanh", "sigmoid", "identity", *["relu"] * (precision == "high")]
    case = Case(
        steps=draw.randint(1, 12 if shape == ALONE else 4),
        batch=draw.randint(1, shape[1] + 10),
        hidden=draw.randint(3, most),  # a single number that cancels has no relative error to speak of
        networks=draw.randint(1, 2),
        integrator=draw.choice(["euler", "euler", "midpoint", "heun", "rk4"]),
        nonlinearity=draw.choice(nonlinearities),
        alpha=draw.choice([1.0, 0.7]),
        one_feature=draw.random() < 0.5,
        timespans=draw.random() < 0.5,
        lengths=draw.random() < 0.3,
        precision=precision,
    )
    emulated(plan_of(case, shape))
    check(case, CPU)


@pytest.mark.parametrize("shape", [ALONE, (2, 16)])
def test_nothing_is_written_behind_the_units_of_a_row(
    shape: tuple[int, int], emulated: Choose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """κ and d in rows that are wider than they are, as cuBLAS wants them."""
    S, T, B, N = 2, 3, 10, 20
    case = Case(T, B, N, networks=S, precision="bfloat16")
    plan = plan_of(case, shape)
    emulated(plan)
    generator = torch.Generator().manual_seed(0)
    normal = partial(torch.randn, generator=generator, dtype=torch.bfloat16)
    drive, tape, grads = normal(S, T, B, N), normal(S, T, 2, B, N), normal(S, T, B, N)
    matrices = normal(S, 1, plan.padded, 2 * plan.padded)
    A = torch.zeros(S, N, N, dtype=torch.bfloat16)
    problem = Problem(drive, A, A, None, None, None, None, Scheme(0.1, 1.0, "euler", "tanh"))

    def kappa_d(width: int) -> torch.Tensor:
        monkeypatch.setattr(launch, "gradient_width", lambda *_: width)
        found, _, _ = launch.scan_backward(problem, plan, matrices, tape, grads, grads[:, 0], None)
        return found.unflatten(-1, (2, width))

    assert cublas.gradient_width(N, torch.bfloat16) == N
    narrow, wide = kappa_d(N), kappa_d(24)
    assert torch.equal(wide[..., :N], narrow)
    assert wide[..., N:].isnan().all()  # as fresh memory is in these tests


FAULTS = {
    "a block waits for fewer bytes than it is sent": ("PARTS * 8 * COLUMNS * 2)", "PARTS * 8 * COLUMNS * 2 - 16)"),
    "a barrier's phase is mistaken": ("(phase >> 1) & 1", "phase & 1"),
    "two stages share a buffer": ("target + (turn & 1) * bytes + part", "target + part"),
    "a group reads another's samples": ("(turn & 1) * bytes + 8 * group * row_bytes;", "(turn & 1) * bytes;"),
    "inputs are taken before they arrive": ("arrived<(FAR - 1) * STAGES - 1>()", "arrived<FAR * STAGES>()"),
    "what does not exist is read": ("first[0] = WHOLE || unit < N", "first[0] = true"),
}


@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=[pytest.mark.full] * (i > 1)) for i, name in enumerate(FAULTS)]
)
def test_a_planted_fault_is_found(fault: str, emulated: Choose, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = FAULTS[fault]
    original = launch.source

    def source(name: str, cluster: int) -> str:
        text = original(name, cluster)
        return text.replace(right, wrong)

    alone = "arrive" in fault
    assert right in original("backward", 1 if alone else 2)
    monkeypatch.setattr(launch, "source", source)
    case = Case(12 if alone else 4, 30, 24, precision="bfloat16")
    emulated(plan_of(case, ALONE if alone else (2, 16)))
    with pytest.raises(AssertionError):
        check(case, CPU)


def test_a_kernel_may_touch_nothing_but_its_tensors(emulated: Choose, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(Case(1, 8, 16, precision="bfloat16"), (2, 16))
    emulated(plan)
    text = launch.source("forward", 2)
    monkeypatch.setattr(launch, "source", lambda *_: text.replace("p.last + at.network", "p.last - 2 + at.network"))
    zeros = torch.zeros(1, 16, 16, dtype=torch.bfloat16)
    problem = Problem(zeros[None], zeros, zeros, None, None, None, None, Scheme(0.1, 1.0, "euler", "tanh"))
    with pytest.raises(EmulatorError, match="outside of all tensors"):
        launch.scan_forward(problem, plan, torch.zeros(2 * plan.padded**2), zeros[None, None], True, False, False)
