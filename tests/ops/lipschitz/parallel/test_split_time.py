"""Over 2 and 4 processes the time axis gives what one gives: states, gradients, a training run, also a resumed one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from split_time import CASES, STEPS, run

from lipschitz_rnn.ops import Contraction, Parallel
from lipschitz_rnn.ops.lipschitz.scan import lipschitz_scan

PROGRAM = str(Path(__file__).with_name("split_time.py"))


def results(processes: int, file: Path) -> dict[str, Any]:
    """As torchrun would start them, which is one more process that imports PyTorch."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    common["WORLD_SIZE"] = str(processes)
    command = [sys.executable, PROGRAM, str(file)]
    pipes = {"stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, env={**common, "RANK": str(rank)}, **pipes) for rank in range(processes)]
    for process in started:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    return torch.load(file)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.full)])
def test_processes_equal_one(processes: int, tmp_path: Path) -> None:
    together = results(processes, tmp_path / "results.pt")
    alone = {name: run(options, processes * STEPS) for name, options in CASES.items()}
    for name in (*CASES, "resumed"):
        one, several = alone["forgets" if name == "resumed" else name], together[name]
        assert several["losses"] == pytest.approx(one["losses"], rel=1e-11)
        torch.testing.assert_close(several["states"], one["states"], rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(several["gradients"], one["gradients"], rtol=1e-8, atol=1e-10)
        assert len(set(several["taken"])) == 1  # none reads what another one meant as something else
        in_turn = [passes == 0 for passes in several["passes"]]
        assert in_turn == [name == "remembers"] * len(in_turn)
    assert together["resumed"]["losses"] == together["forgets"]["losses"]  # within the processes, bit for bit
    torch.testing.assert_close(together["resumed"]["gradients"], together["forgets"]["gradients"], rtol=0.0, atol=0.0)
    assert "different stretches" in together["refused"]["uneven"]
    assert "process 1 cannot run" in together["refused"]["one cannot"]


def test_a_group_needs_torch_distributed() -> None:
    u, A = torch.randn(6, 1, 2), -torch.eye(2)
    contraction = Contraction(0.9, torch.ones(2), 0.1)
    with pytest.raises(ValueError, match="init_process_group"):
        lipschitz_scan(u, A, A, step_size=0.1, parallel=Parallel(2, group=True), contraction=contraction)
