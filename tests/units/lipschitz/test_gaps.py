"""Times too long for one step: told once, with numbers that a computation of their own confirms."""

import copy
import pickle
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import functional_call, stack_module_state, vmap

import lipschitz_rnn as lr
from lipschitz_rnn.ops.lipschitz.integrators import INTEGRATORS
from lipschitz_rnn.units.lipschitz.gaps import find_instability, stability_polynomial

MESSAGE = re.compile(
    r"(.*) (?:reaches|is) ([\d.e+]+), .* one (\w+) step.* up to ([\d.e+]+),.* up to ([\d.e+]+) are stable.*"
    r"max_step=([\d.e+]+)"
)
X = torch.zeros(2, 3, 3)


def fresh(hidden_size: int = 64, **options: Any) -> lr.LipschitzRNN:
    torch.manual_seed(0)
    return lr.LipschitzRNN(3, hidden_size, **options)


def spans(time: float, like: torch.Tensor = X) -> torch.Tensor:
    return torch.full(like.shape[:2], time, dtype=like.dtype)


def told(call: Callable[[], Any]) -> tuple[str, ...] | None:
    """The parts of the one warning of a call, or None."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert len(caught) <= 1
    if not caught:
        return None
    assert caught[0].filename == __file__
    found = MESSAGE.match(str(caught[0].message))
    assert found is not None, str(caught[0].message)
    return found.groups()


def test_a_hundred_gaps_of_a_minute_are_told_once() -> None:
    rnn = fresh()
    x, dt = torch.randn(100, 1, 3), torch.full((100, 1), 60.0)
    assert told(lambda: rnn(x, timespans=dt / 60)) is None
    parts = told(lambda: rnn(x, timespans=dt))
    assert parts is not None
    assert parts[:3] == ("timespans", "60", "euler")
    for again in (
        lambda: rnn(x, timespans=dt),
        lambda: rnn.stream()(x[0, 0], 60.0),
        lambda: rnn.cell()(x[0], timespans=99.0),
    ):
        assert told(again) is None
    # What it advises is enough.
    assert told(lambda: fresh(max_step=float(parts[5]))(x, timespans=dt)) is None
    assert told(lambda: fresh(max_step=0.5)(x, timespans=dt)) is None


@pytest.mark.parametrize("integrator", list(INTEGRATORS))
def test_the_numbers_are_those_of_a_large_state(integrator: str) -> None:
    """A skew-symmetric A, whose steps multiply lengths by the factor exactly: measured on states of length 1e12."""
    rnn = fresh(6, integrator=integrator, beta=1.0, gamma=0.0, init_scale=2.0, dtype=torch.float64)
    A, _ = rnn.hidden_matrices()
    planes = np.linalg.eigh(1j * A.detach().numpy())[1]  # of the rotations, by speed
    starts = torch.from_numpy(1e12 * np.concatenate([planes.real.T, planes.imag.T])[None])
    x = torch.zeros(1, 12, 3, dtype=torch.float64)

    def measured(time: float) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _, h_n = copy.deepcopy(rnn)(x, starts, timespans=spans(time, x))
        lengths = starts[0].norm(dim=-1)
        keep = lengths > 1e11
        return float((h_n[0].detach().norm(dim=-1) / lengths)[keep].max())

    parts = told(lambda: rnn(x, timespans=spans(40.0, x)))
    assert parts is not None
    factor, longest = float(parts[3]), float(parts[4])
    assert measured(40.0) == pytest.approx(factor, rel=6e-3)  # printed with three digits
    assert measured(0.98 * longest) <= 1.05 * (1 + 1e-6) < measured(1.02 * longest)


def test_the_stability_polynomial_is_what_a_step_of_a_number_does() -> None:
    """R(z) of ḣ = λh in exact arithmetic of small integers: z = 2."""
    values = {"euler": 3.0, "midpoint": 5.0, "heun": 5.0, "rk4": 1 + 2 + 2 + 8 / 6 + 16 / 24}
    for name, tableau in INTEGRATORS.items():
        assert sum(c * 2.0**n for n, c in enumerate(stability_polynomial(tableau))) == pytest.approx(values[name])


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda rnn: rnn.cell()(X[0], timespans=60.0), "timespans"),
        (lambda rnn: rnn.cell()(X[0], timespans=torch.tensor([1.0, 60.0, 2.0])), "timespans"),
        (lambda rnn: rnn.stream()(X[0, 0], 60.0), "timespans"),
        (lambda rnn: rnn.stream(3)(X[0], 60.0), "timespans"),
        (lambda rnn: rnn(X, timespans=spans(60.0)), "timespans"),
    ],
    ids=["cell", "cell, batch", "stream", "stream, batch", "layer"],
)
def test_wherever_a_time_is_given(call: Callable[[lr.LipschitzRNN], Any], name: str) -> None:
    """Once for a layer of three, its streams included."""
    rnn = fresh(num_layers=3)
    parts = told(lambda: call(rnn))
    assert parts is not None
    assert parts[0] == name
    assert told(lambda: [rnn(X, timespans=spans(90.0)), rnn.stream()(X[0, 0], 90.0)]) is None


def test_a_max_step_that_is_too_long_itself() -> None:
    parts = told(lambda: fresh(max_step=40.0)(X, timespans=spans(60.0)))
    assert parts is not None
    assert parts[:2] == ("max_step", "40")


def test_absurd_times_are_not_taken_for_growth_of_the_equation() -> None:
    assert told(lambda: fresh()(X, timespans=spans(1e6))) is not None
    assert told(lambda: fresh()(X, timespans=spans(1e30))) is not None


def test_padding_is_nobodys_time() -> None:
    dt = spans(0.1)
    dt[1, 1] = 1e4
    assert told(lambda: fresh()(X, timespans=dt, lengths=torch.tensor([2, 1, 2]))) is None


def test_slopes_that_do_not_saturate_count() -> None:
    """A alone is slow here; A + W is not. tanh lets a large state go, relu and identity do not."""
    zero, fast = torch.zeros(2, 2), torch.tensor([[0.0, 10.0], [-10.0, 0.0]])
    euler = INTEGRATORS["euler"]
    assert find_instability(zero, fast, 1.0, euler, "tanh") is None
    assert find_instability(zero, fast, 1.0, euler, "sigmoid") is None
    for nonlinearity in ("relu", "identity"):
        verdict = find_instability(zero, fast, 1.0, euler, nonlinearity)
        assert verdict is not None
        assert verdict.factor == pytest.approx(101**0.5)
    assert find_instability(fast, -fast, 1.0, euler, "identity") is None
    assert find_instability(fast, -fast, 1.0, euler, "relu") is not None


def test_no_spectrum_without_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short times cost none; long ones that are fine cost one for a record and one whenever the calls have doubled."""
    spectra = []
    eigvals = torch.linalg.eigvals
    monkeypatch.setattr(torch.linalg, "eigvals", lambda matrix: spectra.append(1) or eigvals(matrix))
    rnn = fresh()
    for time in (0.01, 0.03, 0.5, 2.0):
        rnn(X, timespans=spans(time))
    assert not spectra
    optimizer = torch.optim.SGD(rnn.parameters(), lr=0.0)
    for _ in range(100):
        rnn(X, timespans=spans(12.0))[0].sum().backward()
        optimizer.step()
    assert 1 <= len(spectra) <= 8
    before = len(spectra)
    rnn.load_state_dict(rnn.state_dict())  # other weights, as far as anyone can tell
    rnn(X, timespans=spans(12.0))
    assert len(spectra) == before + 1


def test_nobody_is_told_where_values_are_not_to_be_seen() -> None:
    members = [fresh() for _ in range(2)]
    parameters, buffers = stack_module_state(members)
    run = vmap(lambda p, b: functional_call(members[0], (p, b), (X,), {"timespans": spans(60.0)})[1])
    compiled = torch.compile(lambda dt: members[0](X, timespans=dt)[1], fullgraph=True, backend="eager")
    with torch.no_grad():
        assert told(lambda: run(parameters, buffers)) is None
        assert told(lambda: compiled(spans(60.0))) is None


def test_a_contracting_layer_has_its_own_limit() -> None:
    rnn = fresh(stability="contracting", step_size=0.5, max_step=0.5)
    assert told(lambda: rnn(X, timespans=spans(60.0))) is None


def test_a_module_pickled_by_an_earlier_version_loads_and_runs() -> None:
    """The watch of a cell had other names; this is its text pickle."""
    module = b"clipschitz_rnn.units.lipschitz.gaps\n"
    earlier = (
        b"ccopy_reg\n_reconstructor\np0\n("
        + module
        + b"GapWatch\np1\nc__builtin__\nobject\np2\nNtp3\nRp4\n(dp5\nVtold\np6\ng0\n("
        + module
        + b"Told\np7\ng2\nNtp8\nRp9\n(dp10\nValready\np11\nI00\nsbsVfine_up_to\np12\nF0.0\nsVcalls\np13\nI0\n"
        + b"sVnext_check\np14\nI1\nsVscheme\np15\n(tsb."
    )
    rnn = lr.LipschitzRNN(2, 4)
    rnn.cell()._gaps = pickle.loads(earlier)
    with pytest.warns(UserWarning, match="max_step"):
        rnn(torch.randn(3, 1, 2), timespans=torch.full((3, 1), 1e6))
