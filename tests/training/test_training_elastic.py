"""One run on two nodes: a worker is lost, torchrun starts both again, and the run goes on from its last checkpoint."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from test_training_nothing_lost import assert_same_run

from lipschitz_rnn.training.parallel import joined_world

EPOCHS = 12


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def agents(folder: Path) -> list[subprocess.Popen[str]]:
    """Two rendezvous agents with one process each, as on two machines."""
    port = free_port()
    torchrun = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "3"]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "elastic"]
    command = ["-m", "lipschitz_rnn", "train", "digits", "-t", "steps=8", "-e", str(EPOCHS), "-n", "8", "-s", "0,1"]
    options = ["--precision", "float64", "--device", "cpu", "--resume", "--out", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return [
        subprocess.Popen(
            [sys.executable, *torchrun, *meeting, *(["--local-addr", "127.0.0.1"]), *command, *options],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip


def worker_of(agent: int) -> int | None:
    """The training process of an agent."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            trains = b"lipschitz_rnn" in (path.parent / "cmdline").read_bytes()
        except (OSError, IndexError):
            continue
        if parent == agent and trains:
            return int(path.parent.name)
    return None


def finish(started: list[subprocess.Popen[str]]) -> None:
    try:
        for process in started:
            output = process.communicate(timeout=600)[0]
            assert process.returncode == 0, output[-4000:]
    finally:
        for process in started:
            process.terminate()  # an agent ends its workers; nothing happens to what has ended


def test_restarts_that_can_hang_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a store that is shared between restarts, processes wait for the addresses of dead ones."""
    environment = {"WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_MAX_RESTARTS": "3"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"), joined_world(torch.device("cpu")):
        pass


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
@pytest.mark.parametrize("lost", [0, 1])
def test_a_run_goes_on_after_a_lost_worker(tmp_path: Path, lost: int) -> None:
    started = agents(tmp_path / "lost")
    end = time.monotonic() + 300
    while len(list((tmp_path / "lost" / "checkpoints").glob("step-*.safetensors"))) < 2:
        assert time.monotonic() < end, "no checkpoint was written"
        assert all(process.poll() is None for process in started)
        time.sleep(0.02)
    number = worker_of(started[lost].pid)
    assert number is not None
    os.kill(number, signal.SIGKILL)
    assert not (tmp_path / "lost" / "result.json").exists(), "the run was too short to lose a worker"
    finish(started)
    finish(agents(tmp_path / "whole"))
    assert_same_run(tmp_path / "lost", tmp_path / "whole")
