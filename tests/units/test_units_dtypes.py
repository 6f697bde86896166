"""What every unit says to a wrong dtype, and what 16-bit parameters give."""

import pytest
import torch
from torch import Tensor

import lipschitz_rnn as lr

COMPLEX = ("urnn", "full-urnn", "eurnn", "kronecker")
EVERY = lr.units.available()


def parts(state: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.complex64])
def test_an_input_of_another_dtype_is_refused_by_name(name: str, dtype: torch.dtype) -> None:
    unit = lr.units.build(name, 2, 4)
    with pytest.raises(TypeError, match=f"input is {dtype}"):
        unit(torch.ones(3, 2, 2).to(dtype))


@pytest.mark.parametrize("name", EVERY)
def test_a_state_of_another_dtype_is_refused_by_name(name: str) -> None:
    unit, x = lr.units.build(name, 2, 4), torch.randn(3, 2, 2)
    _, h_n = unit(x)
    unit(x, h_n)
    other = tuple(part.real if part.is_complex() else part.double() for part in parts(h_n))
    with pytest.raises(TypeError, match=f"hx is {other[0].dtype}"):
        unit(x, other if len(other) > 1 else other[0])


@pytest.mark.parametrize("name", [name for name in EVERY if name not in COMPLEX])
def test_a_unit_in_bfloat16_computes_what_it_does_in_float32(name: str) -> None:
    torch.manual_seed(0)
    unit, x = lr.units.build(name, 2, 8).bfloat16(), torch.randn(4, 3, 2).bfloat16()
    with torch.no_grad():
        output = unit(x)[0].float()
        reference = unit.float()(x.float())[0]
    # Four steps of a few roundings of 2⁻⁹ each, of numbers near 1.
    torch.testing.assert_close(output, reference, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("name", COMPLEX)
def test_a_complex_unit_refuses_parameters_of_16_bits(name: str) -> None:
    unit = lr.units.build(name, 2, 4, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="bfloat16"):
        unit(torch.randn(3, 2, 2).bfloat16())


def test_dtriv_moves_its_point_of_expansion_in_bfloat16() -> None:
    unit = lr.units.build("dtriv", 2, 4, rebase_every=1, dtype=torch.bfloat16).train()
    cell, x = unit.cell(), torch.randn(3, 2, 2).bfloat16()
    with torch.no_grad():
        cell.triangle.add_(0.25)
        unit(x)
        assert not cell.triangle.any()  # it moved
        W = cell.hidden_matrix().float()
    torch.testing.assert_close(W @ W.mT, torch.eye(4), rtol=0.0, atol=0.05)  # orthogonal up to the rounding of 2⁻⁸
