"""Fixtures shared by all tests. This folder is on the import path, so that tests can use ``problems``."""

import os
from collections.abc import Iterator

import pytest
import torch

# Some virtual machines advertise AMX and then refuse it: any bfloat16 product of PyTorch itself ends in an illegal
# instruction there. Read by oneDNN at its first use.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# Without a GPU the kernels run in Triton's interpreter, which must be chosen before Triton is first imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def generator() -> torch.Generator:
    """Random numbers of this test alone; the global generator is never seeded."""
    return torch.Generator().manual_seed(20210504)


@pytest.fixture
def nan_memory() -> Iterator[None]:
    """Fresh memory is NaN, so that an entry that is read before it is written, or never written, shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)
