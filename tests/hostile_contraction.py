"""Contracting layers whose free parameters are as bad as floating point allows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

import lipschitz_rnn as lr
from lipschitz_rnn.units.lipschitz.contracting import ContractingPair

KINDS = ("plain", "mixed", "low rank", "ill-conditioned")
INTEGRATORS = ("euler", "midpoint", "heun")
NONLINEARITIES = ("identity", "tanh", "relu", "sigmoid")


def hostile_settings(index: int, rng: np.random.Generator) -> dict[str, Any]:
    """Size and settings of a pair: every integrator and nonlinearity comes around, the rest is drawn."""
    step = float(10.0 ** rng.uniform(-3, 1))
    return {
        "hidden_size": int(rng.choice([1, 2, 3, 5, 8, 16])),
        "step_size": step,
        "rate": float(10.0 ** rng.uniform(-3, -0.7)) / step,
        "alpha": float(rng.choice([1.0, 0.3, -2.0, 1e-3, 70.0])),
        "integrator": INTEGRATORS[index % 3],
        "nonlinearity": NONLINEARITIES[index % 4],
        "metric_spread": float(rng.choice([30.0, 1.0, 1e3, 1e6])),
    }


@torch.no_grad()
def make_hostile(pair: ContractingPair, rng: np.random.Generator) -> None:
    """Parameters of any finite size, up to the largest number of their dtype; half of the pairs do not leak at all."""
    leakless = rng.random() < 0.5
    for name, parameter in pair.named_parameters():
        largest = torch.finfo(parameter.dtype).max
        exponent = rng.uniform(-3, math.log10(largest)) if rng.random() < 0.5 else rng.uniform(-2, 3)
        values = rng.normal(size=tuple(parameter.shape))
        kind, square = KINDS[rng.integers(4)], values.ndim == 2 and values.shape[0] == values.shape[1]
        if kind == "mixed":
            values *= 10.0 ** rng.uniform(-20, 0, size=values.shape)
        elif square and kind == "low rank":
            values = np.outer(values[0], values[:, 0])
        elif square and kind == "ill-conditioned":
            basis, _ = np.linalg.qr(values)
            values = basis * np.logspace(0, -16, len(basis)) @ basis.T
        if name == "leak" and leakless:
            values = -abs(values) - 1.0
        with np.errstate(over="ignore"):
            parameter.copy_(torch.from_numpy(np.clip(10.0**exponent * values, -largest, largest)))


def hostile_pair(index: int, dtype: torch.dtype) -> ContractingPair:
    rng = np.random.default_rng(index)
    pair = ContractingPair(**hostile_settings(index, rng), dtype=dtype)
    make_hostile(pair, rng)
    return pair


def hostile_layer(index: int, dtype: torch.dtype, inputs: int = 2) -> lr.LipschitzRNN:
    """The same as a layer, in ``dtype`` from the start or converted to it."""
    rng = np.random.default_rng(index)
    settings = hostile_settings(index, rng)
    early = index % 2 == 0
    layer = lr.LipschitzRNN(inputs, **settings, stability="contracting", dtype=dtype if early else None)
    make_hostile(pair_of(layer.to(dtype)), rng)
    return layer


def pair_of(layer: lr.LipschitzRNN) -> ContractingPair:
    hidden = layer.cell().hidden
    assert isinstance(hidden, ContractingPair)
    return hidden


def norms(vectors: Tensor, metric: Tensor) -> Tensor:
    """‖·‖_P of each, with the diagonal of P."""
    return (vectors.double().square() * metric).sum(-1).sqrt()


def worst_norm(pair: ContractingPair, A: Tensor, W: Tensor, rng: np.random.Generator, starts: int = 4) -> float:
    """The largest ‖J‖_P found over the corners of the slopes, for matrices (A, W) in place of the pair's own.

    J is linear in the slope of each unit and stage, so a corner is best, and the singular vectors say which way to
    turn each slope; the turn is kept if the norm grows.
    """
    scale = np.sqrt(pair.metric()[0].numpy())
    a, w = (scale[:, None] * matrix.detach().double().numpy() / scale for matrix in (pair.alpha * A.double(), W))
    (low, high), step, identity = pair.slopes, pair.step_size, np.eye(len(a))
    stages = 1 if pair.integrator == "euler" else 2

    def jacobian(slopes: np.ndarray) -> np.ndarray:
        k = [step * (a + d[:, None] * w) for d in slopes]
        if pair.integrator == "euler":
            return identity + k[0]
        if pair.integrator == "midpoint":
            return identity + k[1] @ (identity + k[0] / 2)
        return identity + (k[0] + k[1] @ (identity + k[0])) / 2

    def gradient(slopes: np.ndarray, stage: int, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """The direction of leftᵀ J right in the slopes of a stage."""
        k = [step * (a + d[:, None] * w) for d in slopes]
        inner = {"euler": 0.0, "midpoint": 0.5, "heun": 1.0}[pair.integrator]
        if stage == stages - 1 and stages == 2:
            return left * (w @ (right + inner * k[0] @ right))
        if stages == 2:  # the first stage acts by itself (Heun) and through the second
            left = (left if pair.integrator == "heun" else 0.0) + inner * k[1].T @ left
        return left * (w @ right)

    best = 0.0
    draws = [np.full((stages, len(a)), slope) for slope in (low, high)]
    draws += [np.where(rng.random((stages, len(a))) < 0.5, low, high) for _ in range(starts)]
    for slopes in draws:
        left, found, right = np.linalg.svd(jacobian(slopes))
        for stage in list(range(stages)) * 4:
            turned = slopes.copy()
            turned[stage] = np.where(gradient(slopes, stage, left[:, 0], right[0]) > 0, high, low)
            tried = np.linalg.svd(jacobian(turned))
            if tried[1][0] > found[0]:
                slopes, (left, found, right) = turned, tried
        best = max(best, float(found[0]))
    return best
