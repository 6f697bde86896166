"""Matrices that a contracting unit keeps between calls: never those of other parameters, whatever changed them."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lipschitz_rnn as lr
from lipschitz_rnn.units.lipschitz import kept
from lipschitz_rnn.units.lipschitz.contracting import ContractingPair

N = 6


def layer(**options: object) -> lr.LipschitzRNN:
    torch.manual_seed(3)
    return lr.LipschitzRNN(2, N, stability="contracting", **options)  # type: ignore[arg-type]


@pytest.fixture
def x() -> Tensor:
    return torch.randn(12, 3, 2, generator=torch.Generator().manual_seed(4))


@pytest.fixture(autouse=True, params=[False, True], ids=["at once", "late"])
def late(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A GPU says late whether values are the same: then a call may run twice."""
    if request.param:
        monkeypatch.setattr(kept, "_answers_late", lambda values: True)
    return bool(request.param)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one each time that a pair is built."""
    calls: list[int] = []
    original = ContractingPair.build

    def counted(self: ContractingPair, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(1)
        return original(self, *parameters)

    monkeypatch.setattr(ContractingPair, "build", counted)
    return calls


def fresh(model: lr.LipschitzRNN, x: Tensor) -> Tensor:
    """The output of a copy, which has kept nothing."""
    with torch.no_grad():
        output: Tensor = copy.deepcopy(model)(x)[0]
    return output


@pytest.mark.parametrize("integrator", ["euler", "heun", "midpoint"])
@pytest.mark.parametrize("parallel", [None, 3])
def test_calls_without_gradients_build_the_matrices_once(
    x: Tensor, built: list[int], integrator: str, parallel: int | None
) -> None:
    model = layer(integrator=integrator, parallel=parallel)
    with torch.no_grad():
        first, second = model(x)[0], model(x)[0]
        stepped = model.cell()(x[0])
    assert len(built) == 1
    assert torch.equal(first, second)
    assert torch.equal(first, fresh(model, x))
    torch.testing.assert_close(stepped, first[0])


def fused_adam(pair: ContractingPair) -> None:
    own = list(pair.parameters())
    for parameter in own:
        parameter.grad = torch.ones_like(parameter)
    torch.optim.Adam(own, lr=0.1, fused=True).step()  # leaves the version as it was
    for parameter in own:
        parameter.grad = None


def written_data(pair: ContractingPair) -> None:
    pair.rotation.data.mul_(2.0)


def other_data(pair: ContractingPair) -> None:
    pair.feedback.data = pair.feedback.data + 1.0


def numpy_memory(pair: ContractingPair) -> None:
    pair.leak.detach().numpy()[0] += 1.0


def in_place(pair: ContractingPair) -> None:
    with torch.no_grad():
        pair.restoring.add_(1.0)


def in_inference(pair: ContractingPair) -> None:
    with torch.inference_mode():
        pair.scale.add_(1.0)


def loaded(pair: ContractingPair) -> None:
    pair.load_state_dict({name: value + 1.0 for name, value in pair.state_dict().items()})


def replaced(pair: ContractingPair) -> None:
    pair.rotation = nn.Parameter(pair.rotation.detach() + 1.0)


def rounded(pair: ContractingPair) -> None:
    pair.half().float()


def drawn_again(pair: ContractingPair) -> None:
    pair.reset_parameters()


CHANGES = (
    fused_adam, written_data, other_data, numpy_memory, in_place, in_inference, loaded, replaced, rounded, drawn_again,
)  # fmt: skip


@pytest.mark.parametrize("parallel", [None, 3])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: str(change.__name__))
def test_every_change_of_a_parameter_is_seen(
    x: Tensor, change: Callable[[ContractingPair], None], parallel: int | None
) -> None:
    model = layer(parallel=parallel)
    pair = model.cell().hidden
    assert isinstance(pair, ContractingPair)
    with torch.no_grad():
        before = model(x)[0].clone()
    change(pair)
    with torch.no_grad():
        after = model(x)[0]
    assert not torch.equal(before, after)
    assert torch.equal(after, fresh(model, x))


def test_a_change_that_is_taken_back_is_seen_both_times(x: Tensor) -> None:
    model = layer()
    own = model.cell().hidden.rotation.data  # type: ignore[union-attr]
    with torch.no_grad():
        before = model(x)[0]
        own.neg_()
        assert not torch.equal(model(x)[0], before)
        own.neg_()
        assert torch.equal(model(x)[0], before)


def test_numbers_that_compare_oddly_are_told_apart(x: Tensor, built: list[int]) -> None:
    """NaN is not equal to itself and 0 equals −0, but bits are what matrices are kept for."""
    model = layer()
    rotation = model.cell().hidden.rotation.data  # type: ignore[union-attr]
    rotation.fill_(0.0)
    with torch.no_grad():
        model(x)
        rotation.neg_()
        model(x)
        assert len(built) == 2
        rotation.fill_(float("nan"))
        assert model(x)[0].isnan().any()
        assert model(x)[0].isnan().any()
    assert len(built) == 3


@pytest.mark.parametrize("parallel", [None, 3])
def test_a_call_that_runs_twice_shows_the_last_run_alone(x: Tensor, parallel: int | None) -> None:
    """One bound for each layer and direction, one draw of noise, and the bounds of an earlier call in parallel stay."""
    model = layer(num_layers=2, bidirectional=True, noise=0.1, parallel=3).eval()
    with torch.no_grad():
        model(x)
        earlier = model.bounds
        model.parallel = parallel
        model.cell(0, 1).hidden.rotation.data.mul_(2.0)  # type: ignore[union-attr]
        model.cell(1, 0).hidden.rotation.data.mul_(2.0)  # type: ignore[union-attr]
        output = model(x)[0]
        assert len(model.bounds) == 4
        assert (model.bounds == earlier) == (parallel is None)
        assert torch.equal(output, fresh(model, x))
        model.train().parallel = None
        model.cell(0, 0).hidden.rotation.data.mul_(2.0)  # type: ignore[union-attr]
        noisy = model(x, generator=torch.Generator().manual_seed(1))[0]
        assert torch.equal(noisy, copy.deepcopy(model)(x, generator=torch.Generator().manual_seed(1))[0])


def test_a_dtype_is_part_of_what_is_kept(x: Tensor) -> None:
    model = layer()
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
        model.to(dtype)
        with torch.no_grad():
            output = model(x.to(dtype))[0]
        assert output.dtype == dtype
        assert torch.equal(output, fresh(model, x.to(dtype)))


def test_parameters_of_several_dtypes_are_not_kept(x: Tensor, built: list[int]) -> None:
    model = layer()
    model.cell().hidden.scale.data = model.cell().hidden.scale.data.double()  # type: ignore[union-attr]
    with torch.no_grad():
        assert torch.equal(model(x)[0], model(x)[0])
    assert len(built) == 2


def test_gradients_are_those_of_the_parameters(x: Tensor) -> None:
    model, other = layer(), layer()
    with torch.no_grad():
        model(x)
    model(x)[0].square().sum().backward()
    other(x)[0].square().sum().backward()
    for own, expected in zip(model.parameters(), other.parameters(), strict=True):
        assert own.grad is not None
        assert torch.equal(own.grad, expected.grad)


def test_frozen_parameters_serve_gradients_of_the_input(x: Tensor, built: list[int]) -> None:
    """Also after a call in inference mode, whose tensors a graph cannot save."""
    model = layer().requires_grad_(False)
    with torch.inference_mode():
        model(x)
    given = x.clone().requires_grad_()
    model(given)[0].sum().backward()
    again = x.clone().requires_grad_()
    model(again)[0].sum().backward()
    assert len(built) == 2
    assert given.grad is not None
    assert torch.equal(given.grad, again.grad)  # type: ignore[arg-type]


def test_matrices_given_to_the_caller_are_the_callers_own(x: Tensor) -> None:
    model = layer()
    with torch.no_grad():
        before = model(x)[0]
        A, W = model.hidden_matrices()
        A.zero_(), W.zero_()
        assert torch.equal(model(x)[0], before)


def test_hooks_run_in_every_call(x: Tensor) -> None:
    model, seen = layer(), []
    with torch.no_grad():
        before = model(x)[0]
        handle = model.cell().hidden.register_forward_hook(
            lambda module, given, found: seen.append(1) or (found[0], 0.5 * found[1])
        )
        assert not torch.equal(model(x)[0], before)
        model(x)
        assert len(seen) == 2
        handle.remove()
        assert torch.equal(model(x)[0], before)


def test_a_parametrization_runs_in_every_call(x: Tensor) -> None:
    class Halved(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            return 0.5 * value

    model = layer()
    with torch.no_grad():
        before = model(x)[0]
        nn.utils.parametrize.register_parametrization(model.cell().hidden, "rotation", Halved())
        assert not torch.equal(model(x)[0], before)


def test_other_parameters_for_one_call(x: Tensor) -> None:
    model = layer()
    name = "cells.l0.hidden.rotation"
    with torch.no_grad():
        before = model(x)[0]
        other = {name: 2.0 * dict(model.named_parameters())[name]}
        called = torch.func.functional_call(model, other, (x,))[0]
        assert not torch.equal(called, before)
        assert torch.equal(model(x)[0], before)
        stacked = {name: torch.stack([other[name], dict(model.named_parameters())[name]])}
        each = torch.func.vmap(lambda own: torch.func.functional_call(model, own, (x,))[0])(stacked)
    torch.testing.assert_close(each, torch.stack([called, before]))


def test_copies_and_pickles_have_their_own(x: Tensor) -> None:
    model = layer()
    with torch.no_grad():
        before = model(x)[0]
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            other.cell().hidden.rotation.data.mul_(2.0)
            assert not torch.equal(other(x)[0], before)
        assert torch.equal(model(x)[0], before)


def test_what_was_kept_goes_with_the_layer(x: Tensor) -> None:
    model = layer()
    with torch.no_grad():
        model(x)
    pair = model.cell().hidden
    assert pair in kept._kept
    before = len(kept._kept)
    del model, pair
    gc.collect()
    assert len(kept._kept) < before


def test_threads_that_change_a_layer_leave_nothing_wrong_behind(x: Tensor) -> None:
    model = layer()
    rotation = model.cell().hidden.rotation.data  # type: ignore[union-attr]
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            rotation.neg_()

    changing = threading.Thread(target=change)
    changing.start()
    with torch.no_grad():
        for _ in range(30):
            model(x)
    stop.set()
    changing.join()
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(model(x)[0], fresh(model, x))
            rotation.neg_()


def test_autocast_rounds_the_output_alone(x: Tensor) -> None:
    model = layer()
    with torch.no_grad():
        before = model(x)[0]
        with torch.autocast("cpu", torch.bfloat16):
            rounded = model(x)[0]
        assert rounded.dtype == torch.bfloat16
        assert torch.equal(rounded, before.to(torch.bfloat16))
        assert torch.equal(model(x)[0], before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_cuda_graph_that_changes_parameters_is_seen(x: Tensor) -> None:
    model, given = layer().cuda(), x.cuda()
    rotation = model.cell().hidden.rotation
    with torch.no_grad():
        before = model(given)[0]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            rotation.mul_(2.0)  # type: ignore[operator]
        model(given)
        graph.replay()
        assert not torch.equal(model(given)[0], before)
        assert torch.equal(model(given)[0], fresh(model, given))
        graph.replay()
        assert torch.equal(model(given)[0], fresh(model, given))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            assert torch.equal(model(given)[0], fresh(model, given))
