"""Many runs as one campaign: each has its own folder, is exported when it completes, and resumes where it stopped.

A run that fails does not stop the others. With several jobs each run has its own process; a signal reaches all of them,
and each saves before it exits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from lipschitz_rnn.experiments.engines import Engine
from lipschitz_rnn.experiments.pretrained import export_pretrained
from lipschitz_rnn.experiments.results import (
    Record,
    check_results_place,
    export_run,
    read_record,
    read_records,
    record_file,
    result_of_diverged,
    write_record,
)
from lipschitz_rnn.experiments.runner import train
from lipschitz_rnn.training import Diverged, Interrupted, RunError, Settings, Watcher
from lipschitz_rnn.training.folder import RunConflict, read_settings
from lipschitz_rnn.training.history import read_run
from lipschitz_rnn.training.processes import Watch, run_all
from lipschitz_rnn.training.run_settings import check_place

_HOW_TO_RESUME = "the same command with --resume"
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Plan:
    """One run of a study, with the facts that go into its record; see `Record`."""

    study: str
    name: str
    kind: str
    settings: Settings
    command: str
    why: str = ""
    pretrained: str | None = None  # file name for the weights of its best seed, if they are to be kept


class Measures:
    """What a study measures beyond the scores of its runs: by default nothing. Studies override what they need."""

    wait_for_all_runs = False  # whether records can be written only after all runs are trained

    def configured(self, quick: bool, options: Mapping[str, Any]) -> Measures:
        """A copy with the options of the command line."""
        return self

    def prepare(self) -> None:
        """Raise now, not after hours of training, if a package that is needed later is not installed."""

    def train(self, plan: Plan, folder: Path, resume: bool, watcher: Watcher) -> None:
        train(plan.settings, folder, resume=resume, watcher=watcher)

    def pending_work(self, plans: Mapping[Path, Plan]) -> Mapping[str, Callable[[Watch], object]]:
        """Measurements still to be made on finished runs, by name; with several jobs each has its own process."""
        return {}

    def of_run(self, folder: Path, plan: Plan) -> Mapping[str, Any] | None:
        """The measurements for the record of a finished run; None if there are none, and then no record is written."""
        return {}

    def curves(self, folder: Path) -> Mapping[str, Sequence[Sequence[float | None]]]:
        """Additional curves for the record."""
        return {}


@dataclass(frozen=True)
class Campaign:
    """Where the runs go: out/<name> for each, out/pretrained for weights, `results` for records."""

    out: Path
    results: Path
    resume: bool = False
    commit: str | None = None  # recorded if the package does not run from a checkout
    jobs: int = 1
    measures: Measures = field(default_factory=Measures)
    engine: Engine | None = None  # runs everything, e.g. on a cluster; by default processes of this machine

    def run(self, plans: Sequence[Plan], watch: Watch) -> tuple[list[Record], list[str]]:
        """Run all plans: their records, and the names of those that failed. Complete ones load no data."""
        self.check(plans)
        failed = self._run_all({plan.name: partial(self._worker().complete, plan, watch) for plan in plans}, watch)
        done = [plan for plan in plans if plan.name not in failed]
        if self.measures.wait_for_all_runs and done:
            pending = self.measures.pending_work({self.out / plan.name: plan for plan in done})
            failed += self._run_all({name: partial(measure, watch) for name, measure in pending.items()}, watch)
            done = [plan for plan in done if self.export(plan)]
        return [read_record(self.results / record_file(plan.study, plan.name)) for plan in done], failed

    def _worker(self) -> Campaign:
        """This campaign as an engine sends it around. A run that lost its machine starts again, so it must resume."""
        return self if self.engine is None else replace(self, engine=None, resume=True)

    def _run_all(self, work: Mapping[str, Callable[[], object]], watch: Watch) -> list[str]:
        """The names of those that failed."""
        if self.engine is None:
            return run_all(work, watch, self.jobs, str(self.out), _HOW_TO_RESUME)
        for name, call in work.items():
            self.engine.submit(name, call)
        ended: dict[str, str | None] = {}
        try:
            while len(ended) < len(work):
                for each in self.engine.wait(_POLL_SECONDS):
                    ended[each.name] = each.error
                    watch(each.name).note("complete" if each.error is None else f"failed: {each.error}")
        except Interrupted as interrupted:
            raise Interrupted(interrupted.number, str(self.out), _HOW_TO_RESUME) from None
        return [name for name in work if ended[name] is not None]

    def check(self, plans: Sequence[Plan]) -> None:
        """Raise before anything runs if a package is missing, a record is invalid, or a folder is taken, cannot be
        written to or holds a different run.
        """
        self.measures.prepare()
        for plan in plans:
            check_place(self.out / plan.name)
        for study in {plan.study for plan in plans}:
            check_results_place(self.results, study)
            if self.results.is_dir():
                read_records(self.results, study)
        for plan in plans:
            folder = self.out / plan.name
            if not (folder / "config.json").exists():
                if (folder / "result.json").exists():  # training would take the folder for a free one
                    raise RunConflict(
                        f"{folder} holds a finished run without its config.json; restore it from a copy, or choose "
                        "another --out"
                    )
                continue
            if not self.resume:
                raise RunConflict(f"{folder} already holds a run; resume it with --resume, or choose another --out")
            for name, (asked, frozen) in plan.settings.differences(read_settings(folder)).items():
                raise RunConflict(
                    f"{folder} holds a run with {name} = {frozen!r}, but this call has {asked!r}; "
                    "resume with the same options, or choose another --out"
                )

    def complete(self, plan: Plan, watch: Watch) -> None:
        """Run one plan, or the rest of it, and export it."""
        folder = self.out / plan.name
        if _is_over(folder):
            watch(plan.name).note("already complete")
        else:
            self._train(plan, folder, watch(plan.name))
        if not self.measures.wait_for_all_runs:
            self.export(plan)
        if plan.pretrained is not None and (folder / "result.json").exists():
            export_pretrained(folder, self.out / "pretrained" / f"{plan.pretrained}.safetensors")

    def _train(self, plan: Plan, folder: Path, watcher: Watcher) -> None:
        """Train; that all networks diverged is a result too, unless the study measures networks later."""
        try:
            self.measures.train(plan, folder, self.resume, watcher)
        except Diverged as error:
            if self.measures.wait_for_all_runs:
                raise
            watcher.note(f"all networks diverged, which goes into the record: {error}")

    def export(self, plan: Plan) -> bool:
        """Write the record of a finished run with its additional measurements; False if there is none to write."""
        folder = self.out / plan.name
        measured = self.measures.of_run(folder, plan)
        if measured is None:
            return False
        measured = {**measured, **({"cells_at_once": self.jobs} if self.jobs > 1 else {})}
        facts = {"kind": plan.kind, "command": plan.command, "why": plan.why, "measures": measured}
        more = self.measures.curves(folder)
        write_record(export_run(folder, plan.study, plan.name, commit=self.commit, curves=more, **facts), self.results)
        return True


def _is_over(folder: Path) -> bool:
    """Whether a run is complete, or all its networks diverged, so that there is nothing to resume."""
    if (folder / "result.json").exists():
        return True
    try:
        return (folder / "config.json").exists() and result_of_diverged(read_run(folder)) is not None
    except RunError:  # damaged metrics, which resuming cuts off
        return False
