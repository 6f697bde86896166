"""Values against NumPy recurrences written from the papers, gradients against finite differences."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy_recurrences import RECURRENCES, arrays_of
from torch import Tensor

from lipschitz_rnn import units

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in units.available()),
    ("momentum-lstm", {"momentum": 0.3, "step_size": 1.2}),
    ("srlstm", {"restart": 2, "step_size": 0.5}),
    ("eurnn", {"capacity": 5}),
    ("eurnn", {"fft": True}),
    ("kronecker", {"factors": (4, 2)}),
    ("scornn", {"negative_ones": 0.25, "init": "henaff"}),
    ("nnrnn", {"learn_modulus": True}),
    ("spectral-rnn", {"reflectors": 6, "margin": 0.2}),
    ("soft-orth", {"margin": 0.4}),
    ("antisymmetric", {"gamma": 0.3, "step_size": 0.5}),
    ("nais", {"kappa": 0.1, "step_size": 0.4}),
    ("irnn", {"inner_steps": 3, "rank": 2}),
    ("irnn", {"inner_steps": 2, "warm_start": True, "alpha": 0.4, "step_size": 0.3}),
    ("fastgrnn", {"hidden_rank": 3, "input_rank": 2}),
    ("fastgrnn", {"hidden_rank": None}),
    ("cornn", {"step_size": 0.2, "gamma": 1.1, "epsilon": 0.7}),
    ("lem", {"step_size": 0.6}),
    ("lru", {"step_size": 0.4}),
    ("ren", {"depth": 3, "factor": 0.9, "neurons": 7}),
    ("irnn", {"backend": "reference"}),
    ("irnn", {"backend": "reference", "warm_start": True, "alpha": 0.4, "step_size": 0.3}),
    ("soft-orth", {"backend": "reference"}),
    ("spectral-rnn", {"backend": "reference", "margin": 0.2}),
    ("fastrnn", {"backend": "reference"}),
    ("momentum-lstm", {"fused": True}),
    ("lipschitz-gated", {"alpha": 0.5, "step_size": 0.4}),
]


def label(value: object) -> str:
    return value if isinstance(value, str) else "-".join(f"{k}={v}" for k, v in value.items()) or "default"


def test_every_unit_has_a_recurrence() -> None:
    assert set(RECURRENCES) == set(units.available())


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=label)
@pytest.mark.parametrize("scale", [0.0, 0.5], ids=["at-start", "moved"])
def test_values_agree_with_numpy(
    name: str, options: dict[str, Any], scale: float, build_unit: Callable, inputs: Callable[..., Tensor]
) -> None:
    unit = build_unit(name, 3, 8, scale=scale, **options)
    x = inputs(9, 2, 3)
    with torch.no_grad():
        output, _ = unit(x)
    expected = np.stack([RECURRENCES[name](arrays_of(unit), options, x[:, b].numpy()) for b in range(2)], 1)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(output.numpy(), expected, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize(("name", "options"), [(n, o) for n, o in VARIANTS if n != "dtriv"], ids=label)
def test_gradients_agree_with_finite_differences(
    name: str, options: dict[str, Any], build_unit: Callable, inputs: Callable[..., Tensor]
) -> None:
    sizes = {"hidden_size": 8} if options.get("factors") or name == "eurnn" else {"hidden_size": 4}
    unit = build_unit(name, 2, **sizes, **{k: v for k, v in options.items() if k != "reflectors"}).eval()
    names = [name for name, _ in unit.named_parameters()]
    x = inputs(3, 2, 2).requires_grad_()

    def run(x: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        output, h_n = torch.func.functional_call(unit, dict(zip(names, values, strict=True)), (x,))
        states = h_n if isinstance(h_n, tuple) else (h_n,)
        return (output, *(torch.view_as_real(s) if s.is_complex() else s for s in states))

    values = [parameter.detach().clone().requires_grad_() for parameter in unit.parameters()]
    assert torch.autograd.gradcheck(run, (x, *values), eps=1e-6, atol=1e-6, rtol=1e-4)


def test_dtriv_gradients(build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    """dtriv at a base other than the identity; its step is exprnn's."""
    unit = build_unit("dtriv", 2, 4)
    unit.cell().rebase()
    x = inputs(3, 2, 2).requires_grad_()
    triangle = 0.1 * inputs(6)

    def run(x: Tensor, triangle: Tensor) -> Tensor:
        return torch.func.functional_call(unit.eval(), {"cells.0.triangle": triangle}, (x,))[0]

    assert torch.autograd.gradcheck(run, (x, triangle.requires_grad_()))


def test_equations_are_unlike_each_other(build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    """The recurrences can tell units apart: one unit's numbers do not pass for another's."""
    x = inputs(9, 1, 3)
    unit = build_unit("exprnn", 3, 8)
    wrong = RECURRENCES["scornn"](arrays_of(unit), {}, x[:, 0].numpy())
    assert np.abs(unit(x)[0][:, 0].detach().numpy() - wrong).max() > 1e-2
