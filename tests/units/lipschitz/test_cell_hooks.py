"""What is attached to a cell or to its maps acts in the layer too, which calls no cell."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import lipschitz_rnn as lr


@pytest.fixture
def rnn() -> lr.LipschitzRNN:
    torch.manual_seed(0)
    return lr.LipschitzRNN(3, 8)


X = torch.randn(10, 4, 3, generator=torch.Generator().manual_seed(1))


def same_with_plain_weights(rnn: lr.LipschitzRNN) -> None:
    """The layer gives what one with the weights that the cell has then gives."""
    found, plain = rnn(X)[0], lr.LipschitzRNN(3, 8)
    with torch.no_grad():
        plain.cell().weight_ih.copy_(rnn.cell().weight_ih)
        plain.cell().bias_ih.copy_(rnn.cell().bias_ih)
        for name in ("M_A", "M_W"):
            getattr(plain.cell().hidden, name).copy_(getattr(rnn.cell().hidden, name))
    torch.testing.assert_close(found, plain(X)[0])


def test_pruned_weights_follow_what_is_loaded_and_trained(rnn: lr.LipschitzRNN) -> None:
    prune.l1_unstructured(rnn.cell(), "weight_ih", 0.5)
    before = rnn(X)[0].detach()
    state = copy.deepcopy(rnn.state_dict())
    state["cells.l0.weight_ih_orig"] = torch.randn(8, 3)
    rnn.load_state_dict(state)
    assert not torch.equal(rnn(X)[0], before)
    same_with_plain_weights(rnn)
    optimizer = torch.optim.SGD(rnn.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        rnn(X)[0].square().sum().backward()
        optimizer.step()
    assert int((rnn.cell().weight_ih == 0).sum()) == 12
    same_with_plain_weights(rnn)


@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.weight_norm])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_older_norms_are_applied_and_trained(rnn: lr.LipschitzRNN, norm: object) -> None:
    with torch.no_grad():
        rnn.cell().weight_ih.mul_(100.0)
    norm(rnn.cell(), "weight_ih")  # type: ignore[operator]
    for _ in range(20):
        rnn.zero_grad()
        rnn(X)[0].square().sum().backward()
    if norm is nn.utils.spectral_norm:
        assert float(torch.linalg.matrix_norm(rnn.cell().weight_ih.detach(), 2)) == pytest.approx(1.0, abs=1e-3)
    assert all(parameter.grad is not None for parameter in rnn.parameters())
    rnn.eval()
    same_with_plain_weights(rnn)


def test_hooks_of_the_maps_run(rnn: lr.LipschitzRNN) -> None:
    handle = rnn.cell().hidden.skew_A.register_forward_hook(lambda module, given, result: 0.0 * result)
    assert not rnn.hidden_matrices()[0].any()
    hooked = rnn(X)[0]
    handle.remove()
    assert not torch.allclose(hooked, rnn(X)[0])


def test_tensors_without_memory_end_no_process(rnn: lr.LipschitzRNN) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    zero = torch._efficientzerotensor((10, 4, 3))
    torch.testing.assert_close(rnn(zero)[0], rnn(torch.zeros(10, 4, 3))[0])
    held = rnn(TwoTensor(X, X))[0]
    torch.testing.assert_close(held.a, rnn(X)[0])
    with pytest.raises(ValueError, match="TwoTensor has no memory of its own"):
        lr.lipschitz_scan(TwoTensor(X, X), *(torch.zeros(3, 3),) * 2, backend="cpu")
