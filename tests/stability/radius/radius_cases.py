"""Random certified classifiers and samples of every kind that a radius is certified for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import lipschitz_rnn as lr
from lipschitz_rnn.stability import StatedClassifier


@dataclass(frozen=True)
class Case:
    network: StatedClassifier
    x: Tensor
    lengths: Tensor | None
    timespans: Tensor | None
    options: dict[str, Any]

    @property
    def given(self) -> dict[str, Any]:
        return {"lengths": self.lengths, "timespans": self.timespans}


def linear_head(features: int, classes: int, generator: torch.Generator, scale: float = 3.0) -> nn.Linear:
    """Without a bias, so that the classes are decided by the inputs."""
    head = nn.Linear(features, classes, bias=False, dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(scale * torch.randn(head.weight.shape, generator=generator, dtype=torch.float64))
    return head


def layer(input_size: int, hidden_size: int, generator: torch.Generator, spread: float = 0.5, **options: Any) -> Any:
    """A LipschitzRNN in float64, drawn from its own generator and moved away from its start."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        unit = lr.LipschitzRNN(input_size, hidden_size, dtype=torch.float64, **options)
    with torch.no_grad():
        for parameter in unit.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(spread * drawn)
    return unit.eval()


def random_case(seed: int, batch: int = 4) -> Case:
    """Everything is drawn: layers, directions, integrator, nonlinearity, α, steps, lengths, readout and size."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    contracting = bool(rng.random() < 0.65)
    integrators = ["euler", "euler", "midpoint", "heun"] + ([] if contracting else ["rk4"])
    integrator = str(rng.choice(integrators))
    N, p, q, T = (int(rng.integers(*ends)) for ends in ((1, 7), (1, 4), (2, 5), (1, 25)))
    step = float(rng.choice([0.05, 0.2, 0.4]))
    options: dict[str, Any] = {
        "num_layers": int(rng.choice([1, 1, 2, 3])),
        "bidirectional": bool(rng.random() < 0.3),
        "integrator": integrator,
        "nonlinearity": str(rng.choice(["tanh", "tanh", "relu", "sigmoid", "identity"])),
        "alpha": float(rng.choice([1.0, 1.0, 0.5, 2.0])),
        "step_size": step,
    }
    irregular = integrator != "rk4" and bool(rng.random() < 0.4)
    if irregular and rng.random() < 0.5:
        options["max_step"] = step * float(rng.choice([0.4, 1.0]))
    if contracting:
        options |= {"stability": "contracting", "rate": float(rng.choice([0.01, 0.2]))}
        if integrator == "euler" and options["nonlinearity"] != "identity" and seed % 2:
            options["bounded_gain"] = True
        unit = layer(p, N, generator, **options)
    else:
        options |= {"gamma": (2.5 / options["alpha"], 1.5), "init_scale": 1.0}
        unit = layer(p, N, generator, spread=0.15, **options)
    lengths = None
    if T > 1 and rng.random() < 0.5:
        lengths = torch.from_numpy(rng.integers(1, T + 1, size=batch))
        lengths[0] = T
    timespans = None
    if irregular:
        longest = 3 * step if "max_step" in options else step
        timespans = torch.from_numpy(rng.uniform(0.1 * step, longest, size=(T, batch)))
        timespans[rng.random((T, batch)) < 0.1] = 0.0
    network = StatedClassifier(
        unit,
        linear_head(N * unit.num_directions, q, generator),
        readout=str(rng.choice(["last", "last", "mean", "state"])),  # type: ignore[arg-type]
        unit_takes_lengths=bool(rng.random() < 0.5),
    )
    size = float(rng.choice([0.3, 1.0, 5.0]))
    x = size * torch.randn(T, batch, p, generator=generator, dtype=torch.float64)
    if lengths is not None:
        x = x * (torch.arange(T)[:, None] < lengths)[..., None]
        if timespans is not None:  # as every model here does it: nothing happens in the padding
            timespans = timespans * (torch.arange(T)[:, None] < lengths)
    return Case(network, x, lengths, timespans, options)


def stack(seed: int, batch: int = 4) -> Case:
    """Contracting layers in everything that a stack can have; half of the Euler ones with a bounded gain."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    integrator = str(rng.choice(["euler", "euler", "midpoint", "heun"]))
    tight = bool(rng.random() < 0.4)  # scalar layers without biases and small inputs: nearly linear, close to the bound
    N, p, q, T = (int(rng.integers(*ends)) for ends in ((1, 2 if tight else 6), (1, 4), (2, 5), (1, 25)))
    step = float(rng.choice([0.05, 0.2, 0.4]))
    options: dict[str, Any] = {
        "stability": "contracting",
        "num_layers": int(rng.choice([2, 2, 3])),
        "bidirectional": bool(rng.random() < 0.3),
        "integrator": integrator,
        "nonlinearity": "tanh" if tight else str(rng.choice(["tanh", "relu", "sigmoid"])),
        "alpha": float(rng.choice([1.0, 1.0, 0.5])),
        "step_size": step,
        "rate": float(rng.choice([0.01, 0.2, 1.0])) if integrator == "euler" else 0.1,
        "bounded_gain": integrator == "euler" and bool(seed % 2),
        "bias": not tight,
    }
    irregular = bool(rng.random() < 0.4)
    if irregular and rng.random() < 0.5:
        options["max_step"] = step * float(rng.choice([0.4, 1.0]))
    unit = layer(p, N, generator, spread=0.05 if tight else float(rng.choice([0.05, 0.5, 2.0])), **options)
    lengths = torch.from_numpy(rng.integers(1, T + 1, size=batch)) if rng.random() < 0.5 else None
    timespans = None
    if irregular:
        longest = 3 * step if "max_step" in options else step
        timespans = torch.from_numpy(rng.uniform(0.1 * step, longest, size=(T, batch)))
    network = StatedClassifier(
        unit,
        linear_head(N * unit.num_directions, q, generator),
        readout=str(rng.choice(["last", "last", "mean", "state"])),  # type: ignore[arg-type]
        unit_takes_lengths=bool(rng.random() < 0.5),
    )
    x = (0.01 if tight else float(rng.choice([0.01, 1.0, 5.0]))) * torch.randn(
        T, batch, p, generator=generator, dtype=torch.float64
    )
    if lengths is not None:
        x = x * (torch.arange(T)[:, None] < lengths)[..., None]
        if timespans is not None:  # as every model here does it: nothing happens in the padding
            timespans = timespans * (torch.arange(T)[:, None] < lengths)
    return Case(network, x, lengths, timespans, options)


def classifier(matrices: list[tuple[Any, Any, Any]], head: Any, **options: Any) -> StatedClassifier:
    """One (A, W, U) for each layer and direction, without biases; β = ½ and γ = 0 make A and W the free matrices."""
    A, _, U = (np.atleast_2d(matrix) for matrix in matrices[0])
    unit = lr.LipschitzRNN(U.shape[1], len(A), bias=False, beta=0.5, gamma=0.0, dtype=torch.float64, **options)
    with torch.no_grad():
        for cell, given in zip(unit.cells.values(), matrices, strict=True):
            for place, matrix in zip((cell.hidden.M_A, cell.hidden.M_W, cell.weight_ih), given, strict=True):
                place.copy_(torch.as_tensor(np.atleast_2d(matrix), dtype=torch.float64))
        weight = torch.as_tensor(head, dtype=torch.float64)
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
        linear.weight.copy_(weight)
    return StatedClassifier(unit.eval(), linear, unit_takes_lengths=True)
