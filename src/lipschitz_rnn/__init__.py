"""Lipschitz recurrent neural networks for PyTorch.

``ḣ = A h + tanh(W h + U x + b)``: a layer with the call of ``nn.RNN``, its stability theory, and the experiments of the
paper by Erichson, Azencot, Queiruga, Hodgkinson and Mahoney (ICLR 2021).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lipschitz_rnn._version import __version__

if TYPE_CHECKING:  # so that a type checker knows what __getattr__ finds
    from lipschitz_rnn import data as data
    from lipschitz_rnn import ops as ops
    from lipschitz_rnn import robustness as robustness
    from lipschitz_rnn import stability as stability
    from lipschitz_rnn import tasks as tasks
    from lipschitz_rnn import training as training
    from lipschitz_rnn import units as units
    from lipschitz_rnn.ops import lipschitz_scan as lipschitz_scan
    from lipschitz_rnn.training.runs import load_run as load_run
    from lipschitz_rnn.units.lipschitz import LipschitzRNN as LipschitzRNN
    from lipschitz_rnn.units.lipschitz import LipschitzRNNCell as LipschitzRNNCell
    from lipschitz_rnn.units.lipschitz import SymmetricSkew as SymmetricSkew

_PACKAGES = ("data", "robustness", "stability", "tasks", "training", "units")
_NAMES = {
    "LipschitzRNN": "units.lipschitz",
    "LipschitzRNNCell": "units.lipschitz",
    "SymmetricSkew": "units.lipschitz",
    "lipschitz_scan": "ops",
    "load_run": "training.runs",
}

__all__ = ["LipschitzRNN", "LipschitzRNNCell", "SymmetricSkew", "__version__", "lipschitz_scan", "load_run", *_PACKAGES]


def __getattr__(name: str) -> Any:
    """Everything is imported when first used: a model in production needs only the layer, `--help` not even PyTorch."""
    if name in _NAMES:
        found = getattr(importlib.import_module(f"lipschitz_rnn.{_NAMES[name]}"), name)
        globals()[name] = found  # so that the next access is an ordinary one
        return found
    if name in _PACKAGES or name == "ops":
        return importlib.import_module(f"lipschitz_rnn.{name}")
    raise AttributeError(f"module 'lipschitz_rnn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
