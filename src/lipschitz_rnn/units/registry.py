"""The registry of recurrent units: look up, list, build and register units by name."""

import inspect
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from lipschitz_rnn.plugins import MissingCodeError, Registered, did_you_mean
from lipschitz_rnn.units.catalogue import ROWS, Row

if TYPE_CHECKING:
    from lipschitz_rnn.units.base import Recurrent
    from lipschitz_rnn.units.cells import Cell

PACKAGE = "lipschitz_rnn.units"


class UnitInfo(Row):
    """Information about a unit: its row in the catalogue, parameter count and options."""

    def load(self) -> "type[Recurrent] | type[Cell]":
        """Import and return the class."""
        if self.name not in UNITS:
            return _class_of(self.name)
        module, _, attribute = self.source.partition(":")
        return getattr(import_module(f"{PACKAGE}.{module}"), attribute)

    @property
    def parameters(self) -> int:
        """Trainable parameters at N = 128 on pixel-by-pixel MNIST: the unit (p = 1) and a linear 10-class head."""
        return count_parameters(self.name, hidden_size=128, input_size=1, classes=10)

    def options(self) -> tuple[str, ...]:
        """The keyword options of `build` for this unit."""
        from lipschitz_rnn.units.cells import Cell, CellStack, takes_noise
        from lipschitz_rnn.units.noise import NOISE_OPTIONS

        kind = self.load()
        names = [*_keywords(kind), *(_keywords(CellStack) if issubclass(kind, Cell) else ())]
        left_out = _POSITIONAL if not issubclass(kind, Cell) or takes_noise(kind) else (*_POSITIONAL, *NOISE_OPTIONS)
        return tuple(name for name in dict.fromkeys([*names, "device", "dtype"]) if name not in left_out)


_POSITIONAL = ("self", "cell", "input_size", "hidden_size")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _keywords(kind: type) -> list[str]:
    """Keyword names of a constructor; one that takes `**options` passes them to the next class in the MRO."""
    names: list[str] = []
    for base in kind.__mro__:
        if "__init__" in vars(base):
            parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            names += [parameter.name for parameter in parameters if parameter.kind in _NAMED]
            if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
                break
    return names


UNITS = {row.name: UnitInfo(*row) for row in ROWS}
_OWN = Registered("unit", UNITS)
_FACTS: dict[str, UnitInfo] = {}  # as passed to `register`
Kind = TypeVar("Kind", bound=type[nn.Module])


def register(
    name: str,
    *,
    paper: str = "",
    year: int | None = None,
    equation: str = "",
    constraint: str = "none",
    ensembles: bool = True,
) -> Callable[[Kind], Kind]:
    """Decorator that registers a class as a unit, for `build`, `lipschitz-rnn train --unit` and everything else.

    The class is a `Cell`, or a module that is called like `nn.RNN` and constructed from (input_size, hidden_size) and
    its options. It needs an `output_size` if that is not the hidden size. An installed package can register units with
    an entry point in the group "lipschitz_rnn.units" instead. Raises ValueError if the name is taken.
    """

    _OWN.require_name(name)  # now: @register without a name would otherwise put a function in place of the class

    def add(kind: Kind) -> Kind:
        _OWN.add(name, _require_module(kind))
        _FACTS[name] = _own_info(name, kind, paper, year, equation, constraint, ensembles)
        count_parameters.cache_clear()
        return kind

    return add


def _own_info(
    name: str, kind: type, paper: str, year: int | None, equation: str, constraint: str, ensembles: bool
) -> UnitInfo:
    source, timespans = f"{kind.__module__}:{kind.__qualname__}", getattr(kind, "takes_timespans", False)
    return UnitInfo(name, paper, year, equation, constraint, source, ensembles, timespans)


def _require_module(kind: Any) -> type[nn.Module]:
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise TypeError(f"the unit is {kind!r}; it must be a subclass of torch.nn.Module")
    return kind


def _class_of(name: str) -> Any:
    found = _OWN.find(name)
    if found is None:
        raise MissingCodeError(f"the unit {name!r} is not registered; import the module that defines it")
    return _require_module(found)


def available() -> list[str]:
    """Names of all units."""
    return [*UNITS, *_OWN.names()]


def info(name: str) -> UnitInfo:
    """Information about a unit. Raises ValueError with the known names for an unknown one."""
    names = available()
    if name not in names:
        raise ValueError(
            f"no unit is called {name!r}{did_you_mean(name, names)}; choose one of {', '.join(names)}. "
            "To use your own unit, import its module first: --import MODULE"
        )
    if name in UNITS:
        return UNITS[name]
    return _FACTS.get(name) or _own_info(name, _class_of(name), "", None, "", "none", ensembles=True)


def build(
    name: str,
    input_size: int,
    hidden_size: int,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> "Recurrent":
    """Build a unit by name. It is called as `output, h_n = unit(input, hx=None, *, lengths=None, timespans=None)`.

    All units take num_layers, batch_first, dropout, bidirectional, device and dtype; `info(name).options()` lists all
    options of a unit. `unit.output_size` is the width of its output (2N for units with a complex state). `unit.recipe`
    is what it was built from, without device and dtype: `build(**unit.recipe)` gives such a unit again.
    """
    from lipschitz_rnn.units.cells import Cell, CellStack

    unit_info = info(name)
    allowed = unit_info.options()
    for option in options:
        if option not in allowed:
            raise TypeError(f"unit {name!r} has no option {option!r}; it has {', '.join(allowed)}")
    kind = unit_info.load()
    unit: Recurrent
    if issubclass(kind, Cell):
        unit = CellStack(kind, input_size, hidden_size, **options)
    else:
        unit = kind(input_size, hidden_size, **options)
    if not hasattr(unit, "output_size"):  # a user's own module
        unit.output_size = hidden_size * (2 if options.get("bidirectional") else 1)
    unit.recipe = {"name": name, "input_size": input_size, "hidden_size": hidden_size, **options}
    return unit.to(device=device, dtype=dtype)


@cache
def count_parameters(name: str, hidden_size: int, input_size: int = 1, classes: int = 0) -> int:
    """Number of trainable parameters of a unit and of a linear head with `classes` outputs (0: no head)."""
    with torch.random.fork_rng(devices=[]):
        unit = build(name, input_size, hidden_size)
    head = classes * (unit.output_size + 1)
    return sum(parameter.numel() for parameter in unit.parameters() if parameter.requires_grad) + head
