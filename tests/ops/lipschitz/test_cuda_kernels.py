"""The scan in CUDA: source that compiles, and on a GPU the same as elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from gpu_clusters import GPUS, PRECISIONS, plan_for

from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops.common.cuda import compiler
from lipschitz_rnn.ops.lipschitz.cuda import launch, plan
from lipschitz_rnn.ops.lipschitz.cuda.plan import CudaPlan, Kernel
from lipschitz_rnn.ops.lipschitz.integrators import get_integrator

PLAIN = launch.Needs(True, save=True, keep=True)
ODD = launch.Needs(False, grads=True, has_spans=True)


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
