"""Pairs of matrices in files."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

_KINDS = ".safetensors, .npz or .pt"


class DamagedFileError(ValueError):
    """A file is not what its ending says; the message names both."""


def pairs_in_file(path: Path) -> Iterator[tuple[str, Any, Any]]:
    """Name, A and W of every pair of entries called A and W, with any common prefix."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file; give a {_KINDS} file that holds A and W")
    entries = _entries(path)
    prefixes = sorted({key[:-1] for key in entries if key in ("A", "W") or key.endswith((".A", ".W"))})
    for prefix in prefixes:
        missing = next((prefix + letter for letter in "AW" if prefix + letter not in entries), None)
        if missing is not None:
            other = prefix + ("W" if missing.endswith("A") else "A")
            raise ValueError(f"{path} holds {other} without {missing}; add the missing one, or remove the other")
    if not prefixes:
        names = ", ".join(sorted(entries)[:8]) or "nothing"
        raise ValueError(f"{path} holds no pair named A and W, only {names}; load the model and certify that instead")
    pairs = [(prefix, entries[prefix + "A"], entries[prefix + "W"]) for prefix in prefixes]
    for prefix, A, W in pairs:
        yield prefix.rstrip("."), A, W


def _entries(path: Path) -> dict[str, Any]:
    if path.suffix not in (".safetensors", ".npz", ".pt", ".pth"):
        raise ValueError(f"{path} does not end in {_KINDS}; give such a file with A and W, or a run folder")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            found: Any = load_file(path)
        elif path.suffix == ".npz":
            if not zipfile.is_zipfile(path):
                raise ValueError("it is not a NumPy archive")
            with np.load(path, allow_pickle=False) as archive:
                found = dict(archive)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except MemoryError:
        raise ValueError(f"{path} says that it holds more than fits into memory; is it damaged?") from None
    except Exception as error:  # what a damaged file raises is up to four libraries
        raise DamagedFileError(f"{path} cannot be read as {path.suffix} ({_first_line(error)})") from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ValueError(f"{path} holds a {type(found).__name__}, not named tensors; it must hold entries A and W")
    return found


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
