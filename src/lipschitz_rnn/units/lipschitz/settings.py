"""Settings of a module: checked whenever they are set, and saved with the weights that depend on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar, cast, overload

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.common.validation import FLOATING, require_count, require_number
from lipschitz_rnn.ops.lipschitz.dispatch import BACKENDS
from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.ops.lipschitz.nonlinearities import get_nonlinearity
from lipschitz_rnn.ops.lipschitz.parallel.plan import Parallel
from lipschitz_rnn.units.arguments import true_or_false
from lipschitz_rnn.units.noise import describe_noise

Check = Callable[[str, Any], Any]
T = TypeVar("T")


class SettingsModule(nn.Module):
    """A module that checks its settings on every assignment, in the constructor and later.

    Settings are plain attributes. An ensemble may replace one by a buffer, which is not checked.

    Attributes:
        checks: name of a setting -> function that returns the value in canonical form, or raises.
        fixed: settings that determine shapes; they cannot change once set.
        constructor_only: options of the constructor that cannot be set later.
        saved: settings that change what the network computes with the same weights. ``state_dict()`` stores them in
            its metadata. If one differs on loading, nothing is loaded; a file without them loads as usual.
    """

    checks: ClassVar[Mapping[str, Check]] = {}
    fixed: ClassVar[tuple[str, ...]] = ()
    constructor_only: ClassVar[tuple[str, ...]] = ()
    saved: ClassVar[tuple[str, ...]] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.constructor_only:
            raise AttributeError(
                f"{name} cannot be changed to {value!r} after construction; build a new {type(self).__name__} with "
                f"{name}={value!r}"
            )
        check = self.checks.get(name)
        if check is not None:
            value = check(name, value)
            self.require_possible(name, value)
        super().__setattr__(name, value)

    def changes(self, name: str, value: Any) -> bool:
        """Whether an existing setting would change."""
        return name in self.__dict__ and bool(self.__dict__[name] != value)

    def require_possible(self, name: str, value: Any) -> None:
        """Raise if a setting cannot change to ``value``, even though the value itself is valid."""
        if name in self.fixed and self.changes(name, value):
            raise AttributeError(
                f"{name} is {self.__dict__[name]!r} and cannot become {value!r}, because the shapes of the parameters "
                f"depend on it. Build a new {type(self).__name__}"
            )

    def saved_settings(self) -> dict[str, Any]:
        """The settings to store in ``state_dict()``, in plain types, without those that an ensemble made tensors."""
        values = {name: getattr(self, name) for name in self.saved}
        return {name: value for name, value in values.items() if not isinstance(value, Tensor)}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", None)
        if metadata is not None:
            local = metadata.setdefault(prefix[:-1], {})
            local["settings"] = self.saved_settings()
            if below := self._settings_below():
                local["below"] = below

    def _settings_below(self) -> dict[str, dict[str, Any]]:
        """Saved settings of the submodules, which load after this module: it must know beforehand if one will fail."""
        named = ((name, module) for name, module in self.named_modules() if name)
        return {name: module.saved_settings() for name, module in named if getattr(module, "saved", ())}

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        own, given = self.saved_settings(), local_metadata.get("settings") or {}
        place = prefix[:-1] or type(self).__name__
        different = _different(own, given)
        for name in different:
            error_msgs.append(
                f"{place} has {name}={own[name]!r}, but these weights belong to {name}={given[name]!r}. Build the "
                f"module with {name}={given[name]!r}. To load them anyway, pass dict(state_dict), which drops the "
                "settings."
            )
        below = local_metadata.get("below") or {}
        here = {prefix + name: tensor for name, tensor in self.state_dict(keep_vars=True).items()}
        fitting = {key for key, tensor in here.items() if _shape(state_dict.get(key)) in (None, tensor.shape)}
        below_differs = any(_different(own, below.get(name, {})) for name, own in self._settings_below().items())
        if different or below_differs or len(fitting) < len(here):
            # A failed load must change nothing, so put the current tensors into this copy of the dictionary: the
            # parameters themselves, because with assign=True the module takes what it finds. Only what does not fit
            # stays, and PyTorch names it.
            state_dict.update({key: here[key] for key in fitting if key in state_dict})
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


def describe(unit: Any) -> str:
    """The sizes and the settings that a plain ``nn.RNN`` does not have, for ``repr``."""
    text = f"{unit.input_size}, {unit.hidden_size}, step_size={unit.step_size:g}, integrator={unit.integrator}"
    if not unit.bias:
        text += ", bias=False"
    if unit.alpha != 1.0:
        text += f", alpha={unit.alpha:g}"
    if unit.nonlinearity != "tanh":
        text += f", nonlinearity={unit.nonlinearity}"
    if unit.max_step is not None:
        text += f", max_step={unit.max_step:g}"
    if unit.stability is not None:
        text += f", stability={unit.stability}, rate={unit.rate:g}" + (
            ", bounded_gain=True" if unit.bounded_gain else ""
        )
    return text + describe_noise(unit)


def describe_layer(layer: Any) -> str:
    """The same with what a stack of cells has beyond a cell."""
    text = describe(layer)
    if layer.num_layers != 1:
        text += f", num_layers={layer.num_layers}"
    for name in ("batch_first", "bidirectional"):
        if getattr(layer, name):
            text += f", {name}=True"
    if layer.dropout:
        text += f", dropout={layer.dropout:g}"
    if layer.backend != "auto":
        text += f", backend={layer.backend}"
    for name in ("recompute_every", "parallel"):
        text += "" if getattr(layer, name) is None else f", {name}={getattr(layer, name)}"
    return text


def _shape(tensor: Any) -> torch.Size | None:
    return tensor.shape if isinstance(tensor, Tensor) else None


def _different(own: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    return [name for name in own if name in given and not _same(own[name], given[name])]


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal, up to the rounding of numbers stored as text."""
    numbers = isinstance(one, float) and isinstance(other, float)
    return math.isclose(one, other, rel_tol=1e-12) if numbers else bool(one == other)


def count(name: str, value: Any) -> int:
    return require_count(name, value)


def boolean(name: str, value: Any) -> bool:
    """True or False. nn.RNN has ``nonlinearity`` in the position of ``bias``, so a string may arrive here."""
    by_name = "Pass the arguments after num_layers by name: bias=, batch_first=, dropout=, nonlinearity="
    return true_or_false(name, value, by_name)


def require_dtype(dtype: Any) -> None:
    """Check the dtype of the parameters; None means PyTorch's default."""
    if dtype is not None and dtype not in FLOATING:
        names = ", ".join(map(str, FLOATING))
        raise TypeError(f"dtype is {dtype!r}; the parameters must be real: choose one of {names}")


def positive(name: str, value: Any) -> float:
    return require_number(name, value, low=0.0, open_low=True)


def not_negative(name: str, value: Any) -> float:
    return require_number(name, value, low=0.0)


def fraction(name: str, value: Any) -> float:
    return require_number(name, value, low=0.0, high=1.0)


def finite(name: str, value: Any) -> float:
    return require_number(name, value, low=-math.inf)


def optional(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def string(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}; it must be a string")
    return value


def integrator(name: str, value: Any) -> str:
    return get_integrator(string(name, value)).name


def nonlinearity(name: str, value: Any) -> str:
    return get_nonlinearity(string(name, value)).name


def backend(name: str, value: Any) -> str:
    if string(name, value) not in BACKENDS:
        raise ValueError(f"{name} is {value!r}; choose one of {', '.join(BACKENDS)}")
    return str(value)


def parallel(name: str, value: Any) -> Parallel | str | int | None:
    """None, ``"auto"``, a number of chunks, or a :class:`Parallel`."""
    if value is not None:
        Parallel.read(value, tolerance=1e-6)
    return value


CELL_CHECKS: Mapping[str, Check] = {
    "input_size": count,
    "hidden_size": count,
    "bias": boolean,
    "step_size": positive,
    "alpha": finite,
    "integrator": integrator,
    "nonlinearity": nonlinearity,
    "max_step": optional(positive),
    "noise": not_negative,
    "multiplicative_noise": not_negative,
}
LAYER_CHECKS: Mapping[str, Check] = {
    "input_size": count,
    "hidden_size": count,
    "num_layers": count,
    "bias": boolean,
    "batch_first": boolean,
    "dropout": fraction,
    "bidirectional": boolean,
    "backend": backend,
    "recompute_every": optional(count),
    "parallel": parallel,
    "tolerance": positive,
}
SKEW_CHECKS: Mapping[str, Check] = {"beta": fraction, "gamma": not_negative}
PAIR_CHECKS: Mapping[str, Check] = {"init_scale": not_negative}


class CellSetting(Generic[T]):
    """A setting of a layer that is stored in its cells: read from the first, written to all, checked there."""

    def __init__(self, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, layer: None, owner: type | None = None) -> Self: ...

    @overload
    def __get__(self, layer: nn.Module, owner: type | None = None) -> T: ...

    def __get__(self, layer: Any, owner: type | None = None) -> Self | T:
        return self if layer is None else cast(T, getattr(layer.cell(), self.name))

    def __set__(self, layer: Any, value: T) -> None:
        for cell in layer.cells.values():
            setattr(cell, self.name, value)
