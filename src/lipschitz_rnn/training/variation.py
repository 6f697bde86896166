"""Ensembles whose members differ in numeric options such as β, as well as in their weights.

A module lists these options in `stackable_options`. In a single network they are plain attributes. In an ensemble whose
members differ in one, it becomes a tensor (S,) that is stacked and split like a parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = (bool, int, float, str, tuple, type(None))


def stackable_options(model: nn.Module) -> list[str]:
    """Names of the options that may differ between members, without their paths in the model."""
    return sorted({name for module in model.modules() for name in getattr(module, "stackable_options", ())})


def check_variants(model: nn.Module, unit: str, variants: Sequence[Mapping[str, Any]]) -> None:
    """Raise for options that change shapes or the computation; each value of those needs its own run."""
    allowed = stackable_options(model)
    for option in (name for variant in variants for name in variant):
        if option not in allowed:
            able = f"{unit} can vary {', '.join(allowed)}" if allowed else f"{unit} has no option that can"
            raise ValueError(
                f"variants set {option!r}, which cannot vary within one run; {able}. Train each value as its own run"
            )


def differing_options(models: Sequence[nn.Module]) -> dict[str, list[float]]:
    """Options in which members differ: path of the option -> its value in each. Raises if they differ otherwise."""
    shapes = [{name: value.shape for name, value in model.state_dict().items()} for model in models]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError("the networks of an ensemble must have parameters of the same names and shapes")
    differing: dict[str, list[float]] = {}
    for path, module in models[0].named_modules():
        twins = [model.get_submodule(path) for model in models]
        stackable = getattr(module, "stackable_options", ())
        for name, value in _plain_attributes(module):
            values: list[Any] = [getattr(twin, name, None) for twin in twins]
            if all(other == value for other in values):
                continue
            if name not in stackable:
                raise ValueError(
                    f"the networks of an ensemble differ in {name} ({values[0]!r} and others) of "
                    f"{type(module).__name__}, which changes what is computed; train them as runs of their own"
                )
            differing[f"{path}.{name}" if path else name] = [float(value) for value in values]
    return differing


def _plain_attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if not name.startswith("_") and isinstance(value, _PLAIN):
            yield name, value


def set_option(model: nn.Module, place: str, value: float | Tensor) -> None:
    """Set an option to a number, or to a tensor that a functional call can replace and no state dict contains."""
    path, _, name = place.rpartition(".")
    module = model.get_submodule(path)
    delattr(module, name)
    if isinstance(value, Tensor):
        module.register_buffer(name, value, persistent=False)
    else:
        setattr(module, name, value)


def as_tensors(options: Mapping[str, Sequence[float]], device: torch.device) -> dict[str, Tensor]:
    """(S,) each, in float64: a unit casts them to its own dtype, as it does with a number."""
    return {place: torch.tensor(values, dtype=torch.float64, device=device) for place, values in options.items()}
