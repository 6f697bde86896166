"""GRU-D: missing values, masks and times against the NumPy recurrence, and what the option `mean` and gradients do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy_recurrences import arrays_of, gru_d
from torch import Tensor, nn

from lipschitz_rnn import units
from lipschitz_rnn.training import SequenceModel


@pytest.fixture
def holes(inputs: Callable[..., Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """x (T, B, D), where values are missing, and timespans; a whole row is missing, and one value is never seen."""
    x, generator = inputs(9, 2, 3), torch.Generator().manual_seed(8)
    missing = torch.rand(9, 2, 3, generator=generator) < 0.4
    missing[4], missing[:, 1, 2], missing[0, 0, 0] = True, True, True
    return x, missing, 3.0 * torch.rand(9, 2, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("masked", [False, True])
def test_missing_values_and_times_as_in_the_paper(
    masked: bool, build_unit: Callable, holes: tuple[Tensor, Tensor, Tensor]
) -> None:
    x, missing, times = holes
    options = {"masked": masked, "mean": [0.3, -0.2, 1.0]}
    unit = build_unit("gru-d", 6 if masked else 3, 5, **options)
    seen = torch.cat((x, (~missing).double()), -1) if masked else x.masked_fill(missing, torch.nan)
    output, _ = unit(seen, timespans=times)
    for b in range(2):
        expected = gru_d(arrays_of(unit), options, seen[:, b].numpy(), times[:, b].numpy())
        np.testing.assert_allclose(output[:, b].detach().numpy(), expected, rtol=1e-11, atol=1e-12)


def test_masks_and_nan_are_two_ways_to_say_the_same(build_unit: Callable, holes: tuple[Tensor, Tensor, Tensor]) -> None:
    x, missing, times = holes
    by_nan, by_mask = build_unit("gru-d", 3, 5), build_unit("gru-d", 6, 5, masked=True)
    by_mask.load_state_dict(by_nan.state_dict())
    given = torch.cat((x.masked_fill(missing, torch.inf), (~missing).double()), -1)
    expected = by_nan(x.masked_fill(missing, torch.nan), timespans=times)
    torch.testing.assert_close(by_mask(given, timespans=times), expected)


def test_a_hole_gives_finite_gradients_and_passes_none_to_itself(
    build_unit: Callable, holes: tuple[Tensor, Tensor, Tensor]
) -> None:
    x, missing, times = holes
    unit = build_unit("gru-d", 3, 5, num_layers=2, bidirectional=True)
    given = x.masked_fill(missing, torch.nan).requires_grad_()
    times = times.requires_grad_()
    unit(given, timespans=times)[0].square().sum().backward()
    assert given.grad is not None
    assert (given.grad[missing] == 0).all()
    assert (given.grad[~missing] != 0).all()
    assert all(p.grad is not None and p.grad.isfinite().all() and (p.grad != 0).any() for p in unit.parameters())
    assert times.grad is not None
    assert times.grad.isfinite().all()


def test_a_long_silence_forgets_the_state_and_the_value(build_unit: Callable) -> None:
    """After endless time, a missing value is its mean and the state zero: the step is that of a new series."""
    unit = build_unit("gru-d", 2, 5, scale=0.0, mean=[0.5, -1.0])
    x = torch.tensor([[0.1, 2.0], [-0.4, torch.nan]], dtype=torch.float64)
    later, _ = unit(x, timespans=torch.tensor([1.0, 1e6], dtype=torch.float64))
    fresh, _ = unit(x[1:], timespans=torch.tensor([1e6], dtype=torch.float64))
    torch.testing.assert_close(later[1], fresh[0], rtol=1e-9, atol=1e-9)


def test_a_padded_batch_of_a_model_may_have_holes(holes: tuple[Tensor, Tensor, Tensor]) -> None:
    x, missing, times = holes
    model = SequenceModel(units.build("gru-d", 3, 5), nn.Linear(5, 2), "last").double()
    given, lengths = x.masked_fill(missing, torch.nan), torch.tensor([6, 9])
    outputs, _ = model(given, lengths, timespans=times)
    alone, _ = model(given[:6, :1], timespans=times[:6, :1])
    torch.testing.assert_close(outputs[:1], alone)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"masked": True}, "input_size is 3"),
        ({"mean": [0.0, 1.0]}, r"mean is \[0.0, 1.0\]"),
        ({"mean": float("nan")}, "mean is nan"),
        ({"step_size": -1.0}, "step_size is -1.0"),
    ],
)
def test_what_the_constructor_refuses(options: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        units.build("gru-d", 3, 4, **options)
