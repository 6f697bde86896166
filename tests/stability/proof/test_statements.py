"""Only modules that state their own recurrence are certified, and what they state is what they run."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import lipschitz_rnn as lr
from lipschitz_rnn.stability import certify
from lipschitz_rnn.stability.proof.inputs import split_steps, subjects
from lipschitz_rnn.units import available, build
from lipschitz_rnn.units.lipschitz.contracting import ContractingPair
from lipschitz_rnn.units.recurrence import UnstatedRecurrenceError


def stable(**options: object) -> lr.LipschitzRNN:
    return lr.LipschitzRNN(2, 4, **{"gamma": 2.0, "step_size": 0.05, **options})


STATING = ("lipschitz", "rnn", "rnn-orth", "fastrnn", "irnn", "cornn", "lru", "ren")
FLAT = ("nais", "antisymmetric", "residual", "neural-ode")


@pytest.mark.parametrize("unit", [name for name in available() if name not in (*STATING, *FLAT)])
def test_every_other_unit_is_refused_by_name(unit: str) -> None:
    module = build(unit, 2, 4)
    for target in (module, nn.Sequential(module), nn.ModuleDict({"good": stable(), "other": module})):
        with pytest.raises(UnstatedRecurrenceError, match=f"the unit '{unit}'"):
            certify(target)


@pytest.mark.parametrize("unit", [name for name in (*STATING, *FLAT) if name not in ("lipschitz", "rnn", "rnn-orth")])
def test_a_cell_that_changes_its_step_must_state_it_itself(unit: str) -> None:
    module = build(unit, 2, 4)
    kind = type(module.cell())
    changed = type("Changed", (kind,), {"scan": lambda self, *given: kind.scan(self, *given)})
    module.cells[0].__class__ = changed
    with pytest.raises(UnstatedRecurrenceError, match="Changed overrides scan"):
        certify(module)


@pytest.mark.parametrize("unit", ["rnn", "cornn", "ren", "nais"])
def test_units_are_refused_where_what_they_run_is_random_or_changed(unit: str) -> None:
    deep = build(unit, 2, 4, num_layers=2, dropout=0.5)
    with pytest.raises(UnstatedRecurrenceError, match="in training mode"):
        certify(deep, time_limit=1.0)
    certify(deep.eval(), time_limit=1.0)
    hooked = build(unit, 2, 4)
    hooked.register_forward_hook(lambda *given: None)
    with pytest.raises(UnstatedRecurrenceError, match="forward hooks"):
        certify(hooked)
    inner = build(unit, 2, 4)
    (inner.inner if unit == "rnn" else inner.cell()).register_forward_hook(lambda *given: None)
    with pytest.raises(UnstatedRecurrenceError, match="forward hooks"):
        certify(inner)


def test_noisy_units_are_refused_in_training_mode() -> None:
    noisy = build("cornn", 2, 4, noise=0.1)
    with pytest.raises(UnstatedRecurrenceError, match="noise"):
        certify(noisy)
    assert certify(noisy.eval()).holds


def test_frozen_units_are_certified_as_they_run() -> None:
    """After `freeze` the parameters no longer matter, and the statement must follow."""
    torch.manual_seed(0)
    unit = build("cornn", 2, 4)
    unit.freeze()
    before = certify(unit)
    with torch.no_grad():
        unit.cell().hidden.mul_(100)
    assert certify(unit).factor == before.factor


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"E": torch.ones(4, 4)}, "strictly lower triangular"),
        ({"G": torch.eye(3)}, "has shape"),
        ({"C": torch.full((4, 4), torch.nan)}, "not finite"),
        ({"F": torch.eye(4, dtype=torch.complex64)}, "real matrix"),
        ({"hint": (torch.ones(4), torch.ones(4))}, "a metric"),
        ({"nonlinearity": 3}, "a name"),
    ],
)
def test_statements_of_maps_are_checked(change: dict, message: str) -> None:
    class Own(nn.Module):
        def stated_recurrences(self):
            return [replace(build("rnn", 2, 4).stated_recurrences()[0], **change)]

    with pytest.raises((UnstatedRecurrenceError, ValueError), match=message):
        certify(Own())


@pytest.mark.parametrize("other", [nn.RNN, nn.GRU, nn.LSTM, nn.RNNCell, nn.LSTMCell, nn.GRUCell])
def test_a_model_with_another_recurrent_module_is_refused(other: type[nn.Module]) -> None:
    model = nn.ModuleDict({"ours": stable(), "theirs": other(4, 4)})
    with pytest.raises(UnstatedRecurrenceError, match=r"theirs .*pass a single LipschitzRNN"):
        certify(model)
    assert certify(model["ours"]).holds


def test_own_modules_with_hidden_matrices_are_refused() -> None:
    class Own(nn.Module):
        step_size = 0.1

        def hidden_matrices(self) -> tuple[torch.Tensor, torch.Tensor]:
            return -torch.eye(2), torch.zeros(2, 2)

    with pytest.raises(UnstatedRecurrenceError, match="Own"):
        certify(Own())
    with pytest.raises(TypeError, match="states its recurrence"):
        certify(nn.Linear(2, 2))


def test_a_subclass_that_changes_the_map_must_state_it_itself() -> None:
    class Noisy(lr.LipschitzRNN):
        def forward(self, *args, **kwargs):
            output, h = super().forward(*args, **kwargs)
            return 2 * output, 2 * h

    class Plain(lr.LipschitzRNN):
        def extra_repr(self) -> str:
            return "plain"

    class Stated(Noisy):
        def stated_recurrences(self):
            return [item for cell in self.cells.values() for item in cell.stated_recurrences()]

    class Half(lr.LipschitzRNNCell):
        def hidden_matrices(self):
            A, W = super().hidden_matrices()
            return A / 2, W

    options = {"gamma": 2.0, "step_size": 0.05}
    with pytest.raises(UnstatedRecurrenceError, match=r"Noisy overrides forward"):
        certify(Noisy(2, 4, **options))
    with pytest.raises(UnstatedRecurrenceError, match=r"Half overrides hidden_matrices"):
        certify(Half(2, 4, **options))
    assert certify(Plain(2, 4, **options)).holds
    assert certify(Stated(2, 4, **options)).holds
    model = stable()
    model.cells["l0"] = Half(2, 4, **options)
    with pytest.raises(UnstatedRecurrenceError, match="Half"):
        certify(nn.Sequential(model))


def test_hooks_and_replaced_methods_are_refused() -> None:
    model = stable()
    handle = model.register_forward_hook(lambda module, args, output: output)
    with pytest.raises(UnstatedRecurrenceError, match="hooks"):
        certify(model)
    handle.remove()
    handle = model.register_forward_pre_hook(lambda module, args: args)
    with pytest.raises(UnstatedRecurrenceError, match="hooks"):
        certify(model)
    handle.remove()
    assert certify(model).holds
    model.forward = lambda *args: None
    with pytest.raises(UnstatedRecurrenceError, match=r"forward.*LipschitzRNN"):
        certify(model)


def test_matrices_that_change_from_call_to_call_are_refused() -> None:
    model = stable()
    inner = model.cell().hidden
    inner.register_forward_hook(lambda module, args, pair: (pair[0] + 0.01 * torch.rand(4, 4), pair[1]))
    with pytest.raises(UnstatedRecurrenceError, match="change from call to call"):
        certify(model)


def test_every_cell_is_certified_with_its_own_settings() -> None:
    model = stable(num_layers=2)
    with torch.no_grad():
        model.cell(1).alpha, model.cell(1).step_size, model.cell(1).integrator = -1.0, 0.3, "midpoint"
    first, second = subjects(model)
    assert (first.alpha, first.step_range, first.integrator) == (1.0, (0.05, 0.05), "euler")
    assert (second.alpha, second.step_range, second.integrator) == (-1.0, (0.3, 0.3), "midpoint")
    whole = certify(model)
    assert whole.parts[0].holds
    assert not whole.parts[1].holds
    assert not whole.holds


def test_the_certificate_carries_what_it_is_about() -> None:
    model = stable(alpha=0.5, integrator="midpoint", nonlinearity="sigmoid")
    certificate = certify(model)
    assert certificate.holds
    assert (certificate.alpha, certificate.nonlinearity, certificate.slopes) == (0.5, "sigmoid", (0.0, 0.25))
    assert (certificate.dynamics, certificate.step_range, certificate.precision) == (
        "midpoint",
        (0.05, 0.05),
        "float32",
    )
    for own, held in zip(model.hidden_matrices(), (certificate.A, certificate.W), strict=True):
        assert torch.equal(own.detach().double(), torch.from_numpy(held))
    plain = certificate.to_dict()
    for key in ("alpha", "nonlinearity", "precision", "A", "W", "metric", "multipliers", "next_step"):
        assert key in plain


def test_an_ensembles_settings_are_refused() -> None:
    model = stable()
    cell = model.cell()
    del cell.alpha
    cell.register_buffer("alpha", torch.ones(3))
    with pytest.raises(UnstatedRecurrenceError, match="alpha"):
        certify(model)


def test_long_spans_are_certified_by_the_steps_they_are_split_into() -> None:
    assert split_steps((0.1, 0.1), None) == (0.1, 0.1)
    assert split_steps((0.1, 0.1), 0.2) == (0.1, 0.1)
    assert split_steps((0.5, 0.5), 0.2) == pytest.approx((0.5 / 3, 0.5 / 3))
    assert split_steps((0.6000001, 0.6000001), 0.2) == pytest.approx((0.2, 0.2))
    assert split_steps((0.0, 0.5), 0.2) == pytest.approx((0.0, 0.2), rel=1e-5)
    assert split_steps((0.3, 0.5), 0.2) == pytest.approx((0.1, 0.2), rel=1e-5)
    assert split_steps((0.3, 0.5), 0.2)[1] > 0.2
    cell = stable().cell()
    cell.max_step = 0.02
    assert subjects(cell)[0].step_range == pytest.approx((0.05 / 3, 0.05 / 3))


def test_a_pair_alone_states_the_map_it_was_built_for() -> None:
    pair = ContractingPair(4, step_size=0.2, integrator="heun", rate=0.05, alpha=-2.0)
    (subject,) = subjects(nn.ModuleDict({"pair": pair}))
    assert (subject.name, subject.alpha, subject.integrator) == ("pair", -2.0, "heun")
    assert subject.hint is not None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert subjects(pair)[0].precision.name == "float32"


class Wrapper(nn.Module):
    """Passes attributes on to the module inside, as many wrappers do, and runs something else beside it."""

    def __init__(self, inner: nn.Module, beside: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.beside = inner, beside

    def __getattr__(self, name: str) -> object:
        try:
            return nn.Module.__getattr__(self, name)
        except AttributeError:
            return getattr(next(iter(self._modules.values())), name)


def test_a_wrapper_that_passes_attributes_on_states_nothing() -> None:
    with pytest.raises(UnstatedRecurrenceError, match=r"beside \(LSTM\)"):
        certify(Wrapper(stable(), nn.LSTM(2, 4)))
    (subject,) = subjects(Wrapper(stable()))
    assert subject.name == "inner"
    model = stable()
    model.stated_recurrences = list
    with pytest.raises(UnstatedRecurrenceError, match="replaced on the instance"):
        certify(model)


class StandIn(nn.Module):
    """The form of torch.compile's wrapper, whose import takes seconds."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._orig_mod = module

    __getattr__ = Wrapper.__getattr__


StandIn.__name__, StandIn.__module__ = "OptimizedModule", "torch._dynamo.eval_frame"


@pytest.mark.parametrize("compile", [StandIn, pytest.param(torch.compile, marks=pytest.mark.full)])
def test_hooks_on_a_compiled_module_are_refused(compile) -> None:
    compiled = compile(stable())
    (subject,) = subjects(nn.ModuleDict({"rnn": compiled}))
    assert subject.name == "rnn"
    handle = compiled.register_forward_hook(lambda module, args, output: output)
    with pytest.raises(UnstatedRecurrenceError, match="OptimizedModule has forward hooks"):
        certify(compiled)
    handle.remove()
    assert certify(compiled).holds


def test_hooks_on_all_modules_are_refused() -> None:
    for register in (
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_forward_pre_hook,
    ):
        handle = register(lambda *_: None)
        try:
            with pytest.raises(UnstatedRecurrenceError, match="hooks"):
                certify(stable())
            with pytest.raises(UnstatedRecurrenceError, match="hooks"):
                stable().stated_recurrences()
        finally:
            handle.remove()


def test_randomness_is_refused() -> None:
    dropping = stable(num_layers=2, dropout=0.5)
    with pytest.raises(UnstatedRecurrenceError, match=r"dropout is 0\.5.*call eval\(\) first"):
        certify(nn.Sequential(dropping))
    assert len(subjects(dropping.eval())) == 2
    assert subjects(stable(dropout=0.0, num_layers=2).train())
    model = stable()
    # Almost never does such a mask change an entry, so two draws are nearly always the same.
    model.cell().hidden.register_forward_hook(lambda _, __, pair: (pair[0] * (torch.rand(4, 4) > 1e-9), pair[1]))
    with pytest.raises(UnstatedRecurrenceError, match="change from call to call"):
        certify(model)


def test_a_module_without_values_is_refused() -> None:
    for module in (stable(device="meta"), stable().to("meta")):
        with pytest.raises(UnstatedRecurrenceError, match="meta device"):
            certify(module)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda items: items[0], "list of Recurrence"),
        (lambda items: None, "returned None"),
        (lambda items: [], "returned nothing"),
        (lambda items: ["A", "W"], "list of str"),
        (lambda items: [replace(items[0], A=[[1.0]])], "A=.*a tensor"),
        (lambda items: [replace(items[0], alpha="a")], "alpha='a'; it must be a number"),
        (lambda items: [replace(items[0], nonlinearity=None)], "nonlinearity=None"),
        (lambda items: [replace(items[0], integrator=["euler"])], "integrator"),
        (lambda items: [replace(items[0], step_range=0.1)], "step_range=0.1"),
        (lambda items: [replace(items[0], max_step=-1.0)], "max_step=-1.0"),
        (lambda items: [replace(items[0], hint=(1, 2))], "hint"),
        (lambda items: [replace(items[0], reverse=None)], "reverse"),
    ],
)
def test_wrong_statements_are_named(change, message: str) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = stable()

        def stated_recurrences(self):
            return change(self.rnn.stated_recurrences())

    with pytest.raises(UnstatedRecurrenceError, match=message):
        certify(nn.ModuleDict({"own": Own()}))
