"""A whole measurement: check every contestant against float64, then time those that passed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from lipschitz_rnn.benchmark import compiled
from lipschitz_rnn.benchmark.accuracy import Errors, Judge
from lipschitz_rnn.benchmark.contestants import Contestant
from lipschitz_rnn.benchmark.jobs import Job
from lipschitz_rnn.benchmark.timing import Times, peak_memory, time_calls, time_replay
from lipschitz_rnn.benchmark.workload import Data, Workload
from lipschitz_rnn.ops.lipschitz.cores import machine
from lipschitz_rnn.training.environment import describe_environment


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        repeats: timed calls of each kind for each contestant, over all rounds.
        rounds: how often to cycle through all contestants, so that a disturbance does not affect only one.
        most_seconds: for all timed calls of one kind of one contestant; long calls are repeated less often.
        compile_seconds: time after which compilation is abandoned.
        forward, backward: whether to time forward passes, and training steps.
        replay: whether to time the GPU work separately, from CUDA graphs.
        same_thread: whether backward passes run in the calling thread; on a GPU they run in autograd's own otherwise.
    """

    repeats: int = 21
    rounds: int = 3
    most_seconds: float = 8.0
    compile_seconds: float = 180.0
    forward: bool = True
    backward: bool = True
    replay: bool = True
    same_thread: bool = False

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise ValueError(f"repeats is {self.repeats}; it must be at least 1")
        object.__setattr__(self, "rounds", min(self.rounds, self.repeats))


@dataclass
class Row:
    """The measurements of one contestant; ``reason`` says why there are no times, if there are none."""

    name: str
    precision: str
    operands: str
    ours: bool
    errors: Errors | None = None
    limit: Errors | None = None
    reason: str | None = None
    wrong: bool = False
    forward: Times | None = None
    training: Times | None = None
    forward_replayed: Times | None = None
    training_replayed: Times | None = None
    memory: int | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        return f"{self.name} [{self.precision}]"

    @property
    def main(self) -> Times | None:
        """The time used for ratios: that of a training step, or of the forward pass if only that is timed."""
        return self.training or self.forward

    def speed_over(self, other: Row) -> float | None:
        """How many times faster than another row."""
        return None if self.main is None or other.main is None else other.main.median / self.main.median

    def to_dict(self, work: Workload, rows: Sequence[Row]) -> dict[str, Any]:
        timings = ("forward", "training", "forward_replayed", "training_replayed")
        times = {name: None if (found := getattr(self, name)) is None else found.to_dict() for name in timings}
        return {
            **{name: getattr(self, name) for name in ("name", "precision", "operands", "ours", "wrong", "reason")},
            "errors": None if self.errors is None else self.errors.to_dict(),
            "limit": None if self.limit is None else self.limit.to_dict(),
            **times,
            "us_per_step": None if self.main is None else 1e6 * self.main.median / work.length,
            "memory_bytes": self.memory,
            "times_faster_than": {row.key: self.speed_over(row) for row in rows if row is not self and row.main},
            "notes": self.notes,
        }


@dataclass(frozen=True)
class Report:
    workload: Workload
    device: torch.device
    effort: Effort
    rows: list[Row]
    environment: dict[str, Any]

    @property
    def wrong(self) -> list[Row]:
        return [row for row in self.rows if row.wrong]

    def to_dict(self) -> dict[str, Any]:
        return {
            "workload": self.workload.to_dict(),
            "device": str(self.device),
            "effort": asdict(self.effort),
            "environment": self.environment,
            "rows": [row.to_dict(self.workload, self.rows) for row in self.rows],
        }


def measure(
    workload: Workload,
    device: torch.device,
    contestants: Sequence[Contestant],
    effort: Effort,
    note: Callable[[str], None] = lambda text: None,
) -> Report:
    """Check, then time. One of our contestants with errors that rounding cannot explain is marked and not timed."""
    with warnings.catch_warnings(), torch.autograd.set_multithreading_enabled(not effort.same_thread):
        warnings.simplefilter("ignore")  # warnings of a contestant go into its notes, once
        return _measure(workload, device, contestants, effort, note)


def _measure(
    workload: Workload,
    device: torch.device,
    contestants: Sequence[Contestant],
    effort: Effort,
    note: Callable[[str], None],
) -> Report:
    data = Data(workload, device)
    judge = Judge(data, backward=effort.backward)
    rows = [_checked(contestant, judge, data, effort, note) for contestant in contestants]
    ready = [(row, contestant, job) for row, contestant, job in rows if job is not None]
    for turn in range(effort.rounds):
        for row, contestant, job in ready:
            note(f"timing {row.key}, round {turn + 1} of {effort.rounds}")
            with contestant.precision.active():
                _time(row, job, device, effort)
    not_graphed = [(row, contestant, job) for row, contestant, job in ready if not contestant.graphed]
    for row, contestant, job in not_graphed:
        with contestant.precision.active():
            row.memory = peak_memory(job.training if effort.backward else job.forward, device)
    if device.type == "cuda" and effort.replay:  # last, since a capture that fails may leave the device in a bad state
        for row, contestant, job in not_graphed:
            note(f"replaying {row.key} from a CUDA graph")
            with contestant.precision.active():
                _replay(row, job, device, effort)
    environment = {key: value for key, value in describe_environment(device).items() if key != "command"}
    if device.type == "cpu":
        environment["cpu_backend"] = machine.describe()
    return Report(workload, device, effort, [row for row, _, _ in rows], environment)


def _checked(
    contestant: Contestant, judge: Judge, data: Data, effort: Effort, note: Callable[[str], None]
) -> tuple[Row, Contestant, Job | None]:
    """Check one contestant and record its errors; returns its job only if it may be timed."""
    row = Row(contestant.name, contestant.precision.name, contestant.precision.operands, contestant.ours)
    note(f"checking {row.key} against float64")
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            job, row.errors = _tried(row, contestant, judge, data, effort)
        row.notes += dict.fromkeys(f"PyTorch warns: {_first_sentence(warning.message)}" for warning in said)
        if contestant.ours:
            row.limit = judge.limit(contestant)
    except Exception as error:  # whatever a compiler or a library throws, the other rows are still worth having
        row.reason = f"does not run here: {type(error).__name__}: {_first_line(error)}"
        row.wrong = contestant.ours
        return row, contestant, None
    if row.limit is not None and not row.errors.within(row.limit):
        row.reason = f"differs from float64 by {row.errors}; rounding explains at most {row.limit}; not timed"
        row.wrong = True
        return row, contestant, None
    return row, contestant, job


def _tried(row: Row, contestant: Contestant, judge: Judge, data: Data, effort: Effort) -> tuple[Job, Errors]:
    if not contestant.compiles:
        job = contestant.job(data)
        return job, judge.errors(contestant, job)
    compiled.require(data.device)
    row.notes.append(f"{compiled.steps_at_once(data.workload.length)} steps in one compiled program")
    with compiled.within(effort.compile_seconds):
        job = contestant.job(data)
        with contestant.precision.active():
            job.forward()  # without gradients it is another program, which must not be compiled during timing
        return job, judge.errors(contestant, job)


def _time(row: Row, job: Job, device: torch.device, effort: Effort) -> None:
    repeats = -(-effort.repeats // effort.rounds)
    seconds = effort.most_seconds / effort.rounds
    if effort.forward:
        forward = time_calls(job.forward, device, repeats, seconds)
        row.forward = forward if row.forward is None else row.forward + forward
    if effort.backward:
        training = time_calls(job.training, device, repeats, seconds)
        row.training = training if row.training is None else row.training + training


def _replay(row: Row, job: Job, device: torch.device, effort: Effort) -> None:
    try:
        row.forward_replayed = time_replay(job.forward, device, effort.repeats, effort.most_seconds)
        if effort.backward:
            row.training_replayed = time_replay(job.training, device, effort.repeats, effort.most_seconds)
    except RuntimeError as error:
        row.notes.append(f"not captured in a CUDA graph: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "no message")


def _first_sentence(warning: Warning | str) -> str:
    return str(warning).strip().partition(". ")[0].rstrip(".")
