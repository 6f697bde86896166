"""Under autocast the results of every unit have its dtype, whichever loop or kernel computes them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lipschitz_rnn as lr
from lipschitz_rnn.units.base import Recurrent
from lipschitz_rnn.units.registry import UNITS

EVERY = lr.units.available()
# The ways through a unit that its options choose between, besides the backends.
WAYS: dict[str, list[dict[str, Any]]] = {
    "lstm": [{"fused": True}],
    "momentum-lstm": [{"fused": True}],
    "soft-orth": [{"nonlinearity": "modrelu"}],
    "spectral-rnn": [{"nonlinearity": "leaky_relu"}],
    "irnn": [{"inner_steps": 2}, {"warm_start": True}],
    "lipschitz": [{"stability": "contracting"}],
}
CASES = [
    (name, options)
    for name in EVERY
    for options in (
        {},
        *([{"backend": "reference"}, {"backend": "cpu"}] if "backend" in UNITS[name].options() else []),
        *WAYS.get(name, []),
    )
]
each = pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{name}-{options}" for name, options in CASES])
CLOCKS = {"srlstm": 3, "gru-d": 2}


@cache
def runs_in_bfloat16(layer: type[nn.RNNBase]) -> bool:
    """Whether PyTorch's own layer does on this CPU: without AVX-512 its LSTM does not."""
    try:
        with torch.no_grad(), autocast():
            layer(3, 4)(torch.randn(2, 1, 3))
    except RuntimeError:
        return False
    return True


def require_bfloat16(name: str, options: dict[str, Any]) -> None:
    if name == "lstm" and not options and not runs_in_bfloat16(nn.LSTM):
        pytest.skip("PyTorch's LSTM does not run in bfloat16 on this CPU")


def autocast() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


def parts(state: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def require_rule(name: str, output: Tensor | None, h_n: Any, dtype: torch.dtype, wide: torch.dtype) -> None:
    """`dtype` everywhere; complex states and clocks as wide as the parameters."""
    assert output is None or output.dtype == dtype
    for place, part in enumerate(parts(h_n)):
        if part.is_complex():
            assert torch.view_as_real(part).dtype == wide
        else:
            assert part.dtype == (wide if CLOCKS.get(name) == place else dtype), place


def build(name: str, options: dict[str, Any], **more: Any) -> Recurrent:
    torch.manual_seed(0)
    return lr.units.build(name, 3, 8, **options, **more)


@each
def test_results_have_the_dtype_of_autocast(name: str, options: dict[str, Any]) -> None:
    require_bfloat16(name, options)
    unit, x = build(name, options, num_layers=2, bidirectional=True), torch.randn(5, 4, 3)
    expected, _ = unit(x)
    narrow, wide = torch.bfloat16, torch.float32
    with autocast():
        output, h_n = unit(x)
        require_rule(name, output, h_n, narrow, wide)
        require_rule(name, *unit(x, h_n), narrow, wide)
        require_rule(name, *unit(x.bfloat16()), narrow, wide)
        require_rule(name, *unit(x.bfloat16(), h_n), narrow, wide)
        require_rule(name, *unit(x, lengths=torch.tensor([5, 3, 1, 2])), narrow, wide)
        require_rule(name, *unit(x, need_output=False), narrow, wide)
        if unit.takes_timespans and not (name == "cornn" and options):
            require_rule(name, *unit(x, timespans=torch.full((5, 4), 0.03)), narrow, wide)
    # A few roundings of 2⁻⁹ a step, of numbers near 1.
    torch.testing.assert_close(output.float(), expected, rtol=0.1, atol=0.1)


@each
def test_parameters_keep_their_dtype_in_training(name: str, options: dict[str, Any]) -> None:
    require_bfloat16(name, options)
    unit, x = build(name, options).train(), torch.randn(5, 4, 3, requires_grad=True)
    with autocast():
        output, h_n = unit(x)
    (output.float().square().sum() + sum(part.abs().float().sum() for part in parts(h_n))).backward()
    for key, parameter in unit.named_parameters():
        if parameter.grad is not None:
            assert parameter.grad.dtype == torch.float32, key
            assert parameter.grad.isfinite().all(), key
    assert x.grad is not None
    assert x.grad.dtype == torch.float32


@each
def test_autocast_leaves_float64_alone(name: str, options: dict[str, Any]) -> None:
    unit, x = build(name, options, dtype=torch.float64), torch.randn(5, 4, 3, dtype=torch.float64)
    expected, expected_h = unit(x)
    with autocast():
        output, h_n = unit(x)
    require_rule(name, output, h_n, torch.float64, torch.float64)
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(parts(h_n), parts(expected_h), rtol=1e-9, atol=1e-9)
    with autocast(), pytest.raises(TypeError, match=r"input is torch.float32 but the parameters are torch.float64"):
        unit(x.float())
    with autocast(), pytest.raises(TypeError, match=r"input is torch.float64 but .* convert one of them"):
        unit.float()(x)


@each
def test_a_stream_gives_out_what_the_unit_does(name: str, options: dict[str, Any]) -> None:
    require_bfloat16(name, options)
    unit, x = build(name, options).eval(), torch.randn(5, 4, 3)
    with torch.no_grad(), autocast():
        expected, _ = unit(x)
        for stream, steps in ((unit.stream(4), x), (unit.stream(), x[:, 0])):
            found = torch.stack([stream(step) for step in steps])
            assert found.dtype == torch.bfloat16
            assert all(part.dtype != torch.bfloat16 for part in parts(stream.state))
            torch.testing.assert_close(found, expected if found.dim() == 3 else expected[:, 0], rtol=0.1, atol=0.1)


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("rnn", "rnn-orth", "lstm", "gru")])
def test_small_steps_are_not_lost_to_a_narrow_start(name: str) -> None:
    """The state runs in the parameters' dtype, whatever that of x and hx. PyTorch's units have their own rule."""
    unit, x = build(name, {}).eval(), torch.zeros(6, 2, 3)
    with torch.no_grad(), autocast():
        wide, narrow = unit(x), unit(x.bfloat16())
        torch.testing.assert_close(narrow[0], wide[0], rtol=0.0, atol=0.0)
        again = [unit(x, h if len(h) > 1 else h[0]) for h in (parts(wide[1]), _widened(wide[1]))]
    torch.testing.assert_close(again[0][0], again[1][0], rtol=0.0, atol=0.0)


def _widened(state: Any) -> tuple[Tensor, ...]:
    return tuple(part if part.is_complex() else part.float() for part in parts(state))
