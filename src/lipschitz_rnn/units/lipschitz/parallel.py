"""What a layer needs to run in parallel over time: what is known of its contraction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.precision import float32_setting, rounds_float32
from lipschitz_rnn.ops.common.validation import seen_values
from lipschitz_rnn.ops.lipschitz.parallel.contraction import Contraction, Norms
from lipschitz_rnn.ops.lipschitz.parallel.gradient_bounds import drive_sensitivity
from lipschitz_rnn.ops.lipschitz.parallel.plan import Parallel
from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme
from lipschitz_rnn.units.lipschitz.contracting import ContractingPair

if TYPE_CHECKING:
    from lipschitz_rnn.units.lipschitz.cell import LipschitzRNNCell
    from lipschitz_rnn.units.lipschitz.layer import LipschitzRNN

# What a certificate may say that the matrices are held in, from the narrowest claim to the widest.
_PRECISIONS = ("exact", "float64", "float32", "high", "medium", "bfloat16", "float16")
_STATED = ("step_size", "alpha", "integrator", "nonlinearity")


@dataclass(frozen=True)
class Attached:
    """A certificate as a cell keeps it: with the matrices and settings for which it holds."""

    contraction: Contraction
    A: Tensor
    W: Tensor
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
        running = _running_precision(A)
        if self.precision != "exact" and _PRECISIONS.index(self.precision) < _PRECISIONS.index(running):
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
        return Contraction(math.exp(-pair.rate * pair.step_size), pair.metric_root(), pair.step_size)
    attached = cell.__dict__.get("_certificate")
    if attached is None or torch._C._functorch.is_functorch_wrapped_tensor(A):
        return None
    attached.require_current(cell, A, W)
    return attached.contraction


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
    slack = 0.0 if part.precision in ("exact", "float64", "float32") else 2.0**-7
    for name, own, proved in (("A", A, part.A), ("W", W, part.W)):
        other = None if proved is None else torch.as_tensor(proved, dtype=torch.float64)
        wide = own.double().cpu()
        if other is None or other.shape != wide.shape or bool(((other - wide).abs() > slack * wide.abs().max()).any()):
            raise ValueError(f"the certificate is about another {name} than this layer's; certify this layer")
    if part.alpha != cell.alpha or part.nonlinearity not in (None, cell.nonlinearity):
        raise ValueError("the certificate is about another alpha or nonlinearity; certify this layer")
    # Euler steps shorter than a proved one are averages of it and of staying; others are proved for their range only.
    shortest = 0.0 if cell.integrator == "euler" else part.step_range[0]
    contraction = Contraction.from_metric(part.factor, part.metric, (shortest, part.step_range[1]))
    return Attached(contraction, A, W, tuple(getattr(cell, name) for name in _STATED), part.precision)


def _running_precision(A: Tensor) -> str:
    if A.dtype == torch.float32 and rounds_float32(A.device):
        setting = float32_setting()
        return "high" if setting == "highest" else setting  # another setting of PyTorch's allows it
    return {torch.float64: "float64"}.get(A.dtype, "float32")
