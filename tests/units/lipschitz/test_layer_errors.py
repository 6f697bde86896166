"""A wrong layer or a wrong call of it says what is wrong, what is allowed, and the fix."""

import re
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import lipschitz_rnn as lr

CONSTRUCTION: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"input_size": 0}, ValueError, "input_size is 0; it must be at least 1"),
    ({"input_size": 3.0}, TypeError, "input_size is 3.0; it must be a whole number"),
    ({"hidden_size": -5}, ValueError, "hidden_size is -5; it must be at least 1"),
    ({"hidden_size": "5"}, TypeError, "hidden_size is '5'; it must be a whole number"),
    ({"num_layers": 0}, ValueError, "num_layers is 0; it must be at least 1"),
    ({"dropout": 1.5}, ValueError, "dropout is 1.5; it must be in [0, 1]"),
    ({"beta": 1.1}, ValueError, "beta is 1.1; it must be in [0, 1]"),
    ({"beta": (0.5, -0.1)}, ValueError, "beta is -0.1; it must be in [0, 1]"),
    ({"beta": (0.5, 0.6, 0.7)}, ValueError, "beta is (0.5, 0.6, 0.7)"),
    ({"gamma": -0.001}, ValueError, "gamma is -0.001; it must be at least 0 and finite"),
    ({"gamma": (0.0, float("nan"))}, ValueError, "gamma is nan; it must be at least 0 and finite"),
    ({"step_size": 0}, ValueError, "step_size is 0; it must be greater than 0 and finite"),
    ({"step_size": -0.03}, ValueError, "step_size is -0.03; it must be greater than 0 and finite"),
    ({"step_size": None}, TypeError, "step_size is None, a NoneType; pass a number"),
    ({"alpha": float("nan")}, ValueError, "alpha is nan; it must be finite"),
    ({"init_scale": -1.0}, ValueError, "init_scale is -1.0; it must be at least 0 and finite"),
    ({"integrator": "rk5"}, ValueError, "integrator is 'rk5'; choose one of euler, midpoint, heun, rk4, rk2"),
    ({"nonlinearity": "selu"}, ValueError, "nonlinearity is 'selu'; choose one of tanh, relu, sigmoid, identity"),
    ({"backend": "cudnn"}, ValueError, "backend is 'cudnn'; choose one of auto, reference, cpu, triton"),
    ({"recompute_every": 0}, ValueError, "recompute_every is 0; it must be at least 1"),
    ({"dtype": torch.complex64}, TypeError, "dtype is torch.complex64"),
    ({"dtype": torch.int64}, TypeError, "dtype is torch.int64"),
]


@pytest.mark.parametrize(("change", "error", "message"), CONSTRUCTION, ids=[case[-1][:40] for case in CONSTRUCTION])
def test_wrong_layer(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        lr.LipschitzRNN(**({"input_size": 3, "hidden_size": 5} | change))


def zeros(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


spans = torch.full((7, 2), 0.1)
negative, not_finite = spans.clone(), spans.clone()
negative[3, 1], not_finite[6, 0] = -1.0, torch.inf
X = zeros(7, 2, 3)

CALLS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"input": [1.0]}, TypeError, "input is a list; pass a torch.Tensor"),
    ({"input": X.to_sparse()}, TypeError, r"input has the layout torch.sparse_coo; pass a dense tensor"),
    ({"input": torch.nested.nested_tensor([X[0], X[0]], layout=torch.jagged)}, TypeError, "input is a nested tensor"),
    ({"input": zeros(3)}, ValueError, "input has shape (3), 1 axes; it must be (T, B, p) or (T, p)"),
    ({"input": zeros(1, 7, 2, 3)}, ValueError, "input has shape (1, 7, 2, 3), 4 axes; it must be (T, B, p)"),
    ({"input": zeros(7, 2, 4)}, ValueError, "input has 4 features (shape (7, 2, 4)) but input_size is 3"),
    ({"input": zeros(0, 2, 3)}, ValueError, "input has shape (0, 2, 3), a sequence of 0 steps"),
    ({"input": zeros(7, 2, 3, dtype=torch.float64)}, TypeError, "input is torch.float64 but the parameters are"),
    ({"input": zeros(7, 2, 3, dtype=torch.int64)}, TypeError, "input is torch.int64; it must be floating point"),
    ({"input": zeros(7, 2, 3, device="meta")}, ValueError, "input is on meta but the parameters are on cpu"),
    ({"input": X, "hx": zeros(2, 5)}, ValueError, "hx has shape (2, 5); it must be (1, 2, 5): layers × directions"),
    ({"input": X, "hx": zeros(2, 2, 5)}, ValueError, "hx has shape (2, 2, 5); it must be (1, 2, 5)"),
    (
        {"input": X[:, 0], "hx": zeros(1, 1, 5)},
        ValueError,
        "it must be (1, 5): layers × directions, hidden size, since",
    ),
    (
        {"input": X, "hx": zeros(1, 2, 5, dtype=torch.float64)},
        TypeError,
        "hx is torch.float64 but the parameters are",
    ),
    ({"input": X, "hx": zeros(1, 2, 5, device="meta")}, ValueError, "hx is on meta but the parameters are on cpu"),
    ({"input": X, "hx": (zeros(1, 2, 5), zeros(1, 2, 5))}, TypeError, "hx is a tuple, like the (h_0, c_0)"),
    ({"input": X, "timespans": zeros(2, 7)}, ValueError, "timespans has shape (2, 7); it must have shape (7, 2)"),
    ({"input": X, "timespans": zeros(7)}, ValueError, "timespans has shape (7); it must have shape (7, 2)"),
    ({"input": X[:, 0], "timespans": spans}, ValueError, "timespans has shape (7, 2); it must have shape (7,)"),
    ({"input": X, "timespans": 0.1}, TypeError, "timespans is a float; pass a torch.Tensor"),
    ({"input": X, "timespans": spans.long()}, TypeError, "timespans is torch.int64; it must be one of float64"),
    ({"input": X, "timespans": zeros(7, 2, device="meta")}, ValueError, "timespans is on meta but input is on cpu"),
    ({"input": X, "timespans": negative}, ValueError, "timespans[3, 1] is -1.0; times between samples must be finite"),
    ({"input": X, "timespans": not_finite}, ValueError, "timespans[6, 0] is inf; times between samples must be finite"),
    ({"input": X, "lengths": torch.tensor([7, 0])}, ValueError, "lengths contains 0; each must be between 1 and"),
    ({"input": X, "lengths": torch.tensor([8, 7])}, ValueError, "lengths contains 8; each must be between 1 and"),
    ({"input": X, "lengths": torch.tensor([7])}, ValueError, "lengths has shape (1); it must be (2,)"),
    ({"input": X, "lengths": torch.tensor([7.0, 7.0])}, TypeError, "lengths is torch.float32; it must be an integer"),
    ({"input": X, "lengths": [7, 7]}, TypeError, "lengths is a list; pass a torch.Tensor"),
    ({"input": X[:, 0], "lengths": torch.tensor([7])}, ValueError, "lengths was given with an unbatched input"),
    (
        {"input": pack_sequence([zeros(3, 3), zeros(2, 3)]), "lengths": torch.tensor([3, 2])},
        ValueError,
        "lengths was given with a PackedSequence",
    ),
    ({"input": pack_sequence([zeros(3, 4)])}, ValueError, "input has 4 features (shape (3, 4)) but input_size is 3"),
    (
        {"input": pack_sequence([zeros(3, 3), zeros(2, 3)]), "timespans": zeros(2, 2)},
        ValueError,
        "timespans has shape (2, 2); it must have shape (3, 2)",
    ),
]


@pytest.mark.parametrize(("arguments", "error", "message"), CALLS, ids=[case[-1][:45] for case in CALLS])
def test_wrong_call(
    arguments: dict[str, Any], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raised before any work: no backend is reached."""
    rnn = lr.LipschitzRNN(3, 5)
    monkeypatch.setattr("lipschitz_rnn.ops.lipschitz.scan.run", lambda *_: pytest.fail("the scan ran on wrong input"))
    with pytest.raises(error, match=re.escape(message)):
        rnn(**arguments)


def test_which_axis_batch_first_means() -> None:
    rnn = lr.LipschitzRNN(3, 5, batch_first=True)
    with pytest.raises(ValueError, match=re.escape("it must have shape (2, 7)")):
        rnn(X.transpose(0, 1), timespans=spans)
    with pytest.raises(ValueError, match=re.escape("it must be (B, T, p) or (T, p) with batch_first=True")):
        rnn(zeros(3))


def test_layers_that_are_not_there() -> None:
    rnn = lr.LipschitzRNN(3, 5, num_layers=2)
    for arguments in ((2,), (-1,), (0, 1)):
        with pytest.raises(IndexError, match=re.escape("2 layer(s) and 1 direction(s)")):
            rnn.hidden_matrices(*arguments)


def test_a_missing_attribute_of_the_package() -> None:
    with pytest.raises(AttributeError, match="module 'lipschitz_rnn' has no attribute 'LSTM'"):
        lr.LSTM  # noqa: B018


def test_nan_passes_through_as_in_pytorch() -> None:
    x = torch.zeros(7, 2, 3)
    x[4, 0, 1] = torch.nan
    for rnn in (lr.LipschitzRNN(3, 5), nn.RNN(3, 5)):
        output, h_n = rnn(x)
        assert output[4:, 0].isnan().all()
        assert output[:4].isfinite().all()
        assert output[:, 1].isfinite().all()
        assert h_n[0, 0].isnan().all()


def test_need_output_has_its_own_message() -> None:
    with pytest.raises(TypeError, match="need_output is None; it must be True or False"):
        lr.LipschitzRNN(3, 5)(torch.zeros(4, 2, 3), need_output=None)  # type: ignore[arg-type]


def test_times_packed_otherwise_than_the_input() -> None:
    def pack(*lengths: int, features: tuple[int, ...] = ()) -> PackedSequence:
        return pack_sequence([torch.ones(length, *features) for length in lengths], enforce_sorted=False)

    rnn, x = lr.LipschitzRNN(3, 5), pack(4, 7, 1, features=(3,))
    rnn(x, timespans=0.01 * torch.ones(7, 3))
    with pytest.raises(ValueError, match="timespans has 7 steps for sample 0 but the input has 4"):
        rnn(x, timespans=pack(7, 4, 1))
    with pytest.raises(ValueError, match="timespans has 2 steps for sample 2 but the input has 1"):
        rnn(x, timespans=pack(4, 7, 2))
    with pytest.raises(ValueError, match="timespans has 2 packed sequences but the input has 3"):
        rnn(x, timespans=pack(4, 7))


def test_what_is_no_plain_tensor() -> None:
    rnn, x = lr.LipschitzRNN(3, 4), torch.randn(5, 2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the interface of nested tensors may change
        nested = torch.nested.nested_tensor([torch.randn(3, 3), torch.randn(2, 3)])
    with pytest.raises(TypeError, match="input is a nested tensor; pass a dense one"):
        rnn(nested)
    with pytest.raises(TypeError, match=r"hx is a int; pass a torch\.Tensor"):
        rnn(x, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that complex modules are new
        rnn.to(torch.complex64)
    with pytest.raises(TypeError, match=r"parameters are torch.complex64; they must be real"):
        rnn(x.to(torch.complex64))
