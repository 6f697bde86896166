"""The modReLU scan of real and of complex states: a loop of each, random tensors, and comparisons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from kernel_results import Shape, error, replayed
from torch import Tensor

from lipschitz_rnn.ops.modrelu import gradients as by_hand
from lipschitz_rnn.ops.modrelu import modrelu_scan
from lipschitz_rnn.units.matrices import mod_relu

NAMES = ("inputs", "W", "bias", "h0")


def real_loop(inputs: Tensor, W: Tensor, bias: Tensor, h0: Tensor) -> Tensor:
    states = [h0]
    for u in inputs:
        states.append(mod_relu(states[-1] @ W.mT + u, bias))
    return torch.stack(states[1:])


def complex_loop(inputs: Tensor, W: Tensor, bias: Tensor, h0: Tensor) -> Tensor:
    """Of states given as (Re h, Im h), with complex numbers."""
    h, states = torch.complex(*h0.chunk(2, -1)), []
    matrix = torch.complex(*W.chunk(2, 0))
    for u in inputs:
        z = h @ matrix.mT + torch.complex(*u.chunk(2, -1))
        modulus = z.abs()
        h = z * torch.where(modulus == 0.0, 0.0, torch.relu(modulus + bias) / (modulus + 1e-5))
        states.append(torch.cat([h.real, h.imag], -1))
    return torch.stack(states)


@dataclass(frozen=True)
class Kind:
    """Real or complex states."""

    name: str
    width: int  # numbers in the state of a unit
    loop: Callable[..., Tensor]
    backward: tuple[Any, str]  # where the backward scan in PyTorch is looked up
    bias: float  # of both signs, of about this size
    rtol: float

    def tensors(
        self, generator: torch.Generator, steps: int = 5, batch: int = 3, size: int = 6, networks: int = 0
    ) -> list[Tensor]:
        """In float64, every one a leaf; biases of both signs, so that some units are dead. With networks: stacked."""
        lead, wide = (networks,) if networks else (), self.width * size
        shapes = [(steps, batch, wide), (wide, size), (size,), (batch, wide)]
        scales = [1.0, wide**-0.5, self.bias, 1.0]
        return [
            (torch.randn(*lead, *shape, generator=generator, dtype=torch.float64) * scale).requires_grad_()
            for shape, scale in zip(shapes, scales, strict=True)
        ]

    def close(self, found: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(found, expected, rtol=self.rtol, atol=1e-10)

    def compare(self, leaves: list[Tensor], weight: Tensor) -> None:
        found, expected = modrelu_scan(*leaves), self.loop(*leaves)
        self.close(found, expected)
        outcomes = [torch.autograd.grad((states * weight).sum(), leaves) for states in (found, expected)]
        for name, one, other in zip(NAMES, *outcomes, strict=True):
            assert one.dtype == other.dtype, name
            self.close(one, other)


REAL = Kind("real", 1, real_loop, (by_hand, "scan_backward"), 0.7, 0.0)
COMPLEX = Kind("complex", 2, complex_loop, (by_hand.pairs, "scan_backward"), 1.0, 1e-10)


def stacked_tensors(
    shape: Shape, device: torch.device, inputs: torch.dtype = torch.float32, *, width: int = 1, growth: float = 1.0
) -> list[Tensor]:
    """Inputs, W, bias, h0 and the gradient of the states, in float64, with values that their own dtype holds.

    No bias is positive: modReLU then has no jump, and rounding makes a small difference only.
    """
    S, T, B, N = shape
    generator, wide = torch.Generator().manual_seed(S + T + B + N), width * N
    sizes = [(S, T, B, wide), (S, wide, N), (S, N), (S, B, wide), (S, T, B, wide)]
    scales = [1.0, growth * wide**-0.5, 0.5, 1.0, 1.0]
    made = [torch.randn(size, generator=generator) * scale for size, scale in zip(sizes, scales, strict=True)]
    made[0], made[2] = made[0].to(inputs), -made[2].abs()
    return [tensor.double().to(device) for tensor in made]


def check(found: list[Tensor], plain: list[Tensor], truth: list[Tensor], compute: torch.dtype) -> None:
    for index, (kernel, torch_own, exact) in enumerate(zip(found, plain, truth, strict=True)):
        assert kernel.isfinite().all(), f"result {index} is not finite"
        assert kernel.shape == exact.shape, f"result {index}"
        assert error(kernel, exact) <= 3 * max(error(torch_own, exact), torch.finfo(compute).eps), f"result {index}"


def outcome(leaves: list[Tensor], weight: Tensor, backend: str, autocast: bool = False) -> list[Tensor]:
    """States and all gradients of stacked networks, through vmap and autograd."""
    with torch.autocast(leaves[0].device.type, torch.bfloat16, enabled=autocast):
        states = torch.func.vmap(lambda *own: modrelu_scan(*own, backend=backend))(*leaves)
    return [states.detach(), *torch.autograd.grad((states * weight.to(states)).sum(), leaves)]


def check_through_vmap_and_autograd(exact: list[Tensor], weight: Tensor, autocast: bool) -> None:
    wide = [tensor.detach().requires_grad_() for tensor in exact]
    leaves = [tensor.float().requires_grad_() for tensor in exact]
    truth, plain = outcome(wide, weight, "torch"), outcome(leaves, weight, "torch", autocast)
    found, again = (outcome(leaves, weight, "triton", autocast) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    check(found, plain, truth, torch.bfloat16 if autocast else torch.float32)


def captured_on_a_gpu(exact: list[Tensor], weight: Tensor, autocast: bool) -> list[list[Tensor]]:
    """Results of a captured graph, of PyTorch's operations on the same GPU, and of float64 on the CPU."""
    truth = outcome([tensor.requires_grad_() for tensor in exact], weight, "auto")
    leaves, weight = [tensor.detach().float().cuda().requires_grad_() for tensor in exact], weight.float().cuda()
    plain = outcome(leaves, weight, "torch", autocast)
    captured = replayed(lambda: outcome(leaves, weight, "auto", autocast))
    return [[result.cpu() for result in results] for results in (captured, plain, truth)]
