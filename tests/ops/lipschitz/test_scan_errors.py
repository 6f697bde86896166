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

# T = 5, B = 3, N = 4. What is changed, the type of the error, and what its message must contain: the argument with its
# value, and what is allowed.
WRONG: list[tuple[Any, ...]] = [
    ({"u": [1.0]}, TypeError, "u is a list", "torch.Tensor"),
    ({"u": zeros(5, 4)}, ValueError, "u has shape (5, 4)", "(T, B, N)"),
    ({"u": zeros(0, 3, 4)}, ValueError, "a sequence of 0 steps"),
    ({"u": zeros(5, 3, 2)}, ValueError, "u has 2 features but A is 4×4", "input_weight"),
    ({"u": zeros(5, 3, 4, dtype=torch.float32)}, TypeError, "u is torch.float32 but A is torch.float64"),
    ({"u": zeros(5, 3, 4, dtype=torch.int64)}, TypeError, "u is torch.int64 but A is torch.float64"),
    ({"u": zeros(5, 3, 4, device="meta")}, ValueError, "u is on meta but A is on cpu", "u.to('cpu')"),
    ({"A": zeros(4, 3)}, ValueError, "A has shape (4, 3)", "(3, 3)"),
    ({"A": zeros(2, 4, 4)}, ValueError, "A has shape (2, 4, 4)", "(4, 4)"),
    ({"A": torch.zeros(())}, ValueError, "A has shape ()"),
    ({"A": None}, TypeError, "A is a NoneType", "torch.Tensor"),
    ({"A": zeros(4, 4, dtype=torch.int64)}, TypeError, "A is torch.int64", "float64, float32"),
    ({"W": zeros(4, 5)}, ValueError, "W has shape (4, 5)", "(4, 4)"),
    ({"W": zeros(4, 4, dtype=torch.float32)}, TypeError, "W is torch.float32 but A is torch.float64"),
    ({"W": zeros(4, 4, device="meta")}, ValueError, "W is on meta but A is on cpu"),
    ({"hx": zeros(4, 4)}, ValueError, "hx has shape (4, 4)", "(3, 4)"),
    ({"hx": zeros(3, 4, dtype=torch.float32)}, TypeError, "hx is torch.float32 but A is torch.float64"),
    ({"hx": 0.0}, TypeError, "hx is a float", "torch.Tensor"),
    ({"input_weight": zeros(4, 2)}, ValueError, "input_weight has shape (4, 2)", "(4, 4)"),
    ({"bias": zeros(4)}, ValueError, "bias was given without input_weight"),
    ({"input_weight": zeros(4, 4), "bias": zeros(3)}, ValueError, "bias has shape (3)", "(4)"),
    ({"step_size": 0.0}, ValueError, "step_size is 0.0"),
    ({"step_size": -0.1}, ValueError, "step_size is -0.1"),
    ({"step_size": float("nan")}, ValueError, "step_size is nan"),
    ({"step_size": "small"}, TypeError, "step_size is 'small', a str"),
    ({"step_size": zeros(3, 5)}, ValueError, "step_size has shape (3, 5)", "(5, 3)"),
    ({"step_size": zeros(5, 3, dtype=torch.int64)}, TypeError, "step_size is torch.int64"),
    ({"step_size": zeros(5, 3, device="meta")}, ValueError, "step_size is on meta but A is on cpu"),
    ({"step_size": negative}, ValueError, "timespans[1, 2] is -0.5"),
    ({"step_size": not_finite}, ValueError, "timespans[0, 0] is nan"),
    ({"step_size": endless}, ValueError, "timespans[4, 1] is inf"),
    ({"alpha": float("inf")}, ValueError, "alpha is inf"),
    ({"alpha": True}, TypeError, "alpha is True, a bool"),
    ({"integrator": "rk5"}, ValueError, "integrator is 'rk5'", "euler, midpoint, heun, rk4, rk2"),
    ({"nonlinearity": "gelu"}, ValueError, "nonlinearity is 'gelu'", "tanh, relu, sigmoid, identity"),
    ({"backend": "cuda"}, ValueError, "backend is 'cuda'", "auto, reference, cpu, triton"),
    ({"lengths": [5, 5, 5]}, TypeError, "lengths is a list", "torch.Tensor"),
    ({"lengths": torch.tensor([5, 5])}, ValueError, "lengths has shape (2)", "(3,)"),
    ({"lengths": torch.tensor([5, 0, 2])}, ValueError, "lengths contains 0"),
    ({"lengths": torch.tensor([5, 6, 2])}, ValueError, "lengths contains 6"),
    ({"lengths": torch.tensor([5.0, 3.0, 2.0])}, TypeError, "lengths is torch.float32"),
    ({"recompute_every": 0}, ValueError, "recompute_every is 0"),
    ({"recompute_every": 2.5}, ValueError, "recompute_every is 2.5"),
]


@pytest.mark.parametrize("case", WRONG, ids=[case[2][:40] for case in WRONG])
def test_wrong_input(case: tuple[Any, ...], generator: torch.Generator) -> None:
    change, error, *contained = case
    arguments = random_problem(generator).arguments
    with pytest.raises(error, match=re.escape(contained[0])) as raised:
        lipschitz_scan(**(arguments | change))
    assert all(piece in str(raised.value) for piece in contained)


@pytest.mark.parametrize("name", ["A", "W", "hx", "input_weight", "bias"])
def test_an_ensemble_needs_its_axis_everywhere(name: str, generator: torch.Generator) -> None:
    problem = random_problem(generator, networks=2, inputs=True, bias=True)
    with pytest.raises(ValueError, match=rf"{name} has shape .*\(2, "):
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
