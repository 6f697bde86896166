"""The kernels run on a GPU where there is one, and in Triton's interpreter everywhere else (see tests/conftest.py)."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def kernels(nan_memory: None) -> None:
    """Fresh memory is NaN for every test of a kernel."""
    pytest.importorskip("triton", reason="Triton is not installed (it exists for Linux only)")


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
