"""Blocks that fit the GPU at hand, and GPUs that the kernels leave to the reference."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme
from lipschitz_rnn.ops.lipschitz.triton import support
from lipschitz_rnn.ops.lipschitz.triton.plan import LaunchPlan

pytestmark = pytest.mark.usefixtures("kernels")

KB = 1024


def problem(hidden: int, networks: int = 1, integrator: str = "euler", dtype: torch.dtype = torch.float32) -> Problem:
    A = torch.zeros(networks, hidden, hidden, dtype=dtype)
    u = torch.zeros(networks, 1, 128, hidden, dtype=dtype)
    return Problem.of((u, A, A, None, None, None, None), Scheme(0.03, 1.0, integrator, "tanh"))


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """A plan as it would be on a GPU of so much shared memory and so many multiprocessors."""
    from lipschitz_rnn.ops.lipschitz.triton import plan as module

    def made(given: Problem, precision: str, room: int, units: int = 132) -> LaunchPlan:
        monkeypatch.setattr(module, "interpreting", lambda: False)
        monkeypatch.setattr(module, "shared_memory", lambda device: room)
        monkeypatch.setattr(module, "multiprocessors", lambda device: units)
        module._plan.cache_clear()  # it remembers plans of the GPU before
        return module.make_plan(given, precision)

    return made


def test_matrices_stay_with_one_program_where_they_find_room(plan) -> None:  # type: ignore[no-untyped-def]
    assert plan(problem(128), "bf16x6", 227 * KB).resident
    assert not plan(problem(128), "bf16x6", 163 * KB).resident  # three parts of 64 KB
    assert plan(problem(128), "bf16x3", 163 * KB).resident
    assert not plan(problem(128), "bf16x3", 99 * KB).resident
    assert plan(problem(128), "bf16", 99 * KB).resident
    assert plan(problem(64), "bf16x6", 99 * KB).resident


def test_eight_samples_while_the_gpu_is_not_full_or_where_room_is_short(plan) -> None:  # type: ignore[no-untyped-def]
    assert plan(problem(128), "bf16", 227 * KB).batch == 8
    assert plan(problem(128, networks=12), "bf16", 227 * KB).batch == 16
    assert plan(problem(128), "bf16", 227 * KB, units=10).batch == 16
    crowded = plan(problem(128, networks=12, integrator="midpoint"), "bf16x6", 227 * KB)
    assert (crowded.resident, crowded.batch, crowded.pipeline) == (True, 8, 1)


def test_one_pass_for_eight_samples_keeps_the_matrices_in_registers(plan) -> None:  # type: ignore[no-untyped-def]
    assert plan(problem(100), "bf16", 227 * KB).in_registers
    assert plan(problem(64), "fp16", 227 * KB).in_registers
    assert not plan(problem(128, networks=12), "bf16", 227 * KB).in_registers  # sixteen samples
    assert not plan(problem(128), "bf16x3", 227 * KB).in_registers  # two parts of each matrix
    assert not plan(problem(32), "bf16", 227 * KB).in_registers  # too small to be worth it


def test_shared_matrices_stay_on_chip_where_they_find_room(plan) -> None:  # type: ignore[no-untyped-def]
    half = problem(512, dtype=torch.bfloat16)
    assert plan(half, "bf16", 227 * KB).on_chip
    assert not plan(half, "bf16", 99 * KB).on_chip
    assert not plan(problem(1024), "bf16", 227 * KB).on_chip  # the state in float32 takes the room
    assert plan(problem(256), "bf16x6", 227 * KB).rows == 64
    assert plan(problem(256), "bf16x6", 99 * KB).rows == 32


@pytest.mark.parametrize(
    ("properties", "hip", "hidden", "steps", "reason"),
    [
        ({"major": 9}, None, 128, 784, None),
        ({"major": 7, "minor": 5, "name": "Tesla T4"}, None, 128, 784, "compute capability 8.0, and Tesla T4 has 7.5"),
        ({"major": 9}, "6.4", 128, 784, "for NVIDIA GPUs"),
        ({"multi_processor_count": 20}, None, 641, 784, "hidden size is 641, and on cuda:7 its kernels go up to 640"),
        ({"major": 9}, None, 2048, 10**7, "10000000 steps, more than its programs can count"),
    ],
)
def test_gpus_that_the_kernels_cannot_serve(
    properties: dict[str, object],
    hip: str | None,
    hidden: int,
    steps: int,
    reason: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = SimpleNamespace(**{"major": 8, "minor": 0, "name": "a GPU", "multi_processor_count": 132} | properties)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    monkeypatch.setattr(torch.version, "hip", hip)
    support.gpu_limits.cache_clear()
    A = SimpleNamespace(dtype=torch.float32, device=torch.device("cuda:7"), shape=(1, hidden, hidden))
    drive = SimpleNamespace(shape=(1, steps, 2, hidden))
    given = SimpleNamespace(drive=drive, A=A, timespans=None, scheme=Scheme(0.1, 1.0, "rk4", "tanh"))
    why = support.obstacle(given)  # type: ignore[arg-type]
    support.gpu_limits.cache_clear()
    assert why is None if reason is None else reason in str(why)


def test_two_parts_of_bfloat16_where_programs_share_the_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU with little shared memory; the products then come one after another."""
    from lipschitz_rnn.ops.lipschitz.triton import backend
    from lipschitz_rnn.ops.lipschitz.triton import plan as module

    monkeypatch.setattr(backend, "matmul_precision", lambda dtype, hidden_size, exact: "bf16x3")
    monkeypatch.setattr(module, "shared_memory", lambda device: 0)
    generator = torch.Generator().manual_seed(0)
    u, A, W = (torch.randn(*shape, generator=generator) / 4 for shape in ((3, 5, 20), (20, 20), (20, 20)))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found, exact = (
        lipschitz_scan(*(x.to(device, dtype) for x in (u, A, W)), step_size=0.5, backend=backend_name)[1]
        for backend_name, dtype in (("triton", torch.float32), ("reference", torch.float64))
    )
    assert float((found.double() - exact).norm() / exact.norm()) < 2.0**-15
