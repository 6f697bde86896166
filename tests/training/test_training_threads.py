"""The backward pass of a training step runs in the thread that trains, also on a GPU."""

from __future__ import annotations

import threading

import pytest
import torch
from tiny_tasks import SignTask, tiny_settings
from torch import Tensor

from lipschitz_rnn.tasks import Batch
from lipschitz_rnn.training import fit


class Watched(SignTask):
    """Notes where gradients pass the outputs: the thread, and whether autograd may use others."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, bool]] = set()

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        if outputs.requires_grad:
            outputs.register_hook(self.note)
        return super().loss(outputs, batch)

    def note(self, gradient: Tensor) -> None:
        self.seen.add((threading.get_ident(), torch._C._is_multithreading_enabled()))


GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_backward_passes_run_in_the_thread_that_trains(device: str) -> None:
    task = Watched()
    fit(tiny_settings(device=device, epochs=1, cuda_graph="off"), task)
    assert task.seen == {(threading.get_ident(), False)}
    assert torch._C._is_multithreading_enabled()
