"""Launches that are remembered: a kernel that only notes how it was called stands for the GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytestmark = pytest.mark.usefixtures("kernels")


class Recorder:
    """A kernel, the programs compiled from it, and their launches, as Triton has them."""

    def __init__(self) -> None:
        self.fn = object()
        self.searched: list[tuple[Any, ...]] = []
        self.remembered: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def search(*arguments: Any, **options: int) -> dict[tuple[int, ...], Any]:
            self.searched.append(arguments)
            return {grid: lambda *again: self.remembered.append(again)}

        return search


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Any:
    from lipschitz_rnn.ops.common.triton import launching as module

    monkeypatch.setattr(module, "interpreted", lambda kernel: False)
    monkeypatch.setattr(module, "_launches", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)  # the number of the CPU, where these tensors are
    return module


def test_a_second_launch_of_the_same_kind_is_not_searched_for(calls: Any) -> None:
    kernel, first, second = Recorder(), torch.zeros(64), torch.zeros(64)
    for tensor in (first, second):
        calls.launch(kernel, (2, 1, 1), (tensor,), (64, 0.5), ("tanh",), num_warps=4)
    assert [arguments[1:] for arguments in kernel.searched] == [(64, 0.5, "tanh")]
    assert kernel.remembered == [(second.data_ptr(), 64, 0.5, "tanh")]


def test_what_triton_compiles_for_is_told_apart(calls: Any) -> None:
    kernel, x = Recorder(), torch.zeros(64)
    usual: dict[str, Any] = {"grid": (2, 1, 1), "tensors": (x,), "numbers": (64,), "constants": ("tanh",)}
    other: list[dict[str, Any]] = [
        {"grid": (3, 1, 1)},
        {"tensors": (x.double(),)},
        {"tensors": (x[1:],)},  # an address that 16 does not divide
        {"numbers": (65,)},
        {"constants": ("relu",)},
        {"num_warps": 8},
    ]
    for changes in ({}, *other):
        calls.launch(kernel, **(usual | {"num_warps": 4} | changes))
    assert len(kernel.searched) == 7
    assert kernel.remembered == []


def test_memory_of_launches_is_bounded(calls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_REMEMBERED", 3)
    kernel, x = Recorder(), torch.zeros(64)
    for length in range(10):
        calls.launch(kernel, (1, 1, 1), (x,), (length,), ())
        assert len(calls._launches) <= 3


def test_a_launch_goes_to_the_device_of_its_tensors(calls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[int] = []

    class Device:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            entered.append(self.index)

        def __exit__(self, *error: object) -> None:
            pass

    monkeypatch.setattr(torch.cuda, "device", Device)
    kernel, x = Recorder(), torch.zeros(64)
    calls.launch(kernel, (1, 1, 1), (x,), (), ())
    assert entered == []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    calls.launch(kernel, (1, 1, 1), (x,), (), ())
    assert entered == [-1]
    assert len(kernel.remembered) == 1


class Compiled:
    """A compiled program as Triton 3.6 to 3.9 have it."""

    function, packed_metadata = "function", "packed"

    def __init__(self) -> None:
        self.direct: list[tuple[Any, ...]] = []
        self.usual: list[tuple[Any, ...]] = []

    def run(self, *arguments: Any) -> None:
        self.direct.append(arguments)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *again: self.usual.append(again)


def test_a_settled_launch_asks_nothing_any_more(calls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton is asked at the first launch, and again only for addresses that 16 does not divide."""
    triton = pytest.importorskip("triton")
    compiled, searched, x = Compiled(), [], torch.zeros(64)

    class Kernel:
        fn = object()

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *arguments, **options: searched.append(arguments) or compiled

    class Hooks:
        launch_enter_hook = launch_exit_hook = type("Chain", (), {"calls": []})()

    class Active:
        @staticmethod
        def get_current_stream(device: int) -> str:
            return "stream"

    monkeypatch.setattr(triton.knobs, "runtime", Hooks)
    monkeypatch.setattr(triton.runtime, "driver", type("Driver", (), {"active": Active}))
    settled = calls.Launch(Kernel(), (2, 1, 1), (64, 0.5), ("tanh",), num_warps=4)
    for tensor in (x, x, x[1:], x):
        settled(tensor)
    again = (x.data_ptr(), 64, 0.5, "tanh")
    assert [len(searched), len(compiled.direct)] == [2, 2]
    assert compiled.direct[0] == (2, 1, 1, "stream", "function", "packed", None, None, None, *again)
    Hooks.launch_enter_hook.calls.append(print)  # somebody's profiler
    settled(x)
    assert compiled.usual == [again]
