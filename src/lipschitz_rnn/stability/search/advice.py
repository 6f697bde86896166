"""What to do when there is no certificate."""

from __future__ import annotations

import numpy as np

from lipschitz_rnn.stability.proof.inputs import Subject
from lipschitz_rnn.stability.proof.systems import continuous_system, jacobian, sector_form
from lipschitz_rnn.stability.search.adversary import WorstSlopes

BUILT_TO_CONTRACT = "train a unit that contracts by construction: 'lipschitz' with stability='contracting', or 'ren'"
CONTRACTING = "train with stability='contracting' (on the command line: -u stability=contracting)"


def next_step(item: Subject, worst: WorstSlopes | None, cause: str, target: float) -> str:
    """One or two things to try, the most promising one first; ``target`` is the rate that was asked for, or 0."""
    lower = "ask for a lower rate, " if target > 0 else ""
    if cause == "time":
        return f"{lower}allow more time (time_limit, --time-limit)"
    if cause == "precision":
        return "run in float32 with torch.set_float32_matmul_precision('highest') and certify that"
    if item.is_flat:
        return f"{BUILT_TO_CONTRACT}; or certify a range of slopes, nonlinearity=(smallest, 1.0), that your states keep"
    if worst is None:
        return "check the size of the matrices' entries"
    if cause == "rate":
        return f"ask for a rate below {worst.rate:.4g}"
    if worst.rate > 0:
        return f"{lower}try solver='clarabel' (--solver clarabel) or a shorter step; or {CONTRACTING}"
    if item.feedback is not None:
        return f"{BUILT_TO_CONTRACT}; or make the recurrent weights smaller"
    growth = _growth(item, worst)
    if growth is not None and growth < 0 and item.step_range is not None:
        return (
            "use a shorter step: the differential equation decays for these slopes, and "
            f"largest_contracting_step finds how short; or {CONTRACTING}"
        )
    damping = "use a larger gamma"
    if growth is not None and item.alpha > 0:
        damping += f" (for A more than {growth / item.alpha:.3g} larger, for this pattern alone)"
    return f"{CONTRACTING}, or {damping}"


def _growth(item: Subject, worst: WorstSlopes) -> float | None:
    """How fast the differential equation grows for the slopes of the first stage that were found."""
    n = len(item.A)
    if len(worst.slopes) < n:
        return None
    linear, feedback = (ball.mid for ball in item.nominal)
    system = continuous_system(*sector_form(linear, feedback, item.slopes))
    try:
        return max(
            float(np.linalg.eigvals(jacobian(system, worst.slopes[k : k + n])).real.max())
            for k in range(0, len(worst.slopes), n)
        )
    except np.linalg.LinAlgError:
        return None
