"""The FastGRNN scan: a loop of its own, random tensors, and comparisons."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from kernel_results import Shape, error
from torch import Tensor

from lipschitz_rnn.ops.fastgrnn import fastgrnn_scan

NAMES = ("inputs", "W", "gate_bias", "update_bias", "zeta", "nu", "h0")


def loop(inputs: Tensor, W: Tensor, b_z: Tensor, b_g: Tensor, zeta: Tensor, nu: Tensor, h0: Tensor) -> Tensor:
    states = [h0]
    for u in inputs:
        s = states[-1] @ W.mT + u
        z, g = torch.sigmoid(s + b_z), torch.tanh(s + b_g)
        states.append((zeta * (1 - z) + nu) * g + z * states[-1])
    return torch.stack(states[1:])


def tensors(
    generator: torch.Generator, steps: int = 5, batch: int = 3, size: int = 6, networks: int = 0
) -> list[Tensor]:
    """In float64, every one a leaf; ζ and ν in (0, 1). With networks: stacked."""
    lead = (networks,) if networks else ()
    shapes = [(steps, batch, size), (size, size), (size,), (size,), (), (), (batch, size)]
    made = [torch.randn((*lead, *shape), generator=generator, dtype=torch.float64) for shape in shapes]
    made[1] *= size**-0.5
    made[4:6] = [value.sigmoid() for value in made[4:6]]
    return [tensor.requires_grad_() for tensor in made]


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def compare(leaves: list[Tensor], weight: Tensor) -> None:
    found, expected = fastgrnn_scan(*leaves), loop(*leaves)
    close(found, expected)
    outcomes = [torch.autograd.grad((states * weight).sum(), leaves) for states in (found, expected)]
    for name, one, other in zip(NAMES, *outcomes, strict=True):
        assert one.dtype == other.dtype, name
        close(one, other)


def stacked_tensors(
    shape: Shape, device: torch.device, inputs: torch.dtype = torch.float32, scale: float = 1.0
) -> list[Tensor]:
    """All tensors and the gradient of the states, in float64, with values that their own dtype holds."""
    S, T, B, N = shape
    generator = torch.Generator().manual_seed(S + T + B + N)
    sizes = [(S, T, B, N), (S, N, N), (S, N), (S, N), (S,), (S,), (S, B, N), (S, T, B, N)]
    made = [torch.randn(size, generator=generator) for size in sizes]
    made[0], made[1] = (made[0] * scale).to(inputs), made[1] * N**-0.5
    made[4:6] = [value.sigmoid() for value in made[4:6]]
    return [tensor.double().to(device) for tensor in made]


def term_sizes(exact: list[Tensor], grads: Tensor) -> dict[int, Tensor]:
    """Σ |term| of the sums that are ∂ζ and ∂ν, (S,) each, under their places among the gradients.

    The terms cancel, so the error of one number divided by that number says nothing.
    """
    inputs, W, b_z, b_g, zeta, nu, h = exact
    spread = [value[:, None, None, None].expand(inputs.shape).clone().requires_grad_() for value in (zeta, nu)]
    loss = h.new_zeros(())
    for t, u in enumerate(inputs.unbind(1)):
        s = h @ W.mT + u
        z, g = torch.sigmoid(s + b_z[:, None]), torch.tanh(s + b_g[:, None])
        h = (spread[0][:, t] * (1 - z) + spread[1][:, t]) * g + z * h
        loss = loss + (h * grads[:, t]).sum()
    return dict(zip((4, 5), (g.abs().sum((1, 2, 3)) for g in torch.autograd.grad(loss, spread)), strict=True))


def check(
    found: Sequence[Tensor],
    plain: Sequence[Tensor],
    truth: Sequence[Tensor],
    compute: torch.dtype,
    sizes: dict[int, Tensor] | None = None,
) -> None:
    for index, (kernel, torch_own, exact) in enumerate(zip(found, plain, truth, strict=True)):
        assert kernel.isfinite().all(), f"result {index} is not finite"
        assert kernel.shape == exact.shape, f"result {index}"
        if sizes is not None and index in sizes:
            size = sizes[index]
            errors = [float(((value - exact) / size).norm()) for value in (kernel, torch_own)]
        else:
            errors = [error(value, exact) for value in (kernel, torch_own)]
        assert errors[0] <= 3 * max(errors[1], torch.finfo(compute).eps), f"result {index}"


def outcome(leaves: list[Tensor], weight: Tensor, backend: str, autocast: bool = False) -> list[Tensor]:
    """States and all gradients of stacked networks, through vmap and autograd."""
    with torch.autocast(leaves[0].device.type, torch.bfloat16, enabled=autocast):
        states = torch.func.vmap(lambda *own: fastgrnn_scan(*own, backend=backend))(*leaves)
    return [states.detach(), *torch.autograd.grad((states * weight.to(states)).sum(), leaves)]
