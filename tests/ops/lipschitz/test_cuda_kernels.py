"""The scan in CUDA: shapes that fit, source that compiles, and on a GPU the same as elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from gpu_clusters import h200_clusters

from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops.common.cuda import compiler, driver
from lipschitz_rnn.ops.lipschitz.cuda import launch, plan
from lipschitz_rnn.ops.lipschitz.cuda.plan import CudaPlan, Kernel, best_cluster, find_plan
from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme

KB = 1024
PRECISIONS = ("bf16", "fp16", "tf32", "bf16x3", "bf16x6")
# Compute capability: kilobytes of shared memory for one block.
GPUS = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
EULER, RK4 = Kernel(1, 2), Kernel(4, 4)
PLAIN = launch.Needs(True, save=True, keep=True)
ODD = launch.Needs(False, grads=True, has_spans=True)


def plan_for(capability: int, S: int, B: int, N: int, precision: str, kernel: Kernel = EULER) -> CudaPlan | str:
    return find_plan((S, B, N), precision, kernel, divmod(capability, 10), h200_clusters, GPUS[capability] * KB)


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
    folder = tmp_path / "nvidia" / "cuda_nvrtc" / "lib"
    folder.mkdir(parents=True)
    for name in compiler.NAMES[:2]:
        (folder / name).touch()
    monkeypatch.setattr(compiler.sys, "path", ["", str(tmp_path)])
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


def compile_plan(
    made: CudaPlan,
    capability: int,
    integrator: str,
    dtype: torch.dtype,
    needs: launch.Needs,
    name: str = "forward",
) -> bytes:
    if compiler.library() is None:
        pytest.skip("NVRTC is not installed (it comes with PyTorch's CUDA builds, or as nvidia-cuda-nvrtc)")
    macros = launch.macros(made, integrator, "tanh", dtype, needs.fused, needs, needs.fused, needs.fused)
    return compiler.compiled(launch.source(name, made.cluster), f"{name}.cu", f"sm_{capability}", macros)


@pytest.fixture
def own_cache(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(("capability", "N"), [(80, 128), (90, 256), (120, 64)])
def test_the_source_compiles(capability: int, N: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan_for(capability, 1, 128, N, "bf16")
    assert isinstance(made, CudaPlan)
    code = compile_plan(made, capability, "euler", torch.bfloat16, PLAIN)
    assert code.startswith(b"\x7fELF")
    (kept,) = (tmp_path / "lipschitz-rnn").iterdir()
    assert compile_plan(made, capability, "euler", torch.bfloat16, ODD, "backward").startswith(b"\x7fELF")
    content = kept.read_bytes()
    kept.write_bytes(content[: len(content) // 2])  # a file that was cut off is compiled again
    assert compile_plan(made, capability, "euler", torch.bfloat16, PLAIN).startswith(b"\x7fELF")
    assert len(kept.read_bytes()) == len(content)

    def compile_again(*_: object) -> bytes:
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiler, "_compile", compile_again)  # what is there is taken
    assert compile_plan(made, capability, "euler", torch.bfloat16, PLAIN).startswith(b"\x7fELF")


@pytest.mark.full
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("capability", GPUS)
def test_every_plan_compiles(capability: int, precision: str) -> None:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    cases = (("euler", PLAIN), ("midpoint", ODD), ("rk4", PLAIN))
    for integrator, needs in cases:
        kernel = Kernel(len(get_integrator(integrator)), dtype.itemsize)
        shapes = product((16, 64, 100, 128, 192, 256, 384, 512, 768), (1, 8))
        plans = {plan_for(capability, S, 128, N, precision, kernel) for N, S in shapes}
        for made in plans:
            if isinstance(made, CudaPlan):
                for name in ("forward", "backward"):
                    compile_plan(made, capability, integrator, dtype, needs, name)


@pytest.mark.usefixtures("own_cache")
def test_a_mistake_in_the_source_is_shown() -> None:
    if compiler.library() is None:
        pytest.skip("NVRTC is not installed (it comes with PyTorch's CUDA builds, or as nvidia-cuda-nvrtc)")
    with pytest.raises(compiler.CompilationError, match="nonsense"):
        compiler.compiled("nonsense", "mistake.cu", "sm_90", {})


on_gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
    reason="clusters exist on GPUs of compute capability 9.0 on",
)


def outcome(dtype: torch.dtype, N: int, integrator: str = "euler") -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(N)
    batch = 32 if N % 64 == 0 else 30  # whole groups of samples, or not
    u, A, W = (torch.randn(*shape, generator=generator) for shape in ((41, batch, 1), (N, N), (N, N)))
    U, b = torch.randn(N, 1, generator=generator), torch.randn(N, generator=generator)
    values = [t.to("cuda", dtype).requires_grad_() for t in (u, A / N**0.5 - torch.eye(N), W / N**0.5, U, b)]
    options = {"step_size": 0.1, "integrator": integrator}
    states, _ = lipschitz_scan(*values[:3], **options, input_weight=values[3], bias=values[4])  # type: ignore[arg-type]
    assert states is not None
    return [states.detach(), *torch.autograd.grad(states.float().sin().sum(), values)]


@pytest.mark.gpu
@on_gpu
@pytest.mark.usefixtures("nan_memory")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("N", "integrator"),
    [(20, "euler"), (64, "rk4"), (101, "euler"), (128, "midpoint"), (130, "euler"), (256, "euler"), (381, "euler")],
)
def test_both_kinds_of_kernels_agree(
    N: int, integrator: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_with_triton(outcome(dtype, N, integrator), dtype, N, integrator, monkeypatch)


def compare_with_triton(
    in_cuda: list[torch.Tensor], dtype: torch.dtype, N: int, integrator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lipschitz_rnn.ops.lipschitz.triton import launch as scan

    monkeypatch.setattr(scan, "make_cuda_plan", lambda *_: "switched off")
    in_triton = outcome(dtype, N, integrator)
    rounding = {torch.bfloat16: 2e-2, torch.float16: 3e-3}.get(dtype, 1e-5)
    for found, expected in zip(in_cuda, in_triton, strict=True):
        assert found.isfinite().all()
        assert (found - expected).float().norm() <= rounding * expected.float().norm()


@pytest.mark.gpu
@on_gpu
@pytest.mark.usefixtures("nan_memory")
@pytest.mark.parametrize(
    ("blocks", "samples", "N", "dtype", "integrator"),
    [
        *[(*shape[:2], 250, torch.bfloat16, "euler") for shape in plan.CLUSTERS],
        (4, 8, 240, torch.float32, "euler"),
        (8, 16, 240, torch.float32, "midpoint"),
        (2, 16, 256, torch.float16, "rk4"),
        (8, 16, 512, torch.bfloat16, "euler"),
        (12, 16, 750, torch.bfloat16, "euler"),
        (12, 24, 750, torch.bfloat16, "euler"),
        (12, 24, 700, torch.float16, "midpoint"),
        (16, 8, 750, torch.bfloat16, "euler"),
        (16, 16, 750, torch.float16, "euler"),
    ],
)
def test_clusters_of_every_shape_agree(
    blocks: int, samples: int, N: int, dtype: torch.dtype, integrator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shape,) = (shape for shape in plan.CLUSTERS if shape[:2] == (blocks, samples))
    monkeypatch.setattr(plan, "CLUSTERS", (shape,))
    plan.plan_on.cache_clear()
    try:
        kernel = Kernel(len(get_integrator(integrator)), dtype.itemsize)
        precision = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "bf16x6")
        made = plan.plan_on(torch.device("cuda", torch.cuda.current_device()), (1, 32, N), precision, kernel)
        assert isinstance(made, CudaPlan), made
        assert (made.cluster, made.samples) == (blocks, samples)
        in_cuda = outcome(dtype, N, integrator)
    finally:
        plan.plan_on.cache_clear()
    compare_with_triton(in_cuda, dtype, N, integrator, monkeypatch)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("N", [60, 200])
def test_strided_inputs_and_gradients(N: int) -> None:
    """Neighbouring units that are not neighbours in memory, and a start at an odd address."""
    generator = torch.Generator().manual_seed(0)
    T, B = 5, 9
    A, W = (torch.randn(N, N, generator=generator).cuda().bfloat16() / N**0.5 for _ in range(2))
    wide = torch.randn(T, B, 2 * N + 1, generator=generator).cuda().bfloat16()
    for u in (wide[..., 1 : N + 1], wide[..., : 2 * N : 2]):
        made = u.detach().clone().requires_grad_()
        given = u.detach().requires_grad_()
        for leaf in (given, made):
            states, _ = lipschitz_scan(leaf, A, W)
            assert states is not None
            (states * wide[..., 1 : N + 1]).sum().backward()
        assert given.grad is not None
        assert made.grad is not None
        assert torch.equal(given.grad, made.grad)


FRESH_THREAD = """
import threading
import torch
from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops.lipschitz.cuda.launch import _compiled

given = [torch.randn(shape, device="cuda") / 8 for shape in ((5, 8, 64), (64, 64), (64, 64))]
found = []
for _ in range(2):  # the first thread loads the kernels, the second one finds them loaded
    thread = threading.Thread(target=lambda: found.append(lipschitz_scan(*given)[1]))
    thread.start()
    thread.join()
first, second = found
torch.testing.assert_close(first, lipschitz_scan(*given, backend="reference")[1])
assert torch.equal(first, second)
print(_compiled.cache_info().currsize)
"""

FRESH_AUTOGRAD = """
import torch
from lipschitz_rnn import LipschitzRNN
from lipschitz_rnn.ops.lipschitz.cuda.launch import _compiled

layer = LipschitzRNN(1, 64).cuda()
states, _ = layer(torch.randn(5, 8, 1, device="cuda"))
states.sum().backward()
assert all(parameter.grad.isfinite().all() for parameter in layer.parameters() if parameter.grad is not None)
print(_compiled.cache_info().currsize)
"""

CAPTURES = """
import torch
from lipschitz_rnn import lipschitz_scan

def given(N):
    return [torch.randn(shape, device="cuda") / 8 for shape in ((5, 8, N), (N, N), (N, N))]

known, other, side = given(64), given(32), torch.cuda.Stream()
torch.cuda.synchronize()
with torch.cuda.stream(side):
    expected = lipschitz_scan(*known)[1]
    lipschitz_scan(*other, integrator="rk4")  # loads what is not ours: Triton's kernels
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=side):
    last = lipschitz_scan(*known)[1]
graph.replay()
torch.cuda.synchronize()
assert torch.equal(last, expected)
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=side):
        lipschitz_scan(*other)
except RuntimeError as error:
    assert "before the capture" in str(error), error
else:
    raise AssertionError("a first use was captured")
lipschitz_scan(*other)
with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=side):
    lipschitz_scan(*other)
print(1)
"""


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize(
    "program", [FRESH_THREAD, FRESH_AUTOGRAD, CAPTURES], ids=["thread", "autograd's thread", "captures"]
)
def test_a_fresh_process(program: str) -> None:
    """Threads in which nothing has used the GPU yet, and kernels that no other test has loaded."""
    command = [sys.executable, "-c", program]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 0
