"""Packages that only some tests need: where one is missing, those tests are skipped and say which."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def _is_missing(package: str) -> bool:
    try:
        return find_spec(package) is None
    except ModuleNotFoundError:
        return True


def needs(*packages: str) -> pytest.MarkDecorator:
    """Mark a test, or a module through `pytestmark`, that cannot run without these packages."""
    missing = [package for package in packages if _is_missing(package)]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed")
