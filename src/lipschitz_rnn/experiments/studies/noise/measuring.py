"""Accuracies of one network with disturbed inputs, without the curvature that the robustness study also measures."""

from __future__ import annotations

from typing import Any

from torch import nn

from lipschitz_rnn.robustness import deepfool, draw_samples, pgd, valid_range
from lipschitz_rnn.robustness.measuring import Method, accuracy_within, measure
from lipschitz_rnn.tasks import Task


def measure_inputs(network: nn.Module, task: Task, method: Method) -> dict[str, Any]:
    """Accuracy without noise, under noise, and under each attack within its ball."""
    found = measure(network, task, method, noise_only=True)
    batch = draw_samples(task, "test", None if method.attacked is None else min(method.attacked, task.size("test")))
    common: dict[str, Any] = {"steps": method.steps, "bounds": valid_range(task)}
    common |= {"lengths": batch.lengths, "timespans": batch.timespans}
    given = (network, batch.inputs, batch.targets)
    found["pgd"] = pgd(*given, step_size=method.step_size, radius=method.radius_pgd, **common).accuracy
    found["deepfool-l2"] = accuracy_within(deepfool(*given, norm="l2", **common), "l2", method.radius_l2)
    found["deepfool-linf"] = accuracy_within(deepfool(*given, norm="linf", **common), "linf", method.radius_linf)
    return found
