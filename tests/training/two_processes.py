"""Trains several tiny runs; the test starts it under torchrun and alone. `python two_processes.py FOLDER`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tiny_tasks import Letters, NextValue, SignTask, Uneven, tiny_settings

from lipschitz_rnn.training import fit
from lipschitz_rnn.training.folder import RunFolder


def slowly(save: Callable[..., Path]) -> Callable[..., Path]:
    """As on a slow disk: the process that writes is still at it when the others begin the next run."""

    def wrapped(*arguments: Any) -> Path:
        time.sleep(0.3)
        return save(*arguments)

    return wrapped


torch.set_num_threads(1)
folder = sys.argv[1]
if "WORLD_SIZE" in os.environ:
    dist.init_process_group("gloo")  # once for all runs; a run alone would do it itself
common = {"unit": "gru", "seeds": (0, 1), "epochs": 2, "precision": "float64", "clip": 0.5, "averaging": 0.1}
fit(tiny_settings(**common, dropout=0.3, batch_size=15), SignTask(noise=0.3), f"{folder}/sign")
fit(tiny_settings(**common, task="next-value"), NextValue(), f"{folder}/next-value")
noisy = common | {"unit": "lipschitz", "unit_options": {"noise": 0.3, "multiplicative_noise": 0.2}}
fit(tiny_settings(**noisy, batch_size=15), SignTask(), f"{folder}/noisy")
timed = common | {"unit": "gru-d", "task": "uneven"}
fit(tiny_settings(**timed, batch_size=15), Uneven(), f"{folder}/uneven")
fit(tiny_settings(**common, optimiser="muon", batch_size=15), SignTask(), f"{folder}/muon")
RunFolder.save = slowly(RunFolder.save)  # type: ignore[method-assign]
fit(tiny_settings(**common, task="letters"), Letters(streams=5), f"{folder}/letters", resume=True)
fit(tiny_settings(**common, task="letters"), Letters(streams=5), f"{folder}/letters", resume=True)
if dist.is_initialized():
    dist.destroy_process_group()
