"""Memory that is used again is never that of a tensor somebody still has."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator

import pytest
import torch

import lipschitz_rnn as lr
from lipschitz_rnn.ops.common import buffers

resource = pytest.importorskip("resource", reason="there is none on Windows")
pytestmark = pytest.mark.skipif(not buffers._can_keep(), reason="memory is limited here, or cannot be offered back")
SHAPE = (3, 5)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every size is large, and nothing is left over from other tests."""
    buffers.give_back()
    monkeypatch.setattr(buffers, "LEAST", 1)
    yield
    buffers.give_back()


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return buffers.empty(shape, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_it_is_what_was_asked_for(dtype: torch.dtype) -> None:
    new = empty(*SHAPE, dtype=dtype)
    assert (new.shape, new.dtype, new.device.type) == (SHAPE, dtype, "cpu")
    assert new.is_contiguous()
    assert new.data_ptr() % 64 == 0
    assert new.fill_(2).sum() == 30


def test_it_comes_back_when_the_last_view_is_gone() -> None:
    first = empty(*SHAPE).fill_(1)
    address, view = first.data_ptr(), first[1:].mT
    del first
    other = empty(*SHAPE).fill_(2)
    assert other.data_ptr() != address
    assert (view == 1).all()
    del view
    assert empty(*SHAPE).data_ptr() == address


def test_numpy_keeps_it_too() -> None:
    array = empty(*SHAPE).fill_(1).numpy()
    empty(*SHAPE).fill_(2)
    assert (array == 1).all()


def test_the_smallest_that_is_large_enough() -> None:
    page = mmap.PAGESIZE // 4  # numbers
    sizes = {n: empty(n * page) for n in (8, 2, 4)}
    addresses = {n: tensor.data_ptr() for n, tensor in sizes.items()}
    sizes.clear()
    third = empty(3 * page)
    assert third.data_ptr() == addresses[4]
    assert empty(page).data_ptr() == addresses[2]
    assert empty(5 * page).data_ptr() == addresses[8]


def test_what_is_too_small_is_given_back() -> None:
    empty(*SHAPE)
    assert len(buffers._free) == 1
    large = empty(10_000)
    assert not buffers._free
    del large
    assert [len(memory) for memory in buffers._free] == [40_000]


def test_only_so_many_are_kept() -> None:
    many = [empty(*SHAPE) for _ in range(buffers.MOST + 3)]
    assert len({tensor.data_ptr() for tensor in many}) == len(many)
    many.clear()
    assert len(buffers._free) == buffers.MOST
    buffers.give_back()
    assert not buffers._free


def test_small_memory_is_pytorch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "LEAST", 61)
    empty(*SHAPE)
    assert not buffers._free


def test_a_kernel_that_refuses_gets_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_FREE", -1)
    empty(*SHAPE).fill_(1)
    assert not buffers._free


def test_what_cannot_be_had_is_pytorch_s_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=r"allocate|memory|overflow"):
        empty(2**62)
    with pytest.raises(RuntimeError, match=r"allocate|memory"):
        empty(2**50)
    assert empty(*SHAPE).shape == SHAPE


@pytest.mark.parametrize("name", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_nothing_is_kept_where_the_address_space_is_limited(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {getattr(resource, name): 2**40}
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (limits.get(limit, resource.RLIM_INFINITY),) * 2)
    empty(*SHAPE)
    assert not buffers._free


def test_nothing_is_kept_where_every_page_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_counts_every_page", lambda: True)
    empty(*SHAPE)
    assert not buffers._free


@pytest.mark.usefixtures("nan_memory")
def test_fresh_memory_can_be_filled() -> None:
    empty(*SHAPE).fill_(1)
    assert empty(*SHAPE).isnan().all()


def test_threads_do_not_share() -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(300):
            mine = empty(64).fill_(number)
            view = mine[::2]
            del mine
            if not (view == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_after_a_fork_each_has_its_own() -> None:
    mine, waiting = empty(64).fill_(1), empty(64).fill_(2)
    del waiting
    child = os.fork()
    if child == 0:
        mine.fill_(3)
        empty(64).fill_(4)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (mine == 1).all()


Results = list[torch.Tensor]


def results(layer: lr.LipschitzRNN, x: torch.Tensor, **options: torch.Tensor) -> Results:
    output, last = layer(x, **options)
    loss = output.square().mean() + last.sum()
    first = torch.autograd.grad(loss, list(layer.parameters()), retain_graph=True)
    again = torch.autograd.grad(loss, list(layer.parameters()))
    assert all(map(torch.equal, first, again))
    return [output.detach(), *first]


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_training_has_the_bits_of_new_memory(
    dtype: torch.dtype, lengths: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several calls are alive at once and end in another order, in memory that held something else."""
    torch.manual_seed(0)
    layer = lr.LipschitzRNN(2, 17, integrator="midpoint", dtype=dtype)
    inputs = [torch.randn(T, 4, 2, dtype=dtype) for T in (12, 3, 20)]
    options = {"lengths": torch.tensor([1, 2, 3, 3])} if lengths else {}
    monkeypatch.setattr(buffers, "LEAST", 2**40)
    expected = [results(layer, x, **options) for x in inputs]
    monkeypatch.setattr(buffers, "LEAST", 1)
    for _ in range(3):
        for size in (10_000, 20_000, 60_000):
            empty(size, dtype=torch.uint8).fill_(255)  # NaN in every dtype
        alive = [layer(x, **options)[0] for x in inputs]
        for x, exact in zip(inputs, expected, strict=True):
            assert all(map(torch.equal, results(layer, x, **options), exact))
        for output, exact in zip(reversed(alive), reversed(expected), strict=True):
            assert torch.equal(output, exact[0])
            found = torch.autograd.grad(output.square().mean(), list(layer.parameters()))
            assert all(gradient.isfinite().all() for gradient in found)


def test_training_uses_it_again() -> None:
    """Two calls and their backward passes: the second one's tape lies where the first one's did."""
    layer = lr.LipschitzRNN(2, 8)
    for options in ({}, {"lengths": torch.tensor([3, 4])}):  # the short way and the long one
        buffers.give_back()
        taken = set()
        for _ in range(3):
            layer(torch.randn(4, 2, 2), **options)[0].sum().backward()
            assert len(buffers._free) == 1
            taken.add(id(buffers._free[0]))
        assert len(taken) == 1
