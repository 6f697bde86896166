"""One optimiser step of all members without synchronising with the host, so that a CUDA graph can capture it."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.precision import float32_products
from lipschitz_rnn.tasks import Batch, Task
from lipschitz_rnn.training.checkpoint import copy_tensors
from lipschitz_rnn.training.ensemble import Ensemble, map_state
from lipschitz_rnn.training.model import State
from lipschitz_rnn.training.optimisers import build_optimiser
from lipschitz_rnn.training.parallel import World
from lipschitz_rnn.training.robust import Robust
from lipschitz_rnn.training.settings import Settings


class Updater:
    """Gradients, clipping and the optimiser for stacked parameters; members do not affect each other.

    A member whose loss or gradient is not finite stops: its parameters keep their last finite values, and the step and
    the gradient norm are recorded on the device. The others continue.
    """

    def __init__(self, settings: Settings, task: Task, ensemble: Ensemble, world: World) -> None:
        self._settings, self._task, self.ensemble, self._world = settings, task, ensemble, world
        self.device = ensemble.device
        self._robust = Robust.of(settings, task, ensemble.module)
        trained = {name: value for name, value in ensemble.parameters.items() if value.requires_grad}
        if not trained:
            raise ValueError("no parameter of the network requires a gradient; there is nothing to train")
        self.parameters = list(trained.values())
        self._before = [torch.empty_like(parameter) for parameter in self.parameters]  # the last step's
        self._mix = torch.zeros((), device=self.device)
        # A tensor, so that a captured step sees it change; None: always whole.
        self._robust_share = torch.zeros((), device=self.device) if settings.robust_ramp else None
        self.optimiser = build_optimiser(settings, trained)
        self.average = None
        if settings.averaging is not None:
            self.average = {name: value.detach().clone() for name, value in trained.items()}
        members = ensemble.size
        self.progress: dict[str, Tensor] = {
            "alive": torch.ones(members, dtype=torch.bool, device=self.device),
            "stopped_step": torch.full((members,), -1, dtype=torch.int64, device=self.device),
            "stopped_norm": torch.zeros(members, device=self.device),
            "loss_sum": torch.zeros(members, device=self.device),
            "norm_sum": torch.zeros(members, device=self.device),
            "steps": torch.zeros((), dtype=torch.int64, device=self.device),  # optimiser steps so far
            "summed": torch.zeros((), dtype=torch.int64, device=self.device),  # steps in the two sums
        }

    @property
    def evaluated(self) -> dict[str, Tensor]:
        """The parameters and buffers for evaluation; averaged parameters if there is an average."""
        return self.ensemble.values | (self.average or {})

    def set_rate(self, rate: float, step: int, robust: float = 1.0) -> None:
        """Set the learning rate, the averaging weight and the share of robust terms before a step, on the host."""
        if self._robust_share is not None:
            self._robust_share.fill_(robust)
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * group["factor"])
            else:
                group["lr"] = rate * group["factor"]
        if self._settings.averaging is not None:
            # At first a plain mean of all iterates, so that the initial weights do not bias the average.
            self._mix.fill_(max(self._settings.averaging, 1.0 / (step + 1)))

    def step(self, batch: Batch, keep: Tensor | None, state: State, random_seeds: list[int] | None) -> State:
        """Update all members on their batches; returns the detached states."""
        losses, gradients, state = self._gradients(batch, keep, state, random_seeds)
        norms = member_norms(gradients)
        progress = self.progress
        finite = losses.isfinite() & norms.isfinite()
        stops = progress["alive"] & ~finite
        progress["stopped_step"].copy_(torch.where(stops, progress["steps"], progress["stopped_step"]))
        progress["stopped_norm"].copy_(torch.where(stops, norms.float(), progress["stopped_norm"]))
        progress["alive"].logical_and_(finite)
        alive = progress["alive"]
        stopped = ~alive
        scale = None
        if self._settings.clip is not None:
            scale = (self._settings.clip / (norms + 1e-6)).clamp(max=1.0).nan_to_num()
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            usable = gradient.masked_fill(_like(stopped, gradient), 0.0)
            parameter.grad = usable if scale is None else usable.mul_(_like(scale, gradient))
        with torch.no_grad():
            torch._foreach_copy_(self._before, self.parameters)
        self.optimiser.step()
        with torch.no_grad():
            for parameter, old in zip(self.parameters, self._before, strict=True):
                torch.where(_like(alive, parameter), parameter, old, out=parameter)
            if self.average is not None:
                for mean, parameter in zip(self.average.values(), self.parameters, strict=True):
                    mean.lerp_(parameter, self._mix.to(mean.dtype))
        progress["loss_sum"].add_(losses.detach().float().masked_fill(stopped, 0.0))
        progress["norm_sum"].add_(norms.float().masked_fill(stopped, 0.0))
        progress["steps"].add_(1)
        progress["summed"].add_(1)
        return state

    def _gradients(
        self, batch: Batch, keep: Tensor | None, state: State, random_seeds: list[int] | None
    ) -> tuple[Tensor, list[Tensor], State]:
        """Losses (S,), gradients of each member's mean over the global batch, and the detached states."""
        seen = in_precision(batch, self._settings)
        with forward_precision(self._settings, self.device):
            outputs, state, penalties = self.ensemble(
                self.ensemble.values,
                seen.inputs,
                seen.lengths,
                state,
                keep,
                seen.timespans,
                random_seeds=random_seeds,
            )
        judged = outputs
        if self._robust.asked:
            gains = partial(self.ensemble.score_gains, self.ensemble.values)
            judged, extra = self._robust.terms(outputs, batch.targets, gains, seen.inputs.shape[-3], self._robust_share)
            penalties = penalties + extra
        losses = self._task.loss(judged, batch) + penalties
        if self._world.size == 1:
            return losses, self._differentiate(losses.sum()), map_state(Tensor.detach, state)
        # Shards may hold different numbers of samples or valid steps: weight each mean by what it is over.
        weights = self._task.loss_weight(outputs.detach(), batch).to(losses.dtype)
        gradients = self._differentiate((losses * weights).sum())
        columns = [(losses * weights).detach()[:, None], weights[:, None], *(_rows(g) for g in gradients)]
        total = self._world.add(torch.cat(columns, 1))
        total = total / total[:, 1:2].clamp_min(1e-12)
        parts = total[:, 2:].split([g[0].numel() for g in gradients], 1)
        joined = [part.reshape(g.shape) for part, g in zip(parts, gradients, strict=True)]
        return total[:, 0], joined, map_state(Tensor.detach, state)

    def _differentiate(self, objective: Tensor) -> list[Tensor]:
        # One GPU needs no second thread, and waking autograd's takes longer than a short scan.
        with torch.autograd.set_multithreading_enabled(False):
            gradients = torch.autograd.grad(objective, self.parameters, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, gradients, strict=True)]

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a step changes, by name: parameters (with buffers), average, optimiser, progress."""
        named = {f"parameters/{name}": value.detach() for name, value in self.ensemble.values.items()}
        named |= {f"average/{name}": value for name, value in (self.average or {}).items()}
        named |= {f"progress/{name}": value for name, value in self.progress.items()}
        for index, entry in self.optimiser.state_dict()["state"].items():
            named |= {f"optimiser/{index}/{key}": value for key, value in entry.items() if value is not None}
        return named

    def load(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `tensors`."""
        kept = {name: value for name, value in self.tensors().items() if not name.startswith("optimiser/")}
        copy_tensors(tensors, kept, "", "the checkpoint")
        state: dict[int, dict[str, Any]] = {}
        for name, value in tensors.items():
            if name.startswith("optimiser/"):
                _, index, key = name.split("/")
                state.setdefault(int(index), {})[key] = value
        self.optimiser.load_state_dict({"state": state, "param_groups": self.optimiser.state_dict()["param_groups"]})


def member_norms(gradients: list[Tensor]) -> Tensor:
    """Gradient norm of each member over all its parameters, (S,)."""
    each = [torch.linalg.vector_norm(_rows(gradient), dim=1) for gradient in gradients]
    return torch.linalg.vector_norm(torch.stack(each), dim=0)


def in_precision(batch: Batch, settings: Settings) -> Batch:
    """The batch as the network sees it: in float64 if the run is."""
    if settings.precision != "float64":
        return batch
    return batch.map(lambda part: part.double() if part.is_floating_point() else part)


def forward_precision(settings: Settings, device: torch.device) -> AbstractContextManager[Any]:
    """Autocast for bfloat16; the precision of float32 products is set for the whole run by `matmul_precision`.

    On a CPU, bfloat16 would be slower than float32, or crash on a machine that advertises instructions it lacks. So a
    network trained on a GPU in bfloat16 is evaluated on a CPU in float32.
    """
    half = settings.precision == "bfloat16" and device.type != "cpu"
    return torch.autocast(device.type, torch.bfloat16) if half else nullcontext()


def matmul_precision(precision: str) -> AbstractContextManager[None]:
    """The precision of float32 products in a run; under bfloat16, what autocast leaves in float32 is not rounded."""
    return float32_products(precision if precision in ("high", "medium") else "highest")


def _rows(value: Tensor) -> Tensor:
    """(S, …) as (S, entries per member); a parameter may be a single number."""
    return value.reshape(len(value), -1)


def _like(members: Tensor, value: Tensor) -> Tensor:
    """(S,) in the shape (S, 1, 1, …) of `value`."""
    return members.view(-1, *(1,) * (value.dim() - 1))


def finite_or_none(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None
