"""Muon for stacked matrices: momentum whose update of each matrix is orthogonalised by a Newton-Schulz iteration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

COEFFICIENTS = (3.4445, -4.775, 2.0315)  # a, b, c in x ↦ a x + b x³ + c x⁵, steep at zero
ITERATIONS = 5
_SMALLEST_NORM = 1e-7  # a gradient of zero stays zero


class Muon(Optimizer):
    """Momentum with orthogonalised updates, for parameters (S, rows, columns): one matrix for each of S networks.

    Or several in one parameter, (S, k, rows, columns): each is orthogonalised by itself.

    The rule is that of `torch.optim.Muon` with `nesterov=True` and `adjust_lr_fn="match_rms_adamw"`. That class cannot
    be used here: it takes single matrices only, and a CUDA graph could not capture it with a rate on the device. Here
    `lr` may be a tensor on the device, nothing waits for the host, and the products are in the parameter's own dtype,
    since bfloat16 is slow or missing on many CPUs.

    Args:
        lr: learning rate, a number or a tensor that changes between the replays of a captured step.
        weight_decay: decoupled, as in AdamW.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float | Tensor = 0.001,
        *,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(parameters, defaults)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.dim() < 3 or parameter.is_complex():
                    raise ValueError(
                        f"a parameter has the shape {tuple(parameter.shape)} and {parameter.dtype}; Muon takes real "
                        "parameters (networks, rows, columns); use Adam for others"
                    )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            rate = group["lr"]
            for alike in _by_shape(group["params"]):
                # Matrices of one shape, of all layers and networks, share each product: launches take most of the time.
                ahead = [self._accumulate(parameter, group["momentum"]).flatten(0, -3) for parameter in alike]
                length = 0.2 * math.sqrt(max(ahead[0].shape[1:]))  # entries of Adam's usual size
                moved = orthogonalise(torch.cat(ahead)).mul_(rate * length)
                steps = moved.split([len(matrices) for matrices in ahead])
                for parameter, step in zip(alike, steps, strict=True):
                    if group["weight_decay"]:
                        parameter.mul_(1 - rate * group["weight_decay"])
                    parameter.sub_(step.view_as(parameter))

    def _accumulate(self, parameter: Tensor, momentum: float) -> Tensor:
        """Add the gradient to the parameter's running mean; returns Nesterov's look ahead."""
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        if not state:  # in the first step, which is never captured
            state["momentum_buffer"] = torch.zeros_like(parameter)
        mean: Tensor = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        return gradient.lerp(mean, momentum)


class Joined:
    """Several optimisers, each with its own parameters, behind the few members of `Optimizer` that training uses.

    In `state_dict`, the parameters of each optimiser are numbered after those of the previous one.
    """

    def __init__(self, *optimisers: Optimizer) -> None:
        self._optimisers = optimisers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for optimiser in self._optimisers for group in optimiser.param_groups]

    def step(self) -> None:
        for optimiser in self._optimisers:
            optimiser.step()

    def state_dict(self) -> dict[str, Any]:
        state: dict[int, Any] = {}
        groups: list[dict[str, Any]] = []
        first = 0
        for optimiser in self._optimisers:
            own = optimiser.state_dict()
            state |= {first + index: entry for index, entry in own["state"].items()}
            for group in own["param_groups"]:
                groups.append(group | {"params": [first + index for index in group["params"]]})
            first += sum(len(group["params"]) for group in own["param_groups"])
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        groups = list(state_dict["param_groups"])
        for optimiser in self._optimisers:
            count = len(optimiser.param_groups)
            mine, groups = groups[:count], groups[count:]
            # PyTorch matches the numbers of the groups with those of the state, wherever they start.
            numbers = {index for group in mine for index in group["params"]}
            state = {index: entry for index, entry in state_dict["state"].items() if index in numbers}
            optimiser.load_state_dict({"state": state, "param_groups": mine})


def orthogonalise(matrices: Tensor) -> Tensor:
    """(…, rows, columns) → about U Vᵀ for each matrix U Σ Vᵀ: singular values between 0.6 and 1.3, zero for zero."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=_SMALLEST_NORM)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def _by_shape(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    """Those with matrices of one shape and dtype together."""
    groups: dict[Any, list[Tensor]] = {}
    for parameter in parameters:
        groups.setdefault((parameter.shape[-2:], parameter.dtype), []).append(parameter)
    return list(groups.values())
