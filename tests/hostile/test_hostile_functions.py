"""Whatever the arguments of the public functions are: a result, or a documented exception that says what is wrong."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hostile_values import anything, campaign, is_documented, limits, mostly, tensors
from hypothesis import given
from hypothesis import strategies as st

import lipschitz_rnn as lr

F = st.floats(allow_nan=True, allow_infinity=True)
LAYER = {
    "input_size": mostly(1, 2, 3),
    "hidden_size": mostly(1, 2, 5),
    "num_layers": mostly(1, 2),
    "bias": mostly(True, False),
    "batch_first": mostly(True, False),
    "dropout": mostly(0.0, 0.1),
    "bidirectional": mostly(True, False),
    "beta": mostly(0.75, (0.5, 0.6)),
    "gamma": mostly(0.001, (0.1, 0.2)),
    "step_size": mostly(0.03, 0.5),
    "alpha": mostly(1.0, 0.0, -2.0),
    "integrator": mostly("euler", "midpoint", "rk4"),
    "nonlinearity": mostly("tanh", "relu"),
    "init_scale": mostly(0.1, 0.0),
    "stability": mostly(None, "contracting"),
    "rate": mostly(None, 0.01),
    "max_step": mostly(None, 0.02),
    "backend": mostly("auto", "cpu", "reference"),
    "recompute_every": mostly(None, 2),
    "device": mostly(None, "cpu"),
    "dtype": mostly(None, torch.float32, torch.float64),
}
SCAN = {
    "hx": st.one_of(st.none(), tensors()),
    "step_size": mostly(0.03, 1.0),
    "alpha": mostly(1.0),
    "integrator": mostly("euler", "heun"),
    "nonlinearity": mostly("tanh", "sigmoid"),
    "lengths": st.one_of(st.none(), st.none(), tensors()),
    "backend": mostly("auto", "cpu", "reference", "triton"),
    "input_weight": st.one_of(st.none(), st.none(), tensors()),
    "bias": st.one_of(st.none(), st.none(), tensors()),
    "need_output": mostly(True, False),
    "recompute_every": mostly(None, 1, 2),
    "max_step": mostly(None, 0.01),
}


def some(draw: st.DrawFn, choices: dict[str, st.SearchStrategy[Any]], most: int) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(sorted(choices)), max_size=most, unique=True))
    return {name: draw(choices[name]) for name in names}


def construct(draw: st.DrawFn) -> None:
    kind = draw(st.sampled_from((lr.LipschitzRNN, lr.LipschitzRNNCell)))
    options = {"input_size": 2, "hidden_size": 3} | some(draw, LAYER, 4)
    if kind is lr.LipschitzRNNCell:
        outside = ("num_layers", "batch_first", "dropout", "bidirectional", "backend", "recompute_every")
        options = {name: value for name, value in options.items() if name not in outside}
    kind(**options)


def change_settings(draw: st.DrawFn) -> None:
    rnn = lr.LipschitzRNN(2, 3, num_layers=2, stability=draw(st.sampled_from((None, "contracting"))))
    name = draw(st.sampled_from(("step_size", "alpha", "integrator", "nonlinearity", "backend", "dropout", "max_step")))
    target = rnn if name in ("backend", "dropout") else draw(st.sampled_from((rnn, rnn.cell(1))))
    value = draw(LAYER[name])
    try:
        setattr(target, name, value)
    except AttributeError as error:  # a contracting layer's settings are part of its proof
        if "contract" not in str(error):
            raise
    rnn(torch.ones(3, 2, 2))


def call_layer(draw: st.DrawFn) -> None:
    rnn = lr.LipschitzRNN(2, 3, draw(st.integers(1, 2)), batch_first=draw(st.booleans()))
    x = draw(st.one_of(st.just(torch.ones(4, 4, 2)), tensors(), anything()))
    options = {
        "hx": st.one_of(st.none(), tensors(), anything()),
        "timespans": st.one_of(st.just(torch.full((4, 4), 0.1)), tensors(), anything()),
        "lengths": st.one_of(st.just(torch.tensor([1, 2, 3, 4])), tensors(), anything()),
        "need_output": mostly(True, False),
    }
    rnn(x, **some(draw, options, 3))


def call_cell(draw: st.DrawFn) -> None:
    cell = lr.LipschitzRNNCell(2, 3, stability=draw(st.sampled_from((None, "contracting"))))
    x = draw(st.one_of(st.just(torch.ones(4, 2)), tensors(), anything()))
    cell(
        x, **some(draw, {"hx": st.one_of(tensors(), anything()), "timespans": mostly(0.01), "matrices": anything()}, 2)
    )


def stream(draw: st.DrawFn) -> None:
    samples = lr.LipschitzRNN(2, 3).stream(draw(mostly(None, 2)))
    if draw(st.booleans()):
        samples.state = draw(st.one_of(tensors(), anything()))
    samples(draw(st.one_of(st.just(torch.ones(2)), tensors(), anything())), timespans=draw(mostly(None, 0.1)))


def scan(draw: st.DrawFn) -> None:
    u = draw(st.one_of(st.just(torch.ones(4, 2, 3)), tensors(), anything()))
    A, W = (draw(st.one_of(st.just(0.1 * torch.eye(3)), tensors(), anything())) for _ in "AW")
    lr.lipschitz_scan(u, A, W, **some(draw, SCAN, 4))


def skew(draw: st.DrawFn) -> None:
    kind = lr.SymmetricSkew(draw(mostly(0.0, 0.5, 1.0)), draw(mostly(0.0, 0.1)))
    M = draw(st.one_of(st.just(torch.eye(3)), tensors(), anything()))
    draw(st.sampled_from((kind.forward, kind.right_inverse, kind.spectrum_bounds, kind.contains)))(M)


def unit(draw: st.DrawFn) -> None:
    name = draw(mostly(*lr.units.available()))
    options = some(draw, {name: strategy for name, strategy in LAYER.items() if name not in ("input_size",)}, 2)
    module = lr.units.build(name, draw(mostly(2)), options.pop("hidden_size", 4), **options)
    module(draw(st.one_of(st.just(torch.ones(3, 2, 2)), tensors(), anything())))


def certify(draw: st.DrawFn) -> None:
    matrix = st.one_of(st.just(-torch.eye(3)), tensors(), anything())
    target = draw(
        st.one_of(
            st.just((-torch.eye(2), torch.zeros(2, 2))),
            st.tuples(matrix, matrix),
            st.builds(lambda: lr.LipschitzRNN(2, 3, gamma=(2.0, 0.001))),
            st.builds(lambda: torch.nn.LSTM(2, 3)),
            anything(),
        )
    )
    options = {
        "step_size": mostly(0.1, (0.0, 0.1)),
        "integrator": mostly("euler", "rk4"),
        "alpha": mostly(1.0),
        "nonlinearity": mostly("tanh", (0.0, 1.0)),
        "continuous": mostly(None, True, False),
        "rate": mostly(None, 0.01),
        "solver": mostly("auto", "structured", "clarabel"),
        "accuracy": mostly(0.01, 0.1),
        "precision": mostly(None, "float32", "bfloat16"),
    }
    lr.stability.certify(target, time_limit=2.0, **some(draw, options, 3))


def theory(draw: st.DrawFn) -> None:
    matrix = st.one_of(st.just(-torch.eye(3)), tensors(), anything())
    stability = lr.stability
    name = draw(st.sampled_from(("theorem1", "spectrum", "log_norm", "symmetric_part", "largest_contracting_step")))
    arguments = [draw(matrix)] if name in ("spectrum", "log_norm", "symmetric_part") else [draw(matrix), draw(matrix)]
    getattr(stability, name)(*arguments)


def noise(draw: st.DrawFn) -> None:
    function = draw(st.sampled_from((lr.robustness.white_noise, lr.robustness.salt_and_pepper)))
    generator = draw(st.one_of(st.builds(torch.Generator), st.builds(torch.Generator), anything()))
    options = some(draw, {"bounds": mostly((0.0, 1.0)), "clip": mostly(True), "batch_first": mostly(True)}, 1)
    wrong = "batch_first" if function is lr.robustness.white_noise else "clip"
    options.pop(wrong, None)
    inputs = draw(st.one_of(st.just(torch.rand(4, 2, 1)), tensors(), anything()))
    function(inputs, draw(mostly(0.1, 0.0)), generator, **options)


def attack(draw: st.DrawFn) -> None:
    pytest.importorskip("foolbox")
    model = torch.nn.Sequential(torch.nn.Flatten(0, 1), torch.nn.Linear(2, 3)) if draw(st.booleans()) else _Reader()
    inputs = draw(st.one_of(st.just(torch.rand(3, 4, 2)), tensors(), anything()))
    targets = draw(st.one_of(st.just(torch.tensor([0, 1, 2, 0])), tensors(), anything()))
    options = {
        "steps": mostly(1, 2),
        "step_size": mostly(0.01),
        "radius": mostly(None, 0.1),
        "bounds": mostly((0.0, 1.0), None),
        "lengths": anything(),
        "batch_size": mostly(2, 500),
    }
    lr.robustness.pgd(model, inputs, targets, **some(draw, options, 2))


class _Reader(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = lr.LipschitzRNN(2, 3), torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[1][-1])


def load_task(draw: st.DrawFn) -> None:
    name = draw(mostly("adding", "copying", "pendulum", "digits"))
    options = {"root": mostly(None), "length": mostly(10, 20), "seed": mostly(0), "augment": mostly(False)}
    lr.tasks.load(name, offline=True, **some(draw, options, 2))


def run_settings(draw: st.DrawFn) -> None:
    names = sorted(lr.training.Settings.__dataclass_fields__)
    chosen = draw(st.lists(st.sampled_from(names), max_size=3, unique=True))
    lr.training.Settings(**({"task": "digits"} | {name: draw(anything()) for name in chosen}))


def pretrained(draw: st.DrawFn) -> None:
    options = some(draw, {**LAYER, "nonsense": anything()}, 2)
    lr.LipschitzRNN.from_pretrained(draw(mostly("ordered-mnist-64", "permuted-mnist-64")), **options)


TARGETS: tuple[Callable[[st.DrawFn], None], ...] = (
    construct, change_settings, call_layer, call_cell, stream, scan, skew, unit, certify, theory, noise, attack,
    load_task, run_settings, pretrained,
)  # fmt: skip


def check(draw: st.DrawFn, target: Callable[[st.DrawFn], None]) -> None:
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    with warnings.catch_warnings(), limits():
        warnings.simplefilter("ignore")
        try:
            target(draw)
        except Exception as error:
            if type(error).__module__.startswith("hypothesis") or not is_documented(error, OSError, ImportError):
                raise
    assert (torch.get_float32_matmul_precision(), torch.get_num_threads()) == (precision, threads)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__)
@campaign(9)
@given(data=st.data())
def test_a_sample_of_hostile_calls(target: Callable[[st.DrawFn], None], data: st.DataObject) -> None:
    check(data.draw, target)


@pytest.mark.full
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__)
@campaign(100)
@given(data=st.data())
def test_hostile_calls(target: Callable[[st.DrawFn], None], data: st.DataObject) -> None:
    check(data.draw, target)
