"""A cache and data folder of its own for every test, so that nothing of the user's is read or written."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from small_data import dataset, mnist_contents, write_gz

from lipschitz_rnn import tasks
from lipschitz_rnn.tasks.mnist import MnistTask

REAL_DATA = os.environ.get("LIPSCHITZ_RNN_DATA")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of this test; no data folder is set and no proxy stands before 127.0.0.1."""
    base = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(base))
    monkeypatch.delenv("LIPSCHITZ_RNN_DATA", raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return base / "lipschitz-rnn"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The tensors here are small; a pool of threads only waits for itself on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with 2,100 training and 30 test images in the format of MNIST."""
    contents = mnist_contents()
    write_gz(tmp_path / "mnist", contents)
    monkeypatch.setattr(MnistTask, "dataset", dataset(contents, "mnist"))
    return tmp_path


@pytest.fixture
def load_real(read_once: None) -> Callable[..., tasks.Task]:
    """`tasks.load` from the real data sets; tests that need them are skipped where there are none."""
    if not REAL_DATA:
        pytest.skip("LIPSCHITZ_RNN_DATA is not set: the counts of the real data sets are not checked")

    return lambda name, **options: tasks.load(name, REAL_DATA, offline=True, **options)
