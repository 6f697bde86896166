"""A run on disk: configuration, environment, metrics, TensorBoard events and checkpoints in one locked folder."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from filelock import FileLock, Timeout
from torch import Tensor

from lipschitz_rnn.training.checkpoint import CheckpointError, atomic_write, read_checkpoint, write_checkpoint
from lipschitz_rnn.training.errors import RunConflict as RunConflict
from lipschitz_rnn.training.errors import RunError as RunError
from lipschitz_rnn.training.errors import RunInUse as RunInUse
from lipschitz_rnn.training.reading import damaged_lines, read_json, read_result, require_same_series
from lipschitz_rnn.training.run_settings import check_builder, check_folder
from lipschitz_rnn.training.run_settings import read_settings as read_settings
from lipschitz_rnn.training.settings import Settings

CHECKPOINTS_KEPT = 2
_OF_THE_END = ("result.json", "assessment.json")  # measured on the weights of a complete run
_HOLDER = "run.process"  # who holds the lock; not in run.lock, which another process may truncate while it tries
Saved = tuple[dict[str, Tensor], dict[str, Any]]  # what a checkpoint holds


class RunFolder:
    """The only code that writes a run's files. A second process that opens the same folder gets an error.

    ```
    config.json        the frozen settings           environment.json   versions, commit, machine, command
    task.json          shapes, options and source of the task
    sources.json       where task, unit and builder are defined, if outside the package
    metrics.jsonl      one JSON object per line      events/            the same for TensorBoard
    metrics.damaged    lines of it that no longer were
    checkpoints/       step-….safetensors, the last two, and best.safetensors
    result.json        when the run is complete      run.lock           held while run.process writes
    ```
    """

    def __init__(self, path: str | os.PathLike[str], note: Callable[[str], None] = lambda message: None) -> None:
        if not os.fspath(path):  # an empty shell variable; as a path it would be the current folder
            raise RunError("the name of the run folder is empty; give a folder, or . for the current one")
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self._note = note
        self._run = ""  # identifies the run of the checkpoints
        self._networks = 0
        self._lock: FileLock | None = None
        self._metrics: IO[bytes] | None = None

    def open(
        self,
        settings: Settings,
        environment: Mapping[str, Any],
        task: Mapping[str, Any],
        resume: bool,
        sources: Mapping[str, Any] | None = None,
    ) -> None:
        """Lock the folder and write the configuration, or compare it with what is there."""
        check_folder(self.path, settings, resume)
        self._run, self._networks = origin(settings), len(settings.members)
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:  # nothing was written that could go on
            raise RunError(f"cannot write to {self.path}: {error.strerror or error}; choose another folder") from error
        with self._writing("set up the run"):
            self._lock = _lock(self.path)
            check_folder(self.path, settings, resume)  # again: another run may have started and ended before the lock
            check_builder(self.path, sources or {})
            if (self.path / "task.json").exists():
                require_same_series(read_json(self.path / "task.json").get("series"), task.get("series"), self.path)
            if not (config := self.path / "config.json").exists():
                atomic_write(config, _json(settings.to_dict()))
            elif settings.epochs > (before := read_settings(self.path)).epochs:
                self._prolong(before, settings.epochs)
            if not self._is_complete():  # else nothing will be trained, and the files tell what trained it
                atomic_write(self.path / "environment.json", _json(self._with_earlier(environment)))
                atomic_write(self.path / "task.json", _json(task))
                atomic_write(self.path / "sources.json", _json(sources or {}))
            self._metrics = open(self.path / "metrics.jsonl", "ab", buffering=0)  # noqa: SIM115 (closed in close)

    def _is_complete(self) -> bool:
        return (self.path / "result.json").exists() and bool(self._saved())

    def _with_earlier(self, environment: Mapping[str, Any]) -> dict[str, Any]:
        """The environment, and under `earlier` those in which the first parts of the run were trained."""
        path = self.path / "environment.json"
        if not path.exists():
            return dict(environment)
        try:
            before = read_json(path)
        except RunError as error:
            self._note(f"{error}; it is written anew, without what it held")
            return dict(environment)
        earlier = before.pop("earlier", [])
        if before != json.loads(json.dumps(environment)):
            earlier = [*earlier, before]
        return {**environment, "earlier": earlier} if earlier else dict(environment)

    def _prolong(self, before: Settings, epochs: int) -> None:
        """Give the run more epochs; what was measured at its end is kept under the number of its epochs."""
        for path in (self.path / name for name in _OF_THE_END):
            if path.exists():
                path.rename(path.with_stem(f"{path.stem}-{before.epochs}-epochs"))
        atomic_write(self.path / "config.json", _json(dataclasses.replace(before, epochs=epochs).to_dict()))
        self._note(f"{epochs} epochs instead of {before.epochs}")

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        file, line = self._file(), json.dumps(record).encode() + b"\n"
        with self._writing("append to metrics.jsonl"):
            start = os.fstat(file.fileno()).st_size
            try:
                while line:  # a system whose disk is nearly full writes a part, and raises only then
                    line = line[file.write(line) :]
            except OSError:
                os.ftruncate(file.fileno(), start)
                raise

    def save(self, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> Path:
        """Write a checkpoint after optimiser step `step`, with the current length of metrics.jsonl."""
        path = self.checkpoints / f"step-{step:09d}.safetensors"
        with self._writing(f"write the checkpoint {path.name}"):
            os.fsync(self._file().fileno())
            position = {"metrics_bytes": os.fstat(self._file().fileno()).st_size, "run": self._run}
            write_checkpoint(path, tensors, state | position)
            for old in self._saved()[:-CHECKPOINTS_KEPT]:
                old.unlink()
        return path

    def save_best(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        with self._writing("write best.safetensors"):
            write_checkpoint(self.checkpoints / "best.safetensors", tensors, state | {"run": self._run})

    def has_best(self) -> bool:
        """Whether the selected weights are there, as they were written."""
        try:
            read_checkpoint(self.checkpoints / "best.safetensors")
        except CheckpointError as error:
            self._note(f"{error}; it is written again, from the newest checkpoint")
            return False
        return True

    def written_seconds(self, networks: int) -> float | None:
        """How long the run took, by its result; None if there is none that can be read."""
        try:
            return float(read_result(self.path, networks)["seconds"])
        except RunError:
            return None

    def write_result(self, result: Mapping[str, Any]) -> None:
        with self._writing("write result.json"):
            atomic_write(self.path / "result.json", _json(result))

    def latest(self, settings: Settings) -> Saved | None:
        """The newest valid checkpoint of this run, or None to start from the beginning; invalid ones are reported."""
        found = self._saved()
        for path in reversed(found):
            try:
                tensors, state = read_checkpoint(path)
                check_origin(path, state, settings)
                _check_position(path, state)
            except CheckpointError as error:
                self._note(f"{error}; using the checkpoint before it")
                continue
            return tensors, state
        if found:
            raise RunError(f"no checkpoint in {self.checkpoints} can be read; start again in another folder")
        return None

    def rewind(self, state: Mapping[str, Any] | None) -> None:
        """Truncate metrics.jsonl to its length at the checkpoint, and move damaged or later checkpoints aside.

        Lines written after the checkpoint will be written again, so no line is incomplete or duplicated.
        """
        with self._writing("go back to the checkpoint"):
            self._cut_metrics(0 if state is None else int(state["metrics_bytes"]))
            self._clear_damaged_lines()
            for path in self._saved():
                if state is not None and _step_of(path) > int(state["steps"]):
                    path.rename(path.with_suffix(".damaged"))
            for temporary in (*self.path.glob(".*.tmp"), *self.checkpoints.glob(".*.tmp")):
                temporary.unlink()

    def _cut_metrics(self, length: int) -> None:
        metrics = self.path / "metrics.jsonl"
        if (size := metrics.stat().st_size) < length:  # somebody shortened it: keep its complete lines
            self._note(f"{metrics} has {size:,} of {length:,} bytes; the missing lines are lost")
            content = metrics.read_bytes()
            length = content.rfind(b"\n") + 1
        os.ftruncate(self._file().fileno(), length)

    def _clear_damaged_lines(self) -> None:
        """Move lines that cannot be read to metrics.damaged; spaces take their place, since checkpoints count bytes."""
        metrics = self.path / "metrics.jsonl"
        lines = metrics.read_bytes().splitlines(keepends=True)
        if not (damaged := damaged_lines(lines, self._networks)):
            return
        with open(self.path / "metrics.damaged", "ab") as file:
            file.writelines(lines[number] for number in damaged)
        for number in damaged:
            lines[number] = b" " * (len(lines[number]) - 1) + b"\n"
        with open(metrics, "r+b") as file:  # in place: the run appends to this very file
            file.write(b"".join(lines))
        self._note(f"{metrics} has {len(damaged)} lines that cannot be read; they are now in metrics.damaged")

    def last_name(self) -> str | None:
        """The newest checkpoint's path as text, for messages."""
        saved = self._saved()
        return str(saved[-1]) if saved else None

    def _saved(self) -> list[Path]:
        return sorted(path for path in self.checkpoints.glob("step-*.safetensors") if path.stem[5:].isdecimal())

    def _file(self) -> IO[bytes]:
        if self._metrics is None:
            raise RunError(f"{self.path} is not open")
        return self._metrics

    def _writing(self, what: str) -> _Writing:
        return _Writing(self, what)

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
        if self._lock is not None:
            with contextlib.suppress(OSError):
                (self.path / _HOLDER).unlink()
            self._lock.release()
        self._metrics = self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Writing:
    """Turns a file system error (full, read-only, deleted) into one clear message."""

    def __init__(self, folder: RunFolder, what: str) -> None:
        self._folder, self._what = folder, what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not isinstance(error, OSError):
            return
        intact = self._folder.last_name()
        kept = f"the checkpoint {intact} is intact" if intact else "there is no earlier checkpoint"
        raise RunError(
            f"cannot {self._what} in {self._folder.path}: {error.strerror or error}; {kept}; "
            "make the folder writable with free space and resume, or choose another folder"
        ) from error


def _lock(folder: Path) -> FileLock:
    """Lock the folder for this process; the system releases the lock however the process ends."""
    lock = FileLock(folder / "run.lock", timeout=0, thread_local=False)
    holder = folder / _HOLDER
    try:
        lock.acquire()
    except Timeout:
        try:
            found = holder.read_text(encoding="utf-8")[:100].strip() or "unknown"
        except (OSError, ValueError):  # it has just started or just ended
            found = "unknown"
        raise RunInUse(
            f"{folder} is in use by another process ({found}); wait for it or choose another folder"
        ) from None
    try:
        atomic_write(holder, f"process {os.getpid()}".encode())
    except BaseException:
        lock.release()
        raise
    return lock


def origin(settings: Settings) -> str:
    """A short hash of the settings that define the networks, to tell the checkpoints of different runs apart."""
    names = ("task", "task_options", "unit", "unit_options", "variants", "hidden_size", "num_layers", "seeds")
    values = settings.to_dict()
    text = json.dumps([values[name] for name in names], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_origin(path: Path, state: Mapping[str, Any], settings: Settings) -> None:
    """Reject a checkpoint that was written by a run with other networks."""
    if state.get("run", origin(settings)) != origin(settings):  # earlier versions did not record it
        raise CheckpointError(f"{path} belongs to another run: its settings are not those of config.json")


def _check_position(path: Path, state: Mapping[str, Any]) -> None:
    for name in ("epoch", "step", "steps", "metrics_bytes"):
        value = state.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise CheckpointError(f"{path} cannot be used: its state has {name} = {value!r}")
    if state["steps"] != _step_of(path):
        raise CheckpointError(f"{path} was renamed: it holds the state after step {state['steps']}")


def _step_of(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))


def _json(value: Mapping[str, Any]) -> bytes:
    try:
        return (json.dumps(value, indent=2) + "\n").encode()
    except TypeError as error:
        raise TypeError(
            f"the run cannot be recorded: {error}; give plain values (numbers, text, lists) as options and "
            "preprocessing of a task"
        ) from error
