"""The kernels of the FastGRNN scan: their error is at most three times that of PyTorch's own operations."""

from __future__ import annotations

import pytest
import torch
from fastgrnn_cases import check, outcome, term_sizes
from fastgrnn_cases import stacked_tensors as tensors
from kernel_results import DTYPES, Shape, replayed

from lipschitz_rnn.ops.fastgrnn.gradients import gradients
from lipschitz_rnn.ops.fastgrnn.reference import FastGRNN, reference
from lipschitz_rnn.ops.fastgrnn.triton import kernels as kernels

pytestmark = pytest.mark.usefixtures("kernels")

SHAPES = [(1, 1, 1, 1), (1, 3, 5, 7), (2, 4, 3, 33), (3, 2, 17, 40), (1, 16, 2, 16), (1, 2, 9, 131)]
NEEDS = (True,) * 7


def verify(shape: Shape, of_inputs: torch.dtype, compute: torch.dtype, device: torch.device, scale: float) -> None:
    exact = tensors(shape, device, of_inputs, scale)
    *given, grads = [exact[0].to(of_inputs), *(tensor.float() for tensor in exact[1:])]
    problem = FastGRNN(*given)
    kept: list[torch.Tensor] = []
    own: list[torch.Tensor] = []
    plain, truth = reference(problem, compute, own), reference(FastGRNN(*exact[:7]), torch.float64, kept)
    states, sums = kernels.scan_forward(problem, compute, True)
    s, s_plain = torch.stack(kept, 1), torch.stack(own, 1)
    check([states, sums], [plain, s_plain], [truth, s], compute)
    again, nothing = kernels.scan_forward(problem, compute, False)
    assert torch.equal(again, states)
    assert nothing.numel() == 0

    found = gradients(NEEDS, *problem, states, sums, grads, compute, "triton")
    loop = gradients(NEEDS, *problem, plain, s_plain, grads, compute, "torch")
    true = gradients(NEEDS, *exact[:7], truth, s, exact[7], torch.float64, "torch")
    assert found[0].dtype == of_inputs
    assert all(gradient.dtype == torch.float32 for gradient in found[1:])
    check(found, loop, true, compute, term_sizes(exact[:7], exact[7]))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "S{}-T{}-B{}-N{}".format(*shape))
@pytest.mark.parametrize("dtypes", DTYPES.values(), ids=DTYPES.keys())
def test_kernels(shape: Shape, dtypes: tuple[torch.dtype, torch.dtype], device: torch.device) -> None:
    verify(shape, *dtypes, device, 1.0)


def test_saturated_gates(device: torch.device) -> None:
    verify((2, 4, 3, 33), torch.float32, torch.float32, device, 300.0)


def test_huge_inputs_and_nan(device: torch.device) -> None:
    exact = tensors((1, 1, 1, 3), device)
    *given, grads = (tensor.float() for tensor in exact)
    given[0] = torch.tensor([1e3, -1e3, float("nan")], device=device).view(1, 1, 1, 3)
    problem = FastGRNN(*given)
    states, sums = kernels.scan_forward(problem, torch.float32, True)
    torch.testing.assert_close(states, reference(problem, torch.float32), equal_nan=True)
    d = kernels.scan_backward(problem, states, sums, grads, torch.float32)[0].flatten()
    assert d[:2].tolist() == [0.0, 0.0]
    assert d[2].isnan()


def test_networks_may_share_givenand_lie_anywhere(device: torch.device) -> None:
    *given, grads = (tensor.float() for tensor in tensors((3, 4, 5, 7), device))
    problem = FastGRNN(*given)
    inputs, turned = problem.inputs, problem.W.mT.contiguous().mT
    wanted, sums = kernels.scan_forward(problem, torch.float32, True)
    for layout in (inputs.transpose(0, 1).contiguous().transpose(0, 1), inputs.mT.contiguous().mT):
        assert torch.equal(
            kernels.scan_forward(problem._replace(inputs=layout, W=turned), torch.float32, False)[0], wanted
        )
    shared = FastGRNN(*(tensor[:1].expand_as(tensor) for tensor in problem))._replace(W=problem.W)
    copied = FastGRNN(*(tensor.contiguous() for tensor in shared))
    one, other = (kernels.scan_forward(each, torch.float32, False)[0] for each in (shared, copied))
    assert torch.equal(one, other)
    expanded = grads[:, :1, :1, :1].expand_as(grads)  # what sum().backward() hands over
    results = [
        kernels.scan_backward(problem, wanted, sums, g, torch.float32) for g in (expanded, expanded.contiguous())
    ]
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
def test_through_vmap_and_autograd(autocast: bool, device: torch.device) -> None:
    *exact, weight = tensors((2, 3, 4, 9), device)
    wide = [tensor.detach().requires_grad_() for tensor in exact]
    leaves = [tensor.float().requires_grad_() for tensor in exact]
    truth, plain = outcome(wide, weight, "torch"), outcome(leaves, weight, "torch", autocast)
    found, again = (outcome(leaves, weight, "triton", autocast) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    sizes = {index + 1: size for index, size in term_sizes(exact, weight).items()}  # after the states
    check(found, plain, truth, torch.bfloat16 if autocast else torch.float32, sizes)
    # Each of the stacked networks alone; products of one may be added up in another order than those of several.
    for network in range(2):
        alone = outcome(
            [leaf[network : network + 1] for leaf in leaves], weight[network : network + 1], "triton", autocast
        )
        for one, together in zip(alone, found, strict=True):
            torch.testing.assert_close(one[0], together[network], rtol=1e-2 if autocast else 1e-5, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device; the kernels run in the interpreter here"
)
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 30, 4, 229), (3, 17, 33, 101)], ids=["one", "three"])
def test_a_captured_graph_agrees_with_float64_on_the_cpu(shape: Shape, autocast: bool) -> None:
    *exact, weight = tensors(shape, torch.device("cpu"))
    sizes = {index + 1: size for index, size in term_sizes(exact, weight).items()}  # after the states
    truth = outcome([tensor.requires_grad_() for tensor in exact], weight, "auto")
    leaves, weight = [tensor.detach().float().cuda().requires_grad_() for tensor in exact], weight.float().cuda()
    plain = outcome(leaves, weight, "torch", autocast)
    captured = replayed(lambda: outcome(leaves, weight, "auto", autocast))
    results = [[result.cpu() for result in results] for results in (captured, plain, truth)]
    check(*results, torch.bfloat16 if autocast else torch.float32, sizes)
