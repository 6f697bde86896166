"""Runs the plans of a study and writes its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lipschitz_rnn.documents.files import write_page
from lipschitz_rnn.experiments.campaign import Campaign, Measures, Plan
from lipschitz_rnn.experiments.pages.sections import blocks
from lipschitz_rnn.experiments.results import Record, read_records
from lipschitz_rnn.experiments.study import QUICK, Study
from lipschitz_rnn.training import Watcher
from lipschitz_rnn.training.processes import Watch


def quiet(name: str) -> Watcher:
    """A watcher that prints nothing."""
    return Watcher()


@dataclass(frozen=True)
class Outcome:
    records: list[Record]
    failed: list[str]  # names of runs or networks that were not trained or measured
    written: list[Path]  # the page, its pictures, the records


def reproduce(study: Study, campaign: Campaign, plans: Sequence[Plan], watch: Watch = quiet) -> Outcome:
    """Run the plans of a study and write its page, which also shows earlier records of the campaign."""
    if type(campaign.measures) is Measures:  # the command passes those of the study, with its options
        campaign = replace(campaign, measures=study.measures)
    records, failed = campaign.run(plans, watch)
    written: list[Path] = []
    if records:
        known = read_records(campaign.results, study.name)
        same = [record for record in known if (record.kind == QUICK) == (records[0].kind == QUICK)]
        written = write_page(blocks(study, same), campaign.out / f"{study.name}.md")
        written += [campaign.results / record.file for record in records]
    return Outcome(records, failed, written)
