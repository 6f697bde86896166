"""The contraction of a contracting layer in every precision that it accepts: δ is ``step_rounding``."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hostile_contraction import hostile_layer, norms, pair_of, worst_norm
from torch import Tensor
from torch.overrides import TorchFunctionMode

import lipschitz_rnn as lr
from lipschitz_rnn.ops.common.precision import float32_products
from lipschitz_rnn.units.lipschitz import layer as layer_module
from lipschitz_rnn.units.lipschitz.proved import proved_step

STEPS = 4000
PRECISIONS = [
    (torch.float32, "highest"),
    (torch.float32, "high"),
    (torch.float32, "medium"),
    (torch.float64, "highest"),
    (torch.bfloat16, "medium"),
    (torch.float16, "medium"),
]
AUTOCAST = [None, torch.bfloat16, torch.float16]
every_precision = pytest.mark.parametrize(
    ("dtype", "precision"), PRECISIONS, ids=lambda value: str(value).removeprefix("torch.")
)
every_autocast = pytest.mark.parametrize("half", AUTOCAST, ids=["plain", "autocast-bfloat16", "autocast-float16"])


class RoundingMachine(TorchFunctionMode):
    """Float32 products are taken in bfloat16 wherever the settings let a machine do that."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        product = getattr(func, "__name__", "") in ("addmm", "baddbmm", "bmm", "matmul", "__matmul__", "linear", "mm")
        if product and torch.get_float32_matmul_precision() != "highest" and args[-1].dtype == torch.float32:
            args = (*args[:-2], *(operand.bfloat16().float() for operand in args[-2:]))
        return func(*args, **(kwargs or {}))


def autocast(dtype: torch.dtype | None) -> contextlib.AbstractContextManager[object]:
    return contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)


def sample(layer: lr.LipschitzRNN, seed: int, pairs: int = 2) -> tuple[Tensor, Tensor]:
    """Inputs (T, 2·pairs, p), the same for the two of a pair, that keep the state of order 1, and initial states."""
    generator = torch.Generator().manual_seed(seed)
    dtype, pair = layer.cell().weight_ih.dtype, pair_of(layer)
    weight = min(1.0, -math.expm1(-pair.rate * pair.step_size) / pair.step_size)
    x = weight * torch.randn(STEPS, pairs, layer.input_size, generator=generator, dtype=torch.float64)
    starts = torch.randn(1, 2 * pairs, layer.hidden_size, generator=generator, dtype=torch.float64)
    return x.repeat(1, 2, 1).to(dtype), starts.to(dtype)


def require_contraction(layer: lr.LipschitzRNN, x: Tensor, h_0: Tensor, output: Tensor) -> float:
    """‖Δ_t‖_P ≤ ρᵗ‖Δ_0‖_P + δ/(1 − ρ) at every t. Returns the last term, relative to the states."""
    pair, cell, pairs = pair_of(layer), layer.cell(), h_0.shape[1] // 2
    metric, _ = pair.metric()
    fits = torch.cat((torch.ones(1, dtype=torch.bool), output.isfinite().all(-1).all(-1)))
    # A metric spread by 10⁶ allows states beyond 65,504, which float16 gives out as infinite; the next ones are right.
    assert fits.all() or (output.dtype == torch.float16 and pair.metric_spread > 1e3)
    states = torch.cat((h_0.double(), output.double()))
    largest = float(norms(states[fits], metric).max())
    drive = x.double().abs() @ cell.weight_ih.double().abs().T + cell.bias_ih.double().abs()
    delta = pair.step_rounding(largest, float(norms(drive, metric).max()), input_size=layer.input_size)
    factor = math.exp(-pair.rate * pair.step_size)
    distance = norms(states[:, :pairs] - states[:, pairs:], metric)
    bound = factor ** torch.arange(len(states)).double().unsqueeze(1) * distance[0] + delta / (1 - factor)
    # What is given out is rounded once more, but not what goes on.
    information = torch.finfo(output.dtype)
    rounded = information.eps * largest + information.tiny * math.sqrt(metric.sum())
    share = (distance / (bound + rounded))[fits]
    assert share.max() <= 1.0, f"{float(share.max()):.4f} of the bound at step {int(share.amax(1).argmax())}"
    return delta / (1 - factor) / largest


@torch.no_grad()
def check(index: int, dtype: torch.dtype, precision: str, half: torch.dtype | None) -> None:
    layer = hostile_layer(index, dtype)
    x, h_0 = sample(layer, index)
    with RoundingMachine(), float32_products(precision), autocast(half):
        output, h_n = layer(x, h_0)
    expected = dtype if half is None or dtype == torch.float64 else half
    assert output.dtype == h_n.dtype == expected
    require_contraction(layer, x, h_0, output)


@every_autocast
@every_precision
def test_pairs_of_trajectories_stay_below_the_bound(
    dtype: torch.dtype, precision: str, half: torch.dtype | None
) -> None:
    check(6 * AUTOCAST.index(half) + PRECISIONS.index((dtype, precision)), dtype, precision, half)


@pytest.mark.full
@pytest.mark.parametrize("first", range(0, 200, 50))
@every_autocast
@every_precision
def test_all_draws_stay_below_the_bound(
    dtype: torch.dtype, precision: str, half: torch.dtype | None, first: int
) -> None:
    for index in range(first, first + 50):
        try:
            check(index, dtype, precision, half)
        except AssertionError as error:
            raise AssertionError(f"draw {index}: {error}") from error


def test_an_orbit_that_rounded_matrices_would_blow_up() -> None:
    """A linear network of fast rotations that does not leak. With A and W in bfloat16 its distances would grow."""
    torch.manual_seed(0)
    layer = lr.LipschitzRNN(2, 16, stability="contracting", rate=0.01, step_size=0.1, nonlinearity="identity")
    with torch.no_grad():
        pair_of(layer).rotation.mul_(100)
        pair_of(layer).leak.fill_(-30.0)
        x, h_0 = sample(layer, 0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output, _ = layer(x, h_0)
        assert require_contraction(layer, x, h_0, output) < 0.2
        rounded = [matrix.bfloat16().float() for matrix in layer.hidden_matrices()]
    assert worst_norm(pair_of(layer), *rounded, np.random.default_rng(0)) > 1.0


@every_autocast
@every_precision
def test_the_scan_is_given_the_matrices_of_the_proof(
    dtype: torch.dtype, precision: str, half: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What arrives there, and not only what the pair says, has a norm below the factor for all slopes."""
    given: list[tuple[Tensor, Tensor]] = []

    def scan(x: Tensor, A: Tensor, W: Tensor, *args: Any, **options: Any) -> Any:
        given.append((A.detach(), W.detach()))
        assert options["exact_products"]
        return lr.lipschitz_scan(x, A, W, *args, **options)

    monkeypatch.setattr(layer_module, "lipschitz_scan", scan)
    for index in range(6):
        layer, rng = hostile_layer(index, dtype), np.random.default_rng(index)
        pair = pair_of(layer)
        with float32_products(precision), autocast(half):
            layer(torch.zeros(1, 1, 2, dtype=dtype))
        A, W = given.pop()
        assert A.dtype == W.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert worst_norm(pair, A, W, rng) <= math.exp(-pair.rate * pair.step_size)


def ways(layer: lr.LipschitzRNN) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """The output for (T, 1, p) and h_0 (1, 1, N) by every other way to run the layer."""

    def by_cell(x: Tensor, h_0: Tensor) -> Tensor:
        states, matrices, h = [], layer.hidden_matrices(), h_0[0]
        for sample in x:
            h = proved_step(layer.cell(), sample, h, None, matrices)
            states.append(h)
        return torch.stack(states)

    def by_stream(batch: int | None) -> Callable[[Tensor, Tensor], Tensor]:
        def run(x: Tensor, h_0: Tensor) -> Tensor:
            stream = layer.stream(batch)
            stream.state = h_0 if batch else h_0[:, 0]
            return torch.stack([stream(sample if batch else sample[0]).reshape(1, -1) for sample in x])

        return run

    def in_pieces(x: Tensor, h_0: Tensor) -> Tensor:
        layer.recompute_every = 7
        output, _ = layer(x, h_0)
        layer.recompute_every = None
        return output

    def vmapped(x: Tensor, h_0: Tensor) -> Tensor:
        stacked = {name: value.expand(2, *value.shape) for name, value in layer.state_dict().items()}
        run = torch.func.vmap(lambda own: torch.func.functional_call(layer, own, (x, h_0))[0])
        return run(stacked)[1]

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    return {
        "cell": by_cell,
        "stream": by_stream(None),
        "stream of a batch": by_stream(1),
        "recompute_every": in_pieces,
        "vmap": vmapped,
        "compiled": lambda x, h_0: compiled(x, h_0)[0],
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "half"),
    [(torch.float32, torch.bfloat16), (torch.float16, None)],
    ids=["autocast", "float16"],
)
def test_every_way_to_run_it_is_the_same(
    dtype: torch.dtype, half: torch.dtype | None, generator: torch.Generator
) -> None:
    """Against float64 with the same matrices: rounded matrices would be off by far more than float32's rounding."""
    layer = lr.LipschitzRNN(2, 8, stability="contracting", rate=0.01, step_size=0.1, nonlinearity="identity")
    with torch.no_grad():
        pair_of(layer).rotation.mul_(100)
    layer = layer.to(dtype)
    x, h_0 = (torch.randn(*shape, generator=generator).to(dtype) for shape in ((100, 1, 2), (1, 1, 8)))
    U, b = layer.cell().weight_ih.double(), layer.cell().bias_ih.double()
    with torch.no_grad():
        A, W = layer.hidden_matrices()
        drive = x.double() @ U.T + b
        exact, _ = lr.lipschitz_scan(
            drive, A.double(), W.double(), h_0[0].double(), step_size=0.1, nonlinearity="identity", backend="reference"
        )
        result = dtype if half is None else half
        tolerance = torch.finfo(result).eps * exact.abs().max()
        for name, run in ways(layer).items():
            machine = contextlib.nullcontext() if name == "compiled" else RoundingMachine()
            with machine, float32_products("medium"), autocast(half):
                output = run(x, h_0)
            assert (output.double() - exact).abs().max() < tolerance, name
            assert output.dtype == (torch.float32 if name == "cell" else result) or name == "stream", name


def test_a_cell_loop_in_16_bits_rounds_the_state_only(generator: torch.Generator) -> None:
    """The cell gives its state out in its own dtype, so every step rounds it; the matrices stay as they are."""
    layer = lr.LipschitzRNN(2, 8, stability="contracting", dtype=torch.bfloat16, nonlinearity="identity")
    x, h = (torch.randn(3, size, generator=generator).bfloat16() for size in (2, 8))
    cell = layer.cell()
    with torch.no_grad():
        found, exact = cell(x, h), proved_step(cell, x, h, None, cell.hidden_matrices())
    assert found.dtype == torch.bfloat16
    assert exact.dtype == torch.float32
    torch.testing.assert_close(found, exact.bfloat16(), rtol=0, atol=0)
    with pytest.raises(TypeError, match=r"A is torch\.bfloat16, but this contracting unit is proved .* torch\.float32"):
        cell(x, h, matrices=tuple(matrix.bfloat16() for matrix in cell.hidden_matrices()))


@pytest.mark.slow
@pytest.mark.parametrize("integrator", ["euler", "midpoint", "heun"])
def test_kernels_keep_float32_products(integrator: str, generator: torch.Generator) -> None:
    """Triton's kernels at the lowest setting, against float64."""
    pytest.importorskip("triton", reason="Triton is not installed (it exists for Linux only)")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options = {"stability": "contracting", "step_size": 0.1, "integrator": integrator, "nonlinearity": "identity"}
    layer = lr.LipschitzRNN(2, 20, backend="triton", **options)
    with torch.no_grad():
        pair_of(layer).rotation.mul_(100)
    reference = lr.LipschitzRNN(2, 20, backend="reference", **options)
    reference.load_state_dict(layer.state_dict())
    x = torch.randn(12, 2, 2, generator=generator)
    layer = layer.to(device)
    with torch.no_grad(), float32_products("medium"), torch.autocast(device, dtype=torch.bfloat16):
        _, found = layer(x.to(device), need_output=False)
        A, W = layer.hidden_matrices()
    cell = layer.cell().cpu()
    drive = x.double() @ cell.weight_ih.double().T + cell.bias_ih.double()
    with torch.no_grad():
        settings = {"step_size": 0.1, "integrator": integrator, "nonlinearity": "identity", "backend": "reference"}
        exact, last = lr.lipschitz_scan(drive, A.cpu().double(), W.cpu().double(), **settings)
    error = (found[0].cpu().double() - last).abs().max()
    assert error < torch.finfo(torch.bfloat16).eps / 2 * 1.01 * exact.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_timespans_in_16_bits_may_be_the_step_itself(dtype: torch.dtype) -> None:
    """In bfloat16 0.03 is rounded up, beyond the step that is proved; such times are the step."""
    rnn = lr.LipschitzRNN(3, 4, stability="contracting", step_size=0.03).to(dtype)
    x = torch.randn(20, 2, 3).to(dtype)
    torch.testing.assert_close(rnn(x, timespans=torch.full((20, 2), 0.03, dtype=dtype))[0], rnn(x)[0])
    with pytest.raises(ValueError, match=r"proved for steps up to 0\.03"):
        rnn(x, timespans=torch.full((20, 2), 0.031, dtype=dtype))
