"""From what a caller has, matrices, a layer or a file, to the pairs (A, W) that certificates are about."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lipschitz_rnn.ops.integrators import get_integrator
from lipschitz_rnn.ops.nonlinearities import Nonlinearity, get_nonlinearity
from lipschitz_rnn.stability.rounding import Matrix
from lipschitz_rnn.units.lipschitz.contracting import ContractingPair


@dataclass(frozen=True)
class Recurrence:
    """One pair with all that decides how it runs. ``step_range`` None means continuous time.

    ``hint`` holds the diagonals of a metric and of an Euler multiplier, for pairs that were built to contract.
    """

    A: Matrix
    W: Matrix
    alpha: float = 1.0
    slopes: tuple[float, float] = (0.0, 1.0)
    integrator: str = "euler"
    step_range: tuple[float, float] | None = None
    name: str = ""
    hint: tuple[Matrix, Matrix] | None = None


def as_matrix(values: Any, name: str) -> Matrix:
    """A square, finite float64 matrix from a tensor, an array or nested lists."""
    array = values.detach().cpu().double().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if np.iscomplexobj(array):
        raise TypeError(f"{name} is complex; give a real matrix")
    array = np.array(array, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.shape[0] == 0:
        raise ValueError(f"{name} has shape {array.shape}; give a square matrix (N, N)")
    if not np.all(np.isfinite(array)):
        bad = int(np.size(array) - np.isfinite(array).sum())
        raise ValueError(f"{name} has {bad} entries that are not finite; nothing can be said about such a system")
    return array


def as_pair(A: Any, W: Any) -> tuple[Matrix, Matrix]:
    """Two matrices of one size."""
    A, W = as_matrix(A, "A"), as_matrix(W, "W")
    if A.shape != W.shape:
        raise ValueError(f"A has shape {A.shape} and W has shape {W.shape}; both must be (N, N) with the same N")
    return A, W


def as_slopes(nonlinearity: Any) -> tuple[float, float]:
    """The slope range of a nonlinearity: its name, an object with ``slope_range``, or the range itself."""
    if isinstance(nonlinearity, str):
        return get_nonlinearity(nonlinearity).slope_range
    if isinstance(nonlinearity, Nonlinearity):
        return nonlinearity.slope_range
    if isinstance(nonlinearity, tuple) and len(nonlinearity) == 2:
        low, high = float(nonlinearity[0]), float(nonlinearity[1])
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ValueError(f"slopes are {nonlinearity}; give finite numbers (smallest, largest)")
        return low, high
    raise ValueError(
        f"nothing is known about the slopes of {nonlinearity!r}; give a name (tanh, relu, sigmoid, identity) or the "
        "range (smallest, largest) of its slopes"
    )


def as_step_range(step_size: float | tuple[float, float]) -> tuple[float, float]:
    """(shortest, longest), with 0 ≤ shortest ≤ longest and 0 < longest."""
    shortest, longest = step_size if isinstance(step_size, tuple) else (step_size, step_size)
    shortest, longest = float(shortest), float(longest)
    if not (math.isfinite(longest) and 0 <= shortest <= longest and longest > 0):
        raise ValueError(
            f"step_size is {step_size}; give a positive step, or a pair (shortest, longest) with 0 ≤ shortest ≤ longest"
        )
    return shortest, longest


def recurrences(target: Any, **overrides: Any) -> list[Recurrence]:
    """All pairs in ``target``: a pair (A, W), a module with ``hidden_matrices`` somewhere inside it, or a file of one.

    ``overrides`` (alpha, nonlinearity, integrator, step_size, continuous) replace what the layer says; None keeps it.
    """
    if isinstance(target, (tuple, list)) and len(target) == 2:
        A, W = as_pair(*target)
        return [_recurrence(A, W, "", None, overrides)]
    if isinstance(target, ContractingPair):
        with torch.no_grad():
            A, W = as_pair(*target())
        return [replace(_recurrence(A, W, "", target, overrides), hint=_built_in_metric(target))]
    if isinstance(target, nn.Module):
        found = [item for prefix, layer in layers(target) for item in _of_layer(prefix, layer, overrides)]
        if not found:
            raise TypeError(
                f"{type(target).__name__} holds no Lipschitz RNN layer (a module with hidden_matrices); "
                "give one, or a pair (A, W)"
            )
        return found
    if isinstance(target, (str, Path)):
        return [_recurrence(A, W, name, None, overrides) for name, A, W in _pairs_in_file(Path(target))]
    raise TypeError(
        f"cannot certify a {type(target).__name__}; give a pair (A, W), a module, or the path of a file with A and W"
    )


def layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The recurrent layers of a model with their names: the outermost modules that can give their hidden matrices."""
    inside: set[int] = set()
    for name, module in model.named_modules():
        if (
            id(module) not in inside
            and callable(getattr(module, "hidden_matrices", None))
            and hasattr(module, "step_size")
        ):
            inside |= {id(child) for child in module.modules()}
            yield name, module


def directions(layer: Any) -> Iterator[tuple[int, int]]:
    """(layer, direction) numbers of a layer like nn.RNN; a cell has one of each."""
    for number in range(int(getattr(layer, "num_layers", 1))):
        for direction in range(2 if getattr(layer, "bidirectional", False) else 1):
            yield number, direction


def pair_name(prefix: str, number: int, direction: int, layer: Any) -> str:
    parts = [prefix] if prefix else []
    if getattr(layer, "num_layers", 1) > 1 or getattr(layer, "bidirectional", False):
        parts.append(f"layer {number}" + (", reverse" if direction else ""))
    return " ".join(parts)


def hidden_matrices(layer: Any, number: int, direction: int) -> tuple[Matrix, Matrix]:
    with torch.no_grad():
        is_stack = hasattr(layer, "num_layers")
        A, W = layer.hidden_matrices(number, direction) if is_stack else layer.hidden_matrices()
    return as_pair(A, W)


def _of_layer(prefix: str, layer: Any, overrides: dict[str, Any]) -> Iterator[Recurrence]:
    for number, direction in directions(layer):
        A, W = hidden_matrices(layer, number, direction)
        recurrence = _recurrence(A, W, pair_name(prefix, number, direction, layer), layer, overrides)
        cell = layer.cell(number, direction) if hasattr(layer, "cell") else layer
        yield replace(recurrence, hint=_built_in_metric(cell))


def _built_in_metric(cell: nn.Module) -> tuple[Matrix, Matrix] | None:
    for module in cell.modules():
        if isinstance(module, ContractingPair):
            P, multiplier = module.metric()
            return P.cpu().numpy(), multiplier.cpu().numpy()
    return None


def _recurrence(A: Matrix, W: Matrix, name: str, layer: Any, overrides: dict[str, Any]) -> Recurrence:
    def setting(key: str, default: Any) -> Any:
        given = overrides.get(key)
        return getattr(layer, key, default) if given is None else given

    alpha = float(setting("alpha", 1.0))
    if not math.isfinite(alpha):
        raise ValueError(f"alpha is {alpha}; give a finite number")
    slopes = as_slopes(setting("nonlinearity", "tanh"))
    integrator = get_integrator(setting("integrator", "euler")).name
    step_size = setting("step_size", None)
    continuous = overrides.get("continuous")
    if continuous and overrides.get("step_size") is not None:
        raise ValueError("continuous=True has no step; leave out either continuous or step_size")
    discrete = step_size is not None and not continuous
    if continuous is False and step_size is None:
        raise ValueError("continuous=False asks for the map that runs; give its step_size")
    return Recurrence(A, W, alpha, slopes, integrator, as_step_range(step_size) if discrete else None, name)


def _pairs_in_file(path: Path) -> Iterator[tuple[str, Matrix, Matrix]]:
    """Pairs of entries called A and W (with any common prefix) in a .safetensors, .npz or .pt file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file; give a .safetensors, .npz or .pt file that holds A and W")
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        entries: dict[str, Any] = dict(load_file(path))
    elif path.suffix == ".npz":
        with np.load(path) as archive:
            entries = dict(archive)
    else:
        entries = dict(torch.load(path, map_location="cpu", weights_only=True))
    prefixes = sorted(key[: -len("A")] for key in entries if key == "A" or key.endswith(".A"))
    pairs = [(prefix, entries[prefix + "A"], entries[prefix + "W"]) for prefix in prefixes if prefix + "W" in entries]
    if not pairs:
        names = ", ".join(sorted(entries)[:8])
        raise ValueError(f"{path} holds no pair named A and W, only {names}; load the model and certify that instead")
    for prefix, A, W in pairs:
        yield (prefix.rstrip("."), *as_pair(A, W))
