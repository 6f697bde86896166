"""The scan as operators that PyTorch knows: ``lipschitz_rnn::scan`` and ``lipschitz_rnn::scan_backward``.

To ``torch.compile`` they have shapes, so that a loop over time is never unrolled; to ``torch.func.vmap`` a rule that
turns a vmap over stacked parameters into the ensemble axis. Which backend does the work is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.integrators import get_integrator
from lipschitz_rnn.ops.problem import Problem, Scheme

TENSORS = 7  # drive, A, W, h0, input_weight, bias, timespans: the order of Problem.tensors


@torch.library.custom_op("lipschitz_rnn::scan", mutates_args=())
def scan(
    drive: Tensor,
    A: Tensor,
    W: Tensor,
    h0: Tensor,
    input_weight: Tensor | None,
    bias: Tensor | None,
    timespans: Tensor | None,
    step_size: float,
    alpha: float,
    integrator: str,
    nonlinearity: str,
    keep_states: bool,
    save: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """States, last state, and what the backend keeps for its backward pass (empty unless ``save``)."""
    scheme = Scheme(step_size, alpha, integrator, nonlinearity)
    problem = Problem(drive, A, W, h0, input_weight, bias, timespans, scheme)
    return _backend(backend).forward(problem, keep_states or save, save)


@scan.register_fake
def _(drive: Tensor, A: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    (S, T, B, _), N = drive.shape, A.shape[-1]
    *_, integrator, _, keep_states, save, _ = rest
    stages = len(get_integrator(integrator))
    states = A.new_empty((T if keep_states or save else 0, S, B, N)).transpose(0, 1)
    activations = A.new_empty((T if save else 0, stages, S, B, N)).permute(2, 0, 1, 3, 4)
    return states, A.new_empty((S, B, N)), activations


@torch.library.custom_op("lipschitz_rnn::scan_backward", mutates_args=())
def scan_backward(
    drive: Tensor,
    A: Tensor,
    W: Tensor,
    h0: Tensor,
    input_weight: Tensor | None,
    bias: Tensor | None,
    timespans: Tensor | None,
    states: Tensor,
    activations: Tensor,
    grad_states: Tensor | None,
    grad_last: Tensor | None,
    step_size: float,
    alpha: float,
    integrator: str,
    nonlinearity: str,
    backend: str,
    needs: Sequence[bool],
) -> list[Tensor]:
    """One gradient per tensor of the problem; those not needed come back empty."""
    scheme = Scheme(step_size, alpha, integrator, nonlinearity)
    problem = Problem(drive, A, W, h0, input_weight, bias, timespans, scheme)
    gradients = _backend(backend).backward(problem, states, activations, grad_states, grad_last, needs)
    return [_contiguous(gradient, like=drive) for gradient in gradients]


@scan_backward.register_fake
def _(*args: Any) -> list[Tensor]:
    tensors, needs = args[:TENSORS], args[-1]
    return [
        args[0].new_empty(0) if tensor is None or not need else tensor.new_empty(tensor.shape)
        for tensor, need in zip(tensors, needs, strict=True)
    ]


def _contiguous(gradient: Tensor | None, like: Tensor) -> Tensor:
    """A gradient in the layout that the shape rule promises."""
    return like.new_empty(0) if gradient is None else gradient.contiguous()


def _backend(name: str) -> Any:
    """The module that serves a backend; imported here so that Triton is loaded only when it runs."""
    return import_module("lipschitz_rnn.ops.recompute" if name == "reference" else f"lipschitz_rnn.ops.{name}")


def _fold(tensor: Any, dim: int | None, size: int) -> Any:
    """Merge a vmapped axis into the ensemble axis: (V, S, …) → (V·S, …)."""
    if not isinstance(tensor, Tensor):
        return tensor
    tensor = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return tensor.flatten(0, 1)


def _unfold(tensor: Tensor, size: int) -> Tensor:
    return tensor.unflatten(0, (size, -1))


@scan.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
    size = info.batch_size
    folded = [_fold(arg, dim, size) for arg, dim in zip(args, in_dims, strict=True)]
    return tuple(_unfold(out, size) for out in scan(*folded)), (0, 0, 0)


@scan_backward.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
    size = info.batch_size
    dims = [dim if isinstance(arg, Tensor) else None for arg, dim in zip(args, in_dims, strict=True)]
    needs = args[-1]
    gradients = scan_backward(*[_fold(arg, dim, size) for arg, dim in zip(args[:-1], dims[:-1], strict=True)], needs)
    # An empty gradient is shared by all members: it has no ensemble axis to unfold.
    outputs = [_unfold(g, size) if g.dim() > 1 else g.expand(size, *g.shape) for g in gradients]
    return outputs, [0] * len(outputs)
