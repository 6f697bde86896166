"""The kernels run on a GPU where there is one, and in Triton's interpreter everywhere else (see tests/conftest.py)."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def kernels(nan_memory: None) -> None:
    """For every test of a kernel: fresh memory is NaN."""
    pytest.importorskip("triton", reason="Triton is not installed (it exists for Linux only)")


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
