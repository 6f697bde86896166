"""Where there is no radius: every refusal names what is wrong, what is allowed and what to do."""

import copy
from typing import Any

import pytest
import torch
from radius_cases import layer, linear_head
from torch import Tensor, nn

import lipschitz_rnn as lr
from lipschitz_rnn import units
from lipschitz_rnn.stability import NoCertificate, StatedClassifier, certified_radius, certify
from lipschitz_rnn.training.model import SequenceModel
from lipschitz_rnn.units.recurrence import UnstatedRecurrenceError


def network(**options: Any) -> StatedClassifier:
    generator = torch.Generator().manual_seed(0)
    options = {"stability": "contracting", "step_size": 0.2, **options}
    unit = layer(2, 3, generator, **options)
    return StatedClassifier(unit, linear_head(3 * unit.num_directions, 3, generator))


X = torch.randn(5, 2, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_a_network_without_a_certificate_says_why_and_how_to_get_one() -> None:
    generator = torch.Generator().manual_seed(0)
    unit = layer(2, 3, generator, step_size=0.2)
    with pytest.raises(NoCertificate, match=r"no radius: .* this network has none: .* What to try: ") as refused:
        certified_radius(StatedClassifier(unit, linear_head(3, 3, generator)), X)
    assert not refused.value.certificate.holds
    with pytest.raises(NoCertificate):
        certified_radius(network(), X, certificate=refused.value.certificate)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "l1"}, "norm is 'l1'; choose one of l2, linf, step"),
        ({"method": "exact"}, "method is 'exact'; choose one of auto, global, local"),
        ({"scale": float("nan")}, r"scale has shape \(\); give a finite number"),
        ({"scale": torch.ones(3)}, r"scale has shape \(3,\); give a finite number, or finite numbers of shape \(2,\)"),
        ({"lengths": torch.tensor([5])}, r"lengths have shape \(1,\); they must be \(2,\)"),
        ({"lengths": torch.tensor([5, 6])}, "lengths"),
        ({"timespans": -torch.ones(5, 2)}, "timespans are negative or not finite in some valid step"),
        ({"timespans": torch.ones(4, 2)}, r"timespans have shape \(4, 2\); they must be \(5, 2\)"),
        ({"timespans": torch.ones(5, 2)}, "timespans reaches 1, but this contracting unit is proved for steps up to"),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
    ],
)
def test_a_wrong_argument_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        certified_radius(network(), X, **options)


def test_inputs_and_weights_must_be_finite_and_fit() -> None:
    bad = X.clone()
    bad[1, 0, 0] = torch.inf
    with pytest.raises(ValueError, match="inputs are not finite in some valid step"):
        certified_radius(network(), bad)
    for shape in ((5, 2), (0, 2, 2), (5, 0, 2), (5, 2, 3)):
        with pytest.raises(ValueError, match="inputs have"):
            certified_radius(network(), torch.zeros(shape))
    with pytest.raises(ValueError, match="real values"):
        certified_radius(network(), torch.zeros(5, 2, 2, dtype=torch.int64))
    for place in ("cells.l0.weight_ih", "cells.l0.bias_ih", "cells.l0.hidden.rotation"):
        broken = network()
        with torch.no_grad():
            dict(broken.unit.named_parameters())[place].view(-1)[0] = torch.nan
        with pytest.raises(ValueError, match=rf"{place} of this LipschitzRNN has 1 entry that is not finite, .* train"):
            certified_radius(broken, X)
        with pytest.raises(ValueError, match="not finite"):  # also where only U or b is none
            certify(broken.unit)
    broken = network()
    with torch.no_grad():
        broken.head.weight[0, 0] = torch.inf
    with pytest.raises(ValueError, match="head's weight"):
        certified_radius(broken, X)


def test_a_certificate_must_be_about_this_network_and_these_steps() -> None:
    given = network()
    own = certify(given.unit, precision="exact")
    assert torch.allclose(
        certified_radius(given, X, certificate=own, method="global").prediction, certified_radius(given, X).prediction
    )
    other = network(rate=0.2)
    with pytest.raises(ValueError, match="about another A than layer 0 has"):
        certified_radius(given, X, certificate=certify(other.unit, precision="exact"))
    with pytest.raises(ValueError, match="continuous time"):
        certified_radius(given, X, certificate=certify(given.unit, precision="exact", continuous=True))
    with pytest.raises(ValueError, match=r"take steps from 0.1 to 0.1, but the certificate of layer 0 covers 0.2"):
        certified_radius(given, X, timespans=torch.full((5, 2), 0.1, dtype=torch.float64), certificate=own)
    with pytest.raises(TypeError, match="certificate is a dict"):
        certified_radius(given, X, certificate={})  # type: ignore[arg-type]
    both = network(bidirectional=True)
    with pytest.raises(ValueError, match="about 1 parts, but the network has 2"):
        certified_radius(both, X, certificate=own)


def test_randomness_and_hooks_are_refused() -> None:
    noisy = network(noise=0.1)
    noisy.unit.train()
    with pytest.raises(UnstatedRecurrenceError, match="adds noise to its state"):
        certified_radius(noisy, X)
    noisy.unit.eval()
    assert bool((certified_radius(noisy, X).radius > 0).all())
    dropped = network(num_layers=2, dropout=0.5)
    dropped.unit.train()
    with pytest.raises(UnstatedRecurrenceError, match=r"dropout is 0\.5"):
        certified_radius(dropped, X)
    for place in ("unit", "head"):
        hooked = network()
        getattr(hooked, place).register_forward_hook(lambda module, given, result: result)
        with pytest.raises(UnstatedRecurrenceError, match="forward hooks"):
            certified_radius(hooked, X)
        # Also where nothing asks for a certificate again.
        with pytest.raises(UnstatedRecurrenceError, match="forward hooks"):
            certified_radius(hooked, X, certificate=certify(network().unit, precision="exact"))


class Twice(lr.LipschitzRNN):
    def forward(self, *arguments: Any, **options: Any) -> Any:
        output, last = super().forward(*arguments, **options)
        return 2 * output, last


def test_models_that_are_something_else_are_refused() -> None:
    plain = network()
    with pytest.raises(TypeError, match="give a SequenceModel, a SeriesModel, or"):
        certified_radius((plain.unit, plain.head), X)
    with pytest.raises(UnstatedRecurrenceError, match="does not say what it reads from its unit"):
        certified_radius(nn.Sequential(plain.unit, plain.head), X)
    with pytest.raises(UnstatedRecurrenceError, match=r"the unit is LSTM; .*\"stability\": \"contracting\""):
        certified_radius(StatedClassifier(nn.LSTM(2, 3).double(), plain.head), X)
    with pytest.raises(UnstatedRecurrenceError, match="the unit is OptimizedModule"):
        certified_radius(StatedClassifier(torch.compile(plain.unit), plain.head), X)
    changed = nn.Linear(3, 2).double()
    changed.forward = lambda state: 2 * state  # type: ignore[method-assign]
    with pytest.raises(UnstatedRecurrenceError, match="forward of the head was replaced"):
        certified_radius(StatedClassifier(plain.unit, changed), X)
    doubled = Twice(2, 3, stability="contracting", dtype=torch.float64)
    with pytest.raises(UnstatedRecurrenceError, match="Twice overrides forward"):
        certified_radius(StatedClassifier(doubled, plain.head), X)
    with pytest.raises(UnstatedRecurrenceError, match="the head is a Sequential"):
        certified_radius(StatedClassifier(plain.unit, nn.Sequential(plain.head)), X)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the head reads 4 values, but the last layer gives 3"):
        certified_radius(StatedClassifier(plain.unit, nn.Linear(4, 3, dtype=torch.float64)), X)
    with pytest.raises(ValueError, match="readout is 'first'"):
        certified_radius(StatedClassifier(plain.unit, plain.head, "first"), X)  # type: ignore[arg-type]
    unit = units.build("lipschitz", 2, 3, stability="contracting")
    head = nn.Linear(3, 3)
    with pytest.raises(UnstatedRecurrenceError, match="gives scores at every step"):
        certified_radius(SequenceModel(unit, head, "all"), X)
    with pytest.raises(UnstatedRecurrenceError, match="tokens"):
        certified_radius(SequenceModel(unit, head, "last", nn.Embedding(4, 2)), X)


def test_following_trajectories_is_refused_where_it_is_not_proved() -> None:
    for options, reason in (
        ({"integrator": "midpoint"}, "the integrator is midpoint"),
        ({"num_layers": 2}, "the network has 2 layers"),
    ):
        with pytest.raises(ValueError, match=rf'method="local" is not possible here: {reason}'):
            certified_radius(network(**options), X, method="local")
        assert certified_radius(network(**options), X).method == "global"


class Changed(SequenceModel):
    def _read(self, hidden: Tensor, keep: Tensor | None) -> Tensor:
        return 3 * super()._read(hidden, keep)


def test_a_model_that_reads_differently_must_say_so_itself() -> None:
    unit = units.build("lipschitz", 2, 3, stability="contracting")
    with pytest.raises(UnstatedRecurrenceError, match="Changed overrides _read"):
        certified_radius(Changed(unit, nn.Linear(3, 3), "last"), X.float())


def test_the_certified_accuracy_counts_right_classes_only() -> None:
    found = certified_radius(network(), X)
    assert found.accuracy(found.prediction) == 1.0
    assert found.accuracy((found.prediction + 1) % 3) == 0.0
    assert found.accuracy(found.prediction, float(found.radius.max()) * 1.01) == 0.0
    with pytest.raises(ValueError, match=r"targets have shape \(3,\)"):
        found.accuracy(torch.zeros(3))
    with pytest.raises(ValueError, match="radius is -1"):
        found.accuracy(found.prediction, -1)


@pytest.mark.parametrize(("readout", "options"), [("state", {}), ("last", {"bidirectional": True})])
def test_padding_that_the_unit_reads_must_rest(readout: Any, options: dict[str, Any]) -> None:
    plain = network(**options)
    given = StatedClassifier(plain.unit, plain.head, readout)
    lengths, spans = torch.tensor([3, 5]), torch.full((5, 2), 0.2, dtype=torch.float64)
    with pytest.raises(ValueError, match="inputs are not zero in the padding"):
        certified_radius(given, X, lengths=lengths)
    resting = X.clone()
    resting[3:, 0] = 0.0
    with pytest.raises(ValueError, match="timespans are not zero in the padding"):
        certified_radius(given, resting, timespans=spans, lengths=lengths)
    spans[3:, 0] = 0.0
    assert bool((certified_radius(given, resting, timespans=spans, lengths=lengths).margin > 0).all())
    reading = StatedClassifier(plain.unit, plain.head, readout, unit_takes_lengths=True)
    assert bool((certified_radius(reading, X, lengths=lengths).margin > 0).all())


@pytest.mark.parametrize(("unit", "head"), [(torch.float32, torch.bfloat16), (torch.float64, torch.float32)])
def test_a_head_that_rounds_more_than_the_unit_is_refused(unit: torch.dtype, head: torch.dtype) -> None:
    given = network()
    mixed = StatedClassifier(given.unit.to(unit), given.head.to(head))
    with pytest.raises(ValueError, match=f"the head is in {head} and the unit in {unit}"):
        certified_radius(mixed, X.to(unit))
    assert certified_radius(mixed, X.to(unit), precision="exact").arithmetic == "exact"


def test_sub_steps_are_counted_as_the_layer_counts_them() -> None:
    """Times in float64 for a layer in float32: two sub-steps where 1.000001000002 would take three."""
    torch.manual_seed(0)
    unit = lr.LipschitzRNN(1, 4, gamma=(1.2, 0.2), step_size=0.5, max_step=0.5)
    x, head = 6 * torch.randn(3, 1, 1), nn.Linear(4, 2)
    spans = torch.full((3, 1), 1.000001000002, dtype=torch.float64)
    with torch.no_grad():
        runs = unit(x, timespans=spans)[0][-1, 0]
        three = copy.deepcopy(unit).double()(x.double(), timespans=spans)[0][-1, 0]
        unit_of_largest = int((runs.double() - three).abs().argmax())
        assert float((runs.double() - three).abs().max()) > 1e-3
        head.weight.zero_()
        head.bias.zero_()
        head.weight[0, unit_of_largest] = 1.0  # the classes meet in the middle between both answers
        head.bias[1] = (runs[unit_of_largest] + three[unit_of_largest].float()) / 2
    certified = certified_radius(StatedClassifier(unit, head), x, timespans=spans)
    assert float(certified.radius) > 0
    assert int(certified.prediction) == int(head(unit(x, timespans=spans)[0][-1]).argmax())
