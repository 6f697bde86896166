"""What the parallel scan refuses, and what it says then: wrong settings, wrong metrics, second derivatives."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from parallel_cases import plain_case
from torch import Tensor

from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops import Contraction, Parallel, ScanBound

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"tolerance": 0.0}, ValueError, "tolerance is 0.0"),
    ({"tolerance": -1.0}, ValueError, "tolerance is -1.0"),
    ({"parallel": 121}, ValueError, "parallel is 121 chunks, but the sequence has 120 steps"),
    ({"parallel": 0}, ValueError, "parallel is 0"),
    ({"parallel": "often"}, ValueError, "parallel is 'often'"),
    ({"parallel": 2.5}, TypeError, "parallel is 2.5"),
    ({"parallel": True}, TypeError, "parallel is True"),
    ({"contraction": None}, ValueError, "known to contract"),
    ({"contraction": 0.9}, TypeError, "contraction is a float"),
    ({"bound": {}}, TypeError, "bound is a dict"),
    ({"step_size": 0.2}, ValueError, "proved for steps of 0 to 0.1, but these are 0.2"),
    ({"parallel": None}, ValueError, "without parallel"),
    ({"contraction": Contraction(0.9, torch.ones(5), 0.1)}, ValueError, "the state has 6 units"),
    ({"contraction": Contraction(0.9, torch.zeros(6), 0.1)}, ValueError, "zero in some direction"),
    ({"contraction": Contraction(0.9, torch.eye(6).tril(-1), 0.1)}, ValueError, "zero in some direction"),
    ({"contraction": Contraction(0.9, torch.ones(6, 6), 0.1)}, ValueError, "zero in some direction"),
    ({"contraction": Contraction(0.9, torch.eye(1, 6), 0.1)}, ValueError, "zero in some direction"),
    ({"contraction": Contraction(0.9, 1e-200 * torch.ones(6).double(), 0.1)}, ValueError, "range of float64"),
    ({"contraction": Contraction(0.9, 1e200 * torch.eye(6).double(), 0.1)}, ValueError, "range of float64"),
]


@pytest.mark.parametrize(("changes", "error", "message"), WRONG, ids=[message[:25] for _, _, message in WRONG])
def test_wrong_use(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    case = plain_case()
    options = {"parallel": 4, "contraction": case.contraction} | changes
    with pytest.raises(error, match=re.escape(message)):
        case.run(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factor": 1.5}, "factor is 1.5"),
        ({"longest": 0.0}, "no range"),
        ({"shortest": 0.5}, "no range"),
    ],
)
def test_wrong_contraction(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Contraction(**{"factor": 0.9, "root": torch.ones(3), "longest": 0.1} | options)


def test_a_factor_that_is_no_number() -> None:
    with pytest.raises(TypeError, match=r"factor is '0\.9'"):
        Contraction("0.9", torch.ones(3), 0.1)  # type: ignore[arg-type]


def test_wrong_settings() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        Parallel(4, passes=1)
    with pytest.raises(ValueError, match="warm_up is 0"):
        Parallel(4, warm_up=0)


def test_a_metric_that_may_mean_two_things_is_refused() -> None:
    u, A = torch.randn(3, 20, 1, 3), -torch.eye(3).expand(3, 3, 3)
    for root, message in ((torch.eye(3), "two things"), (torch.ones(2, 3, 3), "for each of 3 network")):
        with pytest.raises(ValueError, match=message):
            lipschitz_scan(u, A, A, step_size=0.1, parallel=2, contraction=Contraction(0.9, root, 0.1))


def test_a_network_without_contraction_is_refused() -> None:
    u, A = torch.randn(20, 2, 3), torch.zeros(3, 3)
    with pytest.raises(ValueError, match="attach a certificate"):
        lipschitz_scan(u, A, A, parallel="auto")


@pytest.mark.parametrize("power", [1, 2], ids=["constant gradient", "gradient of the states"])
def test_second_derivatives_are_refused(power: int) -> None:
    """Also of a sum, whose gradient is a constant: they would lack what goes through the scan."""
    case = plain_case(T=40)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in case.tensors.items()}
    states, _ = case.run(leaves, parallel=4, contraction=case.contraction)
    (gradient,) = torch.autograd.grad(states.pow(power).sum(), leaves["A"], create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        gradient.sum().backward()


@pytest.mark.parametrize("by", ["A", "u", "the gradient"])
def test_second_derivatives_are_refused_beside_others(by: str) -> None:
    """Where the same tensor is used elsewhere too, torch.autograd.grad finds a way to it that avoids the scan."""
    case = plain_case(T=40)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in case.tensors.items()}
    states, _ = case.run(leaves, parallel=4, contraction=case.contraction)
    assert states is not None
    given = torch.ones_like(states, requires_grad=True)
    (gradient,) = torch.autograd.grad(states, leaves["A"], given, create_graph=True)
    asked = given if by == "the gradient" else leaves[by]
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(gradient.sum() + asked.pow(3).sum(), asked)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(gradient.sum(), asked, allow_unused=True)


def test_function_transforms_run_as_ever() -> None:
    case = plain_case(T=40)
    bound = ScanBound()
    tensors = dict(case.tensors)
    u, A, W = (tensors.pop(name) for name in ("u", "A", "W"))

    def last(u: Tensor) -> Tensor:
        more = {"parallel": 4, "contraction": case.contraction, "bound": bound}
        return lipschitz_scan(u, A, W, **tensors, **case.options, **more)[1].sum()

    assert torch.func.grad(last)(u).shape == u.shape
    assert "torch.func" in bound.sequential
