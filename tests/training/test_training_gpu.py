"""On a GPU: a replayed CUDA graph trains what eager steps train, and a run goes on where it stopped."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from test_training_ensembles import Records, build_plain, weights
from test_training_nothing_lost import SignalAt, newest
from tiny_tasks import Letters, NextValue, SignTask, Uneven, tiny_settings

from lipschitz_rnn.training import Interrupted, build_model, fit

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
TASKS = {"sign": lambda: SignTask(noise=0.2), "next-value": NextValue, "letters": Letters}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("optimiser", ["adam", "sgd", "rmsprop"])
def test_a_cuda_graph_trains_what_eager_steps_train(task: str, optimiser: str) -> None:
    common: dict[str, Any] = {"task": task, "seeds": (0, 1), "device": "cuda", "optimiser": optimiser, "epochs": 4}
    common |= {"clip": 0.5, "averaging": 0.1, "schedule": "cosine", "dropout": 0.2}
    graphed = fit(tiny_settings(**common, cuda_graph="on"), TASKS[task](), build=build_plain)
    eager = fit(tiny_settings(**common, cuda_graph="off"), TASKS[task](), build=build_plain)
    for index in (0, 1):
        for name, value in weights(eager, index).items():
            torch.testing.assert_close(weights(graphed, index)[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:timespans reaches")  # for this unit and these times the warning is right
@pytest.mark.parametrize("unit", ["lipschitz", "neural-ode", "cornn", "lem", "gru-d"])
def test_a_cuda_graph_reads_new_times_at_every_step(unit: str) -> None:
    """The padding of these batches holds NaN and times below zero, and the times differ between members."""
    common: dict[str, Any] = {"task": "uneven", "seeds": (0, 1), "device": "cuda", "unit": unit, "epochs": 4}
    notes = Records()
    graphed = fit(tiny_settings(**common, cuda_graph="on"), Uneven(), watcher=notes)
    eager = fit(tiny_settings(**common, cuda_graph="off"), Uneven())
    alone = fit(tiny_settings(**common | {"device": "cpu", "seeds": (1,)}), Uneven())
    assert notes.notes == []
    for index in (0, 1):
        for name, value in weights(eager, index).items():
            torch.testing.assert_close(weights(graphed, index)[name], value, rtol=1e-3, atol=1e-4)
    for name, value in weights(alone, 0).items():
        torch.testing.assert_close(weights(eager, 1)[name].cpu(), value, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("unit", ["lipschitz", "lstm"])
def test_members_on_a_gpu_equal_their_lone_runs(unit: str) -> None:
    common = {"unit": unit, "device": "cuda", "hidden_size": 16}
    together = fit(tiny_settings(**common, seeds=(0, 4)), SignTask(noise=0.2), build=build_model)
    alone = fit(tiny_settings(**common, seeds=(4,)), SignTask(noise=0.2), build=build_model)
    for name, value in weights(alone, 0).items():
        torch.testing.assert_close(weights(together, 1)[name], value, rtol=1e-3, atol=1e-4)


def test_a_run_on_a_gpu_goes_on_where_it_stopped(tmp_path: Path) -> None:
    settings = tiny_settings(seeds=(0, 1), device="cuda", epochs=5, unit="lipschitz", averaging=0.1, dropout=0.2)
    with pytest.raises(Interrupted):
        fit(settings, SignTask(noise=0.2), tmp_path / "run", watcher=SignalAt(13, signal.SIGTERM))
    fit(settings, SignTask(noise=0.2), tmp_path / "run", resume=True)
    fit(settings, SignTask(noise=0.2), tmp_path / "whole")
    resumed, whole = newest(tmp_path / "run")[0], newest(tmp_path / "whole")[0]
    for name, value in whole.items():
        torch.testing.assert_close(resumed[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("task", TASKS)
def test_a_cuda_graph_reads_new_seeds_of_noise_at_every_step(task: str) -> None:
    common: dict[str, Any] = {"task": task, "seeds": (0, 1), "device": "cuda", "epochs": 4, "unit": "lipschitz"}
    common |= {"unit_options": {"noise": 0.3, "multiplicative_noise": 0.2}, "num_layers": 2, "hidden_size": 16}
    graphed = fit(tiny_settings(**common, cuda_graph="on"), TASKS[task]())
    eager = fit(tiny_settings(**common, cuda_graph="off"), TASKS[task]())
    alone = fit(tiny_settings(**(common | {"seeds": (1,)})), TASKS[task]())
    for name, value in weights(eager, 1).items():
        torch.testing.assert_close(weights(graphed, 1)[name], value, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(weights(alone, 0)[name], value, rtol=1e-3, atol=1e-4)
