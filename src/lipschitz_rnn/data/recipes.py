"""A `SeriesModel` as plain values and tensors, and back: what a model file holds of each network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lipschitz_rnn import units
from lipschitz_rnn.data.model import SeriesModel
from lipschitz_rnn.data.preprocessing import Preprocessing
from lipschitz_rnn.data.target import Target

_PARTS = ("unit", "head")
_PLAIN = (bool, int, float, str, type(None))
_FIX = "build the unit with its options; if it is a variant of a run, open the run folder and save from there"


def describe_network(model: SeriesModel) -> dict[str, Any]:
    """How unit and head were built, as plain values."""
    recipe = getattr(model.unit, "recipe", None)
    if recipe is None:
        raise ValueError(
            f"the unit {type(model.unit).__name__} cannot be saved: how it was built is not known. Build it with "
            "lipschitz_rnn.units.build(name, input_size, hidden_size, …); register a unit of your own first"
        )
    if type(model.head) is not nn.Linear:
        raise ValueError(f"the head is a {type(model.head).__name__}; only a torch.nn.Linear can be saved")
    try:
        plain = json.loads(json.dumps(dict(recipe)))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"an option of the unit {recipe['name']!r} is no plain value ({error}); use numbers"
        ) from error
    dtype = str(model.head.weight.dtype).removeprefix("torch.")
    head = {"inputs": model.head.in_features, "outputs": model.head.out_features, "bias": model.head.bias is not None}
    return {"unit": plain, "source": units.info(recipe["name"]).source, "head": head, "dtype": dtype}


def network_tensors(model: SeriesModel) -> dict[str, Tensor]:
    """Parameters and buffers of unit and head on the CPU, by name; those of the preprocessing are in its record."""
    return {
        f"{part}.{name}": value.detach().cpu().contiguous().clone()
        for part in _PARTS
        for name, value in getattr(model, part).state_dict().items()
    }


def rebuild(
    network: Mapping[str, Any], tensors: Mapping[str, Tensor], preprocessing: Preprocessing, target: Target
) -> SeriesModel:
    """The model of a description and its tensors, on the CPU, in evaluation mode.

    Raises ValueError if they do not fit each other, and `plugins.MissingCodeError` or ValueError for a unit that is not
    registered here.
    """
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in network["unit"].items()
    }
    head: Mapping[str, Any] = network["head"]
    if options["input_size"] != preprocessing.output_size or head["outputs"] != target.size:
        raise ValueError(
            f"the network takes {options['input_size']} inputs and gives {head['outputs']} outputs, but the "
            f"preprocessing gives {preprocessing.output_size} and the target has {target.size}"
        )
    with torch.random.fork_rng(devices=[]):
        unit = units.build(**options)
        model = SeriesModel(preprocessing, unit, nn.Linear(head["inputs"], head["outputs"], head["bias"]), target)
    for part in _PARTS:
        module: nn.Module = getattr(model, part)
        module.to(dtype=getattr(torch, network["dtype"]))
        own = {name.removeprefix(f"{part}."): value for name, value in tensors.items() if name.startswith(f"{part}.")}
        try:
            module.load_state_dict(own)
        except RuntimeError as error:
            raise ValueError(f"the weights do not fit the {part}: {' '.join(str(error).split())}") from error
    return model.eval()


@torch.no_grad()
def require_same(model: SeriesModel, again: SeriesModel) -> None:
    """Raise ValueError unless both have the same options, and the same outputs for a made series.

    `model` may be on another device.
    """
    for (path, one), (_, other) in zip(model.unit.named_modules(), again.unit.named_modules(), strict=True):
        for name, value in vars(other).items():
            now = vars(one).get(name)
            if not name.startswith("_") and name != "training" and isinstance(value, _PLAIN) and now != value:
                where = ".".join(part for part in ("unit", path, name) if part)
                raise ValueError(
                    f"the model cannot be saved: {where} is {now!r}, but it was built with {value!r}; {_FIX}"
                )
    fitted = model.preprocessing.fitted
    steps = torch.arange(4, dtype=torch.float64)
    center, scale = again.preprocessing.center, again.preprocessing.scale
    values = (center + scale * torch.sin(1.0 + steps.unsqueeze(-1) + torch.arange(len(center)))).unsqueeze(0)
    times = None if fitted.gap is None else (steps * fitted.gap * 0.75).unsqueeze(0)
    place = next(model.head.parameters()).device
    was_training = model.training
    try:
        found = model.eval()(values.to(place), None if times is None else times.to(place)).cpu()
    finally:
        model.train(was_training)
    expected = again(values, times)
    tolerance = 1e-5 if place.type == "cpu" else 1e-3  # TF32 on a GPU
    size = float(expected.nan_to_num().abs().max().clamp(min=1.0))
    if not torch.allclose(found, expected, rtol=tolerance, atol=tolerance * size, equal_nan=True):
        raise ValueError(
            "the model cannot be saved: built again from its options and weights, it gives other outputs (by up to "
            f"{float((found - expected).abs().max()):.2g}); {_FIX}"
        )
