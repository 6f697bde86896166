"""A study from its plans to its page; and what of all studies is committed, with the time that each run takes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lipschitz_rnn import tasks
from lipschitz_rnn.documents.files import write_page
from lipschitz_rnn.experiments.campaign import Campaign, Plan
from lipschitz_rnn.experiments.pages.sections import blocks
from lipschitz_rnn.experiments.processes import Watch
from lipschitz_rnn.experiments.results import Record, read_records
from lipschitz_rnn.experiments.study import QUICK, Study
from lipschitz_rnn.training import Settings, Watcher


def quiet(name: str) -> Watcher:
    """A watcher that says nothing."""
    return Watcher()


@dataclass(frozen=True)
class Outcome:
    records: list[Record]
    failed: list[str]  # names of what was not trained or not measured
    written: list[Path]  # the page, its pictures, the records


def reproduce(study: Study, campaign: Campaign, plans: Sequence[Plan], watch: Watch = quiet) -> Outcome:
    """Run the plans of a study and write its page, which shows earlier records of the campaign too."""
    records, failed = campaign.run(plans, watch)
    written: list[Path] = []
    if records:
        known = read_records(campaign.results, study.name)
        same = [record for record in known if (record.kind == QUICK) == (records[0].kind == QUICK)]
        written = write_page(blocks(study, same), campaign.out / f"{study.name}.md")
        written += [campaign.results / record.file for record in records]
    return Outcome(records, failed, written)


@dataclass(frozen=True)
class Entry:
    """One row of a study: its record where there is one, and seconds that were taken or are to be expected."""

    study: str
    group: str
    plan: Plan
    record: Record | None
    seconds: float | None  # None where nothing comparable is known


def inventory(studies: Iterable[Study], results: Path) -> list[Entry]:
    """Every row of the studies, with what lies below a results folder."""
    records = read_records(results) if results.is_dir() else []
    entries = []
    for study in studies:
        found = {record.name: record for record in records if record.study == study.name}
        for plan in study.plans(groups=tuple(study.groups)):
            record = found.get(plan.name)
            seconds = estimate(plan.settings, records) if record is None else record.seconds
            group = next(row.group for row in study.rows if row.name == plan.name)
            entries.append(Entry(study.name, group, plan, record, seconds))
    return entries


def estimate(settings: Settings, records: Sequence[Record]) -> float | None:
    """Seconds that a run may take where the records were made, from the most similar network step by step of the scan.

    All seeds of an ensemble train at once, so their number does not count. Networks are not compared whose sizes differ
    by more than twice.
    """
    known = []
    for record in records:
        other = record.setup
        ratio = max(other.hidden_size, settings.hidden_size) / min(other.hidden_size, settings.hidden_size)
        if _network(other) == _network(settings) and ratio <= 2 and (steps := scan_steps(other)):
            known.append(((other.task != settings.task, ratio, record.at_once), record.seconds / steps))
    nearest = [rate for distance, rate in known if distance == min(known)[0]]
    return statistics.median(nearest) * scan_steps(settings) or None if nearest else None


def _network(settings: Settings) -> tuple[str, str]:
    return settings.unit, str(settings.unit_options.get("integrator", "euler"))


def scan_steps(settings: Settings) -> int:
    """Steps of the recurrence over the whole training, one for all networks and samples of a batch."""
    facts = tasks.info(settings.task)
    sequences, length = facts["sizes"]["train"] or 0, facts["sequence_length"]
    if facts["stateful"]:  # windows of parallel streams, fewer where they are longer
        return int(settings.epochs * sequences * length)
    length = settings.task_options.get("length", settings.task_options.get("steps", length))
    return int(settings.epochs * max(1, sequences // settings.batch_size) * length)
