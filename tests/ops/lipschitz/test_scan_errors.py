"""A wrong call of the scan says what is wrong, what is allowed, and the fix, before any work."""

import re
from typing import Any

import pytest
import torch
from problems import random_problem

from lipschitz_rnn import lipschitz_scan


def zeros(*shape: int, dtype: torch.dtype = torch.float64, device: str = "cpu") -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


steps = torch.full((5, 3), 0.1, dtype=torch.float64)
negative, not_finite, endless = steps.clone(), steps.clone(), steps.clone()
negative[1, 2], not_finite[0, 0], endless[4, 1] = -0.5, torch.nan, torch.inf

# T = 5, B = 3, N = 4. What is changed, the type of the error, and what the message must say.
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"u": [1.0]}, TypeError, "u is a list; pass a torch.Tensor"),
    ({"u": zeros(5, 4)}, ValueError, "u has shape (5, 4); it must be (T, B, N), or (S, T, B, N)"),
    ({"u": zeros(0, 3, 4)}, ValueError, "a sequence of 0 steps; at least 1 is needed"),
    ({"u": zeros(5, 3, 2)}, ValueError, "u has 2 features but A is 4×4; they must agree, or pass input_weight"),
    ({"u": zeros(5, 3, 4, dtype=torch.float32)}, TypeError, "u is torch.float32 but A is torch.float64; convert one"),
    ({"u": zeros(5, 3, 4, dtype=torch.int64)}, TypeError, "u is torch.int64 but A is torch.float64; convert one"),
    ({"u": zeros(5, 3, 4, device="meta")}, ValueError, "u is on meta but A is on cpu; move one, e.g. u.to('cpu')"),
    ({"A": zeros(4, 3)}, ValueError, "A has shape (4, 3); it must be (3, 3), a square matrix"),
    ({"A": zeros(2, 4, 4)}, ValueError, "A has shape (2, 4, 4); it must be (4, 4)"),
    ({"A": torch.zeros(())}, ValueError, "A has shape (); it must be"),
    ({"A": None}, TypeError, "A is a NoneType; pass a torch.Tensor"),
    ({"A": zeros(4, 4, dtype=torch.int64)}, TypeError, "A is torch.int64; it must be one of float64, float32"),
    ({"W": zeros(4, 5)}, ValueError, "W has shape (4, 5); it must be (4, 4), the shape of A"),
    ({"W": zeros(4, 4, dtype=torch.float32)}, TypeError, "W is torch.float32 but A is torch.float64"),
    ({"W": zeros(4, 4, device="meta")}, ValueError, "W is on meta but A is on cpu"),
    ({"h0": zeros(4, 4)}, ValueError, "h0 has shape (4, 4); it must be (3, 4), batch size by hidden size"),
    ({"h0": zeros(3, 4, dtype=torch.float32)}, TypeError, "h0 is torch.float32 but A is torch.float64"),
    ({"h0": 0.0}, TypeError, "h0 is a float; pass a torch.Tensor"),
    ({"input_weight": zeros(4, 2)}, ValueError, "input_weight has shape (4, 2); it must be (4, 4)"),
    ({"bias": zeros(4)}, ValueError, "bias was given without input_weight; add it to u instead"),
    ({"input_weight": zeros(4, 4), "bias": zeros(3)}, ValueError, "bias has shape (3); it must be (4)"),
    ({"step_size": 0.0}, ValueError, "step_size is 0.0; it must be greater than 0 and finite"),
    ({"step_size": -0.1}, ValueError, "step_size is -0.1; it must be greater than 0 and finite"),
    ({"step_size": float("nan")}, ValueError, "step_size is nan; it must be greater than 0 and finite"),
    ({"step_size": "small"}, TypeError, "step_size is 'small', a str; pass a number"),
    ({"step_size": zeros(3, 5)}, ValueError, "step_size has shape (3, 5); it must be a number, or (5, 3)"),
    ({"step_size": zeros(5, 3, dtype=torch.int64)}, TypeError, "step_size is torch.int64; it must be one of"),
    ({"step_size": zeros(5, 3, device="meta")}, ValueError, "step_size is on meta but A is on cpu; move one"),
    ({"step_size": negative}, ValueError, "timespans[1, 2] is -0.5; times between samples must be finite and at least"),
    ({"step_size": not_finite}, ValueError, "timespans[0, 0] is nan; times between samples must be finite"),
    ({"step_size": endless}, ValueError, "timespans[4, 1] is inf; times between samples must be finite"),
    ({"alpha": float("inf")}, ValueError, "alpha is inf; it must be finite"),
    ({"alpha": True}, TypeError, "alpha is True, a bool; pass a number"),
    ({"integrator": "rk5"}, ValueError, "integrator is 'rk5'; choose one of euler, midpoint, heun, rk4, rk2"),
    ({"nonlinearity": "gelu"}, ValueError, "nonlinearity is 'gelu'; choose one of tanh, relu, sigmoid, identity"),
    ({"backend": "cuda"}, ValueError, "backend is 'cuda'; choose one of auto, reference, cpu, triton"),
    ({"lengths": [5, 5, 5]}, TypeError, "lengths is a list; pass a torch.Tensor"),
    ({"lengths": torch.tensor([5, 5])}, ValueError, "lengths has shape (2); it must be (3,): one number for each"),
    ({"lengths": torch.tensor([5, 0, 2])}, ValueError, "lengths contains 0; each must be between 1 and"),
    ({"lengths": torch.tensor([5, 6, 2])}, ValueError, "lengths contains 6; each must be between 1 and the number of"),
    ({"lengths": torch.tensor([5.0, 3.0, 2.0])}, TypeError, "lengths is torch.float32; it must be an integer tensor"),
    ({"recompute_every": 0}, ValueError, "recompute_every is 0; it must be a whole number of steps, at least 1"),
    ({"recompute_every": 2.5}, ValueError, "recompute_every is 2.5; it must be a whole number of steps"),
]


@pytest.mark.parametrize(("change", "error", "message"), WRONG, ids=[message[:40] for *_, message in WRONG])
def test_wrong_input(change: dict[str, Any], error: type[Exception], message: str, generator: torch.Generator) -> None:
    arguments = random_problem(generator).arguments
    with pytest.raises(error, match=re.escape(message)):
        lipschitz_scan(**(arguments | change))


@pytest.mark.parametrize("name", ["A", "W", "h0", "input_weight", "bias"])
def test_an_ensemble_needs_its_axis_everywhere(name: str, generator: torch.Generator) -> None:
    problem = random_problem(generator, networks=2, inputs=True, bias=True)
    with pytest.raises(ValueError, match=rf"{name} has shape .*; it must be \(2, "):
        lipschitz_scan(**(problem.arguments | {name: problem.tensors[name][0]}))


def test_a_backend_asked_for_by_name_runs_or_raises(generator: torch.Generator) -> None:
    problem = random_problem(generator)
    with pytest.raises(ValueError, match=r"'cpu'.*forward-mode.*backend='auto'"):
        torch.func.jvp(
            lambda u: lipschitz_scan(**(problem.arguments | {"u": u}), backend="cpu")[1], (problem.u,), (problem.u,)
        )
    meta = {name: tensor.to("meta") for name, tensor in problem.tensors.items()}
    with pytest.raises(ValueError, match=r"'cpu'.*meta"):
        lipschitz_scan(**(problem.arguments | meta), backend="cpu")
    states, last = lipschitz_scan(**(problem.arguments | meta))
    assert states.shape == (5, 3, 4)
    assert last.is_meta


def test_triton_by_name_without_a_gpu(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    arguments = random_problem(generator, dtype=torch.float32).arguments
    with pytest.raises(ValueError, match=r"'triton'.*backend='auto' or 'reference'"):
        lipschitz_scan(**arguments, backend="triton")
