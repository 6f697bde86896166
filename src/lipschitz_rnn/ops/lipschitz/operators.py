"""The scan as operators that PyTorch knows: ``lipschitz_rnn::scan`` and ``lipschitz_rnn::scan_backward``.

To ``torch.compile`` they have shapes, so that a loop over time is never unrolled; to ``torch.func.vmap`` a rule that
turns a vmap over stacked parameters into the ensemble axis. Which backend does the work is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.common import buffers
from lipschitz_rnn.ops.common.dtypes import without_autocast
from lipschitz_rnn.ops.common.vmap import run_folded, run_gradients_folded
from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme

TENSORS = 8  # drive, A, W, h0, input_weight, bias, timespans, noise: the order of Problem.tensors
SCHEME = 5  # step_size, alpha, integrator, nonlinearity, exact_products: the order of Scheme.arguments


def run_scan(
    drive: Tensor,
    A: Tensor,
    W: Tensor,
    h0: Tensor | None,
    input_weight: Tensor | None,
    bias: Tensor | None,
    timespans: Tensor | None,
    noise: Tensor | None,
    step_size: float,
    alpha: float,
    integrator: str,
    nonlinearity: str,
    exact_products: bool,
    keep_states: bool,
    save: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """The tape, and the last state (S, B, N).

    The tape is (S, T, slots, B, N): slot 0 holds the state after each step and, with ``save``, slot i + 1 the value of
    σ at stage i for the backward pass; a fused kernel adds the states at which the later stages were taken. The tape
    has T = 0 where neither was asked for.
    """
    scheme = Scheme(step_size, alpha, integrator, nonlinearity, exact_products)
    problem = Problem(drive, A, W, h0, input_weight, bias, timespans, scheme, noise)
    tape = new_tape(A, problem.shape, integrator, keep_states, save, backend)
    with without_autocast(A.device):  # which may be on around a compiled program
        return tape, backend_module(backend).forward(problem, tape, keep_states or save, save)


scan = torch.library.custom_op("lipschitz_rnn::scan", mutates_args=())(run_scan)


@scan.register_fake
def _(drive: Tensor, A: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    (S, T, B, _), N = drive.shape, A.shape[-1]
    *_, integrator, _, _, keep_states, save, backend = rest
    return new_tape(A, (S, T, B, N), integrator, keep_states, save, backend), A.new_empty((S, B, N))


def new_tape(
    like: Tensor,
    shape: tuple[int, int, int, int],
    integrator: str,
    keep_states: bool,
    save: bool,
    backend: str,
    internal: bool = False,
) -> Tensor:
    """Memory for the tape in the layout of a backend: a loop needs time outermost, a fused kernel the network.

    Where it is ``internal``, in plain eager code, nobody but the backward pass will see it.
    """
    S, T, B, N = shape
    steps, stages = T if keep_states or save else 0, len(get_integrator(integrator))
    if backend == "triton":
        return like.new_empty((S, steps, 2 * stages if save else 1, B, N))
    sizes = (steps, 1 + stages if save else 1, S, B, N)
    reused = internal and like.device.type == "cpu"
    return (buffers.empty(sizes, like.dtype) if reused else like.new_empty(sizes)).permute(2, 0, 1, 3, 4)


def run_scan_backward(
    drive: Tensor,
    A: Tensor,
    W: Tensor,
    h0: Tensor | None,
    input_weight: Tensor | None,
    bias: Tensor | None,
    timespans: Tensor | None,
    noise: Tensor | None,
    tape: Tensor,
    grad_states: Tensor | None,
    grad_last: Tensor | None,
    step_size: float,
    alpha: float,
    integrator: str,
    nonlinearity: str,
    exact_products: bool,
    backend: str,
    needs: Sequence[bool],
) -> list[Tensor]:
    """One gradient per tensor of the problem; those not needed come back empty."""
    scheme = Scheme(step_size, alpha, integrator, nonlinearity, exact_products)
    problem = Problem(drive, A, W, h0, input_weight, bias, timespans, scheme, noise)
    with without_autocast(A.device):  # which may be on around a backward pass
        gradients = backend_module(backend).backward(problem, tape, grad_states, grad_last, needs)
    return contiguous_gradients(gradients, like=drive)


scan_backward = torch.library.custom_op("lipschitz_rnn::scan_backward", mutates_args=())(run_scan_backward)


@scan_backward.register_fake
def shapes_of_gradients(*args: Any) -> list[Tensor]:
    """A tensor of the right shape for each gradient; the tensors of the problem come first, what is needed last."""
    tensors, needs = args[:TENSORS], args[-1]
    return [
        args[0].new_empty(0) if tensor is None or not need else tensor.new_empty(tensor.shape)
        for tensor, need in zip(tensors, needs, strict=True)
    ]


def contiguous_gradients(gradients: Sequence[Tensor | None], like: Tensor) -> list[Tensor]:
    """Gradients in the layout that ``shapes_of_gradients`` promises, each in memory of its own, as operators must.

    A backend may cut several of them out of one tensor. For p = 1 such a part is contiguous already.
    """
    found: list[Tensor] = []
    memory: set[int] = set()
    for gradient in gradients:
        own = like.new_empty(0) if gradient is None else gradient.contiguous()
        place = own.untyped_storage().data_ptr()
        own = own.clone() if place and place in memory else own
        memory.add(own.untyped_storage().data_ptr())
        found.append(own)
    return found


@cache
def backend_module(name: str) -> Any:
    """The module that serves a backend; imported here so that Triton is loaded only when it runs."""
    modules = {"reference": "recompute", "cpu": "cpu", "triton": "triton.backend"}
    return import_module(f"lipschitz_rnn.ops.lipschitz.{modules[name]}")


@scan.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
    return run_folded(scan, info, in_dims, args)


@scan_backward.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
    return run_gradients_folded(scan_backward, info, in_dims, args)
