"""What is said of networks without a finite validation score: their only weights are initial ones, so they are left out
of averages, predictions and exports."""

from __future__ import annotations

from collections.abc import Sequence

from lipschitz_rnn.training import RunError
from lipschitz_rnn.training.results import no_finite_score
from lipschitz_rnn.training.settings import Member


def left_out_note(members: Sequence[Member], validated: Sequence[bool]) -> str:
    """One line, or "" if every network counts."""
    lost = [member for member, counts in zip(members, validated, strict=True) if not counts]
    if not lost:
        return ""
    verb = "has no finite validation score and is" if len(lost) == 1 else "have no finite validation score and are"
    if any(member.variant for member in lost):
        names = "; ".join(member.name for member in lost)
    else:
        names = f"seed{'' if len(lost) == 1 else 's'} {', '.join(str(member.seed) for member in lost)}"
    return f"{len(lost)} of {len(members)} networks {verb} left out: {names}"


def require_validated(where: object, validated: Sequence[bool]) -> None:
    """Raise if no network is left."""
    if not any(validated):
        raise RunError(f"{where} has no selected weights: {no_finite_score(len(validated))}")
