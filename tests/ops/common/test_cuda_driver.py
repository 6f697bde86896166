"""The thin layer over CUDA's driver: threads without a context, captures, and memory that is short."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from lipschitz_rnn.ops.common.cuda import driver
from lipschitz_rnn.ops.common.cuda.compiler import CompilationError
from lipschitz_rnn.ops.common.cuda.driver import DriverError, Function

GPU = torch.device("cuda", 1)
CONTEXT, MODULE, FUNCTION = 0x7F00DEADBEE0, 0x7F00DEADBEE1, 0x7F00DEADBEE2
BINDING = ["cuCtxGetCurrent", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"]
LOADING = ["cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute"]


class FakeDriver:
    """One thread's driver, which knows the thread's context and records its calls."""

    def __init__(self) -> None:
        self.context: int | None = None
        self.calls: list[str] = []
        self.failures: dict[str, list[int]] = {}  # statuses that the next calls of a name give

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if self.failures.get(name):
                return self.failures[name].pop(0)
            if self.context is None and name not in (*BINDING, "cuGetErrorString"):
                return 201
            self._answer(name, arguments)
            return 0

        return call

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "cuCtxSetCurrent":
            self.context = arguments[0].value
        elif name == "cuDevicePrimaryCtxRetain":
            assert arguments[1].value == GPU.index
            arguments[0]._obj.value = CONTEXT
        elif name == "cuDeviceGet":
            arguments[0]._obj.value = arguments[1]
        elif name == "cuGetErrorString":
            arguments[1]._obj.value = b"error %d" % arguments[0]
        else:
            values = {"cuCtxGetCurrent": self.context, "cuModuleLoadData": MODULE, "cuModuleGetFunction": FUNCTION}
            values["cuOccupancyMaxActiveClusters"] = 33
            if name in values:
                arguments[0]._obj.value = values[name]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A driver whose thread has no context, and a PyTorch whose guard gives it none."""

    @contextmanager
    def guard(device: torch.device) -> Iterator[None]:
        yield

    made = FakeDriver()
    monkeypatch.setattr(driver, "_driver", lambda: made)
    monkeypatch.setattr(driver, "_current_stream", lambda index: 0)
    monkeypatch.setattr(torch.cuda, "device", guard)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: GPU.index)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: made.calls.append("empty_cache"))
    return made


def make_function() -> Function:
    return Function(b"code", "kernel", GPU, 32, 0, 1)


def test_a_thread_without_a_context_gets_that_of_the_gpu(fake: FakeDriver) -> None:
    function = make_function()
    assert fake.calls == BINDING + LOADING
    assert fake.context == CONTEXT
    fake.calls.clear()
    fake.context = None  # as in another thread
    assert function.clusters_at_once() == 33
    assert fake.calls == [*BINDING, "cuOccupancyMaxActiveClusters"]


def test_a_context_that_is_there_stays(fake: FakeDriver) -> None:
    fake.context = 5
    make_function().clusters_at_once()
    assert fake.calls == ["cuCtxGetCurrent", *LOADING, "cuCtxGetCurrent", "cuOccupancyMaxActiveClusters"]
    assert fake.context == 5


def test_a_launch_asks_for_the_context_only_where_one_is_missing(fake: FakeDriver) -> None:
    function = make_function()
    fake.calls.clear()
    function.launch(1, b"")
    assert fake.calls == ["cuLaunchKernel"]
    fake.calls.clear()
    fake.context = None  # as in another thread
    function.launch(1, b"")
    assert fake.calls == ["cuLaunchKernel", *BINDING, "cuLaunchKernel"]


@pytest.mark.parametrize("status", [201, 700])
def test_other_errors_of_a_launch_are_raised_at_once(status: int, fake: FakeDriver) -> None:
    """Also that of a context which is there, but is none of this kernel's."""
    function = make_function()
    fake.failures["cuLaunchKernel"] = [status]
    fake.calls.clear()
    with pytest.raises(DriverError, match=f"error {status}"):
        function.launch(1, b"")
    assert fake.calls.count("cuLaunchKernel") == 1


def test_a_first_use_within_a_capture_says_what_to_do(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = make_function()
    fake.calls.clear()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="cannot capture; run the same call once before the capture"):
        make_function()
    assert fake.calls == []  # which would spoil the capture
    loaded.launch(1, b"")  # what is loaded can be captured
    assert fake.calls == ["cuLaunchKernel"]


@pytest.mark.parametrize("name", LOADING[:2])
def test_without_memory_pytorch_gives_up_what_it_keeps(name: str, fake: FakeDriver) -> None:
    fake.failures[name] = [2]
    make_function()
    place = fake.calls.index(name)
    assert fake.calls[place : place + 3] == [name, "empty_cache", name]
    fake.failures[name] = [2, 2]
    with pytest.raises(torch.cuda.OutOfMemoryError, match="cuda:1 has no memory left to load the CUDA kernel 'kernel'"):
        make_function()


def test_other_errors_of_loading_empty_no_cache(fake: FakeDriver) -> None:
    fake.failures["cuModuleLoadData"] = [209]
    with pytest.raises(DriverError, match="error 209"):
        make_function()
    assert "empty_cache" not in fake.calls


def test_errors_reach_other_processes() -> None:
    """By pickle, which calls the class with what an exception keeps in ``args``."""
    for error in (DriverError(700, "an illegal address"), CompilationError("no memory", 1)):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert (str(again), again.status) == (str(error), error.status)
