"""The forward and the backward scan: the arguments of a kernel, and its launch."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.cublas import gradient_width
from lipschitz_rnn.ops.common.cuda.compiler import compiled
from lipschitz_rnn.ops.common.cuda.driver import Function
from lipschitz_rnn.ops.common.triton.launching import divide_up
from lipschitz_rnn.ops.lipschitz.cuda.plan import CudaPlan, Kernel
from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme
from lipschitz_rnn.ops.lipschitz.triton.inputs import expanded_drive

# The structures that both kernels take: addresses, then strides, sizes and the length of a step.
_ADDRESSES = {"forward": struct.Struct("8P"), "backward": struct.Struct("9P")}
_NUMBERS = {"forward": struct.Struct("7q4If4x"), "backward": struct.Struct("10q5If")}
_MEMORY = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
_NONLINEARITIES = {"tanh": 0, "sigmoid": 1, "relu": 2, "identity": 3}


class Needs(NamedTuple):
    """What a call reads and writes: see setting.cuh."""

    fused: bool
    save: bool = False
    keep: bool = False
    grads: bool = False
    has_spans: bool = False


def scan_forward(
    problem: Problem, plan: CudaPlan, weights: Tensor, tape: Tensor, keep_states: bool, save: bool, fused: bool
) -> Tensor:
    """Runs all steps, fills the tape and returns the last state, (S, B, N)."""
    S, _, B, N = problem.shape
    last = problem.A.new_empty((S, B, N))
    drive = problem.drive if fused else expanded_drive(problem)
    start = None if problem.h0 is None else problem.h0.contiguous()
    U = problem.input_weight.contiguous() if fused and problem.input_weight is not None else None
    bias = problem.bias.contiguous() if fused and problem.bias is not None else None
    spans, span_strides = _spans(problem)
    needs = Needs(fused, save=save, keep=keep_states, has_spans=spans is not None)
    run = settled("forward", plan, problem.shape, problem.scheme, problem.A.dtype, needs, drive.stride() + span_strides)
    run(drive.device, (drive, weights, start, U, bias, spans, tape, last))
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
    """κ and d of every stage, (S, T, stages, B, 2·width); ∂h0, (S, B, N); partial sums of ∂U and ∂b, (S, tiles, 2, N).

    N of each half of a row are written; what lies between it and its ``width`` is never read.
    """
    S, T, B, N = problem.shape
    like = problem.A
    width = gradient_width(N, like.dtype)
    kappa_d = like.new_empty((S, len(problem.scheme.tableau), T, B, 2 * width)).transpose(1, 2)
    grad_h0 = like.new_empty((S, B, N))
    sums = torch.empty((S, divide_up(B, plan.samples), 2, N), device=like.device) if x is not None else None
    final = None if grad_last is None else grad_last.contiguous()
    spans, span_strides = _spans(problem)
    grad_strides = (0, 0, 0, 0) if grad_states is None else grad_states.stride()
    strides = grad_strides + span_strides + ((0, 0, 0) if x is None else x.stride())
    needs = Needs(x is not None, grads=grad_states is not None, has_spans=spans is not None)
    run = settled("backward", plan, problem.shape, problem.scheme, like.dtype, needs, strides, width)
    run(like.device, (weights, spans, tape, grad_states, final, x, kappa_d, grad_h0, sums))
    return kappa_d, grad_h0, sums


def _spans(problem: Problem) -> tuple[Tensor | None, tuple[int, ...]]:
    if problem.timespans is None:
        return None, (0, 0, 0)
    spans = problem.timespans.float()
    return spans, spans.stride()


class Settled:
    """One of the kernels for calls of one kind; all but the addresses is known beforehand."""

    def __init__(
        self,
        name: str,
        plan: CudaPlan,
        shape: Sequence[int],
        scheme: Scheme,
        dtype: torch.dtype,
        needs: Needs,
        strides: tuple[int, ...],
        *width: int,  # of κ and of d, for the backward pass
    ) -> None:
        S, T, B, N = shape
        tiles = divide_up(B, plan.samples)
        whole = plan.padded == N and B % plan.samples == 0
        self._name, self._plan, self._groups = name, plan, S * tiles
        self._key = (scheme.integrator, scheme.nonlinearity, dtype, whole, needs)
        self._pack = _ADDRESSES[name].pack
        self._numbers = _NUMBERS[name].pack(*strides, T, B, N, tiles, *width, scheme.step_size)
        # Neighbouring units, or inputs of neighbouring samples, can be read in one access wherever a row starts. Of
        # units are all tensors of the caller but the inputs of one feature.
        forward = name == "forward"
        reads_units = not needs.fused if forward else needs.grads
        self._pairs = N % 2 == 0 and (not reads_units or _even(strides[:4]))
        self._input_pairs = needs.fused and B % 2 == 0 and _even(strides[:3] if forward else strides[-3:])
        inputs = 0 if forward else 5
        self._of_inputs = [inputs] if needs.fused else []
        self._of_units = [i for i in ((0, 2, 6, 7) if forward else (2, 3, 4, 6, 7)) if i not in self._of_inputs]
        self._between = 2 * dtype.itemsize - 1  # bits of an address that does not start a pair
        self._functions: dict[tuple[bool, bool, torch.device], Function] = {}

    def __call__(self, device: torch.device, tensors: Sequence[Tensor | None]) -> None:
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        pairs, input_pairs = self._pairs, self._input_pairs
        for address in addresses:
            if address & self._between:  # rare: PyTorch's allocator aligns what it gives out
                pairs = pairs and not any(addresses[i] & self._between for i in self._of_units)
                input_pairs = input_pairs and not any(addresses[i] & self._between for i in self._of_inputs)
                break
        key = (pairs, input_pairs, device)
        function = self._functions.get(key)
        if function is None:
            function = self._functions[key] = _compiled(
                self._name, self._plan, device, (*self._key, pairs, input_pairs)
            )
        function.launch(self._groups, self._pack(*addresses) + self._numbers)


settled = lru_cache(maxsize=1024)(Settled)


def _even(strides: Sequence[int]) -> bool:
    *outer, inner = strides
    return inner == 1 and not any(stride % 2 for stride in outer)


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
    kind = "cluster" if cluster > 1 else "block"
    headers = ("setting", "hardware", "access", "numbers", "matrix", kind, "memory", "supply")
    parts = (*(f"{header}.cuh" for header in headers), f"{name}.cu")
    return "\n".join((files(__package__) / part).read_text() for part in parts)


def macros(
    plan: CudaPlan,
    integrator: str,
    nonlinearity: str,
    dtype: torch.dtype,
    whole: bool,
    needs: Needs,
    pairs: bool,
    input_pairs: bool,
) -> dict[str, str]:
    """What a kernel is compiled for."""
    tableau = get_integrator(integrator)
    coefficients = [row[-1] if row else 0.0 for row in tableau.stages]
    values: dict[str, Any] = {
        "CLUSTER": plan.cluster,
        "WARPS": plan.warps,
        "DEPTH": plan.depth,
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
        "HAS_SPANS": int(needs.has_spans),
        "WHOLE": int(whole),
        "FUSED_INPUT": int(needs.fused),
        "PAIRS": int(pairs),
        "INPUT_PAIRS": int(input_pairs),
        "SAVE": int(needs.save),
        "KEEP": int(needs.keep),
        "GRADS": int(needs.grads),
    }
    return {name: str(value) for name, value in values.items()}


def _list(numbers: Any) -> str:
    return "{" + ",".join(f"{number!r}f" for number in map(float, numbers)) + "}"
