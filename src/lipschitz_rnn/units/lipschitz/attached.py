"""A certificate as a cell keeps it, and the test that the cell is still the one that was certified."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.precision import coarsest_float32, rounds_float32
from lipschitz_rnn.ops.lipschitz.nonlinearities import get_nonlinearity
from lipschitz_rnn.ops.lipschitz.parallel.contraction import Contraction
from lipschitz_rnn.units.lipschitz.autocast import to_compute_dtype

if TYPE_CHECKING:
    from lipschitz_rnn.units.lipschitz.cell import LipschitzRNNCell

# Which certificates cover products whose operands may be rounded; others must have the very matrices that run.
_COVERING = {"high": ("high", "medium"), "medium": ("medium",)}
_HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_STATED = ("step_size", "alpha", "integrator", "nonlinearity")
_STALE = "the certificate attached to this layer does not hold any more"
_AGAIN = "Certify and attach again, or set parallel = None"


@dataclass(frozen=True)
class Attached:
    """A certificate, with the matrices and settings for which it holds."""

    contraction: Contraction
    A: Tensor
    W: Tensor
    proved: tuple[Tensor, Tensor]  # A and W as the certificate has them, in float64: rounded to its precision
    settings: tuple[Any, ...]
    precision: str

    @classmethod
    def read(cls, cell: LipschitzRNNCell, part: Any) -> Attached:
        """From the part of a certificate that is about this cell; raise if it is about another one."""
        if not getattr(part, "holds", False):
            raise ValueError(f"the certificate does not hold: {getattr(part, 'reason', '') or part!r}")
        if part.dynamics != cell.integrator or part.factor is None or part.step_range is None:
            raise ValueError(
                f"the certificate is about the {part.dynamics} dynamics, but this layer takes {cell.integrator} steps "
                f"of {cell.step_size:g}; certify the layer itself, which states its steps"
            )
        with torch.no_grad():
            A, W = (matrix.detach().clone() for matrix in cell.hidden_matrices())
        dtype = _HALF.get(part.precision, A.dtype)
        proved = tuple(torch.as_tensor(() if m is None else m, dtype=torch.float64) for m in (part.A, part.W))
        for name, own, other in (("A", A, proved[0]), ("W", W, proved[1])):
            if not torch.equal(own.to(dtype).double().cpu(), other):
                raise ValueError(f"the certificate is about another {name} than this layer's; certify this layer")
        slopes = get_nonlinearity(cell.nonlinearity).slope_range
        if part.alpha != cell.alpha or not (part.slopes[0] <= slopes[0] and slopes[1] <= part.slopes[1]):
            raise ValueError(
                f"the certificate is about alpha={part.alpha:g} and slopes from {part.slopes[0]:g} to "
                f"{part.slopes[1]:g}, but this layer has alpha={cell.alpha:g} and {cell.nonlinearity}, whose slopes "
                f"reach from {slopes[0]:g} to {slopes[1]:g}; certify this layer"
            )
        # Euler steps shorter than a proved one are averages of it and of staying; others are proved for their range.
        shortest = 0.0 if cell.integrator == "euler" else part.step_range[0]
        contraction = Contraction.from_metric(part.factor, part.metric, (shortest, part.step_range[1]))
        return cls(contraction, A, W, (proved[0], proved[1]), _settings(cell), part.precision)

    def current(self, cell: LipschitzRNNCell, A: Tensor, W: Tensor) -> Contraction:
        """What is proved of the cell with the matrices A and W; raise if it is not the certified one any more.

        A compiled program has no values to compare while it is traced, so an operator compares them whenever it runs.
        """
        now = _settings(cell)
        if now != self.settings:
            changed = [name for name, old, new in zip(_STATED, self.settings, now, strict=True) if old != new]
            raise ValueError(f"{_STALE}: {', '.join(changed)} changed. {_AGAIN}")
        held_A, held_W = to_compute_dtype(A, W)
        matrices = [each.detach() for each in (A, W, held_A, held_W, self.A, self.W, *self.proved)]
        if not torch.compiler.is_compiling():
            if not _without_values(A):
                _require_same(self.precision, *matrices)
            return self.contraction
        factor = A.new_full((1,), float(self.contraction.factor), dtype=torch.float64)
        return replace(self.contraction, factor=certified_factor(self.precision, factor, *matrices))


def _settings(cell: LipschitzRNNCell) -> tuple[Any, ...]:
    return tuple(getattr(cell, name) for name in _STATED)


def _without_values(A: Tensor) -> bool:
    """Whether nothing runs, but only shapes are wanted; a CUDA graph would run, and could not compare."""
    if A.is_cuda and torch.cuda.is_current_stream_capturing():
        raise ValueError(
            "a CUDA graph cannot compare the matrices it runs on with those of a certificate; call the layer outside "
            "the graph, or use a contracting layer, whose factor does not depend on its parameters"
        )
    return A.is_meta or isinstance(A, torch._subclasses.FakeTensor)


def _require_same(
    precision: str,
    A: Tensor,
    W: Tensor,
    held_A: Tensor,
    held_W: Tensor,
    kept_A: Tensor,
    kept_W: Tensor,
    proved_A: Tensor,
    proved_W: Tensor,
) -> None:
    """A and W must be those kept with the certificate, and as they are held in products, those that it proves."""
    if not (torch.equal(A, kept_A.to(A)) and torch.equal(W, kept_W.to(W))):
        raise ValueError(f"{_STALE}: its parameters changed. {_AGAIN}")
    running = _running_precision(held_A)
    pairs = ((held_A, proved_A), (held_W, proved_W))
    same = all(torch.equal(held.double(), proved.to(held.device)) for held, proved in pairs)
    if not same or precision not in _COVERING.get(running, (precision,)):
        raise ValueError(
            f"the certificate is for matrices in {precision}, but they run in {running} here; certify with "
            f"precision={running!r}"
        )


def _running_precision(held: Tensor) -> str:
    if held.dtype == torch.float32 and rounds_float32(held.device):
        return coarsest_float32()
    return str(held.dtype).removeprefix("torch.")


@torch.library.custom_op("lipschitz_rnn::certified_factor", mutates_args=())
def certified_factor(
    precision: str,
    factor: Tensor,
    A: Tensor,
    W: Tensor,
    held_A: Tensor,
    held_W: Tensor,
    kept_A: Tensor,
    kept_W: Tensor,
    proved_A: Tensor,
    proved_W: Tensor,
) -> Tensor:
    """The factor, if the matrices are the certified ones: a result, so that no compiler removes the test."""
    _require_same(precision, A, W, held_A, held_W, kept_A, kept_W, proved_A, proved_W)
    return factor.clone()


@certified_factor.register_fake
def _(precision: str, factor: Tensor, *matrices: Tensor) -> Tensor:
    return torch.empty_like(factor)
