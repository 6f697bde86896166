"""``LipschitzRNN`` as a module: parameters, shapes, layers, directions, dropout, saving."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from lipschitz_layers import layer, sequence
from problems import INTEGRATORS, NONLINEARITIES, Problem, numpy_scan, symmetric_skew
from torch import nn

import lipschitz_rnn as lr
from lipschitz_rnn.units.lipschitz.parametrization import SymmetricSkewPair


def test_parameter_count() -> None:
    """The paper's model for ordered MNIST with N = 128."""
    model = nn.ModuleList([lr.LipschitzRNN(1, 128), nn.Linear(128, 10)])
    assert sum(parameter.numel() for parameter in model.parameters()) == 34_314


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_values_equal_numpy(integrator: str, nonlinearity: str, bias: bool, generator: torch.Generator) -> None:
    """From M, U and b to the states, with separate (β, γ) for A and W."""
    rnn = layer(
        generator, bias=bias, beta=(0.6, 0.9), gamma=(0.1, 0.2), step_size=0.2, alpha=0.7,
        integrator=integrator, nonlinearity=nonlinearity,
    )  # fmt: skip
    x, h_0 = sequence(generator, 6, 2, 3), sequence(generator, 1, 2, 5)
    output, h_n = rnn(x, h_0)
    values = {name: parameter.detach().numpy() for name, parameter in rnn.named_parameters()}
    A = symmetric_skew(values["cells.l0.hidden.M_A"], 0.6, 0.1)
    W = symmetric_skew(values["cells.l0.hidden.M_W"], 0.9, 0.2)
    expected, last = numpy_scan(
        Problem(
            u=x, A=torch.tensor(A), W=torch.tensor(W), hx=h_0[0], step_size=0.2, alpha=0.7, integrator=integrator,
            nonlinearity=nonlinearity, lengths=None, input_weight=rnn.cells["l0"].weight_ih,
            bias=rnn.cells["l0"].bias_ih,
        )
    )  # fmt: skip
    np.testing.assert_allclose(output.detach(), expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(h_n[0].detach(), last, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("num_layers", [1, 3])
def test_shapes_are_those_of_rnn(num_layers: int, batch_first: bool, bidirectional: bool) -> None:
    options = {"num_layers": num_layers, "batch_first": batch_first, "bidirectional": bidirectional}
    ours, theirs = lr.LipschitzRNN(3, 5, **options), nn.RNN(3, 5, **options)
    directions = 2 if bidirectional else 1
    batched = (torch.zeros(7, 2, 3), torch.zeros(num_layers * directions, 7 if batch_first else 2, 5))
    unbatched = (torch.zeros(7, 3), torch.zeros(num_layers * directions, 5))
    for x, h_0 in (batched, unbatched):
        for arguments in ((x,), (x, h_0)):
            found, expected = ours(*arguments), theirs(*arguments)
            assert [tensor.shape for tensor in found] == [tensor.shape for tensor in expected]


def test_batch_first_and_unbatched_are_the_same_numbers(generator: torch.Generator) -> None:
    rnn = layer(generator, num_layers=2, bidirectional=True)
    x, h_0, dt = sequence(generator, 6, 4, 3), sequence(generator, 4, 4, 5), 0.05 * sequence(generator, 6, 4).abs()
    output, h_n = rnn(x, h_0, timespans=dt)
    for sample in range(4):
        alone, last = rnn(x[:, sample], h_0[:, sample], timespans=dt[:, sample])
        torch.testing.assert_close(alone, output[:, sample], rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(last, h_n[:, sample], rtol=1e-12, atol=1e-13)
    rnn.batch_first = True
    swapped, last = rnn(x.transpose(0, 1), h_0, timespans=dt.T)
    torch.testing.assert_close(swapped.transpose(0, 1), output, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(last, h_n, rtol=1e-12, atol=1e-13)


def test_layers_are_compositions(generator: torch.Generator) -> None:
    rnn = layer(generator, num_layers=3)
    x, h_0 = sequence(generator, 6, 2, 3), sequence(generator, 3, 2, 5)
    output, h_n = rnn(x, h_0)
    for k in range(3):
        single = lr.LipschitzRNN(3 if k == 0 else 5, 5, dtype=torch.float64)
        single.cells["l0"] = rnn.cell(k)
        x, last = single(x, h_0[k : k + 1])
        torch.testing.assert_close(last[0], h_n[k], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(x, output, rtol=1e-12, atol=1e-13)


def test_directions_are_compositions(generator: torch.Generator) -> None:
    """The other direction is a unit of its own that reads the sequence from its end; two layers of that."""
    rnn = layer(generator, num_layers=2, bidirectional=True)
    x, h_0 = sequence(generator, 6, 2, 3), sequence(generator, 4, 2, 5)
    output, h_n = rnn(x, h_0)
    for k in range(2):
        parts = []
        for direction in range(2):
            single = lr.LipschitzRNN(3 if k == 0 else 10, 5, dtype=torch.float64)
            single.cells["l0"] = rnn.cell(k, direction)
            row = 2 * k + direction
            states, last = single(x.flip(0) if direction else x, h_0[row : row + 1])
            torch.testing.assert_close(last[0], h_n[row], rtol=1e-12, atol=1e-13)
            parts.append(states.flip(0) if direction else states)
        x = torch.cat(parts, dim=-1)
    torch.testing.assert_close(x, output, rtol=1e-12, atol=1e-13)


def test_dropout_acts_between_layers_in_training_only(generator: torch.Generator) -> None:
    rnn = layer(generator, num_layers=2, dropout=0.999999)
    x = sequence(generator, 6, 2, 3)
    assert torch.equal(rnn.eval()(x)[0], rnn(x)[0])
    plain = copy.deepcopy(rnn)
    plain.dropout = 0.0
    assert torch.equal(rnn(x)[0], plain(x)[0])
    output, h_n = rnn.train()(x)
    # The first layer is untouched; the second sees nothing but zeros; its output is not dropped again.
    torch.testing.assert_close(h_n[0], plain(x)[1][0])
    second = lr.LipschitzRNN(5, 5, dtype=torch.float64)
    second.cells["l0"] = rnn.cell(1)
    torch.testing.assert_close(output, second(torch.zeros(6, 2, 5, dtype=torch.float64))[0])


def test_dropout_with_one_layer_warns() -> None:
    with pytest.warns(UserWarning, match="num_layers=1"):
        lr.LipschitzRNN(3, 5, dropout=0.5)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_last_state_without_output(bidirectional: bool, generator: torch.Generator) -> None:
    rnn = layer(generator, num_layers=2, bidirectional=bidirectional)
    x = sequence(generator, 6, 2, 3)
    output, h_n = rnn(x, need_output=False)
    assert output is None
    torch.testing.assert_close(h_n, rnn(x)[1], rtol=1e-13, atol=1e-14)


def test_recompute_every(generator: torch.Generator) -> None:
    rnn = layer(generator, num_layers=2)
    again = copy.deepcopy(rnn)
    again.recompute_every = 4
    x = sequence(generator, 10, 2, 3)
    for module in (rnn, again):
        module(x)[0].square().sum().backward()
    for one, other in zip(rnn.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-12, atol=1e-13)


def test_names_of_the_state_dict() -> None:
    """Saved models depend on these names: change them only with a migration."""
    rnn = lr.LipschitzRNN(3, 5, num_layers=2, bidirectional=True)
    per_unit = ("weight_ih", "bias_ih", "hidden.M_A", "hidden.M_W")
    expected = [f"cells.{unit}.{name}" for unit in ("l0", "l0_reverse", "l1", "l1_reverse") for name in per_unit]
    assert sorted(rnn.state_dict()) == sorted(expected)
    shapes = {name: tuple(value.shape) for name, value in lr.LipschitzRNN(3, 5, bias=False).state_dict().items()}
    assert shapes == {"cells.l0.weight_ih": (5, 3), "cells.l0.hidden.M_A": (5, 5), "cells.l0.hidden.M_W": (5, 5)}


def test_copies_and_files(generator: torch.Generator) -> None:
    """deepcopy, pickle of the module, pickle of the state dict, torch.save: all give the same network again."""
    rnn = layer(generator, num_layers=2, bidirectional=True, alpha=0.5, integrator="midpoint")
    x = sequence(generator, 6, 2, 3)
    expected, _ = rnn(x)
    fresh = [
        lr.LipschitzRNN(3, 5, 2, bidirectional=True, alpha=0.5, integrator="rk2", dtype=torch.float64) for _ in "12"
    ]
    fresh[0].load_state_dict(pickle.loads(pickle.dumps(rnn.state_dict())))
    file = io.BytesIO()
    torch.save(rnn.state_dict(), file)
    file.seek(0)
    fresh[1].load_state_dict(torch.load(file, weights_only=True))
    for again in (copy.deepcopy(rnn), pickle.loads(pickle.dumps(rnn)), *fresh):
        assert torch.equal(again(x)[0], expected)
        assert all(one is not other for one, other in zip(again.parameters(), rnn.parameters(), strict=True))


def test_reset_parameters(generator: torch.Generator) -> None:
    """Everything is drawn anew, from the distributions of a new layer."""
    rnn = layer(generator, 4, 64, num_layers=2, bidirectional=True, init_scale=0.1)
    before = copy.deepcopy(rnn.state_dict())
    rnn.reset_parameters()
    for name, value in rnn.state_dict().items():
        assert (value != before[name]).all(), name
        if "hidden" in name:
            assert float(value.std()) == pytest.approx(0.1 / 64, rel=0.1), name
        else:
            bound = 1 / (4 if "l0" in name else 128) ** 0.5
            assert 0.8 * bound < float(value.abs().max()) <= bound, name


def test_meta_device_then_real(generator: torch.Generator) -> None:
    """The usual way to build large models: shapes first, memory later."""
    rnn = lr.LipschitzRNN(3, 5, num_layers=2, device="meta")
    assert all(parameter.is_meta for parameter in rnn.parameters())
    output, h_n = rnn(torch.zeros(6, 2, 3, device="meta"))
    assert (output.shape, h_n.shape) == ((6, 2, 5), (2, 2, 5))
    rnn.to_empty(device="cpu").reset_parameters()
    assert rnn(torch.zeros(6, 2, 3))[0].isfinite().all()


def test_dtype_and_conversion(generator: torch.Generator) -> None:
    rnn = layer(generator)
    x = sequence(generator, 6, 2, 3)
    expected, _ = rnn(x)
    assert expected.dtype == torch.float64
    single, _ = rnn.float()(x.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=1e-5, atol=1e-6)


def test_hidden_matrices(generator: torch.Generator) -> None:
    rnn = layer(generator, num_layers=2, bidirectional=True, beta=(1.0, 0.5), gamma=(0.0, 3.0))
    for k in range(2):
        for direction in range(2):
            A, W = rnn.hidden_matrices(k, direction)
            assert torch.equal(A, -A.mT)
            torch.testing.assert_close(W.diagonal(), rnn.cell(k, direction).hidden.M_W.diagonal() - 3.0)
            assert A.requires_grad


def test_matrices_are_formed_once_per_forward(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """One A and one W for each unit, however long the sequence."""
    rnn, calls = layer(generator, num_layers=2, bidirectional=True, recompute_every=10), []
    forward = SymmetricSkewPair.forward
    monkeypatch.setattr(SymmetricSkewPair, "forward", lambda self: calls.append(self) or forward(self))
    rnn(sequence(generator, 50, 2, 3))[0].sum().backward()
    assert len(calls) == 4


def test_repr() -> None:
    assert repr(lr.LipschitzRNNCell(3, 5)) == (
        "LipschitzRNNCell(\n  3, 5, step_size=0.03, integrator=euler\n  (hidden): SymmetricSkewPair(\n"
        "    (skew_A): SymmetricSkew(beta=0.75, gamma=0.001)\n"
        "    (skew_W): SymmetricSkew(beta=0.75, gamma=0.001)\n  )\n)"
    )
    rnn = lr.LipschitzRNN(
        3, 5, 2, bias=False, batch_first=True, dropout=0.1, bidirectional=True, step_size=0.5, alpha=0.2,
        integrator="rk2", nonlinearity="relu",
    )  # fmt: skip
    assert rnn.extra_repr() == (
        "3, 5, step_size=0.5, integrator=midpoint, bias=False, alpha=0.2, nonlinearity=relu, num_layers=2, "
        "batch_first=True, bidirectional=True, dropout=0.1"
    )
    rnn = lr.LipschitzRNN(
        3, 5, stability="contracting", rate=0.2, max_step=0.01, backend="reference", recompute_every=7
    )  # fmt: skip
    assert rnn.extra_repr() == (
        "3, 5, step_size=0.03, integrator=euler, max_step=0.01, stability=contracting, rate=0.2, backend=reference, "
        "recompute_every=7"
    )


def test_attributes_that_others_read() -> None:
    rnn = lr.LipschitzRNN(3, 5, step_size=0.5, alpha=0.2, integrator="rk2", nonlinearity="relu", backend="reference")
    assert (rnn.input_size, rnn.hidden_size, rnn.num_layers, rnn.num_directions) == (3, 5, 1, 1)
    assert (rnn.step_size, rnn.alpha, rnn.integrator, rnn.nonlinearity) == (0.5, 0.2, "midpoint", "relu")
    assert rnn.backend == "reference"
    rnn.flatten_parameters()  # as nn.RNN has it


def test_it_learns(generator: torch.Generator) -> None:
    """Keep the first of 40 inputs while the others are noise: the error falls far below that of a guess, 1."""
    rnn, head = layer(generator, 1, 16, step_size=0.1), nn.Linear(16, 1, dtype=torch.float64)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    optimiser = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=0.01)
    for _ in range(200):
        x = sequence(generator, 40, 32, 1) * torch.cat((torch.ones(1), torch.full((39,), 0.1)))[:, None, None]
        optimiser.zero_grad()
        loss = (head(rnn(x)[1][0]) - x[0]).square().mean()
        loss.backward()
        optimiser.step()
    assert float(loss.detach()) < 0.05


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
# PyTorch keeps the graph of its own warm-up, on another stream, until the capture is over: true of every module.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_runs_from_cuda_graphs_with_the_same_bits(generator: torch.Generator, dtype: torch.dtype) -> None:
    plain = lr.LipschitzRNN(1, 48, device="cuda", dtype=dtype)
    graphed = copy.deepcopy(plain)  # of which autograd knows nothing yet
    torch.cuda.make_graphed_callables(graphed, (torch.zeros(9, 5, 1, device="cuda", dtype=dtype),))
    inputs = [torch.rand(9, 5, 1, generator=generator).to("cuda", dtype) for _ in range(3)]

    def training_step(rnn: lr.LipschitzRNN, x: torch.Tensor) -> list[torch.Tensor]:
        output, last = rnn(x)
        gradients = torch.autograd.grad((output.float() ** 2).sum() + last.float().sum(), list(rnn.parameters()))
        return [output, last, *gradients]

    for x in inputs:
        pairs = zip(training_step(graphed, x), training_step(plain, x), strict=True)
        assert all(torch.equal(found, expected) for found, expected in pairs)
