"""Constraints hold after 200 updates in float32, and the matrices agree with other ways to make them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import expm
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from lipschitz_rnn import units
from lipschitz_rnn.units import matrices
from lipschitz_rnn.units.cells import CellStack

SIZE, UPDATES = 16, 200


def trained(name: str, **options: Any) -> CellStack:
    """A unit after 200 large Adam updates on a task that pulls at its matrix: repeat the input of 5 steps ago."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        unit = units.build(name, 2, SIZE, **options)
        head = nn.Linear(int(unit.output_size), 2)
    generator = torch.Generator().manual_seed(4)
    optimiser = torch.optim.Adam([*unit.parameters(), *head.parameters()], lr=0.02)
    before = hidden(unit).detach().clone()
    for _ in range(UPDATES):
        x = torch.randn(6, 8, 2, generator=generator)
        loss = (head(unit(x)[0][-1]) - x[0]).square().mean() + unit.penalty()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert (hidden(unit) - before).abs().max() > 0.05, "training did not move the matrix, so the check says nothing"
    return unit


def hidden(unit: CellStack) -> Tensor:
    """W as it stands, or its transpose where the cell only has that: the same to a check of its constraint."""
    cell = unit.cell()
    if hasattr(cell, "hidden_matrix"):
        return cell.hidden_matrix()
    weights = cell.weights()
    return weights[-1] if isinstance(weights, tuple) else weights


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("exprnn", {}),
        ("dtriv", {"rebase_every": 20}),
        ("scornn", {}),
        ("urnn", {}),
        ("full-urnn", {}),
        ("eurnn", {}),
        ("eurnn", {"fft": True}),
    ],
)
def test_unitary_after_training(name: str, options: dict[str, Any]) -> None:
    W = hidden(trained(name, **options))
    assert (W.mH @ W - torch.eye(SIZE)).abs().max() < 1e-4


@pytest.mark.parametrize(("name", "margin"), [("soft-orth", 0.1), ("soft-orth", 0.02), ("spectral-rnn", 0.01)])
def test_singular_values_within_the_margin(name: str, margin: float) -> None:
    values = torch.linalg.svdvals(hidden(trained(name, margin=margin)).double())
    assert 1 - margin - 1e-5 < values.min()
    assert values.max() < 1 + margin + 1e-5
    assert (values - 1).abs().max() > 0.2 * margin


def test_kronecker_stays_near_unitary_by_its_penalty() -> None:
    """The soft constraint: within 0.05 of unitary with the usual penalty, and further than 0.3 without it."""

    def deviation(**options: float) -> float:
        W = hidden(trained("kronecker", **options))
        return (W.mH @ W - torch.eye(SIZE)).abs().max().item()

    assert deviation() < 0.05
    assert deviation(unitary_penalty=0.0) > 0.3


def test_antisymmetric_is_exact() -> None:
    for name in ("antisymmetric", "antisymmetric-gated"):
        cell = trained(name, gamma=0.0, step_size=0.3).cell()
        W = cell.weights() if name == "antisymmetric" else cell.weights()[1]
        assert torch.equal(W, -W.mT)


def test_nnrnn_eigenvalues_have_modulus_one() -> None:
    unit = trained("nnrnn")
    schur = unit.cell().schur_form()
    assert schur.triu(2).abs().max() > 0.01, "T stayed zero, so that W is merely orthogonal"
    for i in range(0, SIZE, 2):
        moduli = torch.linalg.eigvals(schur[i : i + 2, i : i + 2]).abs()
        torch.testing.assert_close(moduli, torch.ones(2), rtol=0.0, atol=1e-5)
        assert (schur[i + 2 :, i : i + 2] == 0).all()
    basis = torch.matrix_exp(matrices.skew(unit.cell().triangle, SIZE))
    torch.testing.assert_close(basis @ basis.mT, torch.eye(SIZE), rtol=0.0, atol=1e-4)


def test_nais_contracts() -> None:
    unit = trained("nais", kappa=0.05)
    A = unit.cell().weights().double()
    eigenvalues = torch.linalg.eigvalsh(A)
    assert torch.equal(A, A.mT)
    assert eigenvalues.min() > -0.95 - 1e-6
    assert eigenvalues.max() < -0.05 + 1e-6
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(1, 64, 2, generator=generator)
    left, right = torch.randn(2, 1, 64, SIZE, generator=generator)
    after = (unit(x, left)[1] - unit(x, right)[1]).norm(dim=-1)
    assert (after < (left - right).norm(dim=-1)).all()


def test_nais_scaling_acts_when_it_must() -> None:
    cell = units.build("nais", 2, SIZE, kappa=0.05).double().cell()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        cell.root.copy_(torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64))
    gram = -cell.weights() - 0.05 * torch.eye(SIZE, dtype=torch.float64)
    assert abs(torch.linalg.matrix_norm(gram).item() - 0.9) < 1e-12


def test_gated_lipschitz_matrices_are_the_layers(generator: torch.Generator) -> None:
    M = torch.randn(2, SIZE, SIZE, generator=generator)
    layer = units.build("lipschitz", 2, SIZE, beta=(0.8, 0.6), gamma=(0.1, 0.2))
    gated = units.build("lipschitz-gated", 2, SIZE, beta=(0.8, 0.6), gamma=(0.1, 0.2))
    with torch.no_grad():
        gated.cell().free.copy_(M)
        layer.cell().hidden.M_A.copy_(M[0])
        layer.cell().hidden.M_W.copy_(M[1])
    for ours, theirs in zip(gated.cell().hidden_matrices(), layer.hidden_matrices(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_dtriv_moves_without_changing_the_function(inputs: Callable[..., Tensor]) -> None:
    unit = units.build("dtriv", 2, SIZE, rebase_every=3).double()
    cell, x = unit.cell(), inputs(5, 4, 2)
    cell.rebase()  # a base that is orthogonal to float64
    optimiser = torch.optim.SGD(unit.parameters(), lr=0.002)
    moves = 0
    for _ in range(9):
        unit.eval()
        expected = unit(x)[0]
        before = cell.base.clone()
        unit.train()
        torch.testing.assert_close(unit(x)[0], expected, rtol=0.0, atol=1e-12)
        moves += int(not torch.equal(before, cell.base))
        first, second = unit(x)[0], unit(x)[0]  # several passes before one backward must not disturb each other
        optimiser.zero_grad()
        (first.square().sum() + second.sum()).backward()
        optimiser.step()
    assert moves == 2


def test_dtriv_is_resumed_where_it_stopped(inputs: Callable[..., Tensor]) -> None:
    def advance(unit: nn.Module, steps: int) -> None:
        optimiser = torch.optim.SGD(unit.parameters(), lr=0.05)
        for _ in range(steps):
            optimiser.zero_grad()
            unit(x)[0].square().sum().backward()
            optimiser.step()

    x = inputs(5, 4, 2)
    whole = units.build("dtriv", 2, SIZE, rebase_every=4).double()
    resumed = units.build("dtriv", 2, SIZE, rebase_every=4).double()
    resumed.load_state_dict(whole.state_dict())
    first_half = units.build("dtriv", 2, SIZE, rebase_every=4).double()
    first_half.load_state_dict(whole.state_dict())
    advance(whole, 11)
    advance(first_half, 6)
    resumed.load_state_dict(first_half.state_dict())
    advance(resumed, 5)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


@pytest.mark.parametrize("orthogonal_map", ["matrix_exp", "cayley"])
def test_maps_agree_with_torch_parametrizations(orthogonal_map: str, generator: torch.Generator) -> None:
    """`parametrizations.orthogonal` sends the part below the diagonal of its parameter through the same maps."""
    layer = nn.Linear(6, 6, bias=False).double()
    parametrizations.orthogonal(layer, orthogonal_map=orthogonal_map, use_trivialization=False)
    free = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        layer.parametrizations.weight.original.copy_(free)
    K = matrices.skew(free[tuple(torch.tril_indices(6, 6, -1))], 6)
    if orthogonal_map == "matrix_exp":
        torch.testing.assert_close(torch.matrix_exp(K), layer.weight)
    else:
        # Torch's Cayley map is (I + K/2)(I − K/2)⁻¹; ours is the one of the scaled Cayley paper.
        torch.testing.assert_close(matrices.cayley(-K / 2), layer.weight)


def test_matrix_functions_against_numpy(generator: torch.Generator) -> None:
    vectors = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    product = np.eye(6)
    for v in vectors.numpy():
        product = product @ (np.eye(6) - 2 * np.outer(v, v) / (v @ v))
    np.testing.assert_allclose(matrices.householder_product(vectors).numpy(), product, atol=1e-12)
    S = matrices.skew_hermitian(torch.randn(36, generator=generator, dtype=torch.float64), 6)
    assert torch.equal(S, -S.mH)
    np.testing.assert_allclose(torch.matrix_exp(S).numpy(), expm(S.numpy()), atol=1e-12)
    assert torch.linalg.matrix_rank(S) == 6


def test_fastgrnn_compression() -> None:
    """A third of the entries, on at most 255 levels, and the gradient of the uncompressed matrix."""
    cell = units.build("fastgrnn", 4, SIZE, hidden_rank=None, density=1 / 3, quantize=True).cell()
    W = cell.matrices()[1]
    assert int((W != 0).sum()) <= round(SIZE * SIZE / 3)
    level = W.abs().max() / 127
    torch.testing.assert_close(W / level, torch.round(W / level), rtol=0.0, atol=1e-3)
    free = cell.hidden_factors[0]
    kept = W != 0
    assert (W - free)[kept].abs().max() <= level / 2 + 1e-7
    assert free[~kept].abs().max() <= free[kept].abs().min() + level
    W.sum().backward()
    assert torch.equal(free.grad, torch.ones_like(free))


def test_fastgrnn_compresses_equal_entries_and_zeros() -> None:
    cell = units.build("fastgrnn", 4, SIZE, hidden_rank=None, density=0.5, quantize=True).cell()
    with torch.no_grad():
        cell.hidden_factors[0].fill_(0.3)
    assert int((cell.matrices()[1] != 0).sum()) == SIZE * SIZE // 2
    with torch.no_grad():
        cell.hidden_factors[0].zero_()
    assert torch.equal(cell.matrices()[1], torch.zeros(SIZE, SIZE))
