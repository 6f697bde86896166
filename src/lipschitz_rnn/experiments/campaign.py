"""Many runs as one campaign: each in a folder of its own, exported as soon as it is complete, resumed where it was cut.

A run that fails does not stop the others. With several jobs every run has a process of its own; a signal reaches all of
them, and each saves before it leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lipschitz_rnn.experiments.pretrained import export_pretrained
from lipschitz_rnn.experiments.results import Record, export_run, read_record, record_file, write_record
from lipschitz_rnn.experiments.runner import train
from lipschitz_rnn.training import Settings, Watcher
from lipschitz_rnn.training.folder import RunConflict, read_settings
from lipschitz_rnn.training.processes import Watch, run_works

_GO_ON = "the same command and --resume"


@dataclass(frozen=True)
class Plan:
    """One run of a study, and what its record will say of it; see `Record`."""

    study: str
    name: str
    kind: str
    settings: Settings
    command: str
    why: str = ""
    pretrained: str | None = None  # name of the file for its best seed, where there is to be one


class Measures:
    """What a study measures beyond the scores of its runs. As it stands: nothing; a study overrides what it needs."""

    later = False  # whether records have to wait until all runs are trained

    def configured(self, quick: bool, options: Mapping[str, Any]) -> Measures:
        """The same with what the command line asks for."""
        return self

    def prepare(self) -> None:
        """Raise, before hours of training, where something is not installed that is needed after them."""

    def train(self, plan: Plan, folder: Path, resume: bool, watcher: Watcher) -> None:
        train(plan.settings, folder, resume=resume, watcher=watcher)

    def works(self, plans: Mapping[Path, Plan]) -> Mapping[str, Callable[[Watch], object]]:
        """What is left to measure of finished runs, by name; with several jobs each has a process of its own."""
        return {}

    def of_run(self, folder: Path, plan: Plan) -> Mapping[str, Any] | None:
        """What the record of a finished run holds of it; None where nothing could be measured: then there is none."""
        return {}

    def curves(self, folder: Path) -> Mapping[str, Sequence[Sequence[float | None]]]:
        """Further curves for the record."""
        return {}


@dataclass(frozen=True)
class Campaign:
    """Where the runs go: out/<name> for each, out/pretrained for weights, `results` for records."""

    out: Path
    results: Path
    resume: bool = False
    commit: str | None = None  # noted where the package does not run from a checkout
    jobs: int = 1
    measures: Measures = field(default_factory=Measures)

    def run(self, plans: Sequence[Plan], watch: Watch) -> tuple[list[Record], list[str]]:
        """All plans, those already complete without another look at the data: records, and names of what failed."""
        self.check(plans)
        together = (watch, self.jobs, str(self.out), _GO_ON)
        failed = run_works({plan.name: partial(self.complete, plan, watch) for plan in plans}, *together)
        done = [plan for plan in plans if plan.name not in failed]
        if self.measures.later and done:
            works = self.measures.works({self.out / plan.name: plan for plan in done})
            failed += run_works({name: partial(work, watch) for name, work in works.items()}, *together)
            done = [plan for plan in done if self.export(plan)]
        return [read_record(self.results / record_file(plan.study, plan.name)) for plan in done], failed

    def check(self, plans: Sequence[Plan]) -> None:
        """Before anything runs: what is not installed, and folders that are taken or that hold another run."""
        self.measures.prepare()
        for plan in plans:
            folder = self.out / plan.name
            if not (folder / "config.json").exists():
                continue
            if not self.resume:
                raise RunConflict(f"{folder} already holds a run; resume it with --resume, or choose another --out")
            for name, (asked, frozen) in plan.settings.differences(read_settings(folder)).items():
                raise RunConflict(
                    f"{folder} holds a run with {name} = {frozen!r}, now {asked!r} is asked for; "
                    "resume with the same options, or choose another --out"
                )

    def complete(self, plan: Plan, watch: Watch) -> None:
        """Run one plan, or what is left of it, and export it."""
        folder = self.out / plan.name
        if (folder / "result.json").exists():
            watch(plan.name).note("already complete")
        else:
            self.measures.train(plan, folder, self.resume, watch(plan.name))
        if not self.measures.later:
            self.export(plan)
        if plan.pretrained is not None:
            export_pretrained(folder, self.out / "pretrained" / f"{plan.pretrained}.safetensors")

    def export(self, plan: Plan) -> bool:
        """Write the record of a finished run, with what was measured beyond its scores; whether there is one."""
        folder = self.out / plan.name
        measured = self.measures.of_run(folder, plan)
        if measured is None:
            return False
        measured = {**measured, **({"cells_at_once": self.jobs} if self.jobs > 1 else {})}
        facts = {"kind": plan.kind, "command": plan.command, "why": plan.why, "measures": measured}
        more = self.measures.curves(folder)
        write_record(export_run(folder, plan.study, plan.name, commit=self.commit, curves=more, **facts), self.results)
        return True
