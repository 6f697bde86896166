"""PyTorch's setting for float32 products: set for the length of a block, by any number of threads."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch

from lipschitz_rnn.ops.common.precision import (
    coarsest_float32,
    float32_products,
    float32_setting,
    full_products,
)

SETTINGS = ("highest", "high", "medium")


@pytest.fixture(params=SETTINGS, autouse=True)
def mine(request: pytest.FixtureRequest) -> Iterator[str]:
    """What the user has set."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


def test_nested_blocks_each_have_their_own(mine: str) -> None:
    with float32_products("high"):
        with float32_products("medium"):
            assert torch.get_float32_matmul_precision() == "medium"
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == mine


def test_an_error_inside_ends_the_block(mine: str) -> None:
    with pytest.raises(KeyError), float32_products("high"):
        raise KeyError
    assert torch.get_float32_matmul_precision() == mine


def test_an_unknown_setting_leaves_nothing_behind(mine: str) -> None:
    with pytest.raises(ValueError, match="precision is 'lowest'"), float32_products("lowest"):
        pass
    with float32_products("high"):
        pass
    assert torch.get_float32_matmul_precision() == mine


def test_two_threads_whose_blocks_overlap(mine: str) -> None:
    """The first to begin is the first to end: each block by itself would put back what the other had set."""
    entered, left = threading.Event(), threading.Event()

    def second() -> None:
        with float32_products("medium"):
            entered.set()
            assert left.wait(10)
            assert torch.get_float32_matmul_precision() == "medium"

    with ThreadPoolExecutor(1) as pool:
        with float32_products("high"):
            running = pool.submit(second)
            assert entered.wait(10)
        left.set()
        running.result(10)
    assert torch.get_float32_matmul_precision() == mine


def test_many_threads_in_any_order(mine: str) -> None:
    def work(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(50):
            with ExitStack() as blocks:
                for _ in range(draw.randrange(4)):
                    blocks.enter_context(float32_products(draw.choice(SETTINGS)))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(16)))
    assert torch.get_float32_matmul_precision() == mine


def test_full_products_belong_to_their_thread(mine: str) -> None:
    """Products in full here, and other threads multiply as before."""
    a = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    plain = a @ a
    with full_products(a.device), ThreadPoolExecutor(1) as pool:
        assert torch.equal(pool.submit(lambda: a @ a).result(), plain)
        assert torch.equal(a @ a, plain if mine == "highest" else (a.double() @ a.double()).float())
        assert torch.get_float32_matmul_precision() == mine


@pytest.mark.parametrize(("backend", "means"), [("tf32", "high"), ("ieee", "highest")])
def test_a_setting_of_the_backend_alone_counts(mine: str, backend: str, means: str) -> None:
    """PyTorch has two interfaces, and refuses to answer by the older one where they contradict each other."""
    torch.backends.cuda.matmul.fp32_precision = backend
    if (mine, backend) == ("medium", "tf32"):
        means = mine  # they agree, and the older one says more
    assert float32_setting() == means
    with float32_products("medium"):
        assert float32_setting() == "medium"
    assert float32_setting() == means


def test_a_setting_of_each_backend_comes_back(mine: str) -> None:
    """PyTorch's older interface sets all backends at once; the user may have set one of them alone."""
    matmuls = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    for precisions in (("ieee", "bf16"), ("tf32", "ieee"), ("ieee", "tf32")):
        for matmul, precision in zip(matmuls, precisions, strict=True):
            matmul.fp32_precision = precision
        with float32_products("highest"), float32_products("medium"):
            assert coarsest_float32() == "medium"
        assert tuple(matmul.fp32_precision for matmul in matmuls) == precisions
