"""The cpu backend has two ways, compiled kernels and PyTorch's operations; these fixtures choose one."""

from __future__ import annotations

import pytest

from lipschitz_rnn.ops.lipschitz.cores import machine


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's operations, as where nothing can be compiled."""
    monkeypatch.setattr(machine, "obstacle", lambda: "a test has switched them off")


@pytest.fixture
def compiled() -> None:
    """The kernels, or no test."""
    reason = machine.obstacle()
    if reason is not None:
        pytest.skip(f"no compiled kernels: {reason}")
