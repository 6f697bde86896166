"""Settings: checked wherever they are set, shared by all units of a layer, and saved along with the weights."""

import copy
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from lipschitz_layers import layer, sequence
from torch import nn
from torch.nn.utils import parametrize
from torch.optim.swa_utils import AveragedModel

import lipschitz_rnn as lr
from lipschitz_rnn.training.ensemble import Ensemble
from lipschitz_rnn.units.lipschitz.parametrization import SymmetricSkewPair

WRONG: list[tuple[str, Any, type[Exception]]] = [
    ("step_size", -1.0, ValueError),
    ("step_size", 0, ValueError),
    ("step_size", math.nan, ValueError),
    ("step_size", torch.tensor(0.1), TypeError),
    ("alpha", math.nan, ValueError),
    ("alpha", "1", TypeError),
    ("integrator", "foo", ValueError),
    ("integrator", ["euler"], TypeError),
    ("nonlinearity", "selu", ValueError),
    ("nonlinearity", None, TypeError),
    ("beta", 7, ValueError),
    ("beta", (0.5, -0.1), ValueError),
    ("beta", (0.1, 0.2, 0.3), ValueError),
    ("gamma", -0.1, ValueError),
    ("max_step", 0.0, ValueError),
    ("max_step", "long", TypeError),
]
WRONG_OF_THE_LAYER: list[tuple[str, Any, type[Exception]]] = [
    ("backend", "x", ValueError),
    ("dropout", 2, ValueError),
    ("recompute_every", 0, ValueError),
    ("recompute_every", 2.5, TypeError),
    ("batch_first", "yes", TypeError),
    ("hidden_size", 7, AttributeError),
    ("num_layers", 3, AttributeError),
    ("bidirectional", True, AttributeError),
    ("bias", False, AttributeError),
]


@pytest.mark.parametrize(("name", "value", "error"), [*WRONG, *WRONG_OF_THE_LAYER], ids=str)
def test_a_wrong_value_is_refused_and_the_old_one_stays(name: str, value: Any, error: type[Exception]) -> None:
    rnn = lr.LipschitzRNN(3, 5, 2)
    owners = [rnn] if (name, value, error) in WRONG_OF_THE_LAYER else [rnn, rnn.cell(), rnn.cell(1)]
    for owner in owners:
        before = [getattr(owner, name), getattr(rnn, name)]
        with pytest.raises(error, match=rf"{name} is "):
            setattr(owner, name, value)
        assert [getattr(owner, name), getattr(rnn, name)] == before


BUILT_IN = [("stability", "contracting"), ("rate", 5.0), ("init_scale", 2.0)]


@pytest.mark.parametrize(("name", "value"), [*BUILT_IN, ("proj_size", 3)])
def test_what_only_the_constructor_takes_cannot_be_set(name: str, value: Any) -> None:
    rnn = lr.LipschitzRNN(3, 5)
    for owner in [rnn, rnn.cell()] if (name, value) in BUILT_IN else [rnn]:
        with pytest.raises(AttributeError, match=f"{name} cannot be changed to {value!r}"):
            setattr(owner, name, value)
    assert (rnn.stability, rnn.rate, rnn.proj_size) == (None, None, 0)
    contracting = lr.LipschitzRNN(3, 5, stability="contracting", rate=0.2)
    assert (contracting.stability, contracting.rate) == ("contracting", 0.2)


def test_a_right_value_reaches_every_unit() -> None:
    rnn = lr.LipschitzRNN(3, 5, 2, bidirectional=True)
    rnn.step_size, rnn.alpha, rnn.integrator, rnn.nonlinearity = 1, 0.5, "rk2", "relu"
    rnn.beta, rnn.gamma, rnn.max_step = 0.6, (0.1, 0.2), 2
    for cell in rnn.cells.values():
        assert (cell.step_size, cell.alpha, cell.integrator, cell.nonlinearity) == (1.0, 0.5, "midpoint", "relu")
        assert (cell.beta, cell.gamma, cell.max_step) == ((0.6, 0.6), (0.1, 0.2), 2.0)
        assert (cell.hidden.skew_W.beta, cell.hidden.skew_W.gamma) == (0.6, 0.2)
    rnn.dropout, rnn.recompute_every, rnn.backend, rnn.batch_first = 0.5, None, "reference", 1
    assert rnn.batch_first is True


def test_the_parametrization_checks_too() -> None:
    skew, pair = lr.SymmetricSkew(0.8, 0.1), SymmetricSkewPair(3, 0.8, 0.1, 0.1)
    for owner, name, value in ((skew, "beta", 7), (skew, "gamma", math.inf), (pair, "init_scale", -1.0)):
        with pytest.raises(ValueError, match=f"{name} is "):
            setattr(owner, name, value)


@pytest.mark.parametrize(
    "change", [{"step_size": 50.0}, {"alpha": 2.0}, {"integrator": "heun"}, {"nonlinearity": "relu"}]
)
def test_a_contracting_unit_keeps_what_its_proof_rests_on(change: dict[str, Any]) -> None:
    rnn = lr.LipschitzRNN(3, 5, 2, stability="contracting")
    ((name, value),) = change.items()
    for owner in (rnn, rnn.cell(), rnn.cell(1)):
        with pytest.raises(AttributeError, match=f"{name} cannot become {value!r}.*proof"):
            setattr(owner, name, value)
        setattr(owner, name, getattr(owner, name))  # no change, no harm


@pytest.mark.parametrize("change", [{"beta": 7}, {"beta": 0.5}, {"gamma": (0.1, 0.001)}, {"gamma": math.nan}], ids=str)
def test_a_contracting_unit_does_not_use_beta_and_gamma(change: dict[str, Any]) -> None:
    for kind in (lr.LipschitzRNN, lr.LipschitzRNNCell):
        with pytest.raises(ValueError, match=r"(beta|gamma) is .*contracting"):
            kind(3, 5, stability="contracting", **change)
    rnn = lr.LipschitzRNN(3, 5, stability="contracting")
    assert rnn.beta is None
    with pytest.raises(AttributeError, match="beta cannot be set"):
        rnn.beta = 0.5


OTHER: list[tuple[dict[str, Any], str]] = [
    ({"step_size": 0.1}, "step_size=0.1, but these weights belong to step_size=0.03"),
    ({"alpha": 0.5}, "alpha=0.5, but these weights belong to alpha=1.0"),
    ({"integrator": "rk4"}, "integrator='rk4', but these weights belong to integrator='euler'"),
    ({"nonlinearity": "relu"}, "nonlinearity='relu', but these weights belong to nonlinearity='tanh'"),
    ({"beta": 0.5}, "beta=0.5, but these weights belong to beta=0.75"),
    ({"gamma": (0.001, 0.5)}, "gamma=0.5, but these weights belong to gamma=0.001"),
    ({"max_step": 0.5}, "max_step=0.5, but these weights belong to max_step=None"),
    ({"stability": "contracting"}, "stability='contracting', but these weights belong to stability=None"),
]


class Model(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.rnn = lr.LipschitzRNN(3, 5, 2, **options)
        self.head = nn.Linear(5, 2)


@pytest.mark.parametrize(("options", "message"), OTHER, ids=[message[:30] for _, message in OTHER])
def test_weights_of_another_setting_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Alone, as a cell, nested, wrapped, from a file, copied; strict or not, as with a size that does not fit."""
    torch.save(Model().state_dict(), tmp_path / "model.pt")
    stored = torch.load(tmp_path / "model.pt", weights_only=True)
    pairs: list[tuple[nn.Module, Any]] = [
        (lr.LipschitzRNN(3, 5, **options), lr.LipschitzRNN(3, 5).state_dict()),
        (lr.LipschitzRNNCell(3, 5, **options), lr.LipschitzRNNCell(3, 5).state_dict()),
        (Model(**options), copy.deepcopy(stored)),
        (nn.DataParallel(Model(**options)), nn.DataParallel(Model()).state_dict()),
        (AveragedModel(Model(**options)), AveragedModel(Model()).state_dict()),
    ]
    for module, state in pairs:
        for strict in (True, False):
            with pytest.raises(RuntimeError, match=re.escape(message)):
                module.load_state_dict(state, strict=strict)


@pytest.mark.parametrize("stability", [None, "contracting"])
def test_weights_load_into_the_same_settings_and_without_any(stability: str | None, tmp_path: Path) -> None:
    first = Model(stability=stability, step_size=0.1)
    torch.save(first.state_dict(), tmp_path / "model.pt")
    stored = torch.load(tmp_path / "model.pt", weights_only=True)
    x = torch.ones(4, 2, 3)
    for state in (stored, dict(stored), copy.deepcopy(stored)):
        again = Model(stability=stability, step_size=0.1)
        assert not any(again.load_state_dict(state))
        torch.testing.assert_close(again.rnn(x)[0], first.rnn(x)[0], rtol=0, atol=0)
    # A plain dictionary has no metadata: the way to load weights into another setting on purpose.
    assert not any(Model(stability=stability, step_size=0.2).load_state_dict(dict(stored)))


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("options", [{"step_size": 0.1}, {"beta": 0.5}, {"stability": "contracting"}, {}], ids=str)
def test_weights_that_are_refused_change_nothing(options: dict[str, Any], assign: bool) -> None:
    """Not in other layers either, whose settings fit: in the last case the second layer differs alone."""
    rnn, other = lr.LipschitzRNN(3, 5, 2), lr.LipschitzRNN(3, 5, 2, **options)
    if not options:
        other.cell(1).gamma = 0.5
    state, before = other.state_dict(), copy.deepcopy(dict(rnn.state_dict()))
    expected = copy.deepcopy(dict(state))
    with pytest.raises(RuntimeError, match="but these weights belong to"):
        rnn.load_state_dict(state, strict=False, assign=assign)
    for found, right in ((rnn.state_dict(), before), (state, expected)):
        assert found.keys() == right.keys()
        assert all(torch.equal(found[name], right[name]) for name in right)
    if "stability" not in options:
        assert not any(rnn.load_state_dict(dict(state)))


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("other", [lr.LipschitzRNN(3, 5, 2, step_size=0.1), lr.LipschitzRNN(4, 5, 2)], ids=str)
def test_a_failed_load_leaves_the_parameters_to_their_optimiser(other: nn.Module, assign: bool) -> None:
    """Also one with a size that does not fit: the sizes that do must not be loaded either."""
    rnn = lr.LipschitzRNN(3, 5, 2)
    before, own = copy.deepcopy(rnn.state_dict()), list(rnn.parameters())
    with pytest.raises(RuntimeError, match=r"belong to step_size=0\.1|size mismatch for cells\.l0\.weight_ih"):
        rnn.load_state_dict(other.state_dict(), assign=assign)
    assert all(one is another for one, another in zip(own, rnn.parameters(), strict=True))
    assert all(torch.equal(before[name], tensor) for name, tensor in rnn.state_dict().items())


def test_another_rate_is_refused() -> None:
    state = lr.LipschitzRNN(3, 5, stability="contracting", rate=0.1).state_dict()
    with pytest.raises(RuntimeError, match=r"rate=0\.01, but these weights belong to rate=0\.1"):
        lr.LipschitzRNN(3, 5, stability="contracting").load_state_dict(state)


def test_names_in_the_state_dict_are_as_before() -> None:
    assert list(lr.LipschitzRNN(3, 5).state_dict()) == [
        "cells.l0.weight_ih", "cells.l0.bias_ih", "cells.l0.hidden.M_A", "cells.l0.hidden.M_W",
    ]  # fmt: skip


def test_a_parametrized_weight_carries_beta_and_gamma() -> None:
    linears = [nn.Linear(4, 4), nn.Linear(4, 4)]
    for linear, beta in zip(linears, (0.8, 0.6), strict=True):
        parametrize.register_parametrization(linear, "weight", lr.SymmetricSkew(beta, 0.1))
    with pytest.raises(RuntimeError, match=r"beta=0\.6, but these weights belong to beta=0\.8"):
        linears[1].load_state_dict(linears[0].state_dict())


def test_members_of_an_ensemble_that_differ_in_numbers(generator: torch.Generator) -> None:
    """An ensemble replaces a number by a buffer; members come back with numbers that are checked again."""

    class Wrapped(nn.Module):
        def __init__(self, **options: Any) -> None:
            super().__init__()
            self.unit = layer(generator, **options)

        def forward(self, x: torch.Tensor, *_: Any) -> Any:
            return self.unit(x)

    models = [Wrapped(step_size=0.1, beta=0.5), Wrapped(step_size=0.2, beta=(0.6, 0.7))]
    x = sequence(generator, 6, 2, 3)
    expected = torch.stack([model.unit(x)[0] for model in models])
    ensemble = Ensemble(models, "cpu", "vmap")
    torch.testing.assert_close(ensemble(ensemble.values, x, shared=True)[0], expected, rtol=1e-12, atol=1e-13)
    member = ensemble.members()[1].unit
    assert (member.step_size, member.beta) == (0.2, (0.6, 0.7))
    with pytest.raises(ValueError, match="step_size is -1"):
        member.step_size = -1
    # What differs is a tensor there, and no part of what the state says.
    state = ensemble._module.model.state_dict()
    assert "step_size" not in state._metadata["unit.cells.l0"]["settings"]
    assert not any(models[1].load_state_dict(state))
