"""Units on fused paths give what their own loop gives: from a state, with lengths, in ensembles, in 16 bits."""

import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from lipschitz_rnn import units

FUSED = {
    "irnn": {"backend": "reference"},
    "soft-orth": {"backend": "reference"},
    "spectral-rnn": {"backend": "reference"},
    "fastrnn": {"backend": "reference"},
    "momentum-lstm": {"fused": True},
}
each = pytest.mark.parametrize("name", FUSED)


def pair(name: str, build_unit: Callable[..., nn.Module]) -> tuple[nn.Module, nn.Module]:
    plain, fused = build_unit(name, 3, 8), build_unit(name, 3, 8, **FUSED[name])
    fused.load_state_dict(plain.state_dict())
    return plain, fused


@each
def test_states_and_lengths(name: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    plain, fused = pair(name, build_unit)
    x = inputs(9, 4, 3)
    state = plain(inputs(5, 4, 3))[1]
    for options in ({}, {"lengths": torch.tensor([9, 1, 4, 7])}):
        torch.testing.assert_close(fused(x, state, **options), plain(x, state, **options), rtol=1e-11, atol=1e-12)


@each
def test_from_no_state_values_and_gradients(name: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    x = inputs(9, 4, 3).requires_grad_()
    results = []
    for unit in pair(name, build_unit):
        output, last = unit(x)
        parts = last if isinstance(last, tuple) else (last,)
        loss = output.sin().sum() + sum(part.cos().sum() for part in parts)
        results.append([output, *parts, *torch.autograd.grad(loss, [x, *unit.parameters()])])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("nonlinearity", ["relu", "identity"])
def test_other_nonlinearities(nonlinearity: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    plain = build_unit("soft-orth", 3, 8, nonlinearity=nonlinearity)
    fused = build_unit("soft-orth", 3, 8, nonlinearity=nonlinearity, backend="reference")
    fused.load_state_dict(plain.state_dict())
    x = inputs(9, 4, 3)
    torch.testing.assert_close(fused(x), plain(x), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("soft-orth", {"nonlinearity": "leaky_relu"}, "nonlinearity 'leaky_relu' is none of tanh, relu, identity"),
        ("spectral-rnn", {"nonlinearity": "modrelu"}, "nonlinearity 'modrelu' is none of"),
        ("irnn", {"inner_steps": 2}, "inner_steps is 2"),
    ],
)
def test_a_backend_that_would_not_run_is_refused(name: str, options: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=rf"backend is 'cpu', but {why}.* run one by one; leave it 'auto'"):
        units.build(name, 3, 8, backend="cpu", **options)
    units.build(name, 3, 8, **options)


@pytest.mark.parametrize("name", [name for name in units.available() if "backend" in units.info(name).options()])
def test_an_unknown_backend_is_refused_when_the_unit_is_built(name: str) -> None:
    with pytest.raises(ValueError, match="backend is 'foo'; choose one of auto, reference, cpu, triton"):
        units.build(name, 3, 8, backend="foo")


def test_a_unit_pickled_before_it_had_a_backend(build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    unit, x = build_unit("spectral-rnn", 3, 8), inputs(5, 4, 3)
    expected = unit(x)
    del unit.cells[0].__dict__["backend"]
    torch.testing.assert_close(pickle.loads(pickle.dumps(unit))(x), expected, rtol=0.0, atol=0.0)


@each
def test_ensembles(name: str, inputs: Callable[..., Tensor]) -> None:
    members = [units.build(name, 2, 8, dtype=torch.float64, **FUSED[name]) for _ in range(2)]
    parameters, buffers = stack_module_state(members)
    x = inputs(5, 4, 2)
    together = vmap(lambda p, b: functional_call(members[0], (p, b), (x,))[0])(parameters, buffers)
    torch.autograd.grad(together.square().sum(), list(parameters.values()))
    for member, output in zip(members, together, strict=True):
        torch.testing.assert_close(output, member(x)[0], rtol=1e-11, atol=1e-12)


@each
def test_autocast_changes_little(name: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    plain, fused = pair(name, build_unit)
    x = inputs(6, 4, 3)
    expected = plain(x)[0]
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = fused.float()(x.float())
    # Each step rounds numbers near 1 to 2⁻⁹ a few times.
    torch.testing.assert_close(found.double(), expected, rtol=0.05, atol=0.05)
