"""Runs under torture: killed, without disk space or permission, with jumping clocks, two writers and damaged files.

`make torture`, or `python benchmarks/torture.py --kills 1000 --repeats 20`. Every disturbed run is resumed to its end
and compared, bit for bit, with one that nobody disturbed. The table says what happened; the exit code is 1 if a run
was lost, doubled or differs. POSIX only: training runs in forks of this process, so that a kill costs milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lipschitz_rnn import tasks
from lipschitz_rnn.training import CheckpointError, RunError, Settings, Watcher, fit
from lipschitz_rnn.training.checkpoint import read_checkpoint
from lipschitz_rnn.training.folder import RunFolder, RunInUse, read_settings

torch.set_num_threads(1)
TASK = tasks.load("adding", length=4, train_size=48, eval_size=16)
SETTINGS = Settings(
    "adding", task_options={"length": 4, "train_size": 48, "eval_size": 16}, unit="gru", hidden_size=4, seeds=(0, 1),
    epochs=12, batch_size=16, eval_batch_size=16, dropout=0.2, averaging=0.05, log_steps=1, checkpoint_minutes=1e-5,
    device="cpu",
)  # fmt: skip
COMPLETE, REFUSED, CRASHED = 0, 10, 11  # how a child ends


class Pulse(Watcher):
    """Tells the parent through a pipe when training starts and after every step."""

    def __init__(self, pipe: int | None) -> None:
        self.pipe = pipe

    def start(self, *facts: Any) -> None:
        self.step(0)

    def step(self, done: int) -> None:
        if self.pipe is not None:
            os.write(self.pipe, b".")


def start(folder: Path, disturb: Callable[[], None] = lambda: None) -> tuple[int, int]:
    """Train in a child, from the newest checkpoint on; its number, and the pipe of its pulses."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, reader
    code = CRASHED
    try:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        disturb()
        fit(SETTINGS, TASK, folder, resume=True, watcher=Pulse(writer))
        code = COMPLETE
    except (RunError, CheckpointError):  # a message for the user, not a traceback
        code = REFUSED
    finally:
        os._exit(code)


def finish(child: int, reader: int) -> int:
    """Wait for a child; how it ended."""
    while os.read(reader, 4096):
        pass
    os.close(reader)
    _, status = os.waitpid(child, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)


def state(folder: Path) -> tuple[Any, ...]:
    """Everything a run leaves, without times."""
    saved = RunFolder(folder).latest(read_settings(folder))
    assert saved is not None
    best, _ = read_checkpoint(folder / "checkpoints" / "best.safetensors")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    records = [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
    result = json.loads((folder / "result.json").read_text()) | {"seconds": 0}
    plain = [{name: value.tolist() for name, value in tensors.items()} for tensors in (saved[0], best)]
    return plain, records, result


class Torture:
    """All scenarios, in one folder."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.draw, self.number = folder, random.Random(seed), 0
        fit(SETTINGS, TASK, self.new())  # late imports, before any fork
        self.expected = self.undisturbed()

    def new(self) -> Path:
        self.number += 1
        return self.folder / str(self.number)

    def undisturbed(self) -> tuple[Any, ...]:
        folder = self.new()
        assert finish(*start(folder)) == COMPLETE
        return state(folder)

    def end(self, folder: Path, seen: Counter[str]) -> None:
        """Resume to the end, and compare."""
        code = finish(*start(folder))
        if code != COMPLETE:
            seen["LOST"] += 1
        else:
            seen["resumed, equal" if state(folder) == self.expected else "DIFFERENT"] += 1

    def pause(self, reader: int, most: int = 8) -> None:
        """Until some steps later, and then up to 20 ms more."""
        for _ in range(self.draw.randrange(most)):
            if not os.read(reader, 1):
                break
        time.sleep(self.draw.uniform(0.0, 0.02))

    def kills(self, count: int) -> Counter[str]:
        seen: Counter[str] = Counter()
        while seen["killed"] < count:
            folder = self.new()
            for _ in range(25):
                child, reader = start(folder)
                self.pause(reader)
                os.kill(child, signal.SIGKILL)
                code = finish(child, reader)
                seen["killed" if code == -signal.SIGKILL else "ended before the kill"] += 1
                if code != -signal.SIGKILL or seen["killed"] == count:
                    break
            self.end(folder, seen)
        return seen

    def disturbed(self, disturb: Callable[[Path], Callable[[], None]]) -> Counter[str]:
        """A run that stops half-way, goes on under a disturbance, and then without."""
        seen: Counter[str] = Counter()
        folder = self.new()
        self.half(folder)
        words = {COMPLETE: "went on", REFUSED: "refused with a message", CRASHED: "CRASHED"}
        code = finish(*start(folder, disturb(folder)))
        seen[words.get(code, f"ended by signal {-code}")] += 1
        self.end(folder, seen)
        return seen

    def half(self, folder: Path) -> None:
        child, reader = start(folder)
        for _ in range(12):
            os.read(reader, 1)
        os.kill(child, signal.SIGKILL)
        finish(child, reader)

    def full_disk(self) -> Counter[str]:
        """No file may become longer than this: the write fails in the middle, as on a full disk."""
        limit = self.draw.randrange(200, 8000)

        def fill() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

        return self.disturbed(lambda folder: fill)

    def read_only(self) -> Counter[str]:
        def forbid(folder: Path) -> Callable[[], None]:
            if os.getuid() == 0:
                return lambda: os.setuid(65534)  # nobody: permissions do not bind root
            for place in (folder, folder / "checkpoints"):
                place.chmod(0o555)
            return lambda: None

        try:
            return self.disturbed(forbid)
        finally:
            for place in (self.folder / str(self.number), self.folder / str(self.number) / "checkpoints"):
                place.chmod(0o755)

    def clock(self) -> Counter[str]:
        """Both clocks of Python jump by up to a year, back and forth."""
        jumps = random.Random(self.draw.random())

        def jump() -> None:
            time.time = time.monotonic = lambda: jumps.uniform(0.0, 3e7)  # type: ignore[assignment]

        return self.disturbed(lambda folder: jump)

    def two_writers(self) -> Counter[str]:
        seen: Counter[str] = Counter()
        folder = self.new()
        child, reader = start(folder)
        self.pause(reader, 4)
        try:
            fit(SETTINGS, TASK, folder, resume=True)
            second = COMPLETE
        except RunInUse:
            second = REFUSED
        ends = sorted((finish(child, reader), second))  # whichever came later to the lock is refused
        words = {(COMPLETE, REFUSED): "one went on, the other was refused", (COMPLETE, COMPLETE): "one after the other"}
        seen[words.get((ends[0], ends[1]), "BOTH LOST")] += 1
        self.end(folder, seen)
        return seen

    def damaged(self, damage: Callable[[bytes], bytes]) -> Counter[str]:
        seen: Counter[str] = Counter()
        folder = self.new()
        self.half(folder)
        newest = max((folder / "checkpoints").glob("step-*.safetensors"))
        newest.write_bytes(damage(newest.read_bytes()))
        self.end(folder, seen)
        return seen

    def truncated(self) -> Counter[str]:
        return self.damaged(lambda content: content[: self.draw.randrange(len(content))])

    def bit_flip(self) -> Counter[str]:
        def flip(content: bytes) -> bytes:
            place, bit = self.draw.randrange(len(content)), 1 << self.draw.randrange(8)
            return content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]

        return self.damaged(flip)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="SIGKILLs at random moments (default: 1000)")
    parser.add_argument("--repeats", type=int, default=20, help="times of every other scenario (default: 20)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        torture = Torture(Path(place), given.seed)
        scenarios: dict[str, Callable[[], Counter[str]]] = {
            "full disk": torture.full_disk, "read-only folder": torture.read_only, "clock jumps": torture.clock,
            "two writers": torture.two_writers, "truncated checkpoint": torture.truncated,
            "bit flip in a checkpoint": torture.bit_flip,
        }  # fmt: skip
        found = {"SIGKILL": torture.kills(given.kills)}
        for name, scenario in scenarios.items():
            found[name] = sum((scenario() for _ in range(given.repeats)), Counter())
    print("| disturbance | what happened |\n|---|---|")
    for name, seen in found.items():
        print(f"| {name} | {', '.join(f'{word}: {count}' for word, count in seen.items())} |")
    return int(any(word.isupper() for seen in found.values() for word in seen))


if __name__ == "__main__":
    sys.exit(main())
