"""Units and models of somebody's own, as they come: no sizes, states of any kind, frozen parts, random numbers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_tasks import CLOSE, FLOAT64, SignTask, tiny_settings
from torch import Tensor, nn
from torch.nn import functional as F

from lipschitz_rnn.training import fit, load_run
from lipschitz_rnn.training.model import SequenceModel, build_model


class Elman(nn.Module):
    """A unit that says nothing of itself, made of products only, so that vmap takes it."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.u, self.w = nn.Linear(input_size, hidden_size), nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, x: Tensor, h: Any = None) -> Any:
        state = x.new_zeros(x.shape[1], self.w.in_features) if h is None else h[0]
        states = []
        for step in x:
            state = torch.tanh(self.u(step) + self.w(state))
            states.append(state)
        return torch.stack(states), state[None]


class Counting(Elman):
    """Counts its calls in training, as running means and power iterations do."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, h: Any = None) -> Any:
        if self.training:
            self.count += 1.0
        return super().forward(x, h)


class Doubled(Elman):
    """Gives out something else than its state, of the same width."""

    def forward(self, x: Tensor, h: Any = None) -> Any:
        states, last = super().forward(x, h)
        return 2.0 * states, last


class Stateless(Elman):
    def forward(self, x: Tensor, h: Any = None) -> Any:
        return super().forward(x)[0], None


class InDictionary(Elman):
    def forward(self, x: Tensor, h: Any = None) -> Any:
        output, state = super().forward(x)
        return output, {"h": state}


class OutputOnly(Elman):
    def forward(self, x: Tensor, h: Any = None) -> Any:
        return super().forward(x)[0]


class Dropping(Elman):
    """Draws random numbers without an attribute that says so."""

    def forward(self, x: Tensor, h: Any = None) -> Any:
        states, last = super().forward(x, h)
        return F.dropout(states, 0.5, self.training), last


class NumberPenalty(Elman):
    def penalty(self) -> float:
        return 0.25


class TwoNames(Elman):
    """One module under two names, and one parameter in two modules."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.same, self.tied = self.w, nn.Linear(hidden_size, hidden_size, bias=False)
        self.tied.weight = self.w.weight

    def forward(self, x: Tensor, h: Any = None) -> Any:
        states, last = super().forward(x, h)
        return self.same(self.tied(states)), last


class NoPenalty(Elman):
    def penalty(self) -> None:
        return None


def builder(kind: type[nn.Module], width: int = 5, frozen: bool = False) -> Any:
    def build(settings: Any, task: Any, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            unit = kind(task.input_size, 5)  # type: ignore[call-arg]
            for parameter in unit.parameters():
                parameter.requires_grad_(not frozen)
            return SequenceModel(unit, nn.Linear(width, task.output_size), task.readout)

    return build


def settings(**changes: Any) -> Any:
    return tiny_settings(**({"seeds": (0, 1)} | changes))


@pytest.mark.parametrize("kind", [Elman, Counting, NumberPenalty, NoPenalty, TwoNames])
def test_an_own_model_trains_side_by_side_whatever_the_number_of_features(kind: type[nn.Module]) -> None:
    assert fit(settings(), SignTask(), build=builder(kind)).ensemble == "vmap"


def test_the_trial_under_vmap_leaves_buffers_alone() -> None:
    counts = [
        [float(model.unit.count) for model in fit(settings(ensemble=mode), SignTask(), build=builder(Counting)).models]
        for mode in ("auto", "sequential")
    ]
    assert counts[0] == counts[1]
    assert counts[0][0] > 0


def test_the_head_reads_the_output_of_an_own_unit_and_not_its_state() -> None:
    model = builder(Doubled)(settings(), SignTask(), 0).eval()
    inputs = torch.randn(4, 3, 2)
    expected = model.head(model.unit(inputs)[0][-1])
    torch.testing.assert_close(model(inputs)[0], expected)
    torch.testing.assert_close(model(inputs, torch.tensor([4, 4, 4]))[0], expected)


def test_shared_modules_and_parameters_stay_shared() -> None:
    results = [
        fit(settings(ensemble=mode, **FLOAT64), SignTask(), build=builder(TwoNames)) for mode in ("vmap", "sequential")
    ]
    for together, alone in zip(*(result.models for result in results), strict=True):
        assert together.unit.same is together.unit.w
        assert together.unit.tied.weight is together.unit.w.weight
        torch.testing.assert_close(together.unit.w.weight, alone.unit.w.weight, **CLOSE)


def test_an_own_model_is_converted_to_float64(tmp_path: Path) -> None:
    trained = fit(settings(**FLOAT64), SignTask(), tmp_path / "run", build=builder(Elman)).models
    loaded = load_run(tmp_path / "run", build=builder(Elman), task=SignTask()).networks
    for one, other in zip(trained, loaded, strict=True):
        values = dict(other.named_parameters())
        assert {value.dtype for value in values.values()} == {torch.float64}
        assert all(torch.equal(value, values[name]) for name, value in one.named_parameters())


def test_an_own_unit_may_have_no_state() -> None:
    assert len(fit(settings(), SignTask(), build=builder(Stateless)).models) == 2


@pytest.mark.parametrize(
    ("kind", "error", "named"), [(InDictionary, TypeError, "dict"), (OutputOnly, TypeError, "OutputOnly")]
)
def test_what_an_own_unit_returns_is_refused_by_name(kind: type[nn.Module], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        fit(settings(), SignTask(), build=builder(kind))


def test_a_head_of_another_width_is_refused_with_both_widths() -> None:
    with pytest.raises(ValueError, match=r"Elman gives out 5 .* is 7"):
        fit(settings(), SignTask(), build=builder(Elman, width=7))


@pytest.mark.parametrize("mode", ["vmap", "sequential"])
@pytest.mark.parametrize("averaging", [None, 0.1])
def test_frozen_parameters_stay_as_they_are_and_the_rest_trains(mode: str, averaging: float | None) -> None:
    build, task = builder(Elman, frozen=True), SignTask()
    result = fit(settings(ensemble=mode, averaging=averaging), task, build=build)
    for seed, model in enumerate(result.models):
        start = build(None, task, seed)
        assert torch.equal(model.unit.w.weight, start.unit.w.weight)
        assert not torch.equal(model.head.weight, start.head.weight)


def test_nothing_to_train_is_said() -> None:
    def build(asked: Any, task: Any, seed: int) -> nn.Module:
        return builder(Elman)(asked, task, seed).requires_grad_(False)

    with pytest.raises(ValueError, match="nothing to train"):
        fit(settings(), SignTask(), build=build)


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_random_numbers_of_an_own_unit_come_from_its_seed(seeds: tuple[int, ...]) -> None:
    results = []
    for noise in (1, 2):
        torch.manual_seed(noise)  # whatever the program drew before
        results.append(fit(settings(seeds=seeds), SignTask(), build=builder(Dropping)).models[0])
    assert torch.equal(results[0].unit.w.weight, results[1].unit.w.weight)


SPECIAL = {
    "muon": ({"optimiser": "muon"}, "optimiser='muon' trains hidden matrices of.*or use optimiser='adam'"),
    "biases": ({"bias_rate": 3.0}, "bias_rate is 3, which is for biases of.*or leave bias_rate at 1"),
}


@pytest.mark.parametrize("special", SPECIAL)
def test_rates_of_a_unit_ask_for_a_module_of_that_name(special: str, tmp_path: Path) -> None:
    class Named(nn.Module):
        def __init__(self, name: str, size: int) -> None:
            super().__init__()
            self.add_module(name, Elman(2, size))
            self.head, self.name = nn.Linear(size, 2), name

        def forward(self, inputs: Tensor, lengths: Any = None, state: Any = None, keep: Any = None) -> Any:
            states, last = self.get_submodule(self.name)(inputs, state)
            return self.head(states[-1]), last

    changes, message = SPECIAL[special]
    settings = tiny_settings(epochs=1, **changes)
    message = message.replace(
        "of.*", "of the module named 'unit', .*only in rnn, head; name your recurrent module 'unit', "
    )
    with pytest.raises(ValueError, match=message):
        fit(
            settings,
            SignTask(),
            tmp_path / "run",
            build=lambda settings, task, seed: Named("rnn", settings.hidden_size),
        )
    assert not (tmp_path / "run").exists()
    fit(settings, SignTask(), build=lambda settings, task, seed: Named("unit", settings.hidden_size))


def test_muon_says_that_a_matrix_is_frozen() -> None:
    def build(settings: Any, task: Any, seed: int) -> nn.Module:
        model = build_model(settings, task, seed)
        model.unit.inner.weight_hh_l0.requires_grad_(False)
        return model

    with pytest.raises(
        ValueError, match=r"needs a real matrix of at least 5 × 5 \(the hidden size\) that is not frozen"
    ):
        fit(tiny_settings(optimiser="muon"), SignTask(), build=build)
