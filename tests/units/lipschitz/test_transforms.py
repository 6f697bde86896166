"""The layer under ``torch.func``, in ensembles, in mixed precision, and in several processes."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from lipschitz_layers import layer, sequence
from operators import OperatorCalls
from problems import relative_error
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vmap
from torch.nn.parallel import DistributedDataParallel

import lipschitz_rnn as lr


@pytest.mark.parametrize("own_inputs", [False, True], ids=["same input", "own inputs"])
def test_ensemble_by_vmap(own_inputs: bool, generator: torch.Generator) -> None:
    """Four layers by ``stack_module_state`` equal four calls, in one scan: values, losses and gradients."""
    layers = [layer(generator, integrator="midpoint") for _ in range(4)]
    base, (parameters, buffers) = layers[0], stack_module_state(layers)
    x = sequence(generator, 4, 6, 2, 3) if own_inputs else sequence(generator, 6, 2, 3)
    h_0, dt = sequence(generator, 1, 2, 5), 0.05 * sequence(generator, 6, 2).abs()

    def run(parameters: Any, buffers: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return functional_call(base, (parameters, buffers), (x, h_0), {"timespans": dt})

    def loss(parameters: Any, buffers: Any, x: Tensor) -> Tensor:
        output, h_n = run(parameters, buffers, x)
        return output.square().sum() + h_n.sin().sum()

    axes = (0, 0, 0 if own_inputs else None)
    with OperatorCalls() as calls:
        output, h_n = vmap(run, in_dims=axes)(parameters, buffers, x)
    assert calls.names == ["scan"]
    with OperatorCalls() as calls:
        gradients = vmap(grad(loss), in_dims=axes)(parameters, buffers, x)
    assert calls.names == ["scan", "scan_backward"]
    with OperatorCalls() as calls:
        vmap(loss, in_dims=axes)(parameters, buffers, x).sum().backward()
    assert calls.names == ["scan", "scan_backward"]

    for s, single in enumerate(layers):
        x_s = x[s] if own_inputs else x
        states, last = single(x_s, h_0, timespans=dt)
        torch.testing.assert_close(output[s], states, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(h_n[s], last, rtol=1e-12, atol=1e-13)
        (states.square().sum() + last.sin().sum()).backward()
        for name, parameter in single.named_parameters():
            torch.testing.assert_close(gradients[name][s], parameter.grad, rtol=1e-11, atol=1e-12)
            torch.testing.assert_close(parameters[name].grad[s], parameter.grad, rtol=1e-11, atol=1e-12)


def test_ensemble_of_deep_layers_with_lengths(generator: torch.Generator) -> None:
    layers = [layer(generator, num_layers=2, bidirectional=True) for _ in range(3)]
    parameters, buffers = stack_module_state(layers)
    x, lengths = sequence(generator, 6, 4, 3), torch.tensor([6, 2, 3, 1])
    with OperatorCalls() as calls:
        output, _ = vmap(lambda p, b: functional_call(layers[0], (p, b), (x,), {"lengths": lengths}))(
            parameters, buffers
        )
    assert calls.names == ["scan"] * 4
    for s, single in enumerate(layers):
        torch.testing.assert_close(output[s], single(x, lengths=lengths)[0], rtol=1e-12, atol=1e-13)


def test_derivatives_by_torch_func(generator: torch.Generator) -> None:
    rnn = layer(generator, 2, 3)
    x = sequence(generator, 4, 2, 2)
    parameters = {name: parameter.detach() for name, parameter in rnn.named_parameters()}

    def loss(parameters: Any) -> Tensor:
        return functional_call(rnn, parameters, (x,))[0].square().sum()

    rnn(x)[0].square().sum().backward()
    gradients = grad(loss)(parameters)
    direction = {name: sequence(generator, *value.shape) for name, value in parameters.items()}
    _, tangent = jvp(loss, (parameters,), (direction,))
    for name, parameter in rnn.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)
    torch.testing.assert_close(tangent, sum((gradients[name] * direction[name]).sum() for name in parameters))

    # The Hessian along a direction by central differences of the gradient.
    step = 1e-6
    shifted = [{name: value + s * direction[name] for name, value in parameters.items()} for s in (step, -step)]
    differences = {
        name: (grad(loss)(shifted[0])[name] - grad(loss)(shifted[1])[name]) / (2 * step) for name in gradients
    }
    second = hessian(loss)(parameters)
    for row in parameters:
        product = sum(
            torch.tensordot(second[row][column], direction[column], dims=direction[column].dim())
            for column in parameters
        )
        torch.testing.assert_close(product, differences[row], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_autocast(backend: str, generator: torch.Generator) -> None:
    """bfloat16 products, float32 state and parameters: near float32, gradients in float32, cell and layer alike."""
    rnn = layer(generator, 3, 16, num_layers=2, bidirectional=True, backend=backend).float()
    x, h_0 = sequence(generator, 50, 4, 3).float(), sequence(generator, 4, 4, 16).float()
    exact, _ = rnn(x, h_0)
    exact.square().mean().backward()
    expected = [parameter.grad.clone() for parameter in rnn.parameters()]
    rnn.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, h_n = rnn(x, h_0)
    assert output.dtype == h_n.dtype == torch.bfloat16
    assert relative_error(output, exact) < 4 * torch.finfo(torch.bfloat16).eps
    output.float().square().mean().backward()
    for parameter, gradient in zip(rnn.parameters(), expected, strict=True):
        assert parameter.grad.dtype == torch.float32
        assert relative_error(parameter.grad, gradient) < 0.05


def test_autocast_in_the_cell_equals_the_layer(generator: torch.Generator) -> None:
    rnn = layer(generator).float()
    x = sequence(generator, 1, 4, 3).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = rnn(x)
        alone = rnn.cell()(x[0])
    # Sums in another order, rounded to bfloat16: one unit in the last place of the largest.
    unit = torch.finfo(torch.bfloat16).eps * float(output.detach().abs().max())
    torch.testing.assert_close(alone, output[0], rtol=0.0, atol=unit)


def test_autocast_leaves_float64_alone(generator: torch.Generator) -> None:
    rnn = layer(generator)
    x = sequence(generator, 5, 2, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = rnn(x)
    assert output.dtype == torch.float64
    assert torch.equal(output, rnn(x)[0])


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = layer(torch.Generator().manual_seed(1), num_layers=2)
        self.head = nn.Linear(5, 2, dtype=torch.float64)
        for parameter in self.head.parameters():
            nn.init.constant_(parameter, 0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[1][-1])


def train(model: nn.Module, x: Tensor) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        model(x).square().mean().backward()
        optimiser.step()


def distributed_worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model = DistributedDataParallel(Classifier())
    x = torch.load(f"{folder}/x.pt")
    train(model, x[:, rank::2])
    if rank == 0:
        torch.save(model.module.state_dict(), f"{folder}/trained.pt")
    # Together and with nothing left that uses the group: gloo's threads abort a process whose partner is gone.
    del model
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.mark.full
def test_two_processes_equal_one(tmp_path: Path, generator: torch.Generator) -> None:
    """DistributedDataParallel over halves of a batch against one process on the whole."""
    x = sequence(generator, 6, 8, 3)
    torch.save(x, tmp_path / "x.pt")
    torch.multiprocessing.spawn(distributed_worker, args=(str(tmp_path),), nprocs=2)
    alone = Classifier()
    train(alone, x)
    trained = torch.load(tmp_path / "trained.pt")
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=1e-12, atol=1e-13)
    assert (alone.head.bias - Classifier().head.bias).abs().max() > 1e-3


def test_frozen_and_shared_parameters(generator: torch.Generator) -> None:
    """Only what is trained gets a gradient; a unit used by two layers gets the sum."""
    rnn = layer(generator)
    rnn.cell().hidden.M_A.requires_grad_(False)
    x = sequence(generator, 5, 2, 3)
    rnn(x)[0].sum().backward()
    assert rnn.cell().hidden.M_A.grad is None
    once = rnn.cell().weight_ih.grad.clone()
    rnn.zero_grad()
    twin = lr.LipschitzRNN(3, 5, dtype=torch.float64)
    twin.cells["l0"] = rnn.cell()
    (rnn(x)[0].sum() + twin(x)[0].sum()).backward()
    torch.testing.assert_close(rnn.cell().weight_ih.grad, 2 * once)


def test_recompute_every_under_function_transforms(generator: torch.Generator) -> None:
    """Where nothing can be computed again everything is kept: the numbers of a layer that recomputes nothing."""
    rnn, chunked = layer(generator), layer(generator, recompute_every=2)
    parameters, x = dict(rnn.named_parameters()), sequence(generator, 3, 5, 2, 3)

    def loss(module: nn.Module, parameters: Any, x: Tensor) -> Tensor:
        return functional_call(module, parameters, (x,))[0].square().sum()

    for transform, data in ((vmap(grad(loss, argnums=1), in_dims=(None, None, 0)), x), (jacrev(loss, 2), x[0])):
        found, expected = transform(chunked, parameters, data), transform(rnn, parameters, data)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_one_input_feature(backend: str) -> None:
    """The gradients of U and b may be parts of one tensor, and for p = 1 both are contiguous as they are."""
    torch.manual_seed(0)
    rnn = lr.LipschitzRNN(1, 4, backend=backend, dtype=torch.float64)
    x = torch.randn(6, 2, 1, dtype=torch.float64)
    parameters = list(rnn.parameters())
    gradients = torch.autograd.grad(rnn(x)[0].square().sum(), parameters, create_graph=True)
    second = torch.autograd.grad(sum(gradient.square().sum() for gradient in gradients), parameters)
    assert all(torch.isfinite(each).all() for each in second)
    compiled = torch.compile(rnn, backend="aot_eager")
    for own, other in zip(torch.autograd.grad(compiled(x)[0].square().sum(), parameters), gradients, strict=True):
        torch.testing.assert_close(own, other.detach())
