"""What a parallel scan reports about its error."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class ScanBound:
    """How far a parallel scan can be from the sequential one. Pass an empty one to a call, which fills it.

    The bounds on truncation, ``states`` and ``gradients``, compare exact arithmetic with exact arithmetic: they are
    what cutting the sequence changes. Rounding, which the sequential scan has too, is in ``complete``.

    Args:
        complete: also bound the distance to the exact trajectory, rounding included: one step in float64 from each
            state to the next.
        gradients: also bound the error of every gradient when the backward pass runs.

    Attributes:
        proved: whether the bounds are theorems; if not, ``states`` is a measured residual.
        plan: how the sequence was cut, in words.
        sequential: why the scan ran sequentially; empty if it did not.
        states: a tensor (): no state is further than this from the sequential one, in the Euclidean norm.
        in_metric: the same in the metric of the contraction.
        relative: the same relative to the largest state of its sample: what the tolerance is about.
        passes: how often the chunks were run, the last time in part; 0 if one after another in the end.
        warm_up: how many steps of each chunk the last pass took until it joined the one before.
        complete: a tensor (): no state is further than this from the exact trajectory; None unless asked for.
        adjoint: a tensor (): the error of the adjoint along the states found, relative to the largest; None before
            the backward pass, and in compiled programs.
        adjoint_passes: as ``passes``, of the backward pass.
        gradients: name of a tensor -> bound on the Euclidean norm of its gradient's error: ``u`` (or ``x``), ``A``,
            ``W``, ``hx``, ``input_weight``, ``bias``, ``step_size``. None unless asked for, and where there is none.
        no_gradients: why there is no bound on gradients; empty if there is.
    """

    def __init__(self, *, complete: bool = False, gradients: bool = False) -> None:
        self.wants_complete, self.wants_gradients = complete, gradients
        self.proved, self.plan, self.sequential = False, "", ""
        self.statistics: Tensor | None = None
        self.complete: Tensor | None = None
        self.adjoint: Tensor | None = None
        self.adjoint_passes: int | None = None
        self.gradients: dict[str, Tensor] | None = None
        self.no_gradients = ""

    def start(self, plan: str, proved: bool) -> None:
        self.plan, self.proved, self.sequential, self.statistics = plan, proved, "", None
        self.complete = self.adjoint = self.adjoint_passes = self.gradients = None
        self.no_gradients = ""

    def run_sequentially(self, reason: str, like: Tensor) -> None:
        """Everything is exact: the bounds are zero."""
        self.start("one chunk", True)
        self.sequential = reason
        self.statistics = like.new_zeros(5)

    def __getattr__(self, name: str) -> Any:
        place = {"relative": 0, "in_metric": 1, "states": 2}.get(name)
        if place is None and name not in ("passes", "warm_up"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if self.statistics is None:
            raise AttributeError(f"{name} is not known yet; pass this bound to a call of the scan first")
        return int(self.statistics[3 if name == "passes" else 4]) if place is None else self.statistics[place]

    def __repr__(self) -> str:
        if self.statistics is None:
            return "ScanBound(empty)"
        if self.sequential:
            return f"ScanBound(sequential: {self.sequential})"
        kind = "proved" if self.proved else "measured, not proved"
        found = f"{self.plan}, passes={self.passes}, warm_up={self.warm_up}"
        return f"ScanBound(states ≤ {float(self.states):.3g} ({kind}), {found})"
