"""Raw audio, spoken digits one after another: trained in parallel it ends where sequential training ends."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch import nn

import lipschitz_rnn as lr
from lipschitz_rnn.tasks.audio import read_recordings
from lipschitz_rnn.tasks.sources import FSDD

STEPS = 16_384  # two seconds


@pytest.mark.slow
def test_next_sample_of_spoken_digits() -> None:
    root = os.environ.get("LIPSCHITZ_RNN_DATA")
    if not root:
        pytest.skip("LIPSCHITZ_RNN_DATA is not set: there are no recordings")
    sounds = read_recordings(FSDD, root, True)
    wave = np.concatenate([sounds[name] for name in sorted(sounds)[:20]])[: STEPS + 1]
    x = torch.from_numpy(np.ascontiguousarray(wave)).float().reshape(-1, 1, 1)
    x = (x - x.mean()) / x.std()
    losses: dict[int | None, list[float]] = {}
    for parallel in (None, 8):
        torch.manual_seed(0)
        layer = lr.LipschitzRNN(1, 12, stability="contracting", step_size=0.3, rate=0.3, parallel=parallel)
        head = nn.Linear(12, 1)
        optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=0.01)
        losses[parallel] = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(head(layer(x[:-1])[0]), x[1:])
            loss.backward()
            optimizer.step()
            losses[parallel].append(float(loss.detach()))
    assert layer.bounds[0].proved
    assert layer.bounds[0].passes >= 2
    assert losses[8] == pytest.approx(losses[None], rel=1e-4)
    assert losses[8][-1] < losses[8][0]
