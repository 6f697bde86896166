"""The linear scan against a loop, by PyTorch's operations and by its kernel: values, and derivatives of any order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lipschitz_rnn.ops.linear import linear_scan

Scan = Callable[[Tensor, Tensor, Tensor], Tensor]
SHARED = {
    "one factor": (1, 1, 1),
    "a factor a unit": (1, 1, 5),
    "a factor a state": (1, 3, 5),
    "own factors": (0, 3, 5),
}
SINGLE, DOUBLE = (torch.complex64, torch.float32), (torch.complex128, torch.float64)


def loop(factors: Tensor, added: Tensor, start: Tensor) -> Tensor:
    h, states = start, []
    for t, a in enumerate(added):
        h = factors[0 if len(factors) == 1 else t] * h + a
        states.append(h)
    return torch.stack(states)


def kernel(factors: Tensor, added: Tensor, start: Tensor) -> Tensor:
    return linear_scan(factors, added, start, backend="triton")


def tensors(steps: int, shared: tuple[int, ...], dtype: torch.dtype, device: torch.device, *lead: int) -> list[Tensor]:
    """Factors in the unit disc, what is added, and the start."""
    draw = torch.Generator().manual_seed(steps)
    shapes = [(shared[0] or steps, *shared[1:]), (steps, 3, 5), (3, 5)]
    made = [torch.randn(*lead, *shape, generator=draw, dtype=dtype) for shape in shapes]
    made[0] = made[0] / (1.0 + made[0].abs())
    return [tensor.to(device).requires_grad_() for tensor in made]


def outcome(scan: Scan, leaves: list[Tensor]) -> list[Tensor]:
    """States, gradients, and the gradients of a function of those."""
    states = scan(*leaves)
    first = torch.autograd.grad(states.abs().square().sin().sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(gradient.abs().square().sum() for gradient in first), leaves)
    return [result.detach() for result in (states, *first, *second)]


@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED.keys())
@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 31, 100])
def test_the_parallel_scan_is_the_loop(steps: int, shared: tuple[int, ...], dtype: torch.dtype) -> None:
    leaves = tensors(steps, shared, dtype, torch.device("cpu"))
    for found, expected in zip(outcome(linear_scan, leaves), outcome(loop, leaves), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", SINGLE, ids=str)
@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED.keys())
@pytest.mark.parametrize("steps", [1, 3, 4, 9])
def test_the_kernel_is_the_loop(steps: int, shared: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    leaves = tensors(steps, shared, dtype, device)
    wide = [
        leaf.detach().to(torch.complex128 if dtype.is_complex else torch.float64).requires_grad_() for leaf in leaves
    ]
    found, plain, truth = outcome(kernel, leaves), outcome(loop, leaves), outcome(loop, wide)
    for one, own, exact in zip(found, plain, truth, strict=True):
        error, usual = ((result - exact).norm() / exact.norm().clamp_min(1e-30) for result in (one, own))
        assert float(error) <= 3 * max(float(usual), torch.finfo(torch.float32).eps)
    assert all(torch.equal(one, again) for one, again in zip(found, outcome(kernel, leaves), strict=True))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", SINGLE, ids=str)
@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED.keys())
def test_stacked_scans_are_one_launch(
    shared: tuple[int, ...], dtype: torch.dtype, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lipschitz_rnn.ops.linear.triton import kernels

    seen: list[torch.Size] = []
    scan = kernels.scan
    monkeypatch.setattr(kernels, "scan", lambda f, a, *rest: seen.append(a.shape) or scan(f, a, *rest))
    leaves = tensors(6, shared, dtype, device, 3)
    together = torch.func.vmap(kernel)(*leaves)
    found = [together, *torch.autograd.grad(together.abs().square().sum(), leaves)]
    assert seen == [(3, 6, 3, 5)] * 2  # there and back
    for member in range(3):
        own = [leaf.detach()[member].requires_grad_() for leaf in leaves]
        alone = kernel(*own)
        expected = [alone, *torch.autograd.grad(alone.abs().square().sum(), own)]
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one[member], other, rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("kernels")
def test_any_layout_and_64_bit_offsets(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    from lipschitz_rnn.ops.linear.triton import kernels

    factors, added, start = (leaf.detach() for leaf in tensors(5, (1, 1, 5), torch.complex64, device))
    wanted = kernel(factors, added, start)
    turned = added.transpose(0, 2).contiguous().transpose(0, 2)
    assert torch.equal(kernel(factors, turned, start.mT.contiguous().mT), wanted)
    assert torch.equal(kernel(factors.conj(), added.conj(), start.conj()), wanted.conj())
    monkeypatch.setattr(kernels, "beyond_32_bits", lambda *_: True)
    assert torch.equal(kernel(factors, added, start), wanted)


def test_compiled_and_in_forward_mode_it_is_the_parallel_scan() -> None:
    leaves = [leaf.detach() for leaf in tensors(5, (1, 1, 5), torch.float64, torch.device("cpu"))]
    torch._dynamo.reset()
    compiled = torch.compile(linear_scan, backend="aot_eager", fullgraph=True)(*leaves)
    torch.testing.assert_close(compiled, loop(*leaves), rtol=1e-12, atol=1e-12)
    ones = tuple(torch.ones_like(leaf) for leaf in leaves)
    tangents = [torch.func.jvp(scan, tuple(leaves), ones)[1] for scan in (linear_scan, loop)]
    torch.testing.assert_close(*tangents, rtol=1e-12, atol=1e-12)


def test_wrong_backends_are_refused() -> None:
    leaves = tensors(2, (1, 1, 1), torch.float64, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"backend is 'cuda'.*auto, torch, triton"):
        linear_scan(*leaves, backend="cuda")
    with pytest.raises(ValueError, match="'triton' serves float32 and complex64"):
        linear_scan(*leaves, backend="triton")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are not interpreted; a test below runs them")
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("timed", [False, True], ids=["equal steps", "timespans"])
def test_lru_on_the_kernel(timed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from lipschitz_rnn import units
    from lipschitz_rnn.ops.linear import scan

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        unit = units.build("lru", 2, 5)
    draw = torch.Generator().manual_seed(1)
    x, start = torch.randn(6, 3, 2, generator=draw), torch.randn(1, 3, 10, generator=draw)
    options = {"timespans": torch.rand(6, 3, generator=draw)} if timed else {}

    def outcome() -> list[Tensor]:
        output, last = unit(x, start, lengths=torch.tensor([6, 2, 4]), **options)
        return [output, last, *torch.autograd.grad(output.sum() + last.square().sum(), list(unit.parameters()))]

    plain = outcome()
    monkeypatch.setattr(scan, "_has_kernels", lambda _: True)
    for found, expected in zip(outcome(), plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["lru", "momentum-lstm"])
def test_units_on_a_gpu_equal_those_on_a_cpu(name: str) -> None:
    from lipschitz_rnn import units

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        unit = units.build(name, 2, 33, **({"fused": True} if name == "momentum-lstm" else {}))
    x = torch.randn(101, 7, 2, generator=torch.Generator().manual_seed(1))
    results = []
    for device in ("cpu", "cuda"):
        own = unit.to(device)
        output = own(x.to(device))[0]
        gradients = torch.autograd.grad(output.square().sum(), list(own.parameters()))
        results.append([tensor.cpu() for tensor in (output.detach(), *gradients)])
    for one, other in zip(*results, strict=True):
        assert float((one - other).norm() / one.norm()) < 1e-3
