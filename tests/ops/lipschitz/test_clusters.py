"""Scans on clusters of multiprocessors: shapes that fit, source that compiles, and on a GPU the same as elsewhere."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops.common.cuda import compiler
from lipschitz_rnn.ops.lipschitz.clusters import launch, plan
from lipschitz_rnn.ops.lipschitz.clusters.plan import ClusterPlan, best_shape
from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme

KB = 1024
PRECISIONS = ("bf16", "fp16", "tf32", "bf16x3", "bf16x6")
# Compute capability: kilobytes of shared memory for one block, and multiprocessors.
GPUS = {90: (227, 132), 100: (227, 148), 120: (99, 170)}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("capability", GPUS)
def test_every_plan_holds_all_units_and_fits(capability: int, precision: str) -> None:
    room, processors = GPUS[capability]
    for N, S, B in product((1, 16, 100, 129, 256, 257, 384, 500, 512, 700, 768), (1, 3, 64), (1, 16, 128, 1000)):
        found = best_shape((S, B, N), precision, processors, room * KB)
        if found is None:
            assert N * (2 if precision in ("tf32", "bf16x3") else 3 if precision == "bf16x6" else 1) > 384
            continue
        assert found.padded >= N
        assert found.padded % 32 == 0  # two tiles of the tensor cores at a time
        assert found.warps % 2 == 0  # two share the products of a backward step
        assert found.threads <= 512
        assert found.forward_bytes <= found.backward_bytes <= room * KB
        assert found.threads * found.registers * found.least_blocks <= plan.REGISTERS


def test_a_full_gpu_gets_smaller_clusters_with_more_samples() -> None:
    few = best_shape((1, 128, 256), "bf16", 132, 227 * KB)
    many = best_shape((8, 128, 256), "bf16", 132, 227 * KB)
    assert few is not None
    assert many is not None
    assert (few.cluster, few.samples) == (4, 8)
    assert (many.cluster, many.samples) == (2, 16)


def test_no_cluster_is_larger_than_the_gpu_allows() -> None:
    assert best_shape((1, 128, 750), "bf16", 132, 227 * KB, largest=8) is None
    small = best_shape((1, 128, 512), "bf16", 132, 227 * KB, largest=8)
    assert small is not None
    assert small.cluster == 8


def test_what_it_does_not_serve_says_why() -> None:
    A = torch.zeros(1, 256, 256)
    given = Problem(torch.zeros(1, 2, 4, 256), A, A, None, None, None, None, Scheme(0.1, 1.0, "euler", "tanh"))
    assert plan.make_plan(given, "bf16") == "the tensors are on cpu"
    noisy = Problem.of((*given.tensors[:-1], torch.zeros(1, 5)), given.scheme)
    assert "noise" in str(plan.make_plan(noisy, "bf16"))


def compile_plan(
    made: ClusterPlan, capability: int, integrator: str, dtype: torch.dtype, spans: bool, name: str = "forward"
) -> bytes:
    if compiler.library() is None:
        pytest.skip("NVRTC is not installed (it comes with PyTorch's CUDA builds, or as nvidia-cuda-nvrtc)")
    macros = launch.macros(made, integrator, "tanh", not spans, spans, spans, dtype)
    return compiler.compiled(launch.source(name), f"{name}.cu", f"sm_{capability}", macros)


@pytest.fixture
def own_cache(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("capability", GPUS)
def test_the_source_compiles(capability: int, tmp_path) -> None:  # type: ignore[no-untyped-def]
    made = ClusterPlan("bf16", 4, 8, 8)
    code = compile_plan(made, capability, "euler", torch.bfloat16, spans=False)
    assert code.startswith(b"\x7fELF")
    (kept,) = (tmp_path / "lipschitz-rnn").iterdir()
    assert compile_plan(made, capability, "euler", torch.bfloat16, False, "backward").startswith(b"\x7fELF")
    kept.write_bytes(code + b"!")  # what is there is taken
    assert compile_plan(made, capability, "euler", torch.bfloat16, spans=False).endswith(b"!")


@pytest.mark.full
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("capability", GPUS)
def test_every_plan_compiles(capability: int, precision: str) -> None:
    room, processors = GPUS[capability]
    shapes = product((100, 256, 384, 512, 768), (1, 8))
    plans = {best_shape((S, 128, N), precision, processors, room * KB) for N, S in shapes}
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    for made in plans - {None}:
        assert made is not None
        for integrator, spans in (("euler", False), ("midpoint", True), ("rk4", False)):
            for name in ("forward", "backward"):
                compile_plan(made, capability, integrator, half, spans, name)


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


def outcome(dtype: torch.dtype, N: int, step_size: float | torch.Tensor = 0.1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(N)
    u, A, W = (torch.randn(*shape, generator=generator) for shape in ((40, 30, 1), (N, N), (N, N)))
    U, b = torch.randn(N, 1, generator=generator), torch.randn(N, generator=generator)
    values = [t.to("cuda", dtype).requires_grad_() for t in (u, A / N**0.5 - torch.eye(N), W / N**0.5, U, b)]
    states, _ = lipschitz_scan(*values[:3], step_size=step_size, input_weight=values[3], bias=values[4])
    assert states is not None
    return [states.detach(), *torch.autograd.grad(states.float().sin().sum(), values)]


@pytest.mark.gpu
@on_gpu
@pytest.mark.usefixtures("nan_memory")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("N", [130, 256, 381])
def test_clusters_agree_with_the_cooperative_kernels(
    N: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lipschitz_rnn.ops.lipschitz.triton import launch as scan

    on_clusters = outcome(dtype, N)
    monkeypatch.setattr(scan, "make_cluster_plan", lambda *_: "switched off")
    cooperative = outcome(dtype, N)
    rounding = {torch.bfloat16: 2e-2, torch.float16: 3e-3}.get(dtype, 1e-5)
    for found, expected in zip(on_clusters, cooperative, strict=True):
        assert found.isfinite().all()
        assert (found - expected).float().norm() <= rounding * expected.float().norm()


@pytest.mark.gpu
@on_gpu
def test_strided_inputs_and_gradients() -> None:
    """Neighbouring units that are not neighbours in memory, and a start at an odd address."""
    generator = torch.Generator().manual_seed(0)
    T, B, N = 5, 9, 200
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
