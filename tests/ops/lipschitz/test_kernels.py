"""The fused kernels against the reference in float64, values and all gradients.

A kernel's error may be at most three times the error of the plain PyTorch loop at the same precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops.common.precision import float32_products

pytestmark = pytest.mark.usefixtures("kernels")


@dataclass(frozen=True)
class Case:
    steps: int
    batch: int
    hidden: int
    networks: int = 1
    integrator: str = "euler"
    nonlinearity: str = "tanh"
    alpha: float = 1.0
    one_feature: bool = False
    timespans: bool = False
    lengths: bool = False
    precision: str = "highest"
    scale: float = 1.0

    def __str__(self) -> str:
        name = f"S{self.networks}-T{self.steps}-B{self.batch}-N{self.hidden}-{self.integrator}-{self.nonlinearity}"
        flags = [flag for flag in ("one_feature", "timespans", "lengths") if getattr(self, flag)]
        return "-".join([name, self.precision, *flags] + ([f"x{self.scale:g}"] if self.scale != 1.0 else []))

    @property
    def dtype(self) -> torch.dtype:
        return {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(self.precision, torch.float32)


SMALL = [
    Case(1, 1, 1),
    Case(1, 3, 5, one_feature=True),
    Case(2, 17, 5, networks=2, alpha=0.7),
    Case(5, 3, 32, integrator="midpoint", timespans=True),
    Case(4, 17, 20, networks=2, integrator="heun", nonlinearity="relu", one_feature=True),
    Case(3, 5, 64, integrator="rk4", nonlinearity="sigmoid", lengths=True),
    Case(6, 2, 16, nonlinearity="identity", timespans=True, one_feature=True, lengths=True),
    Case(3, 3, 100, precision="high"),
    Case(3, 18, 40, precision="high", integrator="midpoint", one_feature=True),  # two tiles, of sixteen samples
    Case(3, 18, 40, one_feature=True),
    Case(2, 18, 100, integrator="midpoint"),
    Case(4, 3, 33, precision="bfloat16", one_feature=True),
    Case(4, 3, 24, precision="float16", integrator="midpoint"),
    Case(3, 4, 24, precision="medium"),
    Case(3, 8, 100, precision="bfloat16", integrator="midpoint", timespans=True),  # from here on matrices in registers
    Case(4, 5, 64, precision="bfloat16", one_feature=True, lengths=True),
    Case(2, 3, 72, precision="float16", integrator="rk4", one_feature=True, networks=2),
    Case(3, 2, 128, precision="medium", integrator="heun", nonlinearity="relu", alpha=0.7),
    Case(2, 2, 130),  # more units than one multiprocessor holds
    Case(2, 18, 140, integrator="midpoint", precision="bfloat16", one_feature=True, timespans=True),
    Case(3, 4, 20, scale=1e4),
    Case(3, 4, 20, scale=1e4, precision="bfloat16"),
]

LARGE = (
    [
        Case(
            steps, batch, hidden, networks=networks, integrator=integrator, one_feature=one_feature, precision=precision
        )
        for steps, batch, hidden, networks, integrator, one_feature in [
            (1, 1, 1, 1, "euler", True),
            (2, 3, 5, 1, "midpoint", False),
            (63, 17, 32, 2, "euler", True),
            (784, 128, 64, 1, "euler", True),
            (63, 17, 100, 1, "midpoint", False),
            (784, 128, 128, 1, "euler", True),
            (63, 128, 128, 12, "euler", True),
            (63, 33, 128, 1, "midpoint", True),
            (63, 17, 200, 1, "euler", False),
            (63, 128, 256, 2, "euler", True),
            (63, 17, 256, 1, "midpoint", False),
            (20, 40, 750, 1, "euler", False),
        ]
        for precision in ("highest", "high", "bfloat16")
    ]
    + [
        Case(63, 33, hidden, integrator=integrator, one_feature=True, precision=precision)
        for hidden, integrator, precision in [
            (128, "euler", "medium"),
            (100, "midpoint", "medium"),
            (64, "midpoint", "bfloat16"),
            (128, "midpoint", "float16"),
            (128, "rk4", "bfloat16"),
            # on clusters of multiprocessors, where a GPU has them
            (129, "euler", "float16"),
            (256, "rk4", "bfloat16"),
            (256, "heun", "medium"),
            (321, "midpoint", "float16"),
            (384, "midpoint", "high"),
            (512, "euler", "bfloat16"),
            (751, "midpoint", "bfloat16"),
        ]
    ]
    + [
        Case(20, 128, 256, networks=8, precision="bfloat16", one_feature=True),
        Case(20, 30, 256, precision="highest", nonlinearity="sigmoid", timespans=True),
        Case(20, 30, 200, precision="bfloat16", nonlinearity="relu", timespans=True, lengths=True, networks=2),
        Case(20, 30, 100, precision="high", integrator="midpoint", timespans=True),
        Case(20, 30, 256, precision="float16", nonlinearity="identity", alpha=0.7),
    ]
)


def tensors(case: Case, device: torch.device) -> dict[str, Tensor]:
    """In float64, but with values that the case's own dtype holds exactly."""
    generator = torch.Generator().manual_seed(0)
    S, T, B, N = case.networks, case.steps, case.batch, case.hidden

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        drawn = torch.randn(*shape, generator=generator, dtype=torch.float64) * scale
        return drawn.to(case.dtype).double().to(device)

    made = {
        "u": normal(S, T, B, 1 if case.one_feature else N, scale=case.scale),
        "A": normal(S, N, N, scale=0.5 / N**0.5) - 0.5 * torch.eye(N, dtype=torch.float64, device=device),
        "W": normal(S, N, N, scale=0.5 / N**0.5),
        "hx": normal(S, B, N),
    }
    if case.one_feature:
        made |= {"input_weight": normal(S, N, 1), "bias": normal(S, N)}
    made["A"] = made["A"].to(case.dtype).double()
    return made


def results(case: Case, device: torch.device, backend: str, dtype: torch.dtype) -> list[Tensor]:
    """States, last state, and the gradient of every tensor."""
    leaves = {name: tensor.to(dtype).requires_grad_() for name, tensor in tensors(case, device).items()}
    generator = torch.Generator().manual_seed(1)
    spans = torch.rand(case.steps, case.batch, generator=generator).to(device) * 0.2
    options: dict[str, Any] = {"step_size": spans.to(torch.float32 if dtype != torch.float64 else dtype)}
    if not case.timespans:
        options["step_size"] = 0.1
    if case.lengths:
        options["lengths"] = torch.randint(1, case.steps + 1, (case.batch,), generator=generator)
    states, last = lipschitz_scan(
        **leaves,
        **options,
        alpha=case.alpha,
        integrator=case.integrator,
        nonlinearity=case.nonlinearity,
        backend=backend,
    )
    assert states is not None
    weight = torch.randn(states.shape, generator=generator, dtype=torch.float64).to(device, dtype)
    gradients = torch.autograd.grad((states * weight).sum() + last.sum(), list(leaves.values()))
    return [states.detach(), last.detach(), *gradients]


def error(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm().clamp_min(1e-30))


def check(case: Case, device: torch.device) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(case.precision if case.precision in ("high", "medium") else "highest")
    try:
        truth = results(case, device, "reference", torch.float64)
        kernel = results(case, device, "triton", case.dtype)
        plain = results(case, device, "reference", torch.bfloat16 if case.precision == "medium" else case.dtype)
    finally:
        torch.set_float32_matmul_precision(before)
    # One unit in the last place: where the plain loop happens to be exact, a few roundings must not count as an error.
    # "high" promises 11 bits, or the 16 of two bfloat16; on a CPU PyTorch takes all 24 whatever the setting.
    floor = torch.finfo(torch.bfloat16 if case.precision == "medium" else case.dtype).eps
    if case.precision == "high":
        floor = 2.0**-16
    for index, (found, loop, exact) in enumerate(zip(kernel, plain, truth, strict=True)):
        assert found.isfinite().all(), f"result {index} is not finite"
        assert error(found, exact) <= 3 * max(error(loop, exact), floor), f"result {index}"


# The polynomial for small arguments overflows at large ones, where its value is not taken.
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_small(case: Case, device: torch.device) -> None:
    check(case, device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="sizes that only a GPU gets through; the small ones run here")
@pytest.mark.parametrize("case", LARGE, ids=str)
def test_large(case: Case, device: torch.device) -> None:
    check(case, device)


_WIDE = pytest.param(Case(2, 1, 130), marks=pytest.mark.full)  # slow in the interpreter; test_small has the size


@pytest.mark.parametrize("case", [Case(4, 5, 20, one_feature=True, integrator="midpoint"), _WIDE], ids=str)
def test_same_input_same_bits(case: Case, device: torch.device) -> None:
    first, second = (results(case, device, "triton", torch.float32) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="threads that get in each other's way are there on a GPU only"
)
@pytest.mark.parametrize("integrator", ["euler", "midpoint"])
@pytest.mark.parametrize("precision", ["bfloat16", "medium", "high", "highest"])
@pytest.mark.parametrize("hidden", [64, 128, 256])
def test_same_bits_again_and_again(hidden: int, precision: str, integrator: str, device: torch.device) -> None:
    case = Case(200, 128, hidden, one_feature=True, precision=precision, integrator=integrator)
    with float32_products("highest" if precision == "bfloat16" else precision):
        first, *others = (results(case, device, "triton", case.dtype) for _ in range(6))
    assert all(tensor.isfinite().all() for tensor in first)
    assert all(torch.equal(one, two) for other in others for one, two in zip(first, other, strict=True))


def test_inference_stores_nothing_and_agrees(device: torch.device) -> None:
    made = {name: tensor.float() for name, tensor in tensors(Case(6, 3, 20, one_feature=True), device).items()}
    with torch.no_grad():
        none, last = lipschitz_scan(**made, backend="triton", need_output=False)
        states, same = lipschitz_scan(**made, backend="triton")
    assert none is None
    assert states is not None
    assert torch.equal(states[:, -1], same)
    torch.testing.assert_close(last, same)  # another kernel, to the compiler


@pytest.mark.parametrize(("steps", "units"), [(1, 8), (4, 8), pytest.param(3, 130, marks=pytest.mark.full)])
def test_without_a_start_the_state_is_zero(steps: int, units: int, device: torch.device) -> None:
    made = {name: tensor.float() for name, tensor in tensors(Case(steps, 2, units), device).items()}
    zero = torch.zeros_like(made.pop("hx"))

    def outcome(h0: Tensor | None) -> list[Tensor]:
        A, W = (made[name].clone().requires_grad_() for name in "AW")
        states, last = lipschitz_scan(made["u"], A, W, h0, backend="triton")
        assert states is not None
        return [states, last, *torch.autograd.grad(states.sin().sum(), (A, W))]

    for found, expected in zip(outcome(None), outcome(zero), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_nan_stays_nan(device: torch.device) -> None:
    made = {name: tensor.float() for name, tensor in tensors(Case(3, 4, 8), device).items()}
    made["u"][0, 1, 2, :] = float("nan")
    states, _ = lipschitz_scan(**made, backend="triton")
    assert states is not None
    assert states[0, 1:, 2].isnan().all()
    assert states[0, :, [0, 1, 3]].isfinite().all()


def test_second_derivative_goes_through_the_reference(device: torch.device) -> None:
    made = {name: tensor.float() for name, tensor in tensors(Case(3, 2, 5), device).items()}

    def penalty(backend: str) -> Tensor:
        A = made["A"].clone().requires_grad_()
        _, last = lipschitz_scan(made["u"], A, made["W"], made["hx"], backend=backend)
        (gradient,) = torch.autograd.grad(last.sum(), A, create_graph=True)
        (second,) = torch.autograd.grad(gradient.square().sum(), A)
        return second

    torch.testing.assert_close(penalty("triton"), penalty("reference"), rtol=1e-4, atol=1e-6)


def test_what_it_cannot_serve_says_why(device: torch.device) -> None:
    made = tensors(Case(2, 2, 4), device)
    with pytest.raises(ValueError, match=r"'triton'.*torch\.float64"):
        lipschitz_scan(**made, backend="triton")
    single = {name: tensor.float() for name, tensor in made.items()}
    spans = torch.full((2, 2), 0.1, device=device, requires_grad=True)
    with pytest.raises(ValueError, match="step sizes"):
        lipschitz_scan(**single, step_size=spans, backend="triton")
