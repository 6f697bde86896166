"""What a layer needs to run in parallel over time: what is known of its contraction."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.common.precision import float32_setting, rounds_float32
from lipschitz_rnn.ops.common.tracing import exporting
from lipschitz_rnn.ops.common.validation import seen_values
from lipschitz_rnn.ops.lipschitz.parallel.contraction import Contraction, Norms
from lipschitz_rnn.ops.lipschitz.parallel.gradient_bounds import drive_sensitivity
from lipschitz_rnn.ops.lipschitz.parallel.plan import Parallel
from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme
from lipschitz_rnn.units.lipschitz.autocast import result_dtype, to_compute_dtype
from lipschitz_rnn.units.lipschitz.contracting import ContractingPair
from lipschitz_rnn.units.lipschitz.kept import changed_by_others

if TYPE_CHECKING:
    from lipschitz_rnn.units.lipschitz.cell import LipschitzRNNCell
    from lipschitz_rnn.units.lipschitz.layer import LipschitzRNN

# Which certificates cover products whose operands may be rounded; others must have the very matrices that run.
_COVERING = {"high": ("high", "medium"), "medium": ("medium",)}
_HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_STATED = ("step_size", "alpha", "integrator", "nonlinearity")


@dataclass(frozen=True)
class Attached:
    """A certificate as a cell keeps it: with the matrices and settings for which it holds."""

    contraction: Contraction
    A: Tensor
    W: Tensor
    proved: tuple[Tensor, Tensor]  # A and W as the certificate has them, in float64: rounded to its precision
    settings: tuple[Any, ...]
    precision: str

    def require_current(self, cell: LipschitzRNNCell, A: Tensor, W: Tensor) -> None:
        """Raise if the cell is not the one that was certified any more."""
        now = tuple(getattr(cell, name) for name in _STATED)
        if now != self.settings:
            changed = [name for name, old, new in zip(_STATED, self.settings, now, strict=True) if old != new]
            raise ValueError(f"{_STALE}: {', '.join(changed)} changed. {_AGAIN}")
        found, kept = seen_values(A), seen_values(W)
        if found is None or kept is None:
            raise ValueError(
                "a compiled program cannot compare its matrices with those of a certificate; call the layer outside "
                "torch.compile, or use a contracting layer, whose factor does not depend on its parameters"
            )
        if not (torch.equal(found, self.A.to(found)) and torch.equal(kept, self.W.to(kept))):
            raise ValueError(f"{_STALE}: its parameters changed. {_AGAIN}")
        held, running = to_compute_dtype(A, W), _running_precision(A)
        same = all(
            torch.equal(own.double(), proved.to(own.device)) for own, proved in zip(held, self.proved, strict=True)
        )
        if not same or self.precision not in _COVERING.get(running, (self.precision,)):
            raise ValueError(
                f"the certificate is for matrices in {self.precision}, but they run in {running} here; certify with "
                f"precision={running!r}"
            )


_STALE = "the certificate attached to this layer does not hold any more"
_AGAIN = "Certify and attach again, or set parallel = None"


def contraction_of(cell: LipschitzRNNCell, A: Tensor, W: Tensor) -> Contraction | None:
    """How fast the cell is known to contract: by construction, by an attached certificate, or not at all."""
    if isinstance(cell.hidden, ContractingPair):
        pair = cell.hidden
        _require_unchanged(cell, pair)
        return Contraction(math.exp(-pair.rate * pair.step_size), pair.metric_root(), pair.step_size)
    attached = cell.__dict__.get("_certificate")
    if attached is None or torch._C._functorch.is_functorch_wrapped_tensor(A):
        return None
    attached.require_current(cell, A, W)
    return attached.contraction


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
    found = [_read(cell, part) for cell, part in zip(cells, parts, strict=True)]
    for cell, attached in zip(cells, found, strict=True):
        cell.__dict__["_certificate"] = attached


def _read(cell: LipschitzRNNCell, part: Any) -> Attached:
    if not getattr(part, "holds", False):
        raise ValueError(f"the certificate does not hold: {getattr(part, 'reason', '') or part!r}")
    if part.dynamics != cell.integrator or part.factor is None or part.step_range is None:
        raise ValueError(
            f"the certificate is about the {part.dynamics} dynamics, but this layer takes {cell.integrator} steps of "
            f"{cell.step_size:g}; certify the layer itself, which states its steps"
        )
    with torch.no_grad():
        A, W = (matrix.detach().clone() for matrix in cell.hidden_matrices())
    dtype = _HALF.get(part.precision, A.dtype)
    proved = tuple(torch.as_tensor(() if m is None else m, dtype=torch.float64) for m in (part.A, part.W))
    for name, own, other in (("A", A, proved[0]), ("W", W, proved[1])):
        if not torch.equal(own.to(dtype).double().cpu(), other):
            raise ValueError(f"the certificate is about another {name} than this layer's; certify this layer")
    if part.alpha != cell.alpha or part.nonlinearity not in (None, cell.nonlinearity):
        raise ValueError("the certificate is about another alpha or nonlinearity; certify this layer")
    # Euler steps shorter than a proved one are averages of it and of staying; others are proved for their range only.
    shortest = 0.0 if cell.integrator == "euler" else part.step_range[0]
    contraction = Contraction.from_metric(part.factor, part.metric, (shortest, part.step_range[1]))
    settings = tuple(getattr(cell, name) for name in _STATED)
    return Attached(contraction, A, W, (proved[0], proved[1]), settings, part.precision)


def _running_precision(A: Tensor) -> str:
    if result_dtype(A) == torch.float32 and rounds_float32(A.device):
        setting = float32_setting()
        return "high" if setting == "highest" else setting  # another setting of PyTorch's allows it
    return str(result_dtype(A)).removeprefix("torch.")
