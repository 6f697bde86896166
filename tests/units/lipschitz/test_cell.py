"""The cell: streaming equals the whole sequence, and its own call."""

import re
from typing import Any

import pytest
import torch
from lipschitz_layers import layer, sequence

import lipschitz_rnn as lr


@pytest.mark.parametrize("integrator", ["euler", "midpoint", "heun", "rk4"])
@pytest.mark.parametrize("nonlinearity", ["tanh", "relu", "sigmoid", "identity"])
def test_streaming_equals_the_layer(integrator: str, nonlinearity: str, generator: torch.Generator) -> None:
    """One sample at a time through two layers, with matrices formed once."""
    rnn = layer(generator, num_layers=2, integrator=integrator, nonlinearity=nonlinearity, alpha=0.5)
    x = sequence(generator, 8, 2, 3)
    output, h_n = rnn(x)
    cells = [rnn.cell(0), rnn.cell(1)]
    matrices = [cell.hidden_matrices() for cell in cells]
    states: list[Any] = [None, None]
    for t in range(8):
        value = x[t]
        for k, cell in enumerate(cells):
            states[k] = value = cell(value, states[k], matrices=matrices[k])
        torch.testing.assert_close(value, output[t], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(torch.stack(states), h_n, rtol=1e-12, atol=1e-13)


def test_streaming_in_pieces_equals_the_layer(generator: torch.Generator) -> None:
    """The layer on one window after another, carrying the state."""
    rnn = layer(generator, num_layers=2)
    x = sequence(generator, 12, 2, 3)
    expected, last = rnn(x)
    h, parts = None, []
    for window in x.split(5):
        part, h = rnn(window, h)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts), expected, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(h, last, rtol=1e-12, atol=1e-13)


def test_gradients_through_a_loop_equal_the_layer(generator: torch.Generator) -> None:
    rnn = layer(generator, integrator="midpoint")
    x = sequence(generator, 8, 2, 3)
    rnn(x)[0].square().sum().backward()
    expected = [parameter.grad.clone() for parameter in rnn.parameters()]
    rnn.zero_grad()
    h, loss = None, 0.0
    for x_t in x:
        h = rnn.cell()(x_t, h)
        loss = loss + h.square().sum()
    loss.backward()
    for one, other in zip(expected, (parameter.grad for parameter in rnn.parameters()), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


def test_unbatched_and_times(generator: torch.Generator) -> None:
    cell = layer(generator).cell()
    x, h = sequence(generator, 4, 3), sequence(generator, 4, 5)
    dt = 0.05 * sequence(generator, 4).abs()
    together = cell(x, h, timespans=dt)
    for i in range(4):
        torch.testing.assert_close(cell(x[i], h[i], timespans=dt[i]), together[i], rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(cell(x[i], h[i], timespans=float(dt[i])), together[i], rtol=1e-12, atol=1e-13)
    assert torch.equal(cell(x, h, timespans=0.0), h)
    assert torch.equal(cell(x), cell(x, torch.zeros_like(h)))


def test_own_construction_and_names() -> None:
    cell = lr.LipschitzRNNCell(3, 5, beta=(1.0, 0.5), gamma=(0.0, 0.1))
    assert sorted(cell.state_dict()) == ["bias_ih", "hidden.M_A", "hidden.M_W", "weight_ih"]
    A, _ = cell.hidden_matrices()
    assert torch.equal(A, -A.mT)
    assert lr.LipschitzRNNCell(3, 5, bias=False).bias_ih is None


def zeros(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


WRONG: list[tuple[tuple, dict[str, Any], type[Exception], str]] = [
    (([1.0],), {}, TypeError, "input is a list; pass a torch.Tensor"),
    ((zeros(2, 4),), {}, ValueError, "input has shape (2, 4); it must be (B, 3) or (3,)"),
    ((zeros(7, 2, 3),), {}, ValueError, "input has shape (7, 2, 3); it must be (B, 3) or (3,)"),
    ((zeros(2, 3, dtype=torch.float64),), {}, TypeError, "input is torch.float64 but the parameters are torch.float32"),
    ((zeros(2, 3, dtype=torch.int64),), {}, TypeError, "input is torch.int64; it must be floating point"),
    ((zeros(2, 3, device="meta"),), {}, ValueError, "input is on meta but the parameters are on cpu; move one"),
    ((zeros(2, 3), zeros(2, 4)), {}, ValueError, "hx has shape (2, 4); it must be (2, 5), batch size by hidden size"),
    ((zeros(3), zeros(1, 5)), {}, ValueError, "hx has shape (1, 5); it must be (5)"),
    ((zeros(2, 3), zeros(2, 5, dtype=torch.float64)), {}, TypeError, "hx is torch.float64 but the parameters are"),
    ((zeros(2, 3), zeros(2, 5, device="meta")), {}, ValueError, "hx is on meta but the parameters are on cpu"),
    ((zeros(2, 3),), {"timespans": -0.1}, ValueError, "timespans is -0.1; it must be at least 0 and finite"),
    ((zeros(2, 3),), {"timespans": float("nan")}, ValueError, "timespans is nan; it must be at least 0 and finite"),
    ((zeros(2, 3),), {"timespans": "now"}, TypeError, "timespans is 'now', a str; pass a number"),
    (
        (zeros(2, 3),),
        {"timespans": zeros(3)},
        ValueError,
        "timespans has shape (3); it must be (2)",
    ),
    (
        (zeros(2, 3),),
        {"timespans": zeros(2) - 1},
        ValueError,
        "timespans[0] is -1.0; times between samples must be finite",
    ),
    (
        (zeros(2, 3),),
        {"timespans": zeros(2, dtype=torch.int64)},
        TypeError,
        "timespans is torch.int64; it must be one of float64",
    ),
    (
        (zeros(2, 3),),
        {"timespans": zeros(2, device="meta")},
        ValueError,
        "timespans is on meta but input is on cpu; move one",
    ),
    ((zeros(2, 3),), {"matrices": (zeros(5, 5), zeros(4, 4))}, ValueError, "W has shape (4, 4); it must be (5, 5)"),
]


@pytest.mark.parametrize(("arguments", "options", "error", "message"), WRONG, ids=[case[-1][:40] for case in WRONG])
def test_wrong_input(arguments: tuple, options: dict[str, Any], error: type[Exception], message: str) -> None:
    cell = lr.LipschitzRNNCell(3, 5)
    with pytest.raises(error, match=re.escape(message)):
        cell(*arguments, **options)
