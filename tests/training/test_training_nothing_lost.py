"""Nothing lost: kills, signals, full and read-only disks, damaged files, two processes on one folder."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from test_training_ensembles import Records
from tiny_tasks import Letters, SignTask, tiny_settings

from lipschitz_rnn.training import CheckpointError, Diverged, Interrupted, RunError, Watcher, checkpoint, fit
from lipschitz_rnn.training.checkpoint import read_checkpoint, write_checkpoint
from lipschitz_rnn.training.folder import RunFolder, read_settings

HERE = Path(__file__).parent
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}


def lines(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl, without the one thing that may differ between runs."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def newest(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    saved = RunFolder(folder).latest(read_settings(folder))
    assert saved is not None
    return saved


def assert_same_run(one: Path, other: Path) -> None:
    """Weights, optimiser, generators, selection and metrics, bit for bit."""
    (tensors, state), (expected, expected_state) = newest(one), newest(other)
    assert tensors.keys() == expected.keys()
    assert [name for name in tensors if not torch.equal(tensors[name], expected[name])] == []
    for record in (state, expected_state):
        del record["seconds"], record["metrics_bytes"]
    assert state == expected_state
    assert lines(one) == lines(other)
    best, best_expected = (read_checkpoint(run / "checkpoints/best.safetensors")[0] for run in (one, other))
    assert all(torch.equal(best[name], best_expected[name]) for name in best_expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "kills"),
    [("sign", 8), pytest.param("sign", 20, marks=pytest.mark.full), pytest.param("letters", 5, marks=pytest.mark.full)],
)
def test_killed_at_random_moments_and_resumed_equals_uninterrupted(tmp_path: Path, task: str, kills: int) -> None:
    command = [sys.executable, str(HERE / "killed_run.py"), str(tmp_path), str(kills), task]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["kills"] == kills, "the run came to its end before all kills: make it longer"
    assert len(told["steps"]) > kills // 3, "the kills hit too few moments of the run"
    assert_same_run(tmp_path / "killed", tmp_path / "whole")
    assert json.loads((tmp_path / "killed/result.json").read_text())["seeds"]
    assert len(list((tmp_path / "killed/checkpoints").iterdir())) == 3


class SignalAt(Watcher):
    """Sends this process a signal at a given step."""

    def __init__(self, step: int, number: int) -> None:
        self.at, self.number = step, number

    def step(self, done: int) -> None:
        if done == self.at:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("task", [SignTask(noise=0.2), Letters()], ids=["sign", "letters"])
def test_a_signal_saves_and_resuming_equals_uninterrupted(tmp_path: Path, number: int, code: int, task: Any) -> None:
    settings = tiny_settings(task=task.name, unit="lstm", averaging=0.1)
    before = signal.getsignal(number)  # not always Python's own: a shell starts what runs in the background without one
    with pytest.raises(Interrupted) as caught:
        fit(settings, task, tmp_path / "stopped", watcher=SignalAt(7, number))
    assert caught.value.exit_code == code
    assert "step-000000007" in str(caught.value)
    assert signal.getsignal(number) == before
    fit(settings, task, tmp_path / "stopped", resume=True)
    fit(settings, task, tmp_path / "whole")
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


def test_a_signal_during_validation_saves_too(tmp_path: Path) -> None:
    class Slow(SignTask):
        def batch(self, split: Any, indices: Any, generator: Any = None) -> Any:
            if split == "validation" and len(indices) > 1:  # one sample is drawn before the run, to look for times
                os.kill(os.getpid(), signal.SIGTERM)
            return super().batch(split, indices, generator)

    with pytest.raises(Interrupted):
        fit(tiny_settings(), Slow(), tmp_path / "stopped")
    assert newest(tmp_path / "stopped")[1]["step"] == 4
    fit(tiny_settings(), SignTask(), tmp_path / "stopped", resume=True)
    fit(tiny_settings(), SignTask(), tmp_path / "whole")
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


def test_training_works_in_a_thread_which_may_not_set_handlers() -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(fit(tiny_settings(epochs=1), SignTask())))
    thread.start()
    thread.join()
    assert len(results) == 1


def test_the_folder_holds_what_it_should(tmp_path: Path) -> None:
    fit(tiny_settings(seeds=(0, 5)), SignTask(), tmp_path / "run")
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == [
        "checkpoints",
        "config.json",
        "environment.json",
        "events",
        "metrics.jsonl",
        "result.json",
        "run.lock",
        "sources.json",
        "task.json",
    ]
    saved = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert saved == ["best.safetensors", "step-000000008.safetensors", "step-000000012.safetensors"]
    environment = json.loads((tmp_path / "run/environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert list((tmp_path / "run/events").iterdir())
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert [seed["seed"] for seed in result["seeds"]] == [0, 5]


def test_a_finished_run_is_resumed_to_the_same_result(tmp_path: Path) -> None:
    first = fit(tiny_settings(), SignTask(), tmp_path)
    again = fit(tiny_settings(), SignTask(), tmp_path, resume=True)
    assert first.seeds == again.seeds
    assert [record["kind"] for record in lines(tmp_path)].count("test") == 1


def test_an_existing_run_or_other_settings_are_refused(tmp_path: Path) -> None:
    fit(tiny_settings(epochs=1), SignTask(), tmp_path)
    with pytest.raises(RunError, match="--resume"):
        fit(tiny_settings(epochs=1), SignTask(), tmp_path)
    with pytest.raises(RunError, match=r"learning_rate = 0\.02.*0\.5"):
        fit(tiny_settings(epochs=1, learning_rate=0.5), SignTask(), tmp_path, resume=True)


def test_a_second_process_on_the_folder_is_refused(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
        "from tiny_tasks import *; from lipschitz_rnn.training.folder import RunFolder; import time\n"
        f"folder = RunFolder({str(tmp_path)!r}); folder.open(tiny_settings(), {{}}, {{}}, True)\n"
        "print('ready', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=ONE_THREAD) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        try:
            with pytest.raises(RunError, match=f"process {holder.pid}"):
                fit(tiny_settings(), SignTask(), tmp_path, resume=True)
            assert not list((tmp_path / "checkpoints").iterdir())
        finally:
            holder.kill()
    fit(tiny_settings(epochs=3), SignTask(), tmp_path, resume=True)


@pytest.mark.parametrize("damage", ["truncated", "empty", "data-bit", "header-bit"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path, damage: str) -> None:
    fit(tiny_settings(), SignTask(), tmp_path / "whole")
    with pytest.raises(Interrupted):
        fit(tiny_settings(), SignTask(), tmp_path / "run", watcher=SignalAt(10, signal.SIGTERM))
    last = sorted((tmp_path / "run/checkpoints").glob("step-*.safetensors"))[-1]
    content = bytearray(last.read_bytes())
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage == "empty":
        content = bytearray()
    else:
        content[-100 if damage == "data-bit" else 60] ^= 4
    last.write_bytes(content)
    with pytest.raises(CheckpointError, match=last.name):
        read_checkpoint(last)
    seen = Records()
    fit(tiny_settings(), SignTask(), tmp_path / "run", resume=True, watcher=seen)
    assert last.name in seen.notes[0]
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_without_any_whole_checkpoint_the_message_says_so(tmp_path: Path) -> None:
    fit(tiny_settings(), SignTask(), tmp_path)
    for path in (tmp_path / "checkpoints").glob("step-*"):
        path.write_bytes(b"nothing")
    with pytest.raises(RunError, match=r"no checkpoint in .* can be read"):
        fit(tiny_settings(), SignTask(), tmp_path, resume=True)


def test_every_flipped_bit_of_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tensors = {"a": torch.arange(5.0), "b": torch.tensor(3), "c": torch.tensor([True, False])}
    write_checkpoint(path, tensors, {"step": 1})
    whole = path.read_bytes()
    for index in range(0, len(whole), 3):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        try:
            read, state = read_checkpoint(path)
        except CheckpointError:
            continue
        # A flip may only go unnoticed where it changes nothing, as in the padding of the header.
        assert state == {"step": 1}
        assert all(
            torch.equal(read[name], value) and read[name].dtype == value.dtype for name, value in tensors.items()
        )


def test_a_full_disk_leaves_the_checkpoint_before_and_the_run_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def full(path: Path, content: bytes, real: Any = checkpoint.atomic_write) -> None:
        nonlocal calls
        calls += path.name.startswith("step-")
        if calls == 3:
            path.with_name(f".{path.name}.1.tmp").write_bytes(content[:100])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, content)

    monkeypatch.setattr(checkpoint, "atomic_write", full)
    with pytest.raises(RunError, match=r"No space left on device.*step-000000004"):
        fit(tiny_settings(), SignTask(), tmp_path / "run")
    monkeypatch.undo()
    fit(tiny_settings(), SignTask(), tmp_path / "run", resume=True)
    fit(tiny_settings(), SignTask(), tmp_path / "whole")
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    assert not list((tmp_path / "run/checkpoints").glob(".*"))


@pytest.mark.full
def test_a_truly_limited_disk(tmp_path: Path) -> None:
    """The system refuses to let any file grow beyond a limit, in the middle of a write."""
    code = (
        f"import sys; sys.path.insert(0, {str(HERE)!r}); import resource, signal\n"
        "from tiny_tasks import *; from lipschitz_rnn.training import fit, RunError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"folder, task = {str(tmp_path)!r}, SignTask()\n"
        "class Shrink(__import__('lipschitz_rnn.training').training.Watcher):\n"
        "    def step(self, done):\n"
        "        if done == 6: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
        "try: fit(tiny_settings(), task, folder, watcher=Shrink())\n"
        "except RunError as error: print(error); sys.exit(1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=ONE_THREAD)
    assert done.returncode == 1, done.stderr
    assert "File too large" in done.stdout
    assert newest(tmp_path)[1]["steps"] == 4
    fit(tiny_settings(), SignTask(), tmp_path, resume=True)


@pytest.mark.full
@pytest.mark.skipif(os.name != "posix", reason="folder permissions are POSIX's")
def test_a_read_only_folder_gives_a_clear_message() -> None:
    # Not below pytest's own folder: it closes that one to other users, also when a second pytest starts.
    with tempfile.TemporaryDirectory() as folder:
        check_read_only_folder(Path(folder))


def check_read_only_folder(folder: Path) -> None:
    code = (
        f"import sys, os; sys.path.insert(0, {str(HERE)!r})\n"
        "from tiny_tasks import *; from lipschitz_rnn.training import fit, RunError\n"
        "fit(tiny_settings(epochs=1), SignTask())\n"  # late imports, while this user may still read them
        "if os.getuid() == 0: os.setuid(65534)\n"  # root writes everywhere
        f"try: fit(tiny_settings(), SignTask(), {str(folder / 'closed' / 'run')!r})\n"
        "except RunError as error: print(error); sys.exit(1)\n"
    )
    (folder / "closed").mkdir(mode=0o555)
    folder.chmod(0o755)  # another user must find the way
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=ONE_THREAD)
    assert done.returncode == 1, done.stderr
    assert "cannot set up the run" in done.stdout
    assert "Permission denied" in done.stdout


def test_divergence_names_the_last_good_checkpoint(tmp_path: Path) -> None:
    task = SignTask(poison=3)
    with pytest.raises(Diverged, match=r"step \d+.*nan.*step-\d+"):
        fit(tiny_settings(), task, tmp_path)
    tensors, _ = newest(tmp_path)
    assert all(value.isfinite().all() for name, value in tensors.items() if name.startswith("parameters/"))


def test_metrics_written_after_the_checkpoint_are_cut_before_they_are_written_again(tmp_path: Path) -> None:
    fit(tiny_settings(), SignTask(), tmp_path / "whole")
    with pytest.raises(Interrupted):
        fit(tiny_settings(), SignTask(), tmp_path / "run", watcher=SignalAt(6, signal.SIGTERM))
    with open(tmp_path / "run/metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "step": 8}\n{"kind": "tra')
    fit(tiny_settings(), SignTask(), tmp_path / "run", resume=True)
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")


def test_time_adds_up_over_the_parts_of_a_run(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        fit(tiny_settings(), SignTask(), tmp_path, watcher=SignalAt(6, signal.SIGTERM))
    before = newest(tmp_path)[1]["seconds"]
    time.sleep(0.3)
    started = time.monotonic()
    result = fit(tiny_settings(), SignTask(), tmp_path, resume=True)
    assert before < result.seconds <= before + time.monotonic() - started + 0.01
