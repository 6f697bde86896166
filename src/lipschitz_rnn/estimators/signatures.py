"""Constructors that pass parameters on, with the full signature: scikit-learn, aeon and sktime read names from it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

Constructor = TypeVar("Constructor", bound=Callable[..., None])


def with_parameters_of(base: type) -> Callable[[Constructor], Constructor]:
    """Decorator of an `__init__(self, …, **parameters)`: its signature lists the parameters of `base` by name."""

    def decorate(constructor: Constructor) -> Constructor:
        first, *own = inspect.signature(constructor).parameters.values()
        named = [parameter for parameter in own if parameter.kind is not parameter.VAR_KEYWORD]
        taken = {parameter.name for parameter in named} | {"self"}
        inherited = inspect.signature(base.__init__).parameters.values()  # type: ignore[misc]
        passed = [parameter for parameter in inherited if parameter.name not in taken]
        signature: Any = inspect.Signature([first, *named, *passed])
        constructor.__signature__ = signature  # type: ignore[attr-defined]
        return constructor

    return decorate


def store_parameters(estimator: Any, kind: type, parameters: dict[str, Any]) -> None:
    """Set every parameter of `kind` as an attribute: the given ones, else their defaults."""
    complete: Any = kind(**parameters)
    for name, value in complete.get_params(deep=False).items():
        setattr(estimator, name, value)


def inner_model(estimator: Any, kind: Any) -> Any:
    """A new estimator of `kind` with the parameters that `estimator` has as attributes."""
    return kind(**{name: getattr(estimator, name) for name in kind().get_params(deep=False)})
