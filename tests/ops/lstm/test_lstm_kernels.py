"""The kernels of the LSTM: their error is at most three times that of PyTorch's own operations on the same operands."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_results import error, replayed
from torch import Tensor

from lipschitz_rnn.ops.lstm import lstm_scan
from lipschitz_rnn.ops.lstm.scan import LstmScan, obstacle

Shape = tuple[int, int, int, int, int]  # S, T, B, N, p
SMALL = [
    (1, 1, 1, 1, 1),
    (1, 3, 5, 5, 1),
    (2, 4, 3, 20, 1),
    (1, 5, 2, 33, 3),
    (3, 2, 17, 20, 3),  # tiles of sixteen samples, the last with one
    (1, 4, 18, 33, 1),
    (1, 2, 9, 64, 1),
]
LARGE = [(S, T, B, N, p) for S, p in [(1, 1), (10, 1), (1, 3)] for T in (1, 784) for B in (3, 128) for N in (64, 128)]
# The dtype of the parameters and the one of the products.
DTYPES = {
    "autocast to bfloat16": (torch.float32, torch.bfloat16),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "autocast to float16": (torch.float32, torch.float16),
}
on_a_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device; the kernels run in the interpreter here"
)


def name(shape: Shape) -> str:
    return "S{}-T{}-B{}-N{}-p{}".format(*shape)


def tensors(shape: Shape, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """x, U, W, b, h0, c0 and weights for the loss, in float64, with values that ``dtype`` holds."""
    S, T, B, N, p = shape
    generator = torch.Generator().manual_seed(S + T + B + N + p)
    sizes = [(S, T, B, p), (S, 4 * N, p), (S, 4 * N, N), (S, 4 * N), *[(S, B, N)] * 2, (S, T, B, N), *[(S, B, N)] * 2]
    scales = [1.0, p**-0.5, N**-0.5, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0]
    made = [torch.randn(size, generator=generator) * scale for size, scale in zip(sizes, scales, strict=True)]
    return [tensor.to(dtype).double().to(device) for tensor in made]


def results(given: list[Tensor], dtypes: tuple[torch.dtype, torch.dtype], backend: str) -> list[Tensor]:
    """States, last h, last c, and the gradient of every tensor, through vmap."""
    dtype, compute = dtypes
    leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in given[:6]]

    def scan(*own: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return lstm_scan(*own, backend=backend)

    with torch.autocast(leaves[0].device.type, compute, enabled=dtype != compute):
        found = torch.func.vmap(scan)(*leaves)
    loss = sum((result.to(weight) * weight).sum() for result, weight in zip(found, given[6:], strict=True))
    return [*(result.detach() for result in found), *torch.autograd.grad(loss, leaves)]


def check(found: list[Tensor], plain: list[Tensor], truth: list[Tensor], compute: torch.dtype) -> None:
    for index, (kernel, torch_own, exact) in enumerate(zip(found, plain, truth, strict=True)):
        assert kernel.isfinite().all(), f"result {index} is not finite"
        assert kernel.shape == exact.shape, f"result {index}"
        assert kernel.dtype == torch_own.dtype, f"result {index}"
        # Where PyTorch happens to be exact, the rounding of a result must not count as an error.
        allowed = 3 * max(error(torch_own, exact), torch.finfo(compute).eps / 2)
        assert error(kernel, exact) <= allowed, f"result {index}"


def nearly(found: Tensor, expected: Tensor) -> None:
    """Two programs of one kernel: what a compiler may join to one instruction, it may join differently in each."""
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3)


def compare(shape: Shape, dtypes: tuple[torch.dtype, torch.dtype], device: torch.device) -> None:
    given = tensors(shape, device, dtypes[0])
    truth = results(given, (torch.float64, torch.float64), "torch")
    check(results(given, dtypes, "triton"), results(given, dtypes, "torch"), truth, dtypes[1])


# The polynomial for small arguments overflows at large ones, where its value is not taken.
pytestmark = [
    pytest.mark.usefixtures("kernels"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [(dtype, shape) for dtype in DTYPES for shape in (SMALL if dtype == "autocast to bfloat16" else SMALL[1:5])],
    ids=lambda value: value if isinstance(value, str) else name(value),
)
def test_small(dtype: str, shape: Shape, device: torch.device) -> None:
    compare(shape, DTYPES[dtype], device)


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("shape", LARGE, ids=name)
@pytest.mark.parametrize("dtypes", DTYPES.values(), ids=DTYPES.keys())
def test_large(shape: Shape, dtypes: tuple[torch.dtype, torch.dtype], device: torch.device) -> None:
    compare(shape, dtypes, device)


@pytest.mark.parametrize("shape", [(2, 3, 5, 20, 1), (1, 3, 17, 20, 3)], ids=name)
def test_same_input_same_bits(shape: Shape, device: torch.device) -> None:
    given = tensors(shape, device, torch.float32)
    first, second = (results(given, (torch.float32, torch.bfloat16), "triton") for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2)], ids=str)
def test_gradients_that_are_missing_count_as_zero(used: tuple[int, ...], device: torch.device) -> None:
    given = tensors((1, 3, 2, 9, 1), device, torch.float32)

    def outcome(materialized: bool) -> tuple[Tensor, ...]:
        leaves = [tensor.squeeze(0).float().requires_grad_() for tensor in given[:6]]
        with torch.autocast(device.type, torch.bfloat16):
            found = lstm_scan(*leaves, backend="triton")
        weights = [weight.squeeze(0) * (i in used) for i, weight in enumerate(given[6:])]
        chosen = range(3) if materialized else used
        return torch.autograd.grad(sum((found[i] * weights[i].to(found[i])).sum() for i in chosen), leaves)

    for missing, zero in zip(outcome(False), outcome(True), strict=True):
        nearly(missing, zero)


def test_inference_stores_less_and_agrees(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = [tensor.squeeze(0).float() for tensor in tensors((1, 6, 3, 20, 1), device, torch.float32)[:6]]
    kept: list[tuple[int, ...]] = []
    forward = LstmScan.forward

    def watched(*args: Any) -> tuple[Tensor, ...]:
        found = forward(*args)
        kept.append((*found[3].shape, found[4].shape[1]))
        return found

    monkeypatch.setattr(LstmScan, "forward", staticmethod(watched))
    with torch.autocast(device.type, torch.bfloat16):
        leaves[2].requires_grad_()
        training = lstm_scan(*leaves, backend="triton")
        with torch.no_grad():
            inference = lstm_scan(*leaves, backend="triton")
    for one, other in zip(training, inference, strict=True):
        nearly(one, other)
    assert kept == [(1, 7, 2, 3, 20, 6), (1, 7, 1, 3, 20, 0)]


def test_networks_may_share_inputs_and_lie_anywhere(device: torch.device) -> None:
    given = [tensor.float() for tensor in tensors((3, 4, 5, 7, 1), device, torch.float32)]

    def outcome(x: Tensor, W: Tensor, grads: Tensor, axis: int | None) -> list[Tensor]:
        leaves = [x, given[1], W.detach().requires_grad_(), *given[3:6]]
        with torch.autocast(device.type, torch.bfloat16):
            found = torch.func.vmap(lambda *own: lstm_scan(*own, backend="triton"), in_dims=(axis, *[0] * 5))(*leaves)
        return [*found, torch.autograd.grad(found[0], leaves[2], grads.to(found[0]))[0]]

    x, W, grads = given[0][:1], given[2], given[6][:, :1, :1, :1].expand(3, 4, 5, 7)  # grads as of sum().backward()
    wanted = outcome(x.expand(3, -1, -1, -1).contiguous(), W, grads.contiguous(), 0)
    turned = x[0].transpose(0, 1).contiguous().transpose(0, 1)
    for found in (outcome(x[0], W, grads, None), outcome(turned, W.mT.contiguous().mT, grads, None)):
        for one, other in zip(found, wanted, strict=True):
            nearly(one, other)


def test_saturated_gates_keep_what_they_remember(device: torch.device) -> None:
    """f = 0.999: rounded to bfloat16 it would be 1, without a slope, and the gradient through it too large."""
    T, N = 40, 3
    b = torch.zeros(4 * N, device=device)
    b[N : 2 * N] = 6.875  # which bfloat16 holds
    zero = torch.zeros(4 * N, N, device=device)
    c0 = torch.ones(1, N, device=device, requires_grad=True)
    leaves = [torch.zeros(T, 1, 1, device=device), zero[:, :1], zero, b.requires_grad_(), torch.zeros_like(c0), c0]
    with torch.autocast(device.type, torch.bfloat16):
        last = lstm_scan(*leaves, backend="triton")[2]
    of_b, of_c0 = torch.autograd.grad(last.sum(), (b, c0))
    f = float(torch.tensor(6.875, dtype=torch.float64).sigmoid())
    torch.testing.assert_close(last, torch.full_like(last, f**T), rtol=1e-5, atol=0.0)
    torch.testing.assert_close(of_c0, torch.full_like(c0, f**T), rtol=1e-5, atol=0.0)
    torch.testing.assert_close(of_b[N : 2 * N], torch.full_like(b[:N], T * f**T * (1 - f)), rtol=2e-2, atol=0.0)


def test_nan_stays_nan_and_large_inputs_saturate(device: torch.device) -> None:
    given = [tensor.squeeze(0).float() for tensor in tensors((1, 4, 4, 8, 1), device, torch.float32)[:6]]
    given[0] *= 1e4
    given[0][1, 2] = float("nan")
    with torch.autocast(device.type, torch.bfloat16):
        states, _, c = lstm_scan(*given, backend="triton")
    assert states[1:, 2].isnan().all()
    assert states[:, [0, 1, 3]].isfinite().all()
    assert c[[0, 1, 3]].isfinite().all()


def test_second_derivative_goes_through_the_loop(device: torch.device) -> None:
    given = [tensor.squeeze(0).float() for tensor in tensors((1, 3, 2, 5, 1), device, torch.float32)[:6]]

    def penalty(backend: str) -> Tensor:
        W = given[2].clone().requires_grad_()
        with torch.autocast(device.type, torch.bfloat16):
            _, last, _ = lstm_scan(*given[:2], W, *given[3:], backend=backend)
        (gradient,) = torch.autograd.grad(last.sum(), W, create_graph=True)
        (second,) = torch.autograd.grad(gradient.sin().sum(), W)
        return second

    torch.testing.assert_close(penalty("triton"), penalty("torch"), rtol=5e-2, atol=5e-3)


def test_what_they_cannot_serve_says_why(device: torch.device) -> None:
    W = torch.zeros(4 * 129, 129, device=device)
    assert obstacle(W[:512, :128], torch.bfloat16) is None
    assert "no kernels for products in torch.float32" in str(obstacle(W, torch.float32))
    assert "the hidden size is 129, and its kernels go up to 128" in str(obstacle(W, torch.bfloat16))
    assert "the tensors are on meta" in str(obstacle(W[:4, :1].to("meta"), torch.bfloat16))


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("shape", [(1, 784, 128, 128, 1), (10, 50, 128, 128, 1), (2, 17, 33, 64, 3)], ids=name)
def test_a_captured_graph_agrees_with_float64(shape: Shape) -> None:
    device, dtypes = torch.device("cuda"), (torch.float32, torch.bfloat16)
    given = tensors(shape, device, torch.float32)
    truth = results(given, (torch.float64, torch.float64), "torch")
    plain = results(given, dtypes, "torch")
    check(replayed(lambda: results(given, dtypes, "auto")), plain, truth, torch.bfloat16)


@pytest.mark.gpu
@on_a_gpu
def test_another_length_compiles_nothing(device: torch.device) -> None:
    from lipschitz_rnn.ops.lstm.triton import kernels as lstm_kernels

    dtypes = (torch.float32, torch.bfloat16)

    def programs() -> list[int]:
        kernels = (lstm_kernels.forward_kernel, lstm_kernels.backward_kernel)
        return [len(kernel.device_caches[torch.cuda.current_device()][0]) for kernel in kernels]

    results(tensors((2, 5, 7, 20, 1), device, torch.float32), dtypes, "triton")
    before = programs()
    for steps in (6, 8, 16):
        results(tensors((2, steps, 7, 20, 1), device, torch.float32), dtypes, "triton")
    assert programs() == before
