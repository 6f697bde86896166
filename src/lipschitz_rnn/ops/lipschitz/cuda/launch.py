"""The forward and the backward scan: the arguments of a kernel, and its launch."""

from __future__ import annotations

import struct
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.cuda.compiler import compiled
from lipschitz_rnn.ops.common.cuda.driver import Function
from lipschitz_rnn.ops.common.triton.launching import divide_up
from lipschitz_rnn.ops.lipschitz.cuda.plan import CudaPlan, Kernel
from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.ops.lipschitz.problem import Problem
from lipschitz_rnn.ops.lipschitz.triton.inputs import expanded_drive

_FORWARD, _BACKWARD = struct.Struct("8P7q4If4x"), struct.Struct("9P10q4If4x")  # the structures of both kernels
_MEMORY = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
_NONLINEARITIES = {"tanh": 0, "sigmoid": 1, "relu": 2, "identity": 3}


class Needs(NamedTuple):
    """What a call reads and writes: see setting.cuh."""

    fused: bool
    pairs: bool
    input_pairs: bool
    save: bool = False
    keep: bool = False
    grads: bool = False


def scan_forward(
    problem: Problem, plan: CudaPlan, weights: Tensor, tape: Tensor, keep_states: bool, save: bool, fused: bool
) -> Tensor:
    """Runs all steps, fills the tape and returns the last state, (S, B, N)."""
    S, T, B, N = problem.shape
    like = problem.A
    last = like.new_empty((S, B, N))
    drive = problem.drive if fused else expanded_drive(problem)
    start = None if problem.h0 is None else problem.h0.contiguous()
    U = problem.input_weight.contiguous() if fused and problem.input_weight is not None else None
    bias = problem.bias.contiguous() if fused and problem.bias is not None else None
    spans, span_strides = _spans(problem)
    tiles = divide_up(B, plan.samples)
    arguments = _FORWARD.pack(
        *map(_address, (drive, weights, start, U, bias, spans, tape, last)),
        *drive.stride(), *span_strides, T, B, N, tiles,
        problem.scheme.step_size,
    )  # fmt: skip
    pairs = N % 2 == 0 and (fused or _in_pairs(drive))
    samples = drive[..., 0] if fused else None
    needs = Needs(fused, pairs, _samples_in_pairs(samples), save=save, keep=keep_states)
    _function("forward", plan, problem, needs).launch(S * tiles, arguments)
    return last


def scan_backward(
    problem: Problem,
    plan: CudaPlan,
    weights: Tensor,
    tape: Tensor,
    grad_states: Tensor | None,
    grad_last: Tensor | None,
    x: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """κ and d of every stage, (S, T, stages, B, 2N); ∂h0, (S, B, N); partial sums of ∂U and ∂b, (S, tiles, 2, N)."""
    S, T, B, N = problem.shape
    like, tiles = problem.A, divide_up(B, plan.samples)
    kappa_d = like.new_empty((S, len(problem.scheme.tableau), T, B, 2 * N)).transpose(1, 2)
    grad_h0 = like.new_empty((S, B, N))
    sums = torch.empty((S, tiles, 2, N), device=like.device) if x is not None else None
    final = None if grad_last is None else grad_last.contiguous()
    spans, span_strides = _spans(problem)
    arguments = _BACKWARD.pack(
        *map(_address, (weights, spans, tape, grad_states, final, x, kappa_d, grad_h0, sums)),
        *((0, 0, 0, 0) if grad_states is None else grad_states.stride()),
        *span_strides, *((0, 0, 0) if x is None else x.stride()), T, B, N, tiles,
        problem.scheme.step_size,
    )  # fmt: skip
    pairs = N % 2 == 0 and (grad_states is None or _in_pairs(grad_states))
    needs = Needs(x is not None, pairs, _samples_in_pairs(x), grads=grad_states is not None)
    _function("backward", plan, problem, needs).launch(S * tiles, arguments)
    return kappa_d, grad_h0, sums


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _in_pairs(tensor: Tensor) -> bool:
    """Whether neighbouring units can be read in one access, wherever a row starts."""
    *outer, inner = tensor.stride()
    even = inner == 1 and not any(stride % 2 for stride in outer) and tensor.shape[-1] % 2 == 0
    return even and tensor.data_ptr() % (2 * tensor.element_size()) == 0


def _spans(problem: Problem) -> tuple[Tensor | None, tuple[int, ...]]:
    if problem.timespans is None:
        return None, (0, 0, 0)
    spans = problem.timespans.float()
    return spans, spans.stride()


def _samples_in_pairs(x: Tensor | None) -> bool:
    return x is not None and _in_pairs(x)


def _function(name: str, plan: CudaPlan, problem: Problem, needs: Needs) -> Function:
    scheme, like = problem.scheme, problem.A
    _, _, B, N = problem.shape
    whole = plan.padded == N and B % plan.samples == 0
    key = (scheme.integrator, scheme.nonlinearity, like.dtype, problem.timespans is not None, whole, needs)
    return _compiled(name, plan, like.device, key)


@lru_cache(maxsize=256)
def _compiled(name: str, plan: CudaPlan, device: torch.device, key: tuple[Any, ...]) -> Function:
    major, minor = torch.cuda.get_device_capability(device)
    integrator, _, dtype, *_ = key
    code = compiled(source(name, plan.cluster), f"{name}.cu", f"sm_{major}{minor}", macros(plan, *key))
    shared_bytes = plan.shared_bytes(name, Kernel(len(get_integrator(integrator)), dtype.itemsize))
    return Function(code, name, device, plan.threads, shared_bytes, plan.cluster)


@cache
def source(name: str, cluster: int) -> str:
    """The text of the kernel ``forward`` or ``backward``, with what both share in front of it."""
    headers = ("setting", "numbers", "hardware", "matrix", "cluster" if cluster > 1 else "block", "memory", "supply")
    parts = (*(f"{header}.cuh" for header in headers), f"{name}.cu")
    return "\n".join((files(__package__) / part).read_text() for part in parts)


def macros(
    plan: CudaPlan,
    integrator: str,
    nonlinearity: str,
    dtype: torch.dtype,
    has_spans: bool,
    whole: bool,
    needs: Needs,
) -> dict[str, str]:
    """What a kernel is compiled for."""
    tableau = get_integrator(integrator)
    coefficients = [row[-1] if row else 0.0 for row in tableau.stages]
    values: dict[str, Any] = {
        "CLUSTER": plan.cluster,
        "WARPS": plan.warps,
        "HEIGHT": plan.height,
        "SAMPLES": plan.samples,
        "LEAST_BLOCKS": plan.least_blocks,
        "FAR": plan.far,
        "PARTS": plan.parts,
        "OPERAND": int(plan.precision == "fp16"),
        "MEMORY": _MEMORY[dtype],
        "STAGES": len(tableau),
        "COEFFICIENTS": _list(coefficients),
        "WEIGHTS": _list(tableau.weights),
        "NONLINEARITY": _NONLINEARITIES[nonlinearity],
        "HAS_SPANS": int(has_spans),
        "WHOLE": int(whole),
        "FUSED_INPUT": int(needs.fused),
        "PAIRS": int(needs.pairs),
        "INPUT_PAIRS": int(needs.input_pairs),
        "SAVE": int(needs.save),
        "KEEP": int(needs.keep),
        "GRADS": int(needs.grads),
    }
    return {name: str(value) for name, value in values.items()}


def _list(numbers: Any) -> str:
    return "{" + ",".join(f"{number!r}f" for number in map(float, numbers)) + "}"
