"""A sweep behind tuned cells: how its candidates are compared, and their section of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lipschitz_rnn.documents.blocks import Block, Heading, Paragraph, Table
from lipschitz_rnn.documents.numbers import spread
from lipschitz_rnn.experiments.pages.sections import number
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.experiments.study import Study
from lipschitz_rnn.training import Settings

CRITERION_SHARE = 10  # the last tenth of the epochs, where the paper's rate is small
# A tuned cell may differ from its candidate in these: what the command line sets, and the decay that follows `epochs`.
_NOT_PART_OF_A_CHOICE = {"seeds", "precision", "epochs", "decay_epochs"}
_TEXT = (
    "Candidates for the tuned cells, by validation accuracy in percent. What decides is its mean over the last tenth "
    "of the epochs, averaged over the seeds: with 2,000 images the best of many epochs is a noisy judge. "
    "The test split has no part in the choice, and the seeds are used for nothing else. The best stands first; the "
    "chosen one was trained again from fresh seeds as the tuned cell of its task and N, or as the row of another unit. "
    "A dash: a seed diverged."
)


def criterion(record: Record, variant: Mapping[str, Any] | None = None) -> float | None:
    """What decides: validation score, mean over the last tenth of the epochs and over the seeds.

    None where a seed diverged: its score would be that of the weights before it did.
    """
    curves = _curves(record, variant or {})
    late = [value for curve in curves for value in curve[-max(1, len(curve) // CRITERION_SHARE) :]]
    known = [value for value in late if value is not None]
    diverged = any(seed["diverged_step"] is not None for seed in record.seeds if seed["variant"] == (variant or {}))
    return sum(known) / len(known) if known and len(known) == len(late) and not diverged else None


def _curves(record: Record, variant: Mapping[str, Any]) -> list[Sequence[float | None]]:
    """Validation score by epoch of each seed of a variant."""
    curves = record.curves[f"validation_{record.metric}"]
    return [curve for seed, curve in zip(record.seeds, curves, strict=True) if seed["variant"] == variant]


def sweep(study: Study, records: Sequence[Record]) -> list[Block]:
    """Candidates and their variants, the best first in each task; nothing where none was tried."""
    tried = [record for record in records if record.kind == "sweep"]
    if not tried:
        return []
    tuned = [record.setup for record in records if record.kind in ("tuned", "baseline")]
    groups: dict[tuple[str, str], list[tuple[float, list[str]]]] = {}
    for record in tried:
        groups.setdefault((record.setup.task, record.setup.unit), []).extend(_candidates(record, tuned))
    rows = [row for found in groups.values() for _, row in sorted(found, key=lambda item: -item[0])]
    late, best = "last tenth, mean", "best epoch, mean"
    header = ["candidate", "unit", "what it is", "chosen", "epochs", "seeds", late, best]
    return [Heading("The sweep behind the tuned cells"), Paragraph(_TEXT), Table(header, rows, left=4)]


def _candidates(record: Record, tuned: Sequence[Settings]) -> list[tuple[float, list[str]]]:
    """What decides, and the row, of a candidate or of each of its variants."""
    rows = []
    for variant in record.setup.variants or ({},):
        own = [seed for seed in record.seeds if seed["variant"] == variant]
        best = spread([seed["validation"] for seed in own if seed["validation"] is not None])[1]
        late = criterion(record, variant)
        options = ", ".join(f"{name} {value}" for name, value in variant.items()) or "the paper's"
        alone = record.setup.of_variant(variant)
        chosen = any(set(alone.differences(other)) <= _NOT_PART_OF_A_CHOICE for other in tuned)
        numbers = [str(record.setup.epochs), str(len(own)), *(number(record, value) for value in (late, best))]
        rows.append((late or 0.0, [record.name, options, record.why, "yes" if chosen else "", *numbers]))
    return rows
