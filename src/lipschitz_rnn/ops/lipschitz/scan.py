"""``lipschitz_scan``: the recurrence without parameters."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lipschitz_rnn.ops.common.deprecation import renamed_keywords
from lipschitz_rnn.ops.common.dtypes import compute_dtype, state_dtype, without_autocast
from lipschitz_rnn.ops.common.noise import StateNoise, shifted
from lipschitz_rnn.ops.common.tracing import exporting
from lipschitz_rnn.ops.common.validation import (
    has_values,
    require_device,
    require_floating,
    require_lengths,
    require_like,
    require_number,
    require_shape,
    require_tensor,
    require_timespans,
    shape_of,
)
from lipschitz_rnn.ops.lipschitz.dispatch import run
from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.ops.lipschitz.nonlinearities import get_nonlinearity
from lipschitz_rnn.ops.lipschitz.parallel.bounds import ScanBound
from lipschitz_rnn.ops.lipschitz.parallel.contraction import Contraction
from lipschitz_rnn.ops.lipschitz.parallel.plan import Parallel
from lipschitz_rnn.ops.lipschitz.parallel.run import run_parallel
from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme
from lipschitz_rnn.ops.lipschitz.substeps import repeat_steps, run_substeps


@renamed_keywords(h0="hx", all_states="need_output")
def lipschitz_scan(
    u: Tensor,
    A: Tensor,
    W: Tensor,
    hx: Tensor | None = None,
    step_size: float | Tensor = 0.03,
    alpha: float = 1.0,
    integrator: str = "euler",
    nonlinearity: str = "tanh",
    lengths: Tensor | None = None,
    backend: str = "auto",
    *,
    input_weight: Tensor | None = None,
    bias: Tensor | None = None,
    need_output: bool = True,
    recompute_every: int | None = None,
    exact_products: bool = False,
    max_step: float | None = None,
    noise: StateNoise | None = None,
    parallel: Parallel | str | int | None = None,
    tolerance: float = 1e-6,
    contraction: Contraction | None = None,
    bound: ScanBound | None = None,
) -> tuple[Tensor | None, Tensor]:
    r"""Integrate ``ḣ = αA h + σ(W h + u)`` over a sequence, for one network or S networks at once.

    With Euler steps, ``h[t+1] = h[t] + ε (αA h[t] + σ(W h[t] + u[t]))``; the input is constant over a step.

    Args:
        u: (T, B, N), or (S, T, B, N) for S networks at once. With ``input_weight`` these are the inputs x,
            (…, T, B, p), and u = U x + b is formed on the way, in memory only where a backend needs it.
        A, W: (N, N), or (S, N, N). Column convention: a batch multiplies as ``h @ A.T``.
        hx: (B, N) or (S, B, N); zeros if None.
        step_size: ε, a positive number, or the time of each step, (T, B) or (S, T, B), at least 0.
        alpha: factor on the linear term.
        integrator: ``euler``, ``midpoint`` (``rk2``), ``heun`` or ``rk4``.
        nonlinearity: σ: ``tanh``, ``relu``, ``sigmoid`` or ``identity``.
        lengths: (B,) or (S, B), the valid steps of each sample. The state stops there; states beyond are zero.
        backend: ``auto``, ``reference``, ``cpu`` or ``triton``. One requested by name runs or raises.
        input_weight, bias: U, (N, p) or (S, N, p), and b, (N,) or (S, N).
        need_output: False saves the memory of the states in inference; then the first result is None.
        recompute_every: keep only one state in this many for the backward pass and recompute the others there. Under
            ``torch.func`` (``grad``, ``vmap``, ``jacrev`` …), which cannot compute again, all are kept.
        exact_products: take the products with A and W in at least float32, whatever autocast and
            ``torch.set_float32_matmul_precision`` allow; tensors of 16 bits are computed in float32 and the results
            rounded back. On a GPU this is about the states; gradients follow that setting. An exported program keeps
            float32, and the setting where it runs decides how that multiplies.
        max_step: a longer step is taken in ⌈step/max_step⌉ equal sub-steps with its input held, for each sample alone.
        noise: noise on the state after each step (after each sub-step, with ``max_step``); see :class:`StateNoise`.
        parallel: run chunks of the sequence beside each other, ``"auto"`` or their number, with a proved error: see
            ``docs/long-sequences.md``. It needs a ``contraction``, and has first derivatives only.
        tolerance: what that error may be at most, relative to the largest state; else the scan runs sequentially.
        contraction: how fast two states of this network approach each other, a :class:`Contraction`.
        bound: an empty :class:`ScanBound`, which the call fills.

    Returns:
        The states after each step, (T, B, N) or (S, T, B, N), and the last state of each sample, (B, N) or (S, B, N).
    """
    get_integrator(integrator), get_nonlinearity(nonlinearity)
    problem = _checked(u, A, W, hx, step_size, alpha, integrator, nonlinearity, input_weight, bias, exact_products)
    if noise is not None:
        problem = replace(problem, noise=_checked_noise(noise, problem))
    repeats, mask = 1, None
    if max_step is not None:
        max_step = require_number("max_step", max_step, low=0.0, open_low=True)
        if problem.timespans is None:
            (problem, repeats), max_step = repeat_steps(problem, max_step), None
    if lengths is not None:
        problem, mask = _stop_at(problem, lengths, repeats)

    settings = None if parallel is None else Parallel.read(parallel, tolerance)
    _require_every(recompute_every)
    _require_parallel(settings, contraction, bound)
    divided = max_step is not None and torch.compiler.is_compiling()
    if bound is not None and (settings is None or divided):
        reason = "parallel is None" if settings is None else "a compiled program divides steps in one piece"
        bound.run_sequentially(reason, u.detach().new_zeros((), dtype=torch.float64))

    def run_whole(problem: Problem) -> tuple[Tensor | None, Tensor]:
        if recompute_every is None:
            return run(problem, backend, need_output)
        return _run_in_chunks(problem, backend, need_output, recompute_every)

    def run_plain(problem: Problem, ends: Tensor | None = None) -> tuple[Tensor | None, Tensor]:
        if settings is None:
            return run_whole(problem)
        counted = None if lengths is None or mask is None else lengths.long() * repeats
        known = (contraction, _counted_steps(counted, ends), recompute_every, bound)
        return run_parallel(problem, backend, need_output, settings, *known, sequential=run_whole)

    with without_autocast(u.device):
        if max_step is None:
            states, last = run_plain(problem)
        else:
            states, last = run_substeps(problem, max_step, run_plain, backend, need_output)
    if states is not None and repeats > 1:
        states = states[..., repeats - 1 :: repeats, :, :].contiguous()
    if states is not None and mask is not None:
        states = states.masked_fill(~mask[..., repeats - 1 :: repeats, :].unsqueeze(-1), 0.0)
    return states, last


def _checked(
    u: Tensor,
    A: Tensor,
    W: Tensor,
    hx: Tensor | None,
    step_size: float | Tensor,
    alpha: float,
    integrator: str,
    nonlinearity: str,
    input_weight: Tensor | None,
    bias: Tensor | None,
    exact_products: bool,
) -> Problem:
    """The arguments as a problem, after all of them have been checked."""
    if require_tensor("u", u).dim() not in (3, 4):
        raise ValueError(f"u has shape {shape_of(u)}; it must be (T, B, N), or (S, T, B, N) for S networks")
    *networks, T, B, features = u.shape
    require_tensor("A", A), require_tensor("W", W)
    require_floating("A", A)
    if T == 0:
        raise ValueError(f"u has shape {shape_of(u)}, a sequence of 0 steps; at least 1 is needed")
    N = A.shape[-1] if A.dim() > 0 else 0
    require_shape("A", A, (*networks, N, N), "a square matrix for each network")
    require_shape("W", W, (*networks, N, N), "the shape of A")
    for name, tensor in (("W", W), ("u", u), ("hx", hx), ("input_weight", input_weight), ("bias", bias)):
        if tensor is not None:
            require_like(name, require_tensor(name, tensor), "A", A)
    if input_weight is None:
        if bias is not None:
            raise ValueError("bias was given without input_weight; add it to u instead")
        if features != N:
            raise ValueError(
                f"u has {features} features but A is {N}×{N}; they must agree, or pass input_weight (N, p)"
            )
    else:
        require_shape("input_weight", input_weight, (*networks, N, features), "(N, p) with p the features of u")
        if bias is not None:
            require_shape("bias", bias, (*networks, N), "one number for each hidden unit")
    if hx is not None:
        require_shape("hx", hx, (*networks, B, N), "batch size by hidden size")
    alpha = require_number("alpha", alpha, low=-float("inf"))
    timespans = None
    if isinstance(step_size, Tensor):
        timespans = _checked_steps(step_size, A, (*networks, T, B))
        step_size = 0.0
    else:
        step_size = require_number("step_size", step_size, low=0.0, open_low=True)
    if not isinstance(exact_products, bool):
        raise TypeError(f"exact_products is {exact_products!r}; pass True or False")
    scheme = Scheme(step_size, alpha, integrator, nonlinearity, exact_products)
    return Problem(u, A, W, hx, input_weight, bias, timespans, scheme)


def _checked_noise(noise: StateNoise, problem: Problem) -> Tensor:
    if not isinstance(noise, StateNoise):
        raise TypeError(f"noise is a {type(noise).__name__}; pass a StateNoise, its strengths and its seed")
    if exporting():
        raise ValueError("noise is for training, and an exported program has none; call eval() before exporting")
    return noise.rows(tuple(problem.drive.shape[:-3]), problem.A)


def _checked_steps(step_size: Tensor, A: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Times of the steps, (T, B) or (S, T, B), in the precision of the state."""
    T, B = shape[-2:]
    if tuple(step_size.shape) not in ((), (T, B), shape):
        raise ValueError(
            f"step_size has shape {shape_of(step_size)}; it must be a number, "
            f"or ({T}, {B}): one time for each step and sample"
        )
    require_floating("step_size", step_size)
    require_device("step_size", step_size, "A", A)
    require_timespans(step_size)
    return step_size.to(state_dtype(A.dtype)).expand(shape)


def _stop_at(problem: Problem, lengths: Tensor, repeats: int) -> tuple[Problem, Tensor | None]:
    """Sequences of different length: beyond its end a sample takes steps of time zero on zero input.

    That leaves its state as it is, exactly, and gives the padding neither influence nor gradient, even if it is NaN.
    ``lengths`` counts the steps as they were before each was repeated.
    """
    *networks, T, B, _ = problem.drive.shape
    require_tensor("lengths", lengths)
    if tuple(lengths.shape) not in ((B,), (*networks, B)):
        raise ValueError(f"lengths has shape {shape_of(lengths)}; it must be ({B},): one number for each sample")
    lengths = require_lengths(lengths, T // repeats) * repeats
    if lengths.device.type == "cpu" and has_values(lengths) and bool((lengths == T).all()):
        return problem, None
    lengths = lengths.to(problem.A.device)
    mask = (torch.arange(T, device=lengths.device)[:, None] < lengths[..., None, :]).expand(*networks, T, B)
    drive = problem.drive.masked_fill(~mask.unsqueeze(-1), 0.0)
    if problem.timespans is None:
        steps = mask.to(state_dtype(problem.A.dtype)) * problem.scheme.step_size
    else:
        steps = problem.timespans.masked_fill(~mask, 0.0)
    return replace(problem, drive=drive, timespans=steps), mask


def _require_every(every: object) -> None:
    if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
        raise ValueError(f"recompute_every is {every!r}; it must be a whole number of steps, at least 1, or None")


def _require_parallel(settings: Parallel | None, contraction: object, bound: object) -> None:
    if contraction is not None and not isinstance(contraction, Contraction):
        raise TypeError(f"contraction is a {type(contraction).__name__}; pass a Contraction, e.g. from_metric(...)")
    if bound is not None and not isinstance(bound, ScanBound):
        raise TypeError(f"bound is a {type(bound).__name__}; pass an empty ScanBound()")
    if settings is None and contraction is not None:
        raise ValueError("contraction was given without parallel, which alone uses it; omit it or pass parallel='auto'")


def _counted_steps(lengths: Tensor | None, ends: Tensor | None) -> Tensor | None:
    """The steps of each sample after which its state only stays as it is, (B,) or (S, B); None if there are no more.

    ``ends``, (…, T, B), says where the sub-steps of each step end.
    """
    if ends is None:
        return lengths
    if lengths is None:
        return ends[..., -1, :]
    lengths = lengths.to(ends.device).expand(ends[..., -1, :].shape)
    return ends.gather(-2, lengths.unsqueeze(-2) - 1).squeeze(-2)


def _run_in_chunks(problem: Problem, backend: str, need_output: bool, every: int) -> tuple[Tensor | None, Tensor]:
    """The same scan in pieces, each recomputed in the backward pass instead of stored."""
    if not torch.compiler.is_compiling() and torch._C._functorch.maybe_current_level() is not None:
        return run(problem, backend, need_output)  # function transforms do not support checkpoints
    if torch.compiler.is_compiling() and (exporting() or not torch.is_grad_enabled()):
        return run(problem, backend, need_output)  # nothing is stored, and pieces would fix the number of steps
    dtype, exact = problem.A.dtype, problem.scheme.exact_products
    wide = compute_dtype(dtype, problem.A.device, exact)
    # As in ``run``, which would round the last state of each piece, and its share of the gradients.
    widened = wide != dtype and (exact or backend != "triton")

    def piece(
        h: Tensor | None, drive: Tensor, timespans: Tensor | None, *shared: Tensor | None
    ) -> tuple[Tensor | None, Tensor]:
        A, W, input_weight, bias, noise = shared
        tensors = (drive, A, W, h, input_weight, bias, timespans, noise)
        given = Problem.of(tensors, problem.scheme)
        states, last = run(given.to(wide) if widened else given, backend, need_output)
        return (states.to(dtype) if widened and states is not None else states), last

    h, collected = problem.h0, []
    given = (problem.A, problem.W, problem.input_weight, problem.bias)
    shared = [None if tensor is None else tensor.to(wide) if widened else tensor for tensor in given]
    for start in range(0, problem.drive.shape[-3], every):
        span = slice(start, start + every)
        timespans = None if problem.timespans is None else problem.timespans[..., span, :]
        noise = None if problem.noise is None else shifted(problem.noise, start)
        states, h = checkpoint(piece, h, problem.drive[..., span, :, :], timespans, *shared, noise, use_reentrant=False)
        collected.append(states)
    assert h is not None  # there is at least one step
    return (torch.cat(collected, dim=-3) if need_output else None), h.to(dtype)
