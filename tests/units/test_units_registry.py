"""The listing: every unit of the issue, its description, its parameter count, its ensembles."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from lipschitz_rnn import units
from lipschitz_rnn.units.registry import count_parameters

EXPECTED = {
    *("rnn", "lstm", "gru", "rnn-orth", "momentum-lstm", "srlstm", "urnn", "full-urnn", "eurnn", "soft-orth"),
    *("kronecker", "scornn", "exprnn", "dtriv", "nnrnn", "antisymmetric", "antisymmetric-gated", "nais", "irnn"),
    *("neural-ode", "residual", "fastrnn", "fastgrnn", "fastgrnn-lsq", "spectral-rnn", "lipschitz"),
    *("lipschitz-gated", "cornn", "lem", "gru-d", "lru", "ren"),
}


def test_all_units_are_there() -> None:
    assert set(units.available()) == EXPECTED


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_descriptions(name: str) -> None:
    about = units.info(name)
    assert about.name == name
    assert 1990 <= about.year <= 2023
    assert "⁺" in about.equation or "'" in about.equation or "exp" in about.equation
    assert about.constraint
    assert about.load().__doc__ is not None
    state = torch.random.get_rng_state()
    assert about.parameters > 1000
    assert torch.equal(state, torch.random.get_rng_state()), "counting drew from the global generator"


@pytest.mark.parametrize(
    ("name", "options", "hidden_size", "input_size", "outputs", "printed", "tolerance"),
    [
        ("lstm", {}, 128, 1, 10, 68e3, 0.01),
        ("momentum-lstm", {}, 256, 1, 10, 270e3, 0.01),
        ("full-urnn", {}, 512, 1, 10, 270e3, 0.02),
        ("soft-orth", {}, 128, 1, 10, 18e3, 0.01),
        ("kronecker", {}, 512, 1, 10, 11e3, 0.08),
        ("antisymmetric", {}, 128, 1, 10, 10e3, 0.04),
        ("antisymmetric-gated", {}, 128, 1, 10, 10e3, 0.01),
        ("irnn", {"rank": 10}, 128, 1, 10, 4e3, 0.03),
        ("irnn", {"rank": 25}, 128, 1, 10, 8e3, 0.01),
        ("exprnn", {}, 360, 1, 10, 69e3, 0.01),
        ("nais", {}, 128, 1, 10, 18e3, 0.01),
        ("lipschitz", {}, 64, 1, 10, 9e3, 0.02),
        ("lipschitz", {}, 128, 1, 10, 34e3, 0.01),
        ("lstm", {}, 158, 129, 129, 200e3, 0.03),
        ("momentum-lstm", {}, 158, 129, 129, 200e3, 0.03),
        ("srlstm", {}, 158, 129, 129, 200e3, 0.03),
        ("full-urnn", {}, 256, 129, 129, 200e3, 0.02),
        ("scornn", {}, 425, 129, 129, 200e3, 0.01),
        ("exprnn", {}, 425, 129, 129, 200e3, 0.01),
        ("lipschitz", {}, 256, 129, 129, 198e3, 0.01),
    ],
)
def test_parameter_counts_of_the_papers_tables(
    name: str, options: dict, hidden_size: int, input_size: int, outputs: int, printed: float, tolerance: float
) -> None:
    unit = units.build(name, input_size, hidden_size, **options)
    head = outputs * (int(unit.output_size) + 1)
    count = sum(parameter.numel() for parameter in unit.parameters()) + head
    assert abs(count - printed) <= tolerance * printed, count


def test_urnn_counts_what_its_own_paper_counts() -> None:
    """16K at N = 512; the docstring says what the 9K of the Lipschitz paper's table leaves out."""
    assert count_parameters("urnn", 512, classes=10) == 12 * 512 + 10 * (2 * 512 + 1)
    assert abs((7 * 512 + 10 * 512) - 9e3) < 500
    assert "9K" in (units.info("urnn").load().__doc__ or "")


@pytest.mark.parametrize("name", [name for name in sorted(EXPECTED) if units.info(name).ensembles])
def test_ensembles_by_vmap(name: str, inputs: Callable[..., Tensor]) -> None:
    """S networks at once give the numbers and gradients of each alone, and no slow fallback is taken."""
    members = [units.build(name, 2, 8).double() for _ in range(3)]
    parameters, buffers = stack_module_state(members)
    x = inputs(3, 5, 4, 2)

    def run(values: dict[str, Tensor], constants: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(members[0], (values, constants), (x,))[0]

    together = vmap(run)(parameters, buffers, x)
    gradients = torch.autograd.grad(together.square().sum(), list(parameters.values()))
    for s, member in enumerate(members):
        alone = member(x[s])[0]
        torch.testing.assert_close(together[s], alone, rtol=0.0, atol=1e-12)
        expected = torch.autograd.grad(alone.square().sum(), list(member.parameters()))
        for got, want in zip(gradients, expected, strict=True):
            torch.testing.assert_close(got[s], want, rtol=1e-9, atol=1e-10)


def test_cudnn_units_and_dtriv_say_that_they_have_no_ensembles() -> None:
    without = {name for name in EXPECTED if not units.info(name).ensembles}
    assert without == {"rnn", "rnn-orth", "lstm", "gru", "dtriv"}


def test_dtriv_trains_as_slices_of_an_ensemble(inputs: Callable[..., Tensor]) -> None:
    """Members one after another from stacked parameters, as a trainer may hold them: the same as each alone."""
    members = [units.build("dtriv", 2, 8, rebase_every=2).double() for _ in range(2)]
    parameters, buffers = stack_module_state(members)
    parameters, buffers = ({k: v.clone().detach() for k, v in part.items()} for part in (parameters, buffers))
    leaves = [value.requires_grad_() for value in parameters.values()]
    optimiser = torch.optim.SGD(leaves, lr=0.02)
    alone = torch.optim.SGD([p for member in members for p in member.parameters()], lr=0.02)
    shared, x = units.build("dtriv", 2, 8, rebase_every=2).double(), inputs(5, 4, 2)
    for _ in range(5):
        slices = {name: value.unbind(0) for name, value in parameters.items()}
        own = [{k: v[s] for k, v in slices.items()} | {k: v[s] for k, v in buffers.items()} for s in range(2)]
        losses = [functional_call(shared, values, (x,))[0].square().sum() for values in own]
        optimiser.zero_grad()
        sum(losses).backward()
        optimiser.step()
        alone.zero_grad()
        sum(member(x)[0].square().sum() for member in members).backward()
        alone.step()
    for s, member in enumerate(members):
        for name, value in member.state_dict().items():
            torch.testing.assert_close((parameters | buffers)[name][s], value, rtol=0.0, atol=1e-12)


def test_dtriv_refuses_to_train_under_vmap(inputs: Callable[..., Tensor]) -> None:
    members = [units.build("dtriv", 2, 8).double() for _ in range(2)]

    def run(values: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(members[0], values, (x,))[0]

    parameters, _ = stack_module_state(members)
    with pytest.raises(NotImplementedError, match="use exprnn"):
        vmap(run, in_dims=(0, None))(parameters, inputs(5, 4, 2))


def test_listing_imports_no_family() -> None:
    """Families are imported when one of their units is built."""
    code = (
        "import sys, lipschitz_rnn.units as u; u.available(); u.info('exprnn').equation;"
        "print([m for m in sys.modules if m.startswith('lipschitz_rnn.units.')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "registry" in found
    assert not any(family in found for family in ("unitary", "orthogonal", "momentum", "oscillatory", "fast"))


def test_device_and_dtype() -> None:
    unit = units.build("full-urnn", 2, 8, dtype=torch.float64, device="cpu")
    assert {parameter.dtype for parameter in unit.parameters()} == {torch.float64}
    assert unit(torch.zeros(3, 2, 2, dtype=torch.float64))[1].dtype == torch.complex128
    assert (
        units.build("lstm", 2, 8, dtype=torch.float64)(torch.zeros(3, 2, 2, dtype=torch.float64))[0].dtype
        == torch.float64
    )


SCANS = {"antisymmetric", "nais", "neural-ode", "residual", "lipschitz"}


@pytest.mark.parametrize("name", sorted(EXPECTED - SCANS))
def test_no_tensor_is_made_on_another_device(name: str) -> None:
    """On the meta device a CPU tensor made on the way, or a look at values, raises. (The scan has its own tests.)"""
    unit = units.build(name, 3, 8, num_layers=2, bidirectional=True).to("meta").eval()
    x = torch.zeros(5, 4, 3, device="meta")
    lengths = None if name in ("rnn", "rnn-orth", "lstm", "gru") else torch.ones(4, dtype=torch.int64, device="meta")
    output, _ = unit(x, lengths=lengths)
    assert output.device.type == unit.penalty().device.type == "meta"
