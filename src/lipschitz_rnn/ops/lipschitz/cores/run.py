"""Runs the kernels on PyTorch's tensors. Their tape is that of ``cpu.py``: either goes on from the other's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.noise import ADDITIVE, MULTIPLICATIVE, strength
from lipschitz_rnn.ops.lipschitz.cores.layout import Layout, layout_of, rowwise
from lipschitz_rnn.ops.lipschitz.cores.sizes import backward_scratch, forward_scratch, gap
from lipschitz_rnn.ops.lipschitz.problem import Problem, needs_float64

Arrays = Mapping[str, Tensor | None]


def forward(problem: Problem, tape: Tensor, keep_states: bool, save: bool) -> Tensor:
    """Writes states and, with ``save``, the values of σ to the tape, (S, T, slots, B, N); returns the last state."""
    layout, U = layout_of(problem), problem.input_weight
    stacked = layout.stacked((problem.W, 1.0), (problem.A, problem.scheme.alpha))
    arrays = {
        **_given(problem),
        **_noise_arrays(problem),
        "forward_panels": layout.panels(stacked.mT),
        "input_panels": None if U is None else layout.panels(U.mT),
        "bias": layout.bias(problem.bias),
        "tape": tape,
    }
    return scan_forward(layout, arrays, keep_states, save)


def backward(
    problem: Problem, tape: Tensor, grad_states: Tensor | None, grad_last: Tensor | None, needs: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Gradients of ``problem.tensors``, None where ``needs`` says so, from the tape that ``forward`` wrote."""
    layout, alpha = layout_of(problem), problem.scheme.alpha
    stacked = layout.stacked((problem.A, alpha), (problem.W, 1.0))
    noisy = problem.noise is not None and bool(problem.noise[:, MULTIPLICATIVE].any())
    arrays = {
        **_given(problem),
        **(_noise_arrays(problem) if noisy else {}),
        "tape": rowwise(tape),  # as a hook on saved tensors may give it back
        "grad_states": rowwise(grad_states),
        "grad_last": rowwise(grad_last),
    }
    found = scan_backward(layout, arrays, stacked, needs)
    drive = found.drive
    if drive is not None and problem.input_weight is not None:
        drive = product_with_inputs(drive, problem.input_weight, needs_float64(problem))
    return (
        drive,
        found.A * alpha if found.A is not None and needs[1] else None,
        found.W.contiguous() if found.W is not None and needs[2] else None,
        found.start,
        found.U.contiguous() if found.U is not None and needs[4] else None,
        found.bias.contiguous() if found.bias is not None and needs[5] else None,
        found.timespans,
        None,
    )


class Found(NamedTuple):
    """Gradients as the kernel leaves them, with the axis of networks; some are parts of larger tensors."""

    drive: Tensor | None  # of u, (S, T, B, N)
    A: Tensor | None  # of αA, (S, N, N)
    W: Tensor | None
    start: Tensor | None
    U: Tensor | None  # (S, N, p)
    bias: Tensor | None
    timespans: Tensor | None


def scan_forward(layout: Layout, arrays: Arrays, keep_states: bool, save: bool) -> Tensor:
    """The last state, (S, B, N); the rest goes to the tape."""
    S, _, B, N = layout.shape
    last = torch.empty((S, B, N), dtype=layout.dtype, device="cpu")
    sizes = {"keep": int(keep_states), "save": int(save)}
    scratch = forward_scratch(layout.rows, layout.padded, layout.stages, layout.kernels.lanes)
    layout.run(layout.kernels.forward, {**arrays, "last": last}, sizes, scratch, work=2)
    return last


def scan_backward(layout: Layout, arrays: Arrays, stacked: Tensor, needs: Sequence[bool]) -> Found:
    """What ``needs`` asks for, in the order of ``Problem.tensors``; ``stacked`` has αA above W, from ``Layout``."""
    S, T, B, N = layout.shape
    padded, lanes, features, groups = layout.padded, layout.kernels.lanes, layout.features, layout.groups
    width, like = gap(padded, lanes), stacked
    matrices = like.new_zeros((S, groups, 2 * padded, width)) if needs[1] or needs[2] else None
    inputs = like.new_zeros((S, groups, features + 1, width)) if needs[4] or needs[5] else None
    drive = like.new_empty((S, T, B, N)) if needs[0] else None
    start = like.new_empty((S, B, N)) if needs[3] else None
    timespans = like.new_empty((S, T, B)) if needs[6] else None
    recompute = layout.stages > 1 or timespans is not None
    arrays = {
        **arrays,
        "backward_panels": layout.panels(stacked),
        "slope_panels": layout.panels(stacked[:, :N].mT) if recompute else None,
        "grad_drive": drive,
        "grad_start": start,
        "grad_timespans": timespans,
        "grad_matrices": matrices,
        "grad_inputs": inputs,
    }
    scratch = backward_scratch(layout.rows, padded, layout.stages, lanes, layout.chunk, features)
    layout.run(layout.kernels.backward, arrays, {"recompute": int(recompute)}, scratch, work=4)
    sums, input_sums = _added(matrices), _added(inputs)
    return Found(
        drive,
        None if sums is None else sums[:, :N, :N],
        None if sums is None else sums[:, padded : padded + N, :N],
        start,
        None if input_sums is None else input_sums[:, :features, :N].mT,
        None if input_sums is None else input_sums[:, features, :N],
        timespans,
    )


def product_with_inputs(d: Tensor, U: Tensor, in_float64: bool) -> Tensor:
    """∂x = d U, (S, T, B, p): the one product here that PyTorch takes."""
    wide = torch.float64 if in_float64 else d.dtype
    return (d.to(wide) @ U.unsqueeze(1).to(wide)).to(d.dtype)


def _added(groups: Tensor | None) -> Tensor | None:
    """The sum over groups, (S, groups, …)."""
    return groups if groups is None else groups[:, 0] if groups.shape[1] == 1 else groups.sum(1)


def _given(problem: Problem) -> Arrays:
    return {"drive": rowwise(problem.drive), "start": rowwise(problem.h0), "timespans": problem.timespans}


def _noise_arrays(problem: Problem) -> Arrays:
    """Seed, indices and strengths of the noise on the state, if there is any."""
    noise, scheme = problem.noise, problem.scheme
    if noise is None or not problem.noisy:
        return {}
    S, T, B, _ = problem.shape
    times = scheme.step_size if problem.timespans is None else problem.timespans
    a, m = (strength(noise, column, times)[..., 0].expand(S, T, B) for column in (ADDITIVE, MULTIPLICATIVE))
    seed, sample, step = noise[:, :ADDITIVE].detach().to(torch.int64).unbind(1)
    words = torch.stack((seed & 0xFFFFFFFF, seed >> 32, sample, step), dim=1)
    return {"noise_words": words.view(problem.A.dtype), "additive": a, "multiplicative": m}
