"""Scores of trained networks on a split."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from lipschitz_rnn.tasks import Split, Task
from lipschitz_rnn.training.ensemble import Ensemble, Values, map_state
from lipschitz_rnn.training.parallel import World
from lipschitz_rnn.training.settings import Settings
from lipschitz_rnn.training.streams import for_members
from lipschitz_rnn.training.times import has_times, require_timed
from lipschitz_rnn.training.update import forward_precision, in_precision, matmul_precision


@dataclass(frozen=True)
class Scores:
    """One number per member: the task's finished metric, and the mean loss."""

    metric: list[float]
    loss: list[float]


def evaluate(model: nn.Module, task: Task, split: Split = "test", batch_size: int = 1000) -> float:
    """The task's metric for one model on a split; the model and the task's data must be on the same device.

    The model is called as `model(inputs, lengths, state, keep)`, with `timespans=…` if the batches have them, and
    returns (outputs, state), as `SequenceModel` does. A copy is evaluated, so the model and the modes of its submodules
    do not change.
    """
    if has_times(task, split):
        require_timed(model, task.name)
    ensemble = Ensemble([model], task.device)
    settings = Settings(task=task.name, eval_batch_size=batch_size)
    scores = evaluate_members(ensemble, ensemble.values, task, split, settings)
    return scores.metric[0]


def evaluate_members(
    ensemble: Ensemble,
    values: Values,
    task: Task,
    split: Split,
    settings: Settings,
    world: World | None = None,
    pause: Callable[[], None] = lambda: None,
) -> Scores:
    """Scores of all members on the same batches. `pause` is called between batches and may raise to stop.

    Independent batches are split over the processes. The windows of a stateful task may pass a state from one to the
    next, so every process evaluates all of them.
    """
    world = world or World()
    count = task.size(split)
    size = 1 if task.stateful else settings.eval_batch_size
    starts = range(0, count, size)
    if not task.stateful:
        starts = starts[world.rank :: world.size]
    totals = torch.zeros(4, ensemble.size, dtype=torch.float64, device=ensemble.device)
    state = None
    ensemble.training(False)
    try:
        for start in starts:
            pause()
            indices = torch.arange(start, min(start + size, count))
            batch = task.batch(split, indices)
            seen = in_precision(batch, settings)
            with torch.no_grad(), forward_precision(settings, ensemble.device):
                outputs, new_state, _ = ensemble(
                    values, seen.inputs, seen.lengths, state, timespans=seen.timespans, shared=True
                )
            state = map_state(torch.Tensor.detach, new_state) if task.carries_state else None
            judged = for_members(batch, ensemble.size)
            value, weight = task.measure(outputs, judged)
            over = task.loss_weight(outputs, judged).double()
            totals += torch.stack((value.double(), weight.double(), task.loss(outputs, judged).double() * over, over))
    finally:
        ensemble.training(True)
    if not task.stateful:
        totals = world.add(totals)
    sums, weights, losses, counts = totals.tolist()
    # Weights of classes may all be 0 in a split, which then has no loss.
    mean_losses = [loss / count if count else math.nan for loss, count in zip(losses, counts, strict=True)]
    return Scores([task.metric.finish(s / w) for s, w in zip(sums, weights, strict=True)], mean_losses)


def score_networks(
    networks: Sequence[nn.Module],
    task: Task,
    split: Split,
    settings: Settings,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Scores:
    """Scores of trained networks on the task's device, in the precision of their run. `progress` is called before each
    batch with the number of batches done and the total."""
    total = -(-task.size(split) // (1 if task.stateful else settings.eval_batch_size))
    numbers = itertools.count()
    timed = has_times(task, split)
    if timed:
        require_timed(networks[0], task.name)
    ensemble = Ensemble(networks, task.device, settings.ensemble, task, timed)
    with matmul_precision(settings.precision):
        arguments = (ensemble, ensemble.values, task, split, settings)
        return evaluate_members(*arguments, pause=lambda: progress(next(numbers), total))
