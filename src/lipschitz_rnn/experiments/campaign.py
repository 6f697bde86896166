"""Many runs as one campaign: each in a folder of its own, exported as soon as it is complete, resumed where it was cut.

A run that fails does not stop the others. With several jobs every run has a process of its own; a signal reaches all of
them, and each saves before it leaves.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from lipschitz_rnn.experiments.pretrained import export_pretrained
from lipschitz_rnn.experiments.results import Record, export_run, read_record, record_file, write_record
from lipschitz_rnn.experiments.runner import train
from lipschitz_rnn.tasks import DataError
from lipschitz_rnn.training import CheckpointError, Interrupted, RunError, Settings, Watcher
from lipschitz_rnn.training.folder import RunConflict, read_settings
from lipschitz_rnn.training.interrupts import Interrupts

Watch = Callable[[str], Watcher]  # from the name of a run; importable by name where it has to reach a process
_POLL_SECONDS = 0.5


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


@dataclass(frozen=True)
class Campaign:
    """Where the runs go: out/<name> for each, out/pretrained for weights, `results` for records."""

    out: Path
    results: Path
    resume: bool = False
    commit: str | None = None  # noted where the package does not run from a checkout
    jobs: int = 1

    def run(self, plans: Sequence[Plan], watch: Watch) -> tuple[list[Record], list[str]]:
        """All plans, those already complete without another look at the data: records, and names of what failed."""
        self._refuse_existing(plans)
        if self.jobs > 1:
            failed = self._in_processes(plans, watch)
        else:
            failed = [plan.name for plan in plans if not self._guarded(plan, watch)]
        done = [plan for plan in plans if plan.name not in failed]
        return [read_record(self.results / record_file(plan.study, plan.name)) for plan in done], failed

    def _refuse_existing(self, plans: Sequence[Plan]) -> None:
        """Before anything runs: a folder that is taken, or that holds another run, is a wrong command."""
        for plan in plans:
            folder = self.out / plan.name
            if not (folder / "config.json").exists():
                continue
            if not self.resume:
                raise RunConflict(f"{folder} already holds a run; go on with --resume, or choose another --out")
            for name, (asked, frozen) in plan.settings.differences(read_settings(folder)).items():
                raise RunConflict(
                    f"{folder} holds a run with {name} = {frozen!r}, now {asked!r} is asked for; "
                    "resume with the same options, or choose another --out"
                )

    def complete(self, plan: Plan, watch: Watch) -> Record:
        """Run one plan, or what is left of it, and export it."""
        folder = self.out / plan.name
        if (folder / "result.json").exists():
            watch(plan.name).note("already complete")
        else:
            train(plan.settings, folder, resume=self.resume, watcher=watch(plan.name))
        record = export_run(
            folder,
            plan.study,
            plan.name,
            kind=plan.kind,
            command=plan.command,
            why=plan.why,
            commit=self.commit,
            measures={"cells_at_once": self.jobs} if self.jobs > 1 else None,
        )
        write_record(record, self.results)
        if plan.pretrained is not None:
            export_pretrained(folder, self.out / "pretrained" / f"{plan.pretrained}.safetensors")
        return record

    def _guarded(self, plan: Plan, watch: Watch) -> bool:
        """Whether the plan was completed; what failed is told, and the next one has its turn."""
        try:
            self.complete(plan, watch)
        except (RunError, CheckpointError, DataError) as error:
            watch(plan.name).note(f"failed: {error}")
        except RuntimeError:  # of the device, for example no memory left: nobody may be there to start the next one
            watch(plan.name).note(f"failed: {traceback.format_exc()}")
        else:
            return True
        return False

    def _in_processes(self, plans: Sequence[Plan], watch: Watch) -> list[str]:
        """As many processes as jobs, each with one plan; names of what failed."""
        context = multiprocessing.get_context("spawn")  # a GPU cannot be used after a fork
        waiting = list(plans)
        processes: list[BaseProcess] = []
        failed: list[str] = []
        with Interrupts() as interrupts:
            while waiting or processes:
                while waiting and len(processes) < self.jobs:
                    plan = waiting.pop(0)
                    processes.append(context.Process(target=_work, args=(self, plan, watch), name=plan.name))
                    processes[-1].start()
                wait_for([process.sentinel for process in processes], timeout=_POLL_SECONDS)
                if interrupts.number:
                    for process in processes:
                        process.terminate()  # a run takes it as the request to save and leave
                    for process in processes:
                        process.join()
                    raise Interrupted(interrupts.number, f"{self.out}; go on with --resume")
                failed += [process.name for process in processes if process.exitcode]
                processes = [process for process in processes if process.exitcode is None]
        return failed


def _work(campaign: Campaign, plan: Plan, watch: Watch) -> None:
    """The life of a process: one plan."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which asks every run to save
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // campaign.jobs))
    try:
        done = campaign._guarded(plan, watch)
    except Interrupted as interrupted:
        watch(plan.name).note(str(interrupted))
        sys.exit(interrupted.exit_code)
    sys.exit(0 if done else 1)


def _leave_with_parent() -> None:
    """A parent that was killed can ask nothing: then the run saves and leaves of itself."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
