"""The kernels for states in pairs: their error is at most three times that of PyTorch's own operations."""

from __future__ import annotations

import pytest
import torch
from kernel_results import DTYPES, Shape, error
from modrelu_cases import captured_on_a_gpu, check, check_through_vmap_and_autograd, stacked_tensors
from torch import Tensor

from lipschitz_rnn.ops.common.precision import float32_products
from lipschitz_rnn.ops.modrelu.gradients import gradients
from lipschitz_rnn.ops.modrelu.reference import reference
from lipschitz_rnn.ops.modrelu.triton import launch as kernels

pytestmark = pytest.mark.usefixtures("kernels", "way")

# S, T, B, N, with N pairs.
SHAPES = [
    (1, 1, 1, 1),
    (2, 4, 3, 33),
    (1, 2, 9, 131),
    *(pytest.param(shape, marks=pytest.mark.full) for shape in ((1, 3, 5, 7), (3, 2, 17, 20), (1, 16, 2, 8))),
]


@pytest.fixture(params=["one kernel", "two each step"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Either way of the scan; above 128 units there is only the second."""
    if request.param == "two each step":
        monkeypatch.setattr(kernels, "resident_precision", lambda *_: None)
    return request.param


def tensors(shape: Shape, device: torch.device, inputs: torch.dtype = torch.float32) -> list[Tensor]:
    return stacked_tensors(shape, device, inputs, width=2, growth=0.6)  # no growth, which would magnify roundings


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "S{}-T{}-B{}-N{}".format(*shape))
@pytest.mark.parametrize("dtypes", DTYPES.values(), ids=DTYPES.keys())
def test_kernels(shape: Shape, dtypes: tuple[torch.dtype, torch.dtype], device: torch.device) -> None:
    of_inputs, compute = dtypes
    exact = tensors(shape, device, of_inputs)
    *problem, grads = [exact[0].to(of_inputs), *(tensor.float() for tensor in exact[1:])]
    own: list[Tensor] = []
    plain = reference(*problem, compute, own)
    wide: list[Tensor] = []
    truth = reference(*exact[:4], torch.float64, wide)
    states, z = kernels.scan_forward(*problem, compute, True)
    tape = torch.stack(wide, 1)
    check([states, z], [plain, torch.stack(own, 1)], [truth, tape], compute)
    only, nothing = kernels.scan_forward(*problem, compute, False)
    assert torch.equal(only, states)
    assert nothing.numel() == 0

    # All from the same z: one that two walks round to different sides of a kink has two right gradients.
    needs, at = (True,) * 4, tape.float()
    found = gradients(needs, *problem, at, grads, compute, "triton")
    loop = gradients(needs, *problem, at, grads, compute, "torch")
    true = gradients(needs, *exact[:4], tape, exact[4], torch.float64, "torch")
    assert found[0].dtype == of_inputs
    assert all(gradient.dtype == torch.float32 for gradient in found[1:])
    check(found, loop, true, compute)
    some = gradients((True, False, True, False), *problem, at, grads, compute, "triton")
    assert some[1] is None
    assert some[3] is None
    assert torch.equal(some[0], found[0])
    assert torch.equal(some[2], found[2])


def test_the_edges_of_modrelu(device: torch.device) -> None:
    """Zero, dead, exactly at the kink, NaN in either part, and moduli whose squares leave float32 at both ends."""
    nan = float("nan")
    real = torch.tensor([0.0, 0.0, 5.0, 0.3, nan, 0.0, 3e30, 3e-30, 1e-8, 3.0])
    imaginary = torch.tensor([0.0, -0.0, 0.0, 0.4, 0.0, nan, -4e30, 4e-30, 0.0, 4.0])
    bias = torch.tensor([0.5, -0.5, -5.0, -0.6, 0.1, 0.1, 1.0, 0.0, 10.0, -2.0])
    size = len(bias)
    u = torch.cat([real, imaginary]).view(1, 1, 1, 2 * size).to(device)
    W, h0 = torch.zeros(1, 2 * size, size, device=device), torch.zeros(1, 1, 2 * size, device=device)
    own = bias.view(1, size).to(device)
    states, z = kernels.scan_forward(u, W, own, h0, torch.float32, True)
    wide = [tensor.double().cpu() for tensor in (u, W, own, h0)]
    truth = reference(*wide, torch.float64)
    torch.testing.assert_close(states.double().cpu(), truth, equal_nan=True, rtol=3e-6, atol=1e-40)
    grads = torch.arange(1.0, 2 * size + 1, device=device).view_as(states)
    found = gradients((True,) * 4, u, W, own, h0, z, grads, torch.float32, "triton")
    exact = gradients((True,) * 4, *wide, wide[0], grads.double().cpu(), torch.float64, "torch")
    for index in (0, 2, 3):
        torch.testing.assert_close(found[index].double().cpu(), exact[index], equal_nan=True, rtol=1e-5, atol=1e-6)
    assert found[0].flatten()[[1, 2, 3, size + 1, size + 2, size + 3]].tolist() == [0.0] * 6
    assert found[0].isnan().sum() == 4


def test_small_moduli_under_large_biases_keep_their_digits(device: torch.device) -> None:
    """The slope along z is 1 while that across it is 10⁴: a difference of the two would have three digits left."""
    angle = torch.linspace(0.0, 6.0, 40, dtype=torch.float64)
    z = torch.cat([1e-2 * angle.cos(), 1e-2 * angle.sin()]).float().to(device).view(1, 1, 1, 80)
    bias = torch.full((1, 40), 100.0, device=device)
    W, h0 = torch.zeros(1, 80, 40, device=device), torch.zeros(1, 1, 80, device=device)
    problem = (z, W, bias, h0, z, z / 1e-2)  # the gradient points along z
    found, true = (
        gradients((True,) * 4, *given, dtype, backend)
        for given, dtype, backend in (
            (problem, torch.float32, "triton"),
            ([tensor.double() for tensor in problem], torch.float64, "torch"),
        )
    )
    torch.testing.assert_close(found[2].double(), true[2], rtol=3e-6, atol=0.0)
    along = [sum(part for part in (z.double() * d.double()).chunk(2, -1)) for d in (found[0], true[0])]
    torch.testing.assert_close(*along, rtol=1e-5, atol=0.0)


def test_networks_may_share_inputs_and_lie_anywhere(device: torch.device) -> None:
    inputs, W, bias, h0, grads = (tensor.float() for tensor in tensors((3, 4, 5, 7), device))
    wanted, z = kernels.scan_forward(inputs, W, bias, h0, torch.float32, True)
    turned_back = W.mT.contiguous().mT
    for layout in (inputs.transpose(0, 1).contiguous().transpose(0, 1), inputs.mT.contiguous().mT):
        assert torch.equal(kernels.scan_forward(layout, turned_back, bias, h0, torch.float32, False)[0], wanted)
    shared = inputs[:1].expand(3, -1, -1, -1)
    same = kernels.scan_forward(shared.contiguous(), W, bias, h0, torch.float32, False)[0]
    assert torch.equal(kernels.scan_forward(shared, W, bias, h0, torch.float32, False)[0], same)
    expanded = grads[:, :1, :1, :1].expand_as(grads)  # what sum().backward() hands over
    pair = [
        kernels.scan_backward(z, bias, g, W, torch.float32, torch.float32, None)
        for g in (expanded, expanded.contiguous())
    ]
    assert all(torch.equal(one, other) for one, other in zip(*pair, strict=True))


def test_high_precision_is_better_than_tf32(device: torch.device, way: str) -> None:
    """Two parts of every entry have 16 bits, and TF32 has 11."""
    exact = tensors((2, 6, 9, 40), device)
    *problem, grads = [tensor.float() for tensor in exact]
    wide: list[Tensor] = []
    truth = reference(*exact[:4], torch.float64, wide)
    with float32_products("high"):
        if way == "one kernel":
            assert kernels.resident_precision(40, torch.float32, device) == "bf16x3"
            assert kernels.resident_precision(128, torch.float32, device) == "bf16x3"
        states, _ = kernels.scan_forward(*problem, torch.float32, True)
        found = gradients((True,) * 4, *problem, torch.stack(wide, 1).float(), grads, torch.float32, "triton")
    true = gradients((True,) * 4, *exact[:4], torch.stack(wide, 1), exact[4], torch.float64, "torch")
    limit = 2.0**-14 if device.type == "cpu" else 2.0**-10  # on a GPU the gradient of W takes TF32 in either case
    for one, other in zip((states, *found), (truth, *true), strict=True):
        assert error(one, other) < limit


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
def test_through_vmap_and_autograd(autocast: bool, device: torch.device) -> None:
    *exact, weight = tensors((2, 3, 4, 9), device)
    check_through_vmap_and_autograd(exact, weight, autocast)


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device; the kernels run in the interpreter here"
)
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 30, 128, 180), (3, 30, 128, 128), (3, 17, 33, 51)], ids=["one", "table", "odd"])
def test_a_captured_graph_agrees_with_float64_on_the_cpu(shape: Shape, autocast: bool) -> None:
    *exact, weight = tensors(shape, torch.device("cpu"))
    unitary = torch.linalg.qr(torch.complex(*exact[1].chunk(2, 1)))[0]
    exact[1] = torch.cat([unitary.real, unitary.imag], 1).float().double()
    # Of a million pairs a few come so close to the kink of modReLU that rounding decides about their slope.
    least = torch.finfo(torch.bfloat16).eps if autocast else 1e-3
    for captured, plain, truth in zip(*captured_on_a_gpu(exact, weight, autocast), strict=True):
        assert error(captured, truth) <= 3 * max(error(plain, truth), least)
