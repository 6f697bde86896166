"""Code from outside the package: modules that the user names, and entry points of installed packages.

A run folder notes where its task and its model were defined, but a folder may come from anybody. So a folder alone
never causes an import: only modules that the user named (`--import`, LIPSCHITZ_RNN_IMPORT, `imports=`) are imported,
and only what is defined in them is looked up. Entry points are trusted, because their package was installed.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib import metadata
from typing import Any

ENVIRONMENT = "LIPSCHITZ_RNN_IMPORT"  # modules, separated by commas
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_FILES = (".csv", ".parquet", ".npz", ".ts")  # `train` takes a name that ends so for a file
_allowed: set[str] = set()


class MissingCodeError(ImportError):
    """A task, a unit or a builder from outside the package cannot be found; the message says what to do."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ " (did you mean 'lstm'?)", or nothing if no known name is close."""
    close = get_close_matches(str(name), list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def import_modules(names: Iterable[str] = ()) -> None:
    """Import the modules that the user names, here and in LIPSCHITZ_RNN_IMPORT, and trust what they define.

    The current folder is searched last, so that no file in it can take the place of an installed module.
    """
    from_environment = (name.strip() for name in os.environ.get(ENVIRONMENT, "").split(","))
    for name in (*filter(None, from_environment), *names):
        if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(
                f"the module to import is {name!r}; give its name, such as my_tasks for my_tasks.py in this folder, or "
                "my_package.tasks"
            )
        if name in _allowed:
            continue
        if not {"", os.getcwd()} & set(sys.path):
            sys.path.append(os.getcwd())
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and f"{name}.".startswith(f"{error.name}."):
                what = f"there is no module {name!r} in the current folder or among the installed packages"
                raise MissingCodeError(f"{what}; check its name, or install its package") from error
            raise MissingCodeError(f"the module {name!r} cannot be imported: {error}; install what it needs") from error
        except Exception as error:  # anything can happen in somebody else's module
            raise MissingCodeError(f"the module {name!r} cannot be imported: {error!r}; repair it") from error
        _allowed.add(name)


def imported_modules() -> tuple[str, ...]:
    """The modules that the user named so far, for a process that starts without them."""
    return tuple(sorted(_allowed))


def reference(target: Any) -> dict[str, Any]:
    """Where a class or a function is defined, as plain values for a file; `functools.partial` keeps its keywords.

    `importable` is false where no other process could find it: in a script, inside a function, or with arguments that
    are not plain values.
    """
    arguments: Any = {}
    while isinstance(target, functools.partial):
        arguments = None if target.args or arguments is None else {**target.keywords, **arguments}
        target = target.func
    named = target if hasattr(target, "__qualname__") else type(target)
    module, name = str(named.__module__), str(named.__qualname__)
    found = named is target and module != "__main__" and _attribute(sys.modules.get(module), name) is target
    try:
        plain = arguments is not None and json.loads(json.dumps(arguments)) == arguments
    except (TypeError, ValueError):
        plain = False
    return {"module": module, "name": name, "arguments": arguments if plain else {}, "importable": found and plain}


def resolve(record: Mapping[str, Any], what: str) -> Callable[..., Any]:
    """The class or function that a `reference` names, from a module that the user named.

    Raises `MissingCodeError`, whose message says what to do. `what` is for that message, such as "its task".
    """
    module, name, arguments = (record.get(key) for key in ("module", "name", "arguments"))
    if not (isinstance(module, str) and isinstance(name, str) and isinstance(arguments, dict)):
        raise MissingCodeError(f"the record of {what} is damaged")
    if record.get("importable") is not True:
        raise MissingCodeError(
            f"{what} is {name} of {module}, which cannot be imported: it was defined in a script or inside a function, "
            "or with arguments that are not plain values. Move it to a module, or pass it in Python"
        )
    # Of a package that was named, the modules that it imported itself; a folder must not have others run.
    named = any(f"{module}.".startswith(f"{allowed}.") for allowed in _allowed)
    if not named or module not in sys.modules:
        raise MissingCodeError(
            f"{what} is {name} of the module {module}, which is not part of this package. If you trust that module, "
            f"add --import {module} (in Python imports=[{module!r}])"
        )
    found = _attribute(sys.modules[module], name)
    # Defined there, not merely imported there: a folder must not reach os.system through a trusted module.
    if not callable(found) or (getattr(found, "__module__", None), getattr(found, "__qualname__", None)) != (
        module,
        name,
    ):
        raise MissingCodeError(f"{what} is {name} of the module {module}, which does not define it any more")
    return functools.partial(found, **arguments) if arguments else found


def _attribute(module: object, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


class Registered:
    """Names given by users: what `register` was called with, and the entry points of a group."""

    def __init__(self, kind: str, built_in: Iterable[str]) -> None:
        self._kind, self._group, self._built_in = kind, f"lipschitz_rnn.{kind}s", tuple(built_in)
        self._own: dict[str, Any] = {}

    def require_name(self, name: object) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name.lower().endswith(_FILES):
            raise ValueError(
                f"the name of the {self._kind} is {name!r}; use letters, digits, '-', '_' and '.', and no ending of "
                f"a data file ({', '.join(_FILES)})"
            )

    def add(self, name: str, target: Any) -> None:
        """Refuse a name that is taken; a definition that is run again, as in a notebook, replaces itself."""
        self.require_name(name)
        if name in self._built_in:
            raise ValueError(f"there is already a {self._kind} {name!r} in the package; choose another name")
        taken = self._own.get(name)
        if taken is not None and _origin(taken) != _origin(target):
            raise ValueError(
                f"there is already a {self._kind} {name!r}, {'.'.join(_origin(taken))}; choose another name"
            )
        self._own[name] = target

    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self._own, *(name for name in _entry_points(self._group) if self._is_new(name))]))

    def find(self, name: str) -> Any:
        """What has this name; None where nothing has. Raises `MissingCodeError` for an entry point that fails."""
        if name in self._own or not self._is_new(name):
            return self._own.get(name)
        found = _entry_points(self._group).get(name, ())
        if len(found) > 1:
            packages = ", ".join(str(each.dist.name if each.dist else each.value) for each in found)
            raise MissingCodeError(f"several packages have a {self._kind} {name!r}: {packages}; uninstall all but one")
        if not found:
            return None
        try:
            return found[0].load()
        except Exception as error:  # anything can happen in somebody else's module
            raise MissingCodeError(
                f"the {self._kind} {name!r} of an installed package cannot be loaded from {found[0].value}: {error!r}; "
                "repair or uninstall that package"
            ) from error

    def _is_new(self, name: str) -> bool:
        return name not in self._built_in and name not in self._own


def _origin(target: Any) -> tuple[str, str]:
    return str(getattr(target, "__module__", "")), str(getattr(target, "__qualname__", target))


@functools.cache
def _entry_points(group: str) -> dict[str, tuple[metadata.EntryPoint, ...]]:
    found: dict[str, tuple[metadata.EntryPoint, ...]] = {}
    for each in metadata.entry_points(group=group):
        found[each.name] = (*found.get(each.name, ()), each)
    return found
