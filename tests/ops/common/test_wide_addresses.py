"""Offsets beyond 2³¹ elements: of strided inputs and gradients, and of everything else a kernel reads and writes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops.fastgrnn import fastgrnn_scan
from lipschitz_rnn.ops.lstm import lstm_scan
from lipschitz_rnn.ops.modrelu import modrelu_scan

pytestmark = pytest.mark.usefixtures("kernels")

# Samples 2³⁰ elements apart: the third one starts at 2³¹. Memory that is never touched takes no room.
FAR_APART = """
import os
os.environ.setdefault("TRITON_INTERPRET", "0" if {device!r} == "cuda" else "1")
import torch
from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops.lstm import lstm_scan

T, B, stride, dtype, device = 2, 3, 2**30, torch.bfloat16, {device!r}
room = torch.empty((B - 1) * stride + 4096, dtype=dtype, device=device)
draw = torch.Generator().manual_seed(0)


def normal(*shape):
    return (0.5 * torch.randn(*shape, generator=draw)).to(device, dtype)


def far(near, offset=0):
    # (T, B, n) with the same values, at the given distance from sample to sample
    return room.as_strided(near.shape, (near.shape[-1], stride, 1), offset).copy_(near)


def agree(names, found, expected):
    for name, one, other in zip(names, found, expected, strict=True):
        assert torch.equal(one, other), (name, one, other)


def lipschitz(N, p, u, grad):
    draw.manual_seed(1)
    A, W, h0 = (normal(*shape).requires_grad_() for shape in ((N, N), (N, N), (B, N)))
    more = dict(input_weight=normal(N, p).requires_grad_(), bias=normal(N).requires_grad_()) if p else {{}}
    states, last = lipschitz_scan(u, A, W, h0, 0.1, backend="triton", **more)
    return states, last, *torch.autograd.grad(states, (A, W, h0, *more.values()), grad)


for N, p in {cases!r}:
    u, grad = normal(T, B, p or N), normal(T, B, N)
    names = ("states", "last", "A", "W", "hx", *(("U", "b") if p else ()))
    agree(names, lipschitz(N, p, far(u), far(grad, 2048)), lipschitz(N, p, u, grad))

N = 16
near = normal(T, B, 1)
U, W, b, h0, c0 = normal(4 * N, 1), normal(4 * N, N), normal(4 * N), normal(B, N), normal(B, N)
results = []
for x in (near, far(near)):
    leaves = [tensor.clone().requires_grad_() for tensor in (U, W, b, h0, c0)]
    states, h, c = lstm_scan(x, *leaves, backend="triton")
    results.append([states, h, c, *torch.autograd.grad(states.sum() + c.sum(), leaves)])
agree(("states", "h", "c", "U", "W", "b", "h0", "c0"), *results)
print("same bits")
"""


@pytest.mark.full
def test_samples_a_billion_elements_apart(device: torch.device) -> None:
    """In a process of its own: 32-bit offsets read, or write, far outside of any memory."""
    if device.type == "cuda" and torch.cuda.mem_get_info()[0] < 8 * 2**30:
        pytest.skip("needs 8 GB of free GPU memory")
    # Units and features: one program for all units, one feature, and units that several programs share.
    program = FAR_APART.format(device=device.type, cases=((20, 0), (20, 1), (130, 0)))
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "same bits"


@pytest.fixture
def always_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel as it is compiled for offsets beyond 2³¹."""
    from lipschitz_rnn.ops.fastgrnn.triton import kernels as fastgrnn
    from lipschitz_rnn.ops.lipschitz.triton import launch
    from lipschitz_rnn.ops.lstm.triton import launch as lstm
    from lipschitz_rnn.ops.modrelu.triton import kernels as modrelu
    from lipschitz_rnn.ops.modrelu.triton import launch as of_pairs
    from lipschitz_rnn.ops.modrelu.triton import pairs

    for module in (fastgrnn, launch, lstm, modrelu, of_pairs, pairs):
        monkeypatch.setattr(module, "beyond_32_bits", lambda *extents: True)


def lipschitz_results(
    N: int, integrator: str, one_feature: bool, dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return (torch.randn(*shape, generator=draw) / 2).to(device, dtype).requires_grad_()

    T, B, S = 2, 3, 1 if N > 128 else 2
    leaves = {"u": normal(S, T, B, 1 if one_feature else N), "A": normal(S, N, N), "W": normal(S, N, N)}
    leaves |= {"hx": normal(S, B, N)}
    if one_feature:
        leaves |= {"input_weight": normal(S, N, 1), "bias": normal(S, N)}
    spans = torch.rand(T, B, generator=draw).to(device)
    states, last = lipschitz_scan(**leaves, step_size=spans, integrator=integrator, backend="triton")
    assert states is not None
    return [states, last, *torch.autograd.grad(states.square().sum() + last.sum(), list(leaves.values()))]


CASES = [
    (20, "midpoint", False, torch.float32),
    (20, "euler", True, torch.float32),
    (64, "euler", True, torch.bfloat16),  # matrices in registers
    pytest.param(130, "euler", True, torch.bfloat16, marks=pytest.mark.full),
]


@pytest.mark.parametrize(("N", "integrator", "one_feature", "dtype"), CASES, ids=str)
def test_64_bit_offsets_change_no_bit(
    N: int, integrator: str, one_feature: bool, dtype: torch.dtype, device: torch.device, request: pytest.FixtureRequest
) -> None:
    plain = lipschitz_results(N, integrator, one_feature, dtype, device)
    request.getfixturevalue("always_wide")
    wide = lipschitz_results(N, integrator, one_feature, dtype, device)
    assert all(torch.equal(one, other) for one, other in zip(plain, wide, strict=True))


@pytest.mark.parametrize("features", [1, 3])
def test_64_bit_offsets_of_the_lstm(features: int, device: torch.device, request: pytest.FixtureRequest) -> None:
    def results() -> list[Tensor]:
        draw = torch.Generator().manual_seed(0)
        N, B, T = 9, 5, 3
        shapes = ((T, B, features), (4 * N, features), (4 * N, N), (4 * N,), (B, N), (B, N))
        leaves = [torch.randn(*shape, generator=draw).to(device, torch.bfloat16).requires_grad_() for shape in shapes]
        states, h, c = lstm_scan(*leaves, backend="triton")
        return [states, h, c, *torch.autograd.grad(states.sum() + h.sum() + c.sum(), leaves)]

    plain = results()
    request.getfixturevalue("always_wide")
    assert all(torch.equal(one, other) for one, other in zip(plain, results(), strict=True))


@pytest.mark.parametrize("units", [8, 4, 132], ids=["real", "in pairs", "in pairs, step by step"])
def test_64_bit_offsets_of_modrelu(units: int, device: torch.device, request: pytest.FixtureRequest) -> None:
    width = units if units == 8 else 2 * units
    shapes = ((3, 5, width), (width, units), (units,), (5, width))

    def results() -> list[Tensor]:
        draw = torch.Generator().manual_seed(0)
        leaves = [torch.randn(*shape, generator=draw).to(device) / shape[-1] ** 0.5 for shape in shapes]
        for leaf in leaves:
            leaf.requires_grad_()
        states = modrelu_scan(*leaves, backend="triton")
        return [states, *torch.autograd.grad(states.square().sum(), leaves)]

    plain = results()
    request.getfixturevalue("always_wide")
    assert all(torch.equal(one, other) for one, other in zip(plain, results(), strict=True))


def test_64_bit_offsets_of_fastgrnn(device: torch.device, request: pytest.FixtureRequest) -> None:
    shapes = ((3, 5, 9), (9, 9), (9,), (9,), (), (), (5, 9))

    def results() -> list[Tensor]:
        draw = torch.Generator().manual_seed(0)
        leaves = [torch.randn(shape, generator=draw).to(device).requires_grad_() for shape in shapes]
        states = fastgrnn_scan(*leaves, backend="triton")
        return [states, *torch.autograd.grad(states.square().sum(), leaves)]

    plain = results()
    request.getfixturevalue("always_wide")
    assert all(torch.equal(one, other) for one, other in zip(plain, results(), strict=True))
