"""The scan of an LSTM against `torch.nn.LSTM` and the plain loop: values, all gradients, and every transformation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lipschitz_rnn import units
from lipschitz_rnn.ops.lstm import gradients as by_hand
from lipschitz_rnn.ops.lstm import lstm_scan
from lipschitz_rnn.ops.lstm.reference import reference
from lipschitz_rnn.ops.lstm.scan import LstmScan
from lipschitz_rnn.training.ensemble import Ensemble
from lipschitz_rnn.training.model import SequenceModel

NAMES = ("x", "U", "W", "b", "h0", "c0")
Results = tuple[Tensor, Tensor, Tensor]


def loop(*tensors: Tensor) -> Results:
    return reference(*tensors, torch.float64)


def tensors(
    generator: torch.Generator, steps: int = 5, batch: int = 3, size: int = 4, features: int = 3, networks: int = 0
) -> list[Tensor]:
    """In float64, every one a leaf. With networks: all stacked."""
    lead = (networks,) if networks else ()
    rows = 4 * size
    shapes = [(steps, batch, features), (rows, features), (rows, size), (rows,), (batch, size), (batch, size)]
    made = [torch.randn(*lead, *shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [tensor.requires_grad_() for tensor in made]


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-10)


def loss(results: Results) -> Tensor:
    """Each result counts, and each in its own way."""
    states, h, c = results
    return states.sin().sum() + (2 * h).cos().sum() + (3 * c).sin().sum()


@pytest.mark.parametrize(
    ("steps", "batch", "size", "features"), [(1, 1, 1, 1), (1, 3, 4, 3), (2, 1, 5, 1), (17, 4, 7, 3), (9, 2, 6, 1)]
)
def test_values_and_gradients_are_those_of_nn_lstm(
    steps: int, batch: int, size: int, features: int, generator: torch.Generator
) -> None:
    leaves = tensors(generator, steps, batch, size, features)
    x, U, W, b, h0, c0 = leaves
    module = nn.LSTM(features, size).double()
    own = [module.weight_ih_l0, module.weight_hh_l0, module.bias_ih_l0, module.bias_hh_l0]
    with torch.no_grad():
        for parameter, value in zip(own, (U, W, b / 3, b - b / 3), strict=True):
            parameter.copy_(value)
    output, (h_n, c_n) = module(x, (h0[None], c0[None]))
    results = lstm_scan(*leaves)
    for found, expected in zip(results, (output, h_n[0], c_n[0]), strict=True):
        close(found, expected)
    expected_all = torch.autograd.grad(loss((output, h_n[0], c_n[0])), [x, *own[:3], h0, c0])
    for name, found, expected in zip(NAMES, torch.autograd.grad(loss(results), leaves), expected_all, strict=True):
        assert found.shape == expected.shape, name
        close(found, expected)


@pytest.mark.parametrize("features", [1, 3])
def test_only_what_is_asked_for_gets_a_gradient(features: int, generator: torch.Generator) -> None:
    leaves = tensors(generator, features=features)
    for kept in range(6):
        own = [leaf.detach().requires_grad_(i == kept) for i, leaf in enumerate(leaves)]
        close(*[torch.autograd.grad(loss(scan(*own)), own[kept])[0] for scan in (lstm_scan, loop)])


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2)], ids=str)
def test_gradients_that_are_missing_count_as_zero(used: tuple[int, ...], generator: torch.Generator) -> None:
    leaves = tensors(generator)
    outcomes = [
        torch.autograd.grad(sum(scan(*leaves)[i].sin().sum() for i in used), leaves) for scan in (lstm_scan, loop)
    ]
    for found, expected in zip(*outcomes, strict=True):
        close(found, expected)


@pytest.mark.parametrize("shared", [(), ("x",), ("x", "h0", "c0"), ("U", "W", "b")], ids="+".join)
@pytest.mark.parametrize("features", [1, 3])
def test_stacked_networks_equal_separate_ones(
    shared: tuple[str, ...], features: int, generator: torch.Generator
) -> None:
    alone, stacked = (tensors(generator, features=features, networks=networks) for networks in (0, 3))
    leaves = [one if name in shared else many for name, one, many in zip(NAMES, alone, stacked, strict=True)]
    axes = tuple(None if name in shared else 0 for name in NAMES)
    together = torch.func.vmap(lstm_scan, in_dims=axes)(*leaves)
    apart = [
        loop(*[leaf if axis is None else leaf[s] for leaf, axis in zip(leaves, axes, strict=True)]) for s in range(3)
    ]
    separate = [torch.stack(results) for results in zip(*apart, strict=True)]
    for found, expected in zip(together, separate, strict=True):
        close(found, expected)
    outcomes = [torch.autograd.grad(loss(results), leaves) for results in (together, separate)]
    for found, expected in zip(*outcomes, strict=True):
        close(found, expected)


def test_vmap_is_one_batched_scan(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """One backward pass for all networks, not one each."""
    seen = []
    scan = by_hand.scan_backward
    monkeypatch.setattr(by_hand, "scan_backward", lambda W, *rest: seen.append(W.shape) or scan(W, *rest))
    leaves = tensors(generator, networks=4)
    torch.autograd.grad(loss(torch.func.vmap(lstm_scan)(*leaves)), leaves)
    assert seen == [(4, 16, 4)]


def test_vmap_of_a_gradient_and_of_a_vmap(generator: torch.Generator) -> None:
    values = [leaf.detach() for leaf in tensors(generator, networks=4)]

    def gradient(scan: Callable[..., Results]) -> Callable[..., tuple[Tensor, ...]]:
        return torch.func.grad(lambda *leaves: loss(scan(*leaves)), argnums=tuple(range(6)))

    outcomes = [torch.func.vmap(gradient(scan))(*values) for scan in (lstm_scan, loop)]
    for found, expected in zip(*outcomes, strict=True):
        close(found, expected)
    pairs = [value.unflatten(0, (2, 2)).transpose(1, 2) for value in values]
    nested = torch.func.vmap(torch.func.vmap(lstm_scan, in_dims=1), in_dims=0)(*pairs)
    for found, expected in zip(nested, torch.func.vmap(loop)(*values), strict=True):
        close(found.flatten(0, 1), expected)


def test_second_derivatives_are_those_of_the_loop(generator: torch.Generator) -> None:
    leaves = tensors(generator, steps=4, batch=2)

    def penalty(scan: Callable[..., Results]) -> tuple[Tensor, ...]:
        gradients = torch.autograd.grad(loss(scan(*leaves)), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in gradients), leaves)

    for found, expected in zip(penalty(lstm_scan), penalty(loop), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_hessians_and_directional_derivatives(generator: torch.Generator) -> None:
    x, U, W, b, h0, c0 = (leaf.detach() for leaf in tensors(generator, steps=3, batch=2, size=2))

    def of_matrix(scan: Callable[..., Results]) -> Callable[[Tensor], Tensor]:
        return lambda W: loss(scan(x, U, W, b, h0, c0))

    close(*[torch.func.hessian(of_matrix(scan))(W) for scan in (lstm_scan, loop)])
    close(*[torch.func.jacrev(torch.func.jacrev(of_matrix(scan)))(W) for scan in (lstm_scan, loop)])
    close(*[torch.func.jvp(of_matrix(scan), (W,), (torch.ones_like(W),))[1] for scan in (lstm_scan, loop)])


def test_compiled_it_is_the_plain_loop(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LstmScan, "apply", lambda *_: pytest.fail("the hand-written scan was traced"))
    leaves = tensors(generator, steps=3)
    torch._dynamo.reset()
    compiled = torch.compile(lstm_scan, backend="aot_eager", fullgraph=True)(*leaves)
    outcomes = [torch.autograd.grad(loss(results), leaves) for results in (compiled, loop(*leaves))]
    for found, expected in zip(*outcomes, strict=True):
        close(found, expected)


def test_autocast_rounds_operands_and_states_only(generator: torch.Generator) -> None:
    """h and c stay in float32 from step to step; gradients differ from autograd's by roundings to eight bits."""
    leaves = [leaf.detach().float().requires_grad_() for leaf in tensors(generator, steps=16, batch=4, size=8)]
    with torch.autocast("cpu", torch.bfloat16):
        results = lstm_scan(*leaves)
    # As an ensemble of one, as the scan itself: a batched product may sum in another order than a plain one.
    batched = reference(*(leaf.unsqueeze(0) for leaf in leaves), torch.bfloat16)
    plain = [result.squeeze(0) for result in batched]
    assert [result.dtype for result in results] == [torch.bfloat16, torch.float32, torch.float32]
    assert all(torch.equal(found, expected) for found, expected in zip(results, plain, strict=True))
    assert torch.equal(results[0][-1], results[1].bfloat16())
    assert not torch.equal(results[1], lstm_scan(*leaves)[1])
    outcomes = [torch.autograd.grad(loss(found), leaves) for found in (results, plain)]
    for leaf, found, expected in zip(leaves, *outcomes, strict=True):
        assert found.dtype == leaf.dtype
        assert float((found - expected).norm() / expected.norm()) < 4 * torch.finfo(torch.bfloat16).eps


def test_an_empty_batch_has_a_gradient(generator: torch.Generator) -> None:
    leaves = tensors(generator, batch=0)
    states, h, c = lstm_scan(*leaves)
    assert (states.shape, h.shape, c.shape) == ((5, 0, 4), (0, 4), (0, 4))
    assert torch.autograd.grad(states.sum(), leaves[2])[0].abs().sum() == 0


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (2, False), (2, True)])
def test_the_unit_is_nn_lstm(layers: int, bidirectional: bool, bias: bool, generator: torch.Generator) -> None:
    options = {"num_layers": layers, "bidirectional": bidirectional, "bias": bias, "dtype": torch.float64}
    plain, fused = units.build("lstm", 2, 6, **options), units.build("lstm", 2, 6, fused=True, **options)
    fused.load_state_dict(plain.state_dict())
    x = torch.randn(7, 3, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    rows = layers * (2 if bidirectional else 1)
    start = tuple(torch.randn(rows, 3, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    for state in (None, start):
        for lengths in (None, torch.tensor([7, 2, 5])):
            outcomes = []
            for unit in (plain, fused):
                output, last = unit(x, state, lengths=lengths)
                gradients = torch.autograd.grad(loss((output, *last)), [x, *unit.parameters()])
                outcomes.append([output, *last, *gradients])
            for found, expected in zip(*outcomes, strict=True):
                close(found, expected)


def test_the_unit_draws_dropout_between_layers_only() -> None:
    unit = units.build("lstm", 2, 6, num_layers=2, dropout=0.5, fused=True)
    x = torch.ones(4, 3, 2)
    assert not torch.equal(unit(x)[0], unit(x)[0])
    unit.eval()
    torch.testing.assert_close(unit(x)[0], unit.inner(x)[0])


def test_an_ensemble_of_fused_units_runs_under_vmap(generator: torch.Generator) -> None:
    members = [
        SequenceModel(units.build("lstm", 1, 5, fused=fused), nn.Linear(5, 2), "all").double()
        for fused in (True, True, True, False)
    ]
    ensemble = Ensemble(members[:3], "cpu")
    assert (ensemble.mode, ensemble.reason) == ("vmap", "")
    x = torch.randn(6, 2, 1, generator=generator, dtype=torch.float64)
    outputs, (h, c), _ = ensemble(ensemble.values, x, shared=True)
    names = list(ensemble.parameters)
    together = torch.autograd.grad(loss((outputs, h, c)), [ensemble.parameters[name] for name in names])
    plain = members[3]
    own = dict(plain.named_parameters())
    for s, member in enumerate(members[:3]):
        plain.load_state_dict(member.state_dict())
        output, (h_n, c_n) = plain(x)
        for found, expected in zip((outputs[s], h[s], c[s]), (output, h_n, c_n), strict=True):
            close(found, expected)
        alone = torch.autograd.grad(loss((output, h_n, c_n)), [own[name] for name in names])
        for found, expected in zip(together, alone, strict=True):
            close(found[s], expected)


def test_bad_arguments_say_what_is_wrong(generator: torch.Generator) -> None:
    x, U, W, b, h0, c0 = tensors(generator)
    with pytest.raises(ValueError, match=r"x has shape \(3, 3\).*\(T, B, p\)"):
        lstm_scan(x[0], U, W, b, h0, c0)
    with pytest.raises(ValueError, match=r"W has shape \(15, 4\).*\(4N, N\)"):
        lstm_scan(x, U, W[1:], b, h0, c0)
    with pytest.raises(ValueError, match=r"U has shape \(16, 2\).*\(16, 3\)"):
        lstm_scan(x, U[:, 1:], W, b, h0, c0)
    with pytest.raises(ValueError, match=r"c0 has shape \(2, 4\).*\(3, 4\)"):
        lstm_scan(x, U, W, b, h0, c0[1:])
    with pytest.raises(TypeError, match=r"b is torch\.float32 but W is torch\.float64"):
        lstm_scan(x, U, W, b.float(), h0, c0)
    with pytest.raises(TypeError, match=r"x is torch\.int64"):
        lstm_scan(x.long(), U, W, b, h0, c0)
    with pytest.raises(TypeError, match=r"h0 is a NoneType.*torch\.Tensor"):
        lstm_scan(x, U, W, b, None, c0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"backend is 'cuda'.*auto, torch, triton"):
        lstm_scan(x, U, W, b, h0, c0, backend="cuda")
    with pytest.raises(ValueError, match=r"no kernels for products in torch\.float64"):
        lstm_scan(x, U, W, b, h0, c0, backend="triton")
