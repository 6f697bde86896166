"""Settings of a module: checked wherever they are set, and saved along with the weights that belong to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from lipschitz_rnn.ops.common.validation import FLOATING, require_count, require_number
from lipschitz_rnn.ops.lipschitz.dispatch import BACKENDS
from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.ops.lipschitz.nonlinearities import get_nonlinearity
from lipschitz_rnn.units.arguments import true_or_false
from lipschitz_rnn.units.noise import describe_noise

Check = Callable[[str, Any], Any]


class SettingsModule(nn.Module):
    """A module that checks its settings on every assignment, in the constructor and later.

    Settings stay plain attributes: an ensemble may replace one by a buffer, which does not come this way.

    Attributes:
        checks: name of a setting -> what returns its value in canonical form, or raises.
        fixed: settings that shapes depend on; once set, they cannot change.
        built_in: options of the constructor that cannot be set later.
        carried: settings without which the weights are those of another network. ``state_dict()`` keeps them in its
            metadata, and loading compares: where one differs, nothing is loaded. A file without them loads as it is.
    """

    checks: ClassVar[Mapping[str, Check]] = {}
    fixed: ClassVar[tuple[str, ...]] = ()
    built_in: ClassVar[tuple[str, ...]] = ()
    carried: ClassVar[tuple[str, ...]] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.built_in:
            raise AttributeError(
                f"{name} is an option of the constructor and cannot become {value!r} later; build a new "
                f"{type(self).__name__} with {name}={value!r}"
            )
        check = self.checks.get(name)
        if check is not None:
            value = check(name, value)
            self.require_possible(name, value)
        super().__setattr__(name, value)

    def changes(self, name: str, value: Any) -> bool:
        """Whether a setting that is there already would become another."""
        return name in self.__dict__ and bool(self.__dict__[name] != value)

    def require_possible(self, name: str, value: Any) -> None:
        """Raise where a setting cannot become ``value``, right as it is by itself."""
        if name in self.fixed and self.changes(name, value):
            raise AttributeError(
                f"{name} is {self.__dict__[name]!r} and cannot become {value!r}: the parameters have their shapes from "
                f"it. Build a new {type(self).__name__}"
            )

    def carried_settings(self) -> dict[str, Any]:
        """What ``state_dict()`` says of this module, in plain types; without what an ensemble made a tensor of."""
        values = {name: getattr(self, name) for name in self.carried}
        return {name: value for name, value in values.items() if not isinstance(value, Tensor)}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", None)
        if metadata is not None:
            local = metadata.setdefault(prefix[:-1], {})
            local["settings"] = self.carried_settings()
            if below := self._settings_below():
                local["below"] = below

    def _settings_below(self) -> dict[str, dict[str, Any]]:
        """Of the modules that this one is made of, which load after it: by then it must know that they will refuse."""
        named = ((name, module) for name, module in self.named_modules() if name)
        return {name: module.carried_settings() for name, module in named if getattr(module, "carried", ())}

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
        own, given = self.carried_settings(), local_metadata.get("settings") or {}
        place = prefix[:-1] or type(self).__name__
        different = _different(own, given)
        for name in different:
            error_msgs.append(
                f"{place} has {name}={own[name]!r}, but these weights belong to {name}={given[name]!r}. Build the "
                f"module with {name}={given[name]!r}; to load them all the same, pass dict(state_dict), which "
                "leaves the settings out."
            )
        below = local_metadata.get("below") or {}
        if different or any(_different(own, below.get(name, {})) for name, own in self._settings_below().items()):
            # What is refused leaves no trace: this copy of the dictionary gets the tensors that are here already.
            here = {prefix + name: tensor.detach() for name, tensor in self.state_dict(keep_vars=True).items()}
            state_dict.update({key: tensor for key, tensor in here.items() if key in state_dict})
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


def describe(unit: Any) -> str:
    """What differs from a plain ``nn.RNN``, for ``repr``."""
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
        text += f", stability={unit.stability}, rate={unit.rate:g}"
    return text + describe_noise(unit)


def _different(own: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    return [name for name in own if name in given and not _same(own[name], given[name])]


def _same(one: Any, other: Any) -> bool:
    """Equal, up to the rounding of a number that was written as text on its way."""
    numbers = isinstance(one, float) and isinstance(other, float)
    return math.isclose(one, other, rel_tol=1e-12) if numbers else bool(one == other)


def size(name: str, value: Any) -> int:
    return require_count(name, value)


def switch(name: str, value: Any) -> bool:
    """Of the constructor; nn.RNN has ``nonlinearity`` where this layer has ``bias``, so that a string lands here."""
    by_name = "Pass it, and what comes after num_layers, by name: bias=, batch_first=, dropout=, nonlinearity="
    return true_or_false(name, value, by_name)


def require_dtype(dtype: Any) -> None:
    """Of parameters; None is PyTorch's default."""
    if dtype is not None and dtype not in FLOATING:
        names = ", ".join(map(str, FLOATING))
        raise TypeError(f"dtype is {dtype!r}; the parameters are real numbers: choose one of {names}")


def positive(name: str, value: Any) -> float:
    return require_number(name, value, low=0.0, open_low=True)


def not_negative(name: str, value: Any) -> float:
    return require_number(name, value, low=0.0)


def share(name: str, value: Any) -> float:
    return require_number(name, value, low=0.0, high=1.0)


def finite(name: str, value: Any) -> float:
    return require_number(name, value, low=-math.inf)


def optional(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}; pass a name, a string")
    return value


def integrator(name: str, value: Any) -> str:
    return get_integrator(text(name, value)).name


def nonlinearity(name: str, value: Any) -> str:
    return get_nonlinearity(text(name, value)).name


def backend(name: str, value: Any) -> str:
    if text(name, value) not in BACKENDS:
        raise ValueError(f"{name} is {value!r}; choose one of {', '.join(BACKENDS)}")
    return str(value)


CELL_CHECKS: Mapping[str, Check] = {
    "input_size": size,
    "hidden_size": size,
    "bias": switch,
    "step_size": positive,
    "alpha": finite,
    "integrator": integrator,
    "nonlinearity": nonlinearity,
    "max_step": optional(positive),
    "noise": not_negative,
    "multiplicative_noise": not_negative,
}
LAYER_CHECKS: Mapping[str, Check] = {
    "input_size": size,
    "hidden_size": size,
    "num_layers": size,
    "bias": switch,
    "batch_first": switch,
    "dropout": share,
    "bidirectional": switch,
    "backend": backend,
    "recompute_every": optional(size),
}
SKEW_CHECKS: Mapping[str, Check] = {"beta": share, "gamma": not_negative}
PAIR_CHECKS: Mapping[str, Check] = {"init_scale": not_negative}
