"""What the page computes in the browser, against PyTorch and NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from explorer_browser import Opened

import lipschitz_rnn as lr
from lipschitz_rnn.explorer.shipped import FOLDER
from lipschitz_rnn.ops.lipschitz.integrators import INTEGRATORS
from lipschitz_rnn.ops.lipschitz.nonlinearities import NONLINEARITIES
from lipschitz_rnn.ops.lipschitz.reference import integrate_step
from lipschitz_rnn.stability import certify
from lipschitz_rnn.stability.studies.paper import PENDULUM_SETTINGS, fit_pendulum
from lipschitz_rnn.training.runs import load_run

STEPS = 100  # compared; an unstable network multiplies rounding errors with every step
TOLERANCE = 1e-5
DRAWS = [12, pytest.param(200, marks=pytest.mark.full)]


def random_settings(rng: np.random.Generator, size: int | None = None) -> dict[str, Any]:
    """Positions of all sliders and lists, as a user could choose them; the step's slider is a power of ten."""
    return {
        "network": "random",
        "beta": round(rng.uniform(0, 1), 2),
        "gamma": round(rng.uniform(0, 2), 2),
        "alpha": round(rng.uniform(0, 2), 2),
        "step": round(rng.uniform(-2.5, -0.5), 2),
        "size": int(rng.integers(2, 33)) if size is None else size,
        "scale": round(rng.uniform(0, 2), 2),
        "integrator": str(rng.choice(list(INTEGRATORS))),
        "nonlinearity": str(rng.choice(list(NONLINEARITIES))),
        "input": str(rng.choice(["none", "constant", "sine", "noise"])),
        "strength": 1.5,
    }


def scan_options(shown: dict[str, Any]) -> dict[str, Any]:
    names = {"step_size": "step", "alpha": "alpha", "integrator": "integrator", "nonlinearity": "nonlinearity"}
    return {ours: shown[theirs] for ours, theirs in names.items()}


def matrices(explorer: Opened, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A and W by PyTorch, from the page's M."""
    shown, network = explorer.ask("explorer.settings()"), explorer.ask("explorer.network()")
    free = (torch.tensor(network[name], dtype=torch.float64).view(n, n) for name in ("M_A", "M_W"))
    pairs = zip(shown["beta"], shown["gamma"], free, strict=True)
    A, W = (lr.SymmetricSkew(beta, gamma)(M) for beta, gamma, M in pairs)
    return A, W


@pytest.mark.slow
@pytest.mark.parametrize("draws", DRAWS)
def test_states_agree_with_pytorch(explorer: Opened, draws: int) -> None:
    rng = np.random.default_rng(3)
    worst = 0.0
    for _ in range(draws):
        wanted = random_settings(rng)
        explorer.set(**wanted)
        shown, n = explorer.ask("explorer.settings()"), wanted["size"]
        assert {key: shown[key] for key in ("integrator", "nonlinearity", "size")} == {
            key: wanted[key] for key in ("integrator", "nonlinearity", "size")
        }
        assert shown["step"] == pytest.approx(10 ** wanted["step"])
        assert shown["beta"] == [wanted["beta"]] * 2
        A, W = matrices(explorer, n)
        U = torch.tensor(explorer.ask("explorer.network().U"), dtype=torch.float64).view(n, 1)
        x = torch.tensor(explorer.ask(f"explorer.samples().slice(0, {STEPS})"), dtype=torch.float64)
        both = explorer.ask(f"['a', 'b'].map((k) => explorer.states()[k].slice(0, {STEPS} + 1))")
        theirs = torch.tensor(both, dtype=torch.float64).transpose(0, 1)  # (T + 1, 2, N)
        ours, _ = lr.lipschitz_scan((x @ U.T)[:, None].expand(-1, 2, -1), A, W, theirs[0], **scan_options(shown))
        size = theirs[1:].abs().amax((1, 2)).cummax(0).values.clamp(min=1.0)
        worst = max(worst, float(((ours - theirs[1:]).abs().amax((1, 2)) / size).max()))
    assert worst < TOLERANCE


def test_the_digit_networks_read_as_in_pytorch(explorer: Opened) -> None:
    """States, probabilities and the gradient by which the attack is made, in float32 and in float64."""
    for place, file in enumerate(("digits-free", "digits-contracting")):
        network = load_run(FOLDER / f"{file}.safetensors").networks[0]
        explorer.set(reader=str(place), noise="0.3", attack="0.1")
        page = explorer.ask("explorer.digit()")
        inputs = torch.tensor(page["image"], dtype=torch.float32).view(64, 1, 1)
        scores, state = network(inputs)
        assert torch.allclose(state.view(-1), torch.tensor(page["last"], dtype=torch.float32), atol=TOLERANCE)
        assert torch.allclose(scores[0].softmax(-1), torch.tensor(page["chances"]), atol=TOLERANCE)
        explorer.set(noise="0", attack="0")
        clean = torch.tensor(explorer.ask("explorer.digit().image"), dtype=torch.float32).view(64, 1, 1)
        clean.requires_grad_()
        loss = torch.nn.functional.cross_entropy(network(clean)[0], torch.tensor([5]))
        (gradient,) = torch.autograd.grad(loss, clean)
        found = torch.tensor(explorer.ask("explorer.gradient(5)"), dtype=torch.float32)
        assert torch.allclose(found, gradient.view(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", INTEGRATORS)
def test_the_adjoint_of_every_integrator(explorer: Opened, name: str) -> None:
    """The page has one adjoint for all tableaux; a network that was trained with Euler steps shows only one."""
    script = """(name) => {
        explorer.settle();
        return explorer.adjoint(name);
    }"""
    page = explorer.page.evaluate(script, name)
    n = len(page["last"])
    A, W = (torch.tensor(page[key], dtype=torch.float64).view(n, n) for key in "AW")
    x = torch.tensor(page["samples"], dtype=torch.float64, requires_grad=True)
    U = torch.tensor(page["U"], dtype=torch.float64).view(n, 1)
    _, last = lr.lipschitz_scan((x @ U.T)[:, None], A, W, step_size=0.1, integrator=name)
    assert torch.allclose(last[0], torch.tensor(page["last"], dtype=torch.float64), atol=1e-9)
    (gradient,) = torch.autograd.grad(last[0, 0], x)
    assert torch.allclose(torch.tensor(page["gradient"], dtype=torch.float64), gradient, atol=1e-9)


def distance_of_sets(ours: np.ndarray, theirs: np.ndarray) -> float:
    """How far eigenvalues are from each other, each matched with the nearest that is left."""
    left, worst = list(theirs), 0.0
    for value in ours:
        place = int(np.argmin([abs(value - other) for other in left]))
        worst = max(worst, abs(value - left.pop(place)))
    return worst


def test_eigenvalues_and_jacobians(explorer: Opened) -> None:
    rng = np.random.default_rng(4)
    for size in (2, 3, 8, 32, 64):
        explorer.set(**random_settings(rng, size) | {"nonlinearity": "tanh"})
        shown = explorer.ask("explorer.settings()")
        A, W = matrices(explorer, size)
        found = explorer.ask("explorer.eigenvalues()")
        for key, matrix in (("A", A), ("W", W)):
            values = np.array([complex(*pair) for pair in found[key]])
            assert distance_of_sets(values, np.linalg.eigvals(matrix.numpy())) < 1e-6 * (1 + float(matrix.norm()))
        h = torch.tensor(explorer.ask("explorer.states().a[7]"), dtype=torch.float64)
        u = torch.tensor(explorer.ask("explorer.samples()[7]"), dtype=torch.float64) @ torch.tensor(
            explorer.ask("explorer.network().U"), dtype=torch.float64
        ).view(1, -1)
        settings = (shown["step"], shown["alpha"], INTEGRATORS[shown["integrator"]], NONLINEARITIES["tanh"])
        J = torch.func.jacrev(integrate_step)(h, u, A, W, *settings)
        page = explorer.ask("explorer.jacobian(7)")
        assert np.allclose(np.reshape(page["matrix"], (size, size)), J.numpy(), atol=1e-9)
        values = np.array([complex(*pair) for pair in page["eigenvalues"]])
        assert distance_of_sets(values, np.linalg.eigvals(J.numpy())) < 1e-6


def factor_of(rate: float, step: float) -> float:
    return math.exp(-rate * step)


@pytest.mark.slow
@pytest.mark.parametrize("draws", DRAWS)
def test_certificates_of_the_page_are_sound(explorer: Opened, draws: int) -> None:
    """Never better than the slowest slopes that Python finds, and never broken by a pair of states."""
    rng = np.random.default_rng(5)
    certified = 0
    for number in range(draws):
        size = 2 if number % 3 else int(rng.integers(3, 17))
        euler = {} if size == 2 else {"integrator": "euler", "scale": 0.3}
        explorer.set(**random_settings(rng, size) | {"gamma": round(rng.uniform(0.3, 2), 2), "alpha": 1.0} | euler)
        shown, stated = explorer.ask("explorer.settings()"), explorer.ask("explorer.certificate()")
        A, W = matrices(explorer, size)
        options = scan_options(shown)
        ours = certify((A, W), **options, solver="structured", time_limit=2.0)
        assert stated["factor"] >= factor_of(ours.upper_bound, shown["step"]) * (1 - 1e-9)
        if not stated["holds"]:
            continue
        certified += 1
        assert stated["factor"] < 1
        T = np.eye(size) if stated["root"] is None else np.reshape(stated["root"], (size, size))
        starts = torch.from_numpy(rng.normal(size=(2, 4000, size)) * 10 ** rng.uniform(-3, 2, size=(2, 4000, 1)))
        starts[1, :2000] = starts[0, :2000] + 1e-3 * starts[1, :2000]
        u = torch.from_numpy(3 * rng.normal(size=(1, 4000, size)))
        after = [lr.lipschitz_scan(u, A, W, start, **options)[1].numpy() for start in starts]
        before = np.linalg.norm((starts[0] - starts[1]).numpy() @ T.T, axis=1)
        assert np.all(np.linalg.norm((after[0] - after[1]) @ T.T, axis=1) <= before * (stated["factor"] + 1e-12))
    assert certified > draws // 4


def test_the_bound_lies_above_the_curve(explorer: Opened) -> None:
    """The random network at the start, and the trained one with the proof of the package."""
    for network in ("random", "1"):
        explorer.set(network=network)
        stated, lengths = explorer.ask("explorer.certificate()"), explorer.array("explorer.distances().inMetric")
        assert stated["holds"]
        steps = np.arange(len(lengths))
        assert np.all(lengths <= lengths[0] * stated["factor"] ** steps * (1 + 1e-9) + 1e-12)
    assert stated["method"] == "package"
    explorer.set(step="-0.5")  # no longer the trained step: the proof of the package does not apply
    assert explorer.ask("explorer.certificate()")["method"] != "package"


def test_two_units_are_certified_as_well_as_in_python(explorer: Opened) -> None:
    for integrator in INTEGRATORS:
        explorer.set(network="random", integrator=integrator)
        stated, shown = explorer.ask("explorer.certificate()"), explorer.ask("explorer.settings()")
        ours = certify(matrices(explorer, 2), **scan_options(shown))
        assert ours.holds
        assert stated["factor"] <= ours.factor + 0.02 * (1 - ours.factor)


def test_equilibria(explorer: Opened) -> None:
    """Each one is a rest point, stable or not by the eigenvalues of the map there; some networks have several."""
    explorer.set(network="random", beta="0.2", gamma="0.2", scale="1.5", integrator="heun")
    counts = []
    for _ in range(12):
        explorer.page.evaluate("() => { document.getElementById('reseed').click(); explorer.settle(); }")
        A, W = (matrix.numpy() for matrix in matrices(explorer, 2))
        found = explorer.ask("explorer.equilibria()")
        counts.append(len(found))
        for point in found:
            h = np.array(point["h"])
            s = np.tanh(W @ h)
            assert np.abs(A @ h + s).max() < 1e-8
            J = A + (1 - s**2)[:, None] * W
            step = np.eye(2) + 0.1 * J + 0.5 * (0.1 * J) @ (0.1 * J)  # Heun's map at a rest point
            assert point["stable"] == (np.abs(np.linalg.eigvals(step)).max() < 1)
    assert max(counts) > 1


def test_the_pendulums(explorer: Opened) -> None:
    for place, (beta, gamma) in enumerate(PENDULUM_SETTINGS):
        explorer.page.evaluate("(place) => explorer.pendulum.choose(place)", place)
        ours = fit_pendulum(beta, gamma).trajectory((1.0, 0.0))[-1]
        assert np.allclose(explorer.array("explorer.pendulum.last()"), ours, atol=1e-6)
