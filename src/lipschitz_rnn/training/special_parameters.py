"""Which parameters of a network are trained in a way of their own: hidden matrices by Muon, biases at another rate."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from lipschitz_rnn.training.settings import Settings

_UNIT = "unit."
_BIAS = re.compile(r"unit\.(.*\.)?bias\w*")


def special_parameters(
    settings: Settings, parameters: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The stacked matrices that Muon trains, and the unit's biases if they have a rate of their own.

    Args:
        parameters: those that are trained, by name.

    Raises:
        ValueError: muon, and the unit has no matrix for it; a bias rate, and the unit has no bias.
    """
    muon = settings.optimiser == "muon"
    matrices = hidden_matrices(parameters, settings.unit, settings.hidden_size) if muon else {}
    return matrices, {} if settings.bias_rate == 1.0 else unit_biases(parameters, settings.unit, settings.bias_rate)


def hidden_matrices(parameters: Mapping[str, Tensor], unit: str, hidden_size: int) -> dict[str, Tensor]:
    """The stacked parameters that Muon trains: real matrices of the unit, both axes of at least the hidden size.

    Several biases in one parameter are not a matrix, however small the hidden size is.

    Raises:
        ValueError: there is none.
    """
    found = {
        name: value
        for name, value in parameters.items()
        if name.startswith(_UNIT)
        and not _BIAS.fullmatch(name)
        and value.dim() >= 3
        and min(value.shape[-2:]) >= hidden_size
        and not value.is_complex()
    }
    if not found:
        _require_unit(parameters, "optimiser='muon' trains hidden matrices", "use optimiser='adam'")
        raise ValueError(
            f"the unit {unit!r} has no parameter for optimiser='muon', which needs a real matrix of at least "
            f"{hidden_size} × {hidden_size} (the hidden size) that is not frozen; use optimiser='adam'"
        )
    return found


def unit_biases(parameters: Mapping[str, Tensor], unit: str, rate: float) -> dict[str, Tensor]:
    """The stacked biases of the unit, whose learning rate is `rate` times that of the others.

    Raises:
        ValueError: there is none.
    """
    found = {name: value for name, value in parameters.items() if _BIAS.fullmatch(name)}
    if not found:
        _require_unit(parameters, f"bias_rate is {rate:g}, which is for biases", "leave bias_rate at 1")
        raise ValueError(
            f"bias_rate is {rate:g}, but the unit {unit!r} has no bias that is not frozen; leave bias_rate at 1"
        )
    return found


def _require_unit(parameters: Mapping[str, Tensor], what: str, otherwise: str) -> None:
    """A network of the user's own may have its recurrent module under any name."""
    if not any(name.startswith(_UNIT) for name in parameters):
        known = ", ".join(dict.fromkeys(name.partition(".")[0] for name in parameters))
        raise ValueError(
            f"{what} of the module named 'unit', but the network has no parameter to train there, only in {known}; "
            f"name your recurrent module 'unit', or {otherwise}"
        )
