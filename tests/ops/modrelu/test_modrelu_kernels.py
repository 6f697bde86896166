"""The kernels of the scan with modReLU: their error is at most three times that of PyTorch's own operations."""

from __future__ import annotations

import pytest
import torch
from kernel_results import DTYPES, Shape
from modrelu_cases import captured_on_a_gpu, check, check_through_vmap_and_autograd
from modrelu_cases import stacked_tensors as tensors

from lipschitz_rnn.ops.modrelu.gradients import gradients
from lipschitz_rnn.ops.modrelu.reference import reference
from lipschitz_rnn.ops.modrelu.triton import kernels as kernels

pytestmark = pytest.mark.usefixtures("kernels")

SHAPES = [(1, 1, 1, 1), (1, 3, 5, 7), (2, 4, 3, 33), (3, 2, 17, 40), (1, 16, 2, 16), (1, 2, 9, 131)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "S{}-T{}-B{}-N{}".format(*shape))
@pytest.mark.parametrize("dtypes", DTYPES.values(), ids=DTYPES.keys())
def test_kernels(shape: Shape, dtypes: tuple[torch.dtype, torch.dtype], device: torch.device) -> None:
    of_inputs, compute = dtypes
    exact = tensors(shape, device, of_inputs)
    single = [exact[0].to(of_inputs), *(tensor.float() for tensor in exact[1:])]
    *problem, grads = single
    plain = reference(*problem, compute)
    states = kernels.scan_forward(*problem, compute)
    truth = reference(*exact[:4], torch.float64)
    check([states], [plain], [truth], compute)

    # All from the same states: one that two walks round to different sides of zero has two right gradients.
    needs = (True,) * 4
    at = truth.float()
    found = gradients(needs, *problem, at, grads, compute, "triton")
    loop = gradients(needs, *problem, at, grads, compute, "torch")
    true = gradients(needs, *exact[:4], truth, exact[4], torch.float64, "torch")
    assert found[0].dtype == of_inputs
    assert all(gradient.dtype == torch.float32 for gradient in found[1:])
    check(found, loop, true, compute)


def test_states_with_biases_of_both_signs(device: torch.device) -> None:
    """So with jumps: where float64 keeps away from them, float32 takes the same side and differs by rounding only."""
    exact = tensors((2, 5, 3, 21), device)[:4]
    exact[2][:, ::2] *= -1
    inputs, W, bias, h0 = exact
    states = kernels.scan_forward(*(tensor.float() for tensor in exact), torch.float32)
    # |z′ − z| ≤ |W| |h′ − h| + (N + 2) u (|W| |h| + |u|), in any order of the sum; modReLU adds b and rounds once more.
    unit = torch.finfo(torch.float32).eps
    h, bound = h0, torch.zeros_like(h0)
    for step, u in enumerate(inputs.unbind(1)):
        z = h @ W.mT + u
        bound = bound @ W.abs().mT + (W.shape[-1] + 2) * unit * (h.abs() @ W.abs().mT + u.abs())
        b = bias[:, None]
        assert (torch.minimum(z.abs(), (z.abs() + b).abs()) > bound + unit * b.abs()).all()  # no jump or kink is near
        h = z.sign() * (z.abs() + b).relu()
        bound = (bound + 2 * unit * (z.abs() + b.abs())) * (h != 0)
        assert ((states[:, step].double() - h).abs() <= bound).all()
    assert 0 < int((states == 0).sum()) < states.numel() // 2


def test_the_edges_of_modrelu(device: torch.device) -> None:
    nan, inf = float("nan"), float("inf")
    u = torch.tensor([0.0, -0.0, 0.5, -0.5, 0.25, -0.25, nan, inf, -inf], device=device)
    bias = torch.tensor([0.5, 0.5, -0.5, -0.5, -0.5, 0.0, 0.1, -1.0, 1.0], device=device)
    size = len(u)
    W, h0 = torch.zeros(1, size, size, device=device), torch.zeros(1, 1, size, device=device)
    problem = (u.view(1, 1, 1, size), W, bias.view(1, size), h0)
    states = kernels.scan_forward(*problem, torch.float32)
    expected = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, -0.25, nan, inf, -inf], device=device)
    torch.testing.assert_close(states.flatten(), expected, equal_nan=True, rtol=0.0, atol=0.0)
    d, grad_bias = kernels.scan_backward(states, torch.full_like(states, 2.0), W, torch.float32, torch.float32)
    assert d.flatten().tolist() == [0, 0, 0, 0, 0, 2, 2, 2, 2]
    assert grad_bias.flatten().tolist() == [0, 0, 0, 0, 0, -2, 2, 2, -2]


def test_networks_may_share_inputs_and_lie_anywhere(device: torch.device) -> None:
    inputs, W, bias, h0, grads = (tensor.float() for tensor in tensors((3, 4, 5, 7), device))
    time_major = inputs.transpose(0, 1).contiguous().transpose(0, 1)
    turned = inputs.mT.contiguous().mT
    wanted = kernels.scan_forward(inputs, W, bias, h0, torch.float32)
    for layout in (time_major, turned):
        assert torch.equal(kernels.scan_forward(layout, W.mT.contiguous().mT, bias, h0, torch.float32), wanted)
    shared = inputs[:1].expand(3, -1, -1, -1)
    same = kernels.scan_forward(shared.contiguous(), W, bias, h0, torch.float32)
    assert torch.equal(kernels.scan_forward(shared, W, bias, h0, torch.float32), same)
    expanded = grads[:, :1, :1, :1].expand_as(grads)  # what sum().backward() hands over
    pair = [
        kernels.scan_backward(wanted, g, W, torch.float32, torch.float32) for g in (expanded, expanded.contiguous())
    ]
    assert all(torch.equal(one, other) for one, other in zip(*pair, strict=True))


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
def test_through_vmap_and_autograd(autocast: bool, device: torch.device) -> None:
    *exact, weight = tensors((2, 3, 4, 9), device)
    check_through_vmap_and_autograd(exact, weight, autocast)


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device; the kernels run in the interpreter here"
)
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 30, 128, 360), (3, 17, 33, 101)], ids=["one", "three"])
def test_a_captured_graph_agrees_with_float64_on_the_cpu(shape: Shape, autocast: bool) -> None:
    *exact, weight = tensors(shape, torch.device("cpu"))
    exact[1] = torch.linalg.qr(exact[1])[0].float().double()
    check(*captured_on_a_gpu(exact, weight, autocast), torch.bfloat16 if autocast else torch.float32)
