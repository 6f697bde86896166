"""Noise on the state in training, of the Lipschitz layer and of every other continuous unit."""

from __future__ import annotations

import copy
import math
from typing import Any

import noise_numbers
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from lipschitz_rnn import LipschitzRNN, LipschitzRNNCell, stability, units
from lipschitz_rnn.units.base import Recurrent, State
from lipschitz_rnn.units.cells import CellStack, TimedCell
from lipschitz_rnn.units.recurrence import UnstatedRecurrenceError
from lipschitz_rnn.units.sequences import Sequences

CONTINUOUS = [name for name in units.available() if units.info(name).timespans and name not in ("gru-d", "lru")]
OTHERS = [name for name in units.available() if name not in CONTINUOUS]
STRENGTHS = {"noise": 0.2, "multiplicative_noise": 0.3}


def built(name: str, seed: int = 0, **options: Any) -> Recurrent:
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        unit = units.build(name, 2, 3, dtype=torch.float64, **options)
        for parameter in unit.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return unit


def inputs(steps: int = 6, batch: int = 4, seed: int = 1) -> Tensor:
    return torch.randn(steps, batch, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seeded(seed: int = 4) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn_seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**53, (), dtype=torch.float64, generator=generator))


def parts_of(state: Tensor | State) -> State:
    return (state,) if isinstance(state, Tensor) else state


@pytest.mark.parametrize("timed", [False, True], ids=["equal steps", "times"])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_every_step_is_disturbed_as_the_definition_says(name: str, timed: bool) -> None:
    """Against a loop over single steps of the unit in evaluation, with noise from Python's own numbers."""
    unit, x = built(name, **STRENGTHS), inputs(steps=4, batch=3)
    step_size = unit.cell().step_size  # type: ignore[attr-defined,operator]
    times = step_size * torch.tensor([[1.0, 0.5, 0.0], [0.25, 1.0, 1.0]] * 2, dtype=torch.float64) if timed else None
    output, last = unit(x, timespans=times, generator=seeded())
    seed, state = drawn_seed(seeded()), tuple(part for part in unit.initial_state(3))
    unit.eval()
    for t in range(len(x)):
        now = None if times is None else times[t : t + 1]
        given = state if len(state) > 1 else state[0]
        new = parts_of(unit(x[t : t + 1], given, timespans=now)[1])
        state = tuple(part.detach().clone() for part in new)
        for part, values in enumerate(state):
            for b in range(3):
                root = 1.0 if times is None else math.sqrt(float(times[t, b]) / step_size)
                for n in range(values.shape[-1]):
                    u, normal = noise_numbers.entry(seed, t, b, n, part)
                    values[0, b, n] = (1.0 + 0.3 * root * u) * values[0, b, n] + 0.2 * root * normal
        torch.testing.assert_close(output[t, :, :3].detach(), state[0][0], rtol=1e-4, atol=1e-5)
    for found, expected in zip(parts_of(last), state, strict=True):
        torch.testing.assert_close(found.detach(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_no_noise_changes_no_bit_and_draws_nothing(name: str) -> None:
    plain, silent, x = built(name), built(name, noise=0.0, multiplicative_noise=0.0), inputs()
    before = torch.get_rng_state()
    assert torch.equal(plain(x)[0], silent(x)[0])
    noisy = built(name, **STRENGTHS).eval()
    assert torch.equal(noisy(x)[0], plain(x)[0])
    assert torch.equal(torch.get_rng_state(), before)
    assert plain.state_dict().keys() == noisy.state_dict().keys()


@pytest.mark.parametrize("name", CONTINUOUS)
def test_runs_repeat_with_a_generator_and_with_the_global_seed(name: str) -> None:
    unit, x = built(name, num_layers=2, bidirectional=True, **STRENGTHS), inputs()
    first, second, other = (unit(x, generator=seeded(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.allclose(first, other)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        first, new = unit(x)[0], unit(x)[0]
        torch.manual_seed(3)
        assert torch.equal(unit(x)[0], first)
        assert not torch.allclose(new, first)


@pytest.mark.parametrize("name", OTHERS)
def test_other_units_refuse_by_name(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        units.build(name, 2, 3, noise=0.1)


def test_wrong_strengths_are_refused() -> None:
    for name in ("lipschitz", "lem"):
        for option in STRENGTHS:
            for value, error in ((-0.1, ValueError), (math.inf, ValueError), ("much", TypeError)):
                with pytest.raises(error, match=option):
                    units.build(name, 2, 3, **{option: value})
    with pytest.raises(ValueError, match="exprnn"):
        CellStack(units.info("exprnn").load(), 2, 3, noise=0.1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="int"):
        built("lem")(inputs(), generator=3)  # type: ignore[call-overload]


class OwnScan(TimedCell):
    """A cell of somebody's own, whose scan knows nothing of noise."""

    step_size = 0.1

    def weights(self) -> None:
        return None

    def scan(self, inputs: Tensor, state: State, weights: Any, sequences: Sequences, need_output: bool = True) -> Any:
        return inputs, state


def test_a_scan_that_would_leave_the_noise_out_is_refused() -> None:
    CellStack(OwnScan, 2, 3)
    with pytest.raises(ValueError, match="OwnScan"):
        CellStack(OwnScan, 2, 3, noise=0.1)


def test_layers_and_directions_have_their_own_noise() -> None:
    """Where the equation does nothing, outputs are the sums of noise: uncorrelated between directions."""
    rnn = LipschitzRNN(1, 40, bidirectional=True, alpha=0.0, noise=1.0, nonlinearity="identity")
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.zero_()
        output = rnn(torch.zeros(1, 50, 1), generator=seeded())[0]
    forward, backward = output.chunk(2, -1)
    assert abs(float((forward * backward).mean())) < 5 / math.sqrt(forward.numel())
    assert abs(float(output.var()) - 1.0) < 5 * math.sqrt(2 / output.numel())


def test_settings_of_the_layer_reach_its_cells_and_the_cell_adds_noise_too() -> None:
    rnn, x = LipschitzRNN(2, 3, noise=0.1), inputs(steps=1).float()
    rnn.multiplicative_noise = 0.2
    cell = rnn.cell()
    assert (cell.noise, cell.multiplicative_noise) == (0.1, 0.2)
    assert "noise=0.1, multiplicative_noise=0.2" in repr(rnn)
    with pytest.raises(ValueError, match="noise"):
        rnn.noise = -1.0
    layer = rnn(x, generator=seeded())[1][0]
    torch.testing.assert_close(cell(x[0], generator=seeded()), layer, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(rnn.eval()(x)[1][0], layer)
    assert torch.equal(cell(x[0]), cell(x[0], generator=seeded()))
    lone = LipschitzRNNCell(2, 3, noise=0.5)
    assert lone(x[0, 0]).shape == (3,)
    times = torch.tensor([0.0, 1.0, 2.0, 3.0])
    torch.testing.assert_close(lone(x[0], timespans=times)[0], torch.zeros(3))  # no time, no noise


@pytest.mark.parametrize("name", CONTINUOUS)
def test_gradients_hold_the_noise(name: str) -> None:
    unit = built(name, **STRENGTHS)
    names = [key for key, _ in unit.named_parameters()]

    def loss(x: Tensor, *values: Tensor) -> Tensor:
        given = dict(zip(names, values, strict=True))
        return torch.func.functional_call(unit, given, (x,), {"generator": seeded()})[0].sin()

    leaves = [parameter.detach().clone().requires_grad_() for parameter in unit.parameters()]
    assert gradcheck(loss, (inputs(3, 2).requires_grad_(), *leaves), atol=1e-6)


@pytest.mark.parametrize("options", [{"recompute_every": 2}, {"backend": "reference"}, {"num_layers": 2}])
def test_options_of_the_layer_keep_the_noise(options: dict[str, Any]) -> None:
    layers = options.get("num_layers", 1)
    plain, x = built("lipschitz", num_layers=layers, **STRENGTHS), inputs()
    other = LipschitzRNN(2, 3, dtype=torch.float64, **({"num_layers": layers} | STRENGTHS | options))
    other.load_state_dict(plain.state_dict())
    expected, last = plain(x, generator=seeded())
    torch.testing.assert_close(other(x, generator=seeded())[0], expected, rtol=1e-12, atol=1e-12)
    none, ends = other(x, generator=seeded(), need_output=False)
    assert none is None
    torch.testing.assert_close(ends, last, rtol=1e-12, atol=1e-12)
    lengths = torch.tensor([6, 2, 4, 1])
    cut, ends = other(x, generator=seeded(), lengths=lengths)
    if layers == 1:
        for b, length in enumerate(lengths.tolist()):
            torch.testing.assert_close(cut[:length, b], expected[:length, b], rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(ends[0, b], expected[length - 1, b], rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_compiled_programs_draw_the_same_seeds() -> None:
    unit, x = built("lipschitz", num_layers=2, **STRENGTHS), inputs()
    torch._dynamo.reset()
    compiled = torch.compile(unit, backend="aot_eager", fullgraph=True)
    found = []
    for function in (unit, compiled):
        with torch.random.fork_rng():
            torch.manual_seed(5)
            unit.zero_grad()
            function(x)[0].sin().sum().backward()
        found.append([parameter.grad.clone() for parameter in unit.parameters()])  # type: ignore[union-attr]
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-11)
    torch._dynamo.reset()


def test_exported_and_streamed_units_have_no_noise() -> None:
    rnn, x = built("lipschitz", **STRENGTHS), inputs(batch=1)
    with pytest.raises(Exception, match=r"eval\(\)"):
        torch.export.export(rnn, (x,))
    stream = rnn.stream()
    streamed = torch.stack([stream(sample) for sample in x[:, 0]])
    torch.testing.assert_close(streamed, rnn.eval()(x)[0][:, 0].detach(), rtol=1e-10, atol=1e-10)
    lem = built("lem", **STRENGTHS)
    assert torch.equal(lem.stream()(x[0, 0]), lem.eval().stream()(x[0, 0]))


def test_vmap_asks_how_to_draw_as_dropout_does() -> None:
    rnn, x = built("lipschitz", **STRENGTHS), inputs()
    repeated = x.expand(3, *x.shape)
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(lambda one: rnn(one)[1])(repeated)
    different = torch.func.vmap(lambda one: rnn(one)[1], randomness="different")(repeated)
    assert not torch.allclose(different[0], different[1])
    same = torch.func.vmap(lambda one: rnn(one)[1], randomness="same")(repeated)
    torch.testing.assert_close(same[0], same[1])


def test_half_precision_keeps_small_noise() -> None:
    """The state adds up in float32: a thousand steps of 0.001 are not lost, as they would be beside a state of 1."""
    for options in ({"dtype": torch.bfloat16}, {}):
        rnn = LipschitzRNN(1, 64, alpha=0.0, nonlinearity="identity", noise=0.001, **options)  # type: ignore[arg-type]
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=not options):
            for parameter in rnn.parameters():
                parameter.zero_()
            start = torch.ones(1, 8, 64, dtype=options.get("dtype"))
            last = rnn(torch.zeros(400, 8, 1, dtype=options.get("dtype")), start, generator=seeded())[1]
        assert float((last.double() - 1.0).std()) == pytest.approx(0.02, rel=0.2)


class TestCertificates:
    def test_training_with_noise_is_refused_and_evaluation_is_not(self) -> None:
        rnn = LipschitzRNN(2, 3, stability="contracting", noise=0.1)
        with pytest.raises(UnstatedRecurrenceError, match=r"noise=0\.1"):
            stability.certify(rnn)
        with pytest.raises(UnstatedRecurrenceError, match=r"noise=0\.1"):
            stability.certify(rnn.cell())
        assert stability.certify(rnn.eval()).holds
        rnn.train().noise = 0.0
        assert stability.certify(rnn).holds

    def test_states_of_a_contracting_layer_approach_under_the_same_additive_noise(self) -> None:
        rnn = LipschitzRNN(2, 3, stability="contracting", rate=1.0, noise=0.5, dtype=torch.float64)
        x, starts = inputs(steps=200), torch.randn(2, 1, 4, 3, generator=seeded(), dtype=torch.float64)
        one, other = (rnn(x, start, generator=seeded())[1] for start in starts)
        scale = rnn.cell().hidden.metric()[0].sqrt()  # type: ignore[operator]
        before, after = ((scale * gap).norm(dim=-1) for gap in (starts[0] - starts[1], one - other))
        assert bool((after < before * math.exp(-200 * 0.03) * 1.001).all())


def test_copies_and_pretrained_weights_take_noise() -> None:
    rnn = LipschitzRNN.from_pretrained("ordered-mnist-64", noise=0.02)
    assert rnn.noise == 0.02
    twin = copy.deepcopy(rnn).train()
    x = torch.zeros(5, 2, 1)
    assert torch.equal(twin(x, generator=seeded())[0], rnn.train()(x, generator=seeded())[0])


def test_cornn_says_why_a_named_backend_cannot_add_noise() -> None:
    unit, x = built("cornn", backend="reference", **STRENGTHS), inputs()
    with pytest.raises(ValueError, match=r"'reference'.*noise"):
        unit(x)
    assert unit.eval()(x)[0].shape == (6, 4, 3)


def test_forward_mode_holds_the_noise_too() -> None:
    unit, x = built("lipschitz", **STRENGTHS), inputs()
    direction = torch.ones_like(x)

    def last(x: Tensor) -> Tensor:
        return unit(x, generator=seeded())[1]

    _, tangent = torch.func.jvp(last, (x,), (direction,))
    difference = (last(x + 1e-6 * direction) - last(x - 1e-6 * direction)) / 2e-6
    torch.testing.assert_close(tangent, difference.detach(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["lipschitz", "lem"])
def test_modules_pickled_before_there_was_noise_run_and_take_it(name: str) -> None:
    unit, x = built(name), inputs()
    cell = unit.cell()  # type: ignore[operator]
    state = dict(vars(cell)) | {"_buffers": {}}
    del state["noise"], state["multiplicative_noise"]
    old = type(cell).__new__(type(cell))
    old.__setstate__(state)
    unit.cells[next(iter(unit.cells)) if name == "lipschitz" else 0] = old
    assert torch.equal(unit(x)[0], built(name)(x)[0])
    old.noise = 0.1
    assert not torch.allclose(unit(x)[0], built(name)(x)[0])


@pytest.mark.parametrize("name", CONTINUOUS)
def test_strengths_can_be_changed_later(name: str) -> None:
    unit, x = built(name, noise=0.2), inputs()
    assert unit.noise == 0.2
    unit.noise = 0.0
    assert torch.equal(unit(x)[0], built(name)(x)[0])
    unit.multiplicative_noise = 0.3
    assert not torch.equal(unit(x)[0], unit(x)[0])
    with pytest.raises(ValueError, match="noise is -1"):
        unit.noise = -1


@pytest.mark.parametrize("name", ["exprnn", "irnn", "lru", "fastgrnn", "kronecker"])
def test_noise_set_later_on_a_unit_without_it_is_refused(name: str) -> None:
    unit = units.build(name, 2, 4)
    unit.noise = 0.0
    with pytest.raises(ValueError, match="does not add noise"):
        unit.noise = 0.1


def test_an_option_of_the_cells_cannot_be_set_without_effect() -> None:
    with pytest.raises(AttributeError, match=r"step_size of a unit 'lem' is set when it is built: units\.build\('lem'"):
        built("lem").step_size = 0.5


@pytest.mark.parametrize("name", CONTINUOUS)
def test_units_show_their_noise(name: str) -> None:
    assert "noise=0.2, multiplicative_noise=0.3" in repr(units.build(name, 2, 3, **STRENGTHS))
