"""How the scan in CUDA is shared among multiprocessors, and why some GPUs get other kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from gpu_clusters import EULER, GPUS, KB, PRECISIONS, h200_clusters, plan_for

from lipschitz_rnn.ops.common.cuda import compiler, driver
from lipschitz_rnn.ops.lipschitz.cuda import plan
from lipschitz_rnn.ops.lipschitz.cuda.plan import CudaPlan, Kernel, best_cluster, find_plan
from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme

RK4 = Kernel(4, 4)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("capability", GPUS)
def test_every_plan_holds_all_units_and_fits(capability: int, precision: str) -> None:
    room = GPUS[capability]
    parts = {"tf32": 2, "bf16x3": 2, "bf16x6": 3}.get(precision, 1)
    kernels = (EULER, RK4) if parts > 1 else (EULER,)
    for N, S, B in product((1, 16, 100, 129, 192, 256, 257, 384, 500, 512, 700, 768), (1, 3, 64), (1, 16, 128, 1000)):
        for kernel in kernels:
            found = plan_for(capability, S, B, N, precision, kernel)
            if isinstance(found, str):
                assert N * parts > 384 or (capability < 90 and N > 128) or (room < 163 and N >= 100 and parts > 1)
                continue
            assert found.padded >= found.depth >= N
            assert found.depth % 32 == 0  # two tiles of the tensor cores at a time
            assert found.cluster == 1 or (found.warps % 2 == 0 and capability >= 90)
            assert found.threads <= 512
            assert found.shared_bytes("forward", kernel) <= found.shared_bytes("backward", kernel) <= room * KB
            assert found.threads * found.registers * found.least_blocks <= plan.REGISTERS


def test_small_networks_and_full_gpus_get_blocks_of_their_own() -> None:
    small, few, many = (plan_for(90, S, 128, N, "bf16") for N, S in ((128, 1), (192, 1), (192, 8)))
    assert isinstance(small, CudaPlan)
    assert isinstance(few, CudaPlan)
    assert isinstance(many, CudaPlan)
    assert (small.cluster, few.cluster, many.cluster) == (1, 4, 1)


def test_a_full_gpu_gets_smaller_clusters_with_more_samples() -> None:
    few, many = plan_for(90, 1, 128, 256, "bf16"), plan_for(90, 8, 128, 256, "bf16")
    assert isinstance(few, CudaPlan)
    assert isinstance(many, CudaPlan)
    assert (few.cluster, few.samples) == (4, 8)
    assert (many.cluster, many.samples) == (2, 16)


def test_no_cluster_is_larger_than_the_gpu_allows() -> None:
    def portable(cluster: int) -> int:
        return h200_clusters(cluster) if cluster <= 8 else 0

    assert best_cluster((1, 128, 750), "bf16", EULER, portable, 227 * KB) is None
    small = best_cluster((1, 128, 512), "bf16", EULER, portable, 227 * KB)
    assert small is not None
    assert small.cluster <= 8


def test_older_gpus_are_not_asked_for_clusters() -> None:
    def never(cluster: int) -> int:
        raise AssertionError(f"asked for clusters of {cluster}")

    for N in (64, 160, 192):
        assert isinstance(find_plan((1, 128, N), "bf16", EULER, (8, 0), never, 163 * KB), CudaPlan)


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    """A GPU of compute capability 9.0 whose driver refuses every kernel."""

    def install(error: Exception) -> None:
        def refusing(*_: object) -> None:
            raise error

        monkeypatch.setattr(driver, "Function", refusing)

    properties = SimpleNamespace(shared_memory_per_multiprocessor=228 * KB)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(plan, "shared_memory", lambda _: 227 * KB)
    monkeypatch.setattr(plan.compiler, "library", lambda: "some NVRTC")
    monkeypatch.setattr(plan.compiler, "version", lambda _: (12, 8))
    monkeypatch.setattr(driver, "compiled", lambda *_: b"")
    monkeypatch.setattr(driver, "obstacle", cache(driver.obstacle.__wrapped__))
    monkeypatch.setattr(driver, "clusters_beside", cache(driver.clusters_beside.__wrapped__))
    return install


@pytest.mark.parametrize("status", [801, 912])
def test_only_a_refusal_counts_as_no_clusters(status: int, refuse: Callable[[Exception], None]) -> None:
    """Without memory, say, the driver knows nothing about clusters, and is asked again by the next call."""
    gpu = torch.device("cuda", 0)
    for other in (2, 700):
        refuse(driver.DriverError(other, "no"))
        with pytest.raises(driver.DriverError, match="driver reports: no"):
            driver.clusters_beside(gpu, 16)
    refuse(driver.DriverError(status, "no"))
    assert driver.clusters_beside(gpu, 16) == 0


@pytest.mark.parametrize(
    "error",
    [
        *(driver.DriverError(status, "no kernel image") for status in (200, 209, 218, 222, 801)),
        compiler.CompilationError("invalid value for --gpu-architecture", 5),
        compiler.CompilationError("NVRTC is not installed"),
    ],
)
def test_a_gpu_that_does_not_run_what_is_compiled_here_gets_other_kernels(
    error: Exception, refuse: Callable[[Exception], None]
) -> None:
    ask = partial(cache(plan.plan_on.__wrapped__), torch.device("cuda", 0), (1, 128, 128), "bf16", EULER)
    passing = (
        driver.DriverError(2, "at this moment"),
        driver.DriverError(700, "at this moment"),
        driver.DriverError(901, "at this moment"),
        torch.cuda.OutOfMemoryError("at this moment"),
        compiler.CompilationError("at this moment", compiler.NO_MEMORY),
    )
    for other in passing:
        refuse(other)
        with pytest.raises(type(other), match="at this moment"):
            ask()
    refuse(error)
    assert ask() == str(error)
    refuse(AssertionError("asked again"))
    assert ask() == str(error)


def test_why_there_are_no_kernels_is_logged_once(
    refuse: Callable[[Exception], None], caplog: pytest.LogCaptureFixture
) -> None:
    refuse(driver.DriverError(209, "no kernel image"))
    plan.plan_on.cache_clear()
    try:
        with caplog.at_level("DEBUG", logger="lipschitz_rnn"):
            for batch in (128, 128, 64):
                plan.plan_on(torch.device("cuda", 0), (1, batch, 100), "bf16", EULER)
    finally:
        plan.plan_on.cache_clear()
    assert {record.levelname for record in caplog.records} == {"DEBUG"}
    reason = "CUDA's driver reports: no kernel image"
    assert caplog.messages == [f"no CUDA kernels for S, B, N = 1, {batch}, 100: {reason}" for batch in (128, 64)]


def test_an_older_compiler_makes_blocks_alone(
    refuse: Callable[[Exception], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(AssertionError("asked for clusters"))
    monkeypatch.setattr(driver, "obstacle", lambda _: None)
    monkeypatch.setattr(plan.compiler, "version", lambda _: (12, 0))
    ask = partial(plan.plan_on.__wrapped__, torch.device("cuda", 0), precision="bf16", kernel=EULER)
    for N in (64, 160):
        found = ask((1, 8, N))
        assert isinstance(found, CudaPlan)
        assert found.cluster == 1
    assert ask((1, 8, 256)) == (
        "a hidden size of 256 in precision bf16 needs clusters, which NVRTC compiles from 12.1 on, and this one is 12.0"
    )
    monkeypatch.setattr(plan.compiler, "version", lambda _: plan.CLUSTER_NVRTC)
    monkeypatch.setattr(driver, "clusters_beside", lambda _, cluster: h200_clusters(cluster))
    assert isinstance(ask((1, 8, 256)), CudaPlan)


def test_the_compiler_of_pytorch_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "[own] packages"  # which is no pattern
    folder = site / "nvidia" / "cuda_nvrtc" / "lib"
    folder.mkdir(parents=True)
    for name in compiler.NAMES[:2]:
        (folder / name).touch()
    monkeypatch.setattr(compiler.sys, "path", ["", str(site)])
    newer, older, unnamed = compiler.NAMES
    first = [older, str(folder / older)]
    second = [newer, str(folder / newer)]
    assert list(compiler._places("12.8")) == [*first, *second, unnamed]
    for version in ("13.0", None):
        assert list(compiler._places(version)) == [*second, *first, unnamed]


def test_what_it_does_not_serve_says_why() -> None:
    A = torch.zeros(1, 256, 256)
    given = Problem(torch.zeros(1, 2, 4, 256), A, A, None, None, None, None, Scheme(0.1, 1.0, "euler", "tanh"))
    assert plan.make_plan(given, "bf16") == "the tensors are on cpu"
    noisy = Problem.of((*given.tensors[:-1], torch.zeros(1, 5)), given.scheme)
    assert "noise" in str(plan.make_plan(noisy, "bf16"))
    assert "7.5" in str(find_plan((1, 8, 64), "bf16", EULER, (7, 5), h200_clusters, 64 * KB))
    assert "256" in str(plan_for(80, 1, 128, 256, "bf16"))
    assert "runs none" in str(find_plan((1, 128, 256), "bf16", EULER, (9, 0), lambda _: 0, 227 * KB))
    assert "1000" in str(plan_for(90, 1, 128, 1000, "bf16"))


def test_a_gpu_without_large_clusters_says_which_it_would_need() -> None:
    def portable(cluster: int) -> int:
        return h200_clusters(cluster) if cluster <= 8 else 0

    lacking = find_plan((1, 128, 750), "bf16", EULER, (9, 0), portable, 227 * KB)
    assert "needs clusters of 12 or 16 blocks, and the driver runs none of them" in str(lacking)
    for beside in (portable, h200_clusters, lambda _: 0):
        too_large = find_plan((1, 128, 1000), "bf16", EULER, (9, 0), beside, 227 * KB)
        assert "do not fit into the registers" in str(too_large)
