"""Docstrings as this project writes them, made ready for Sphinx.

The fields of a dataclass are described once, in the source, by the comment behind a field or by its `Setting`. Here
that becomes a section of the page. The bars of |x| are bars, not reStructuredText's substitutions.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import re
import tokenize
import typing
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.typing import stringify_annotation


def comments_of_fields(source: str) -> dict[str, str]:
    """The comment that ends the line of each field of a class."""
    lines = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and not token.string.startswith("# noqa")
    }
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    fields = [node for node in body.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
    return {node.target.id: lines[node.end_lineno] for node in fields if node.end_lineno in lines}


def described_fields(cls: type) -> dict[str, str]:
    """What the source says about each public field of `cls`; fields of which it says nothing are left out."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            found |= comments_of_fields(inspect.cleandoc("\n" + inspect.getsource(base)))
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        for each in getattr(hint, "__metadata__", ()):
            found[name] = getattr(each, "help", found.get(name, ""))
    public = [field.name for field in dataclasses.fields(cls) if not field.name.startswith("_")]
    return {name: found[name] for name in public if found.get(name)}


def keep_bars(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape | outside of code."""
    lines[:] = [re.sub(r"(`+[^`]*`+)|\|", lambda found: found[1] or r"\|", line) for line in lines]


def add_fields(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if (
        what != "class"
        or not dataclasses.is_dataclass(obj)
        or any(line.startswith(("Attributes:", "Args:")) for line in lines)
    ):
        return
    described = described_fields(typing.cast(type, obj))
    if described:
        lines += ["", "Args:", *(f"    {field}: {text}" for field, text in described.items()), ""]


def plain_signature(app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, returned: str) -> Any:
    """The signature of a dataclass without what `Annotated` carries: that is in the description."""
    if what != "class" or not dataclasses.is_dataclass(obj) or "Annotated" not in signature:
        return None
    hints = typing.get_type_hints(obj)
    words = []
    for parameter in inspect.signature(typing.cast(type, obj)).parameters.values():
        text = f"{parameter.name}: {stringify_annotation(hints[parameter.name], 'smart')}"
        if parameter.default is not parameter.empty:
            text += f" = {'…' if 'factory' in repr(parameter.default) else repr(parameter.default)}"
        words.append(text)
    return f"({', '.join(words)})", None


def skip_members_of_others(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """What a class inherits from PyTorch or scikit-learn is described there."""
    package = (getattr(obj, "__module__", None) or "").partition(".")[0]
    return True if package in ("torch", "sklearn") else None


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", add_fields, priority=400)  # before napoleon reads the sections
    app.connect("autodoc-process-docstring", keep_bars, priority=410)
    app.connect("autodoc-skip-member", skip_members_of_others)
    app.connect("autodoc-process-signature", plain_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
