"""Layers whose gain does not grow with the length of the sequence."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lipschitz_rnn as lr
from lipschitz_rnn.stability import certify
from lipschitz_rnn.units.lipschitz.contracting import ContractingPair
from lipschitz_rnn.units.recurrence import UnstatedRecurrenceError


def bounded(p: int, N: int, seed: int = 0, moved: float = 1.0, **options: Any) -> lr.LipschitzRNN:
    """A layer with parameters far from its start."""
    torch.manual_seed(seed)
    settings: dict[str, Any] = {"rate": 0.01, "step_size": 0.1, "dtype": torch.float64} | options
    unit = lr.LipschitzRNN(p, N, stability="contracting", bounded_gain=True, **settings)
    with torch.no_grad():
        for parameter in unit.parameters():
            parameter.add_(moved * torch.randn(parameter.shape, dtype=torch.float64).to(parameter.dtype))
    return unit.eval()


def worst_step(unit: lr.LipschitzRNN, gain: float, draws: int = 60) -> float:
    """The largest ‖[J/ρ, εDU/γ]‖ in the metric over slope patterns D: at most 1 is what the theorem says."""
    cell = unit.cell()
    A, W = (matrix.detach().double() for matrix in cell.hidden_matrices())
    U, t = cell.weight_ih.detach().double(), cell.hidden.stretch().detach()
    step, N = cell.step_size, len(A)
    _, high = cell.hidden.slopes
    generator, worst = torch.Generator().manual_seed(1), 0.0
    for draw in range(draws):
        values = torch.rand(N, generator=generator, dtype=torch.float64)
        D = high * (values if draw % 3 else (values < draw / draws).double())
        J = torch.eye(N) + step * (cell.alpha * A + D[:, None] * W)
        J = t[:, None] * J / t / torch.exp(torch.tensor(-cell.rate * step))
        B = t[:, None] * step * D[:, None] * U / gain
        worst = max(worst, float(torch.linalg.matrix_norm(torch.cat((J, B), 1), 2)))
    return worst


@pytest.mark.parametrize(
    ("p", "scale", "moved", "options"),
    [
        (1, 1.0, 1.0, {}),
        (3, 30.0, 1.0, {"nonlinearity": "relu"}),
        (20, 1e-6, 3.0, {"nonlinearity": "sigmoid"}),
        (2, 1e12, 100.0, {"alpha": 2.0, "metric_spread": 1000.0}),
        (1, 0.0, 1.0, {}),
        (4, 1.0, 1e12, {}),
        (3, 1.0, 1.0, {"dtype": torch.float32}),
        (3, 1.0, 1.0, {"dtype": torch.bfloat16}),
    ],
)
def test_no_step_adds_more_than_the_gain(p: int, scale: float, moved: float, options: dict[str, Any]) -> None:
    unit = bounded(p, 12, moved=moved, **options)
    with torch.no_grad():
        unit.cell().weight_ih.mul_(scale)
    gain = float(unit.cell().gain().detach())
    assert gain > 0
    assert worst_step(unit, gain) <= 1 + 1e-9
    assert certify(unit, rate=0.0099).holds


@pytest.mark.parametrize(
    ("N", "step", "spread", "sign"), [(2, 0.7201, 1549.0, -1), (3, 0.6367, 357.0, -1), (4, 0.0999, 1131.0, 1)]
)
@pytest.mark.parametrize("rate", [0.01, 1e-9])
def test_rounded_matrices_where_nothing_is_left(N: int, step: float, spread: float, sign: int, rate: float) -> None:
    """Almost all of the room goes to the input: an error of the matrices then counts 30 times as much as else."""
    for change in range(40):
        eps = step * (1 + 1e-4 * change)
        pair = ContractingPair(N, step_size=eps, rate=rate, bounded_gain=True, metric_spread=1.0, nonlinearity="relu")
        mean, U = torch.full((N, N), 1.0 / N), torch.ones(N, 1)
        with torch.no_grad():
            for parameter, value in ((pair.rotation, 0.0), (pair.leak, -60.0), (pair.scale, 0.0)):
                parameter.fill_(value)
            pair.feedback.copy_(math.sqrt(2 / eps) * (sign * mean + math.sqrt(spread) * (torch.eye(N) - mean)))
            pair.restoring.fill_(math.log(0.998 / 0.9))  # εω = 1
            pair.input_share.fill_(40.0)
            A, W = (matrix.double() for matrix in pair(U))
            gain = float(pair.gain(U))
        J, B = torch.eye(N) + eps * (A + W), eps * U.double()
        left = gain**2 - float(B.T @ B)
        worst = J.T @ J + J.T @ B @ B.T @ J / left  # over all changes of the input
        assert left > 0
        assert float(torch.linalg.eigvalsh(worst)[-1]) <= math.exp(-2 * rate * eps) + 1e-11


@pytest.mark.parametrize("value", [-1e30, -1000.0, 1e30])
def test_extreme_shares_have_finite_gains(value: float) -> None:
    unit = bounded(2, 4)
    with torch.no_grad():
        unit.cell().hidden.input_share.fill_(value)
    gain = unit.cell().gain()
    gradients = torch.autograd.grad(gain, list(unit.cell().hidden.parameters()), allow_unused=True)
    assert torch.isfinite(gain)
    assert all(torch.isfinite(each).all() for each in gradients if each is not None)


def test_the_gain_is_not_far_above_what_a_step_needs() -> None:
    unit = bounded(1, 12)
    gain = float(unit.cell().gain().detach())
    assert worst_step(unit, 0.3 * gain) > 1  # so the test above can fail


def test_without_room_the_input_breaks_the_inequality() -> None:
    unit = bounded(1, 12)
    plain = lr.LipschitzRNN(1, 12, stability="contracting", rate=0.01, step_size=0.1, dtype=torch.float64)
    plain.load_state_dict({k: v for k, v in unit.state_dict().items() if "share" not in k})
    assert worst_step(plain, float(unit.cell().gain().detach())) > 1.0


def largest_change(unit: lr.LipschitzRNN, T: int, steps: int = 40) -> float:
    """max ‖δh_T‖_P / ‖δx‖₂ that gradient ascent finds."""
    torch.manual_seed(2)
    t = unit.cell().hidden.stretch().detach()
    x = 0.3 * torch.randn(T, 4, unit.input_size, dtype=torch.float64)
    with torch.no_grad():
        base = unit(x)[1][0]
    change = torch.randn_like(x).requires_grad_()
    best = 0.0
    for _ in range(steps):
        size = 0.1 * change / change.square().sum((0, 2), keepdim=True).sqrt()
        moved = ((unit(x + size)[1][0] - base) * t).norm(dim=-1) / 0.1
        best = max(best, float(moved.max().detach()))
        (gradient,) = torch.autograd.grad(moved.sum(), change)
        with torch.no_grad():
            change += gradient / gradient.norm() * change.norm()
    return best


def test_the_gain_holds_for_every_length() -> None:
    unit = bounded(2, 10, moved=0.3)
    gain = float(unit.cell().gain().detach())
    seen = [largest_change(unit, T) for T in (5, 50, 300)]
    assert max(seen) <= gain
    assert max(seen) > 0.2 * gain  # not a bound of another order


def test_shorter_and_divided_steps_add_no_more() -> None:
    unit = bounded(2, 10, moved=0.3, max_step=0.1)
    gain, t = float(unit.cell().gain().detach()), unit.cell().hidden.stretch().detach()
    generator = torch.Generator().manual_seed(0)
    x, change = torch.randn(2, 60, 5, 2, generator=generator, dtype=torch.float64)
    spans = 0.25 * torch.rand(60, 5, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        moved = (unit(x + change, timespans=spans)[1] - unit(x, timespans=spans)[1])[0] * t
    shares = (spans / 0.1)[..., None]  # a step of length rε adds at most r γ²‖Δx‖²
    assert (moved.square().sum(-1) <= gain**2 * (shares * change.square()).sum((0, 2))).all()


@pytest.mark.parametrize("p", [1, 3])
def test_gradients(p: int) -> None:
    unit = bounded(p, 4)
    cell = unit.cell()
    names = [name for name, _ in cell.named_parameters() if name != "bias_ih"]

    def outputs(*values: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(names, values, strict=True))
        pair = {name.removeprefix("hidden."): value for name, value in given.items() if name.startswith("hidden.")}
        U = given["weight_ih"]
        A, W = torch.func.functional_call(cell.hidden, pair, (U,))
        return A, W, torch.func.functional_call(_Gain(cell.hidden), {f"pair.{k}": v for k, v in pair.items()}, (U,))

    values = [dict(cell.named_parameters())[name].detach().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(outputs, values, atol=1e-6)


class _Gain(nn.Module):
    def __init__(self, pair: ContractingPair) -> None:
        super().__init__()
        self.pair = pair

    def forward(self, U: Tensor) -> Tensor:
        return self.pair.gain(U)


def test_backends_streams_and_saved_weights_agree() -> None:
    unit = bounded(3, 6, moved=0.2)
    x = torch.randn(12, 2, 3, dtype=torch.float64)
    output, _ = unit(x)
    stream = unit.stream(batch_size=2)
    assert torch.allclose(torch.stack([stream(step) for step in x]), output, atol=1e-12)
    again = bounded(3, 6, seed=5)
    again.load_state_dict(unit.state_dict())
    assert torch.equal(again(x)[0], output)
    other = lr.LipschitzRNN(3, 6, stability="contracting", rate=0.01, step_size=0.1, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="bounded_gain=True"):
        other.load_state_dict(unit.state_dict())


def test_kept_matrices_follow_the_input_weights() -> None:
    unit = bounded(3, 6, moved=0.2)
    x = torch.randn(12, 2, 3, dtype=torch.float64)
    with torch.no_grad():
        before = unit(x)[0]
        unit.cell().weight_ih.data.mul_(2.0)  # no version tells of this
        after = unit(x)[0]
    assert not torch.allclose(before, after)
    assert torch.allclose(after, unit(x)[0], atol=1e-12)  # with gradients, nothing is kept


def test_several_networks_equal_single_ones() -> None:
    units = [bounded(2, 5, seed=seed) for seed in range(3)]
    x = torch.randn(9, 4, 2, dtype=torch.float64)
    parameters, buffers = torch.func.stack_module_state(units)  # type: ignore[arg-type]

    def call(values: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(units[0], (values, buffers), (x,))[0]

    together = torch.func.vmap(call)(parameters)
    for one, unit in zip(together, units, strict=True):
        assert torch.allclose(one, unit(x)[0], atol=1e-12)


def test_refusals() -> None:
    options: dict[str, Any] = {"stability": "contracting", "bounded_gain": True}
    with pytest.raises(ValueError, match="integrator='euler'"):
        lr.LipschitzRNN(1, 4, integrator="midpoint", **options)
    with pytest.raises(ValueError, match="slopes from 0"):
        lr.LipschitzRNN(1, 4, nonlinearity="identity", **options)
    with pytest.raises(ValueError, match="stability='contracting'"):
        lr.LipschitzRNN(1, 4, bounded_gain=True)
    with pytest.raises(TypeError, match="True or False"):
        lr.LipschitzRNN(1, 4, stability="contracting", bounded_gain="yes")  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="bounded_gain"):
        lr.LipschitzRNN(1, 4, **options).bounded_gain = False  # type: ignore[misc]
    with pytest.raises(ValueError, match="bounded_gain=True"):
        lr.LipschitzRNN(1, 4, stability="contracting").cell().gain()
    pair = ContractingPair(4, step_size=0.1, bounded_gain=True)
    with pytest.raises(TypeError, match="input weights"):
        pair()
    with pytest.raises(ValueError, match=r"\(4, p\)"):
        pair(torch.randn(3, 2))
    with pytest.raises(UnstatedRecurrenceError, match="certify the unit"):
        pair.stated_recurrences()
    with pytest.raises(TypeError, match="bounded_gain only"):
        ContractingPair(4, step_size=0.1)(torch.randn(4, 1))


@pytest.mark.parametrize("size", [0.0, 1e-300, 1e300, 1.7e308])
def test_input_weights_of_any_size_leave_the_matrices_finite(size: float) -> None:
    """Only the gain may leave the range of float64."""
    rnn = lr.LipschitzRNN(1, 3, stability="contracting", bounded_gain=True, step_size=100.0, dtype=torch.float64)
    with torch.no_grad():
        rnn.cell().weight_ih.fill_(size)
    assert all(matrix.isfinite().all() for matrix in rnn.hidden_matrices())
