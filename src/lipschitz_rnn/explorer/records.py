"""What the page needs to know about a network: its weights, its settings, and what is proved about it."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.stability import Certificate, certify
from lipschitz_rnn.units.lipschitz import LipschitzRNN, LipschitzRNNCell

LARGEST = 512  # units: the browser needs seconds for the eigenvalues of a larger network


@dataclass(frozen=True)
class Images:
    """The images that a network reads, one pixel per step in scanline order, and a few examples of them."""

    side: int
    examples: list[dict[str, Any]]  # label, and pixels as the network reads them
    source: str = ""


def encode(values: Any) -> dict[str, Any]:
    """Numbers as little-endian bytes: float32 stays float32, so that nothing is lost and little is written."""
    array = (
        values.detach().cpu().numpy() if isinstance(values, Tensor) and values.dtype in _KEPT else np.asarray(values)
    )
    kept = array.dtype if array.dtype in (np.float32, np.float64) else np.dtype(np.float64)
    little = np.ascontiguousarray(array, dtype=kept.newbyteorder("<"))
    data = base64.b64encode(little.tobytes()).decode("ascii")
    return {"type": kept.name, "shape": list(array.shape), "data": data}


_KEPT = (torch.float32, torch.float64)


def network_record(
    name: str,
    cell: LipschitzRNNCell,
    *,
    head: nn.Linear | None = None,
    images: Images | None = None,
    about: str = "",
    time_limit: float = 20.0,
) -> dict[str, Any]:
    """Everything that the page shows of one layer; its certificate is searched for here, for at most `time_limit` s."""
    if cell.hidden_size > LARGEST:
        raise ValueError(
            f"{name} has {cell.hidden_size} units; the explorer shows at most {LARGEST}, because the browser computes "
            "all eigenvalues. Train a smaller network, or use `lipschitz-rnn certify` for numbers"
        )
    A, W = cell.hidden_matrices()
    parameters = [A, W, *cell.parameters(), *([] if head is None else head.parameters())]
    if not all(bool(values.isfinite().all()) for values in parameters):
        raise ValueError(f"{name} has weights that are not finite; choose another seed or an earlier checkpoint")
    settings: dict[str, Any] = {"alpha": cell.alpha, "step": cell.step_size, "beta": cell.beta, "gamma": cell.gamma}
    settings |= {"integrator": get_integrator(cell.integrator).name, "nonlinearity": cell.nonlinearity}
    free = cell.beta is not None
    hidden: Any = cell.hidden
    matrices: dict[str, Tensor] = {"M_A": hidden.M_A, "M_W": hidden.M_W} if free else {"A": A, "W": W}
    matrices |= {"U": cell.weight_ih} | ({} if cell.bias_ih is None else {"b": cell.bias_ih})
    record: dict[str, Any] = {
        "name": name,
        "about": about,
        "size": cell.hidden_size,
        "inputs": cell.input_size,
        "settings": settings,
    }
    record |= {key: encode(_wide(values)) for key, values in matrices.items()}
    if head is not None:
        record["head"] = {key: encode(_wide(value)) for key, value in head.named_parameters(recurse=False)}
    if images is not None:
        record["images"] = {"side": images.side, "examples": images.examples, "source": images.source}
    return record | {"certificate": _certificate(cell, time_limit)}


def _wide(values: Tensor) -> Tensor:
    return values.detach() if values.dtype in _KEPT else values.detach().float()


def _certificate(cell: LipschitzRNNCell, time_limit: float) -> dict[str, Any]:
    """The proof of `certify` for the map that the layer runs, or why there is none."""
    try:
        found: Certificate = certify(cell, time_limit=time_limit)
    except ImportError as error:  # without the extra, the search that needs a solver cannot run
        return {"holds": False, "reason": str(error)}
    if not found.holds:
        return {"holds": False, "reason": found.reason}
    if found.substeps != (1, 1):  # the page takes each step at once, so the proof is about another map
        return {
            "holds": False,
            "reason": f"max_step {cell.max_step:g} splits the steps of this layer, and the page does not",
        }
    return {"holds": True, "rate": found.rate, "factor": found.factor, "metric": encode(found.metric)}


def lipschitz_layer(model: nn.Module, name: str) -> LipschitzRNN:
    """The only Lipschitz layer of a model; an error that says what is there instead otherwise."""
    layers = [module for module in model.modules() if isinstance(module, LipschitzRNN)]
    if len(layers) != 1:
        unit = type(getattr(model, "unit", model)).__name__
        count = len(layers) or "no"
        raise ValueError(
            f"{name} has {count} Lipschitz layers (its unit is {unit}); the explorer shows networks with exactly "
            "one. Train one with: lipschitz-rnn train … --unit lipschitz"
        )
    return layers[0]
