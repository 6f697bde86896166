"""What a layer needs to run in parallel over time: what is known of its contraction."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.common.tracing import exporting
from lipschitz_rnn.ops.lipschitz.parallel.contraction import Contraction, Norms
from lipschitz_rnn.ops.lipschitz.parallel.gradient_bounds import drive_sensitivity
from lipschitz_rnn.ops.lipschitz.parallel.plan import Parallel
from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme
from lipschitz_rnn.units.lipschitz.attached import Attached
from lipschitz_rnn.units.lipschitz.contracting import ContractingPair
from lipschitz_rnn.units.lipschitz.kept import changed_by_others

if TYPE_CHECKING:
    from lipschitz_rnn.units.lipschitz.cell import LipschitzRNNCell
    from lipschitz_rnn.units.lipschitz.layer import LipschitzRNN


def contraction_of(cell: LipschitzRNNCell, A: Tensor, W: Tensor) -> Contraction | None:
    """How fast the cell is known to contract: by construction, by an attached certificate, or not at all."""
    if isinstance(cell.hidden, ContractingPair):
        pair = cell.hidden
        _require_unchanged(cell, pair)
        return Contraction(math.exp(-pair.rate * pair.step_size), pair.metric_root(), pair.step_size)
    attached = cell.__dict__.get("_certificate")
    if attached is None:
        return None
    if not torch.compiler.is_compiling() and torch._C._functorch.is_functorch_wrapped_tensor(A):
        return None
    return attached.current(cell, A, W)


def _require_unchanged(cell: LipschitzRNNCell, pair: ContractingPair) -> None:
    """Raise if the matrices of a contracting unit may be others than those that its construction proves to contract."""
    if exporting():  # which wraps modules, and has no chunks
        return
    if changed_by_others(cell, pair):
        raise ValueError(
            "the matrices of this contracting unit are changed after they are made, by a hook or another method, so "
            "nothing proves that they contract; remove the change (a hook may be one of all modules), or set parallel "
            "= None"
        )


@torch.no_grad()
def output_bound(layer: LipschitzRNN) -> float:
    """How far any output of the last call can be from the sequential one: errors of lower layers go through the others.

    A layer's error is its own and what its input's makes of it: with R for the derivative of a step by its drive, an
    input that is off by e at every step moves the state by at most R ‖P^{1/2}U‖ e / (1 − ρ) in the metric.
    """
    if len(layer.bounds) != len(layer.cells) or not all(bound.proved for bound in layer.bounds):
        raise ValueError(
            "nothing is proved of the last call; call the layer with parallel set, and without proved=False"
        )
    below, found = 0.0, iter(layer.bounds)
    for k in range(layer.num_layers):
        errors = []
        for d in range(layer.num_directions):
            own, gain = float(next(found).states), 0.0
            if below > 0.0:
                gain = _input_gain(layer.cell(k, d))
            errors.append(own + gain * below)
        below = math.hypot(*errors)
        if layer.training and layer.dropout and k < layer.num_layers - 1:
            below /= 1.0 - layer.dropout
    return below


def _input_gain(cell: LipschitzRNNCell) -> float:
    A, W = cell.hidden_matrices()
    contraction = contraction_of(cell, A, W)
    assert contraction is not None  # or the call had not been proved
    norms = Norms.of(contraction, 1, A)
    scheme = Scheme(cell.step_size, cell.alpha, cell.integrator, cell.nonlinearity)
    problem = Problem(A.new_zeros(1, 1, 1, A.shape[-1]), A[None], W[None], None, None, None, None, scheme)
    R = drive_sensitivity(problem, norms)
    U = cell.weight_ih.detach().double()
    seen = norms.root[0].unsqueeze(-1) * U if norms.diagonal else norms.root[0] @ U
    stretched = float(torch.linalg.matrix_norm(seen, ord=2)) * R / float(norms.extremes[0])
    rest = 1.0 - float(norms.factor.max())
    return stretched / rest if rest > 0.0 else math.inf


def chunks_for(layer: LipschitzRNN, steps: int) -> Parallel | str | int | None:
    """The layer's ``parallel`` for a sequence: one chunk, so the sequential scan, if it has fewer steps than chunks."""
    given = layer.parallel
    if given is None or given == "auto" or exporting():  # an exported program has no chunks
        return given
    settings = Parallel.read(given, layer.tolerance)
    short = settings.group is None and isinstance(settings.chunks, int) and settings.chunks > steps
    return replace(settings, chunks=1) if short else given


def require_trainable(model: nn.Module) -> None:
    """Raise for layers of a model whose ``parallel`` a training call would refuse."""
    from lipschitz_rnn.ops.lipschitz.parallel.run import NO_CONTRACTION, NOISY

    for module in model.modules():
        cells = getattr(module, "cells", None)
        settings = getattr(module, "parallel", None)
        if not isinstance(cells, nn.ModuleDict) or settings is None:
            continue
        proved = not isinstance(settings, Parallel) or settings.proved
        for cell in cells.values():
            if getattr(cell, "noisy", False):
                raise ValueError(NOISY)
            if proved and not getattr(cell, "contracting", False):  # training changes what a certificate is about
                raise ValueError(NO_CONTRACTION)


def refuse_directions(layer: LipschitzRNN) -> None:
    """Raise for a layer that reads backwards while the time axis is split over processes, in the order of ranks."""
    if layer.bidirectional and isinstance(layer.parallel, Parallel) and layer.parallel.group is not None:
        raise ValueError("bidirectional=True does not work with Parallel(group=...): use two layers, or one process")


def attach_certificate(layer: LipschitzRNN, certificate: Any) -> None:
    """Keep the parts of a certificate of this layer in its cells; None removes them."""
    cells = [layer.cell(k, d) for k in range(layer.num_layers) for d in range(layer.num_directions)]
    if certificate is None:
        for cell in cells:
            cell.__dict__.pop("_certificate", None)
        return
    parts = tuple(getattr(certificate, "parts", ())) or (certificate,)
    if len(parts) != len(cells):
        raise ValueError(
            f"the certificate is about {len(parts)} recurrence(s), but this layer has {len(cells)}; certify this layer"
        )
    found = [Attached.read(cell, part) for cell, part in zip(cells, parts, strict=True)]
    for cell, attached in zip(cells, found, strict=True):
        cell.__dict__["_certificate"] = attached
