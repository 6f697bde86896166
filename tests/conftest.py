"""Fixtures shared by all tests. This folder is on the import path, so that tests can use ``problems``."""

import gc
import importlib.util
import os
import zlib
from collections.abc import Iterator

# Each of the test processes has one core, and so has every process that a test starts. OpenMP and the BLAS libraries
# read this when they are loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import pytest
import torch

from lipschitz_rnn.tasks import registry as task_registry
from lipschitz_rnn.tasks.files import read_dataset
from lipschitz_rnn.tasks.sources import Dataset
from lipschitz_rnn.units import registry as unit_registry

# Some virtual machines advertise AMX and then refuse it: any bfloat16 product of PyTorch itself ends in an illegal
# instruction there. Read by oneDNN at its first use.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# Without a GPU the kernels run in Triton's interpreter, which must be chosen before Triton is first imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def pytest_collection_finish() -> None:
    """What was imported stays; the garbage collector need not look at it again in every one of 2,000 tests."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # or Triton would call what is never collected a leak


def is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def skip_without_package(error: BaseException) -> None:
    """Skips if a package that is not installed is behind the error, directly or as the cause of ours."""
    seen: BaseException | None = error
    while seen is not None:
        name = getattr(seen, "name", None)
        if isinstance(seen, ModuleNotFoundError) and name and not is_installed(name.partition(".")[0]):
            pytest.skip(f"needs {name}, which is not installed")
        seen = seen.__cause__


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    # New layers draw their weights from the global generator: the same ones in every run, and others with another seed.
    torch.manual_seed(zlib.crc32(item.nodeid.encode()) + int(os.environ.get("LIPSCHITZ_RNN_TEST_SEED", "0")))
    for package in [package for mark in item.iter_markers("needs") for package in mark.args]:
        if not is_installed(package):
            pytest.skip(f"needs {package}, which is not installed")
    try:
        return (yield)
    except ImportError as error:
        skip_without_package(error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    try:
        return (yield)
    except ImportError as error:
        skip_without_package(error)
        raise


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """What a test registers is gone after it: others go through all tasks and units."""
    own = [registry._OWN._own for registry in (task_registry, unit_registry)]
    before = [dict(each) for each in own]
    yield
    for each, names in zip(own, before, strict=True):
        each.clear()
        each.update(names)


@pytest.fixture
def generator() -> torch.Generator:
    """Random numbers of this test alone; the global generator is never seeded."""
    return torch.Generator().manual_seed(20210504)


@pytest.fixture(scope="session")
def files_read() -> dict[str, dict[str, bytes]]:
    """The real data sets read so far: CIFAR-10 takes many seconds to unpack, so once a session is enough."""
    return {}


@pytest.fixture
def read_once(files_read: dict[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks take their real data from memory after the first time."""

    def read(dataset: Dataset, root: str | None, offline: bool) -> dict[str, bytes]:
        if dataset.folder not in files_read:
            files_read[dataset.folder] = read_dataset(dataset, root, offline)
        return files_read[dataset.folder]

    for module in ("mnist", "cifar", "text"):
        monkeypatch.setattr(f"lipschitz_rnn.tasks.{module}.read_dataset", read)


@pytest.fixture
def nan_memory() -> Iterator[None]:
    """Fresh memory is NaN, so that an entry that is read before it is written, or never written, shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)
