"""Programs that leave Python: ``torch.export`` and ONNX, of any length and batch, with A and W formed once."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from lipschitz_layers import layer, sequence
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import lipschitz_rnn as lr

onnx = pytest.importorskip("onnx", reason="needs onnx, which is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime, which is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.needs("onnxscript")]

SHAPES = ((7, 2), (11, 5), (1, 1), (2, 3), (100, 1))
ANY = Dim.DYNAMIC


class Sequences(nn.Module):
    """Whole sequences: both directions, irregular times, and a head on the states."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.rnn = layer(generator, 3, 8, bidirectional=True, integrator="midpoint").float()
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
        output, h_n = self.rnn(x, timespans=dt)
        return self.head(output), h_n


class OneStep(nn.Module):
    """A stream: the state comes in and goes out."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = layer(torch.Generator().manual_seed(6), 3, 8).float().cell()

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return self.cell(x, h)


@pytest.fixture(scope="module")
def plain() -> lr.LipschitzRNN:
    return layer(torch.Generator().manual_seed(7), 3, 8).float().eval()


@pytest.fixture(scope="module")
def exported(plain: lr.LipschitzRNN) -> ExportedProgram:
    return torch.export.export(plain, (torch.zeros(7, 2, 3),), dynamic_shapes=({0: ANY, 1: ANY},))


@pytest.fixture(scope="module")
def sequences() -> Sequences:
    return Sequences().eval()


@pytest.fixture(scope="module")
def sequences_file(sequences: Sequences, tmp_path_factory: pytest.TempPathFactory) -> Path:
    shapes = ({0: ANY, 1: ANY}, {0: ANY, 1: ANY})
    return write(sequences, (torch.zeros(7, 2, 3), torch.ones(7, 2)), shapes, tmp_path_factory)


@pytest.fixture(scope="module")
def one_step() -> OneStep:
    return OneStep().eval()


@pytest.fixture(scope="module")
def one_step_file(one_step: OneStep, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(one_step, (torch.zeros(2, 3), torch.zeros(2, 8)), ({0: ANY}, {0: ANY}), tmp_path_factory)


def write(model: nn.Module, inputs: tuple[Tensor, ...], shapes: Any, folders: pytest.TempPathFactory) -> Path:
    path = folders.mktemp("onnx") / "model.onnx"
    torch.onnx.export(model, inputs, path, dynamo=True, dynamic_shapes=shapes, verbose=False)
    return path


def run_file(path: Path, *inputs: Tensor) -> list[Tensor]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feed = {node.name: value.numpy() for node, value in zip(session.get_inputs(), inputs, strict=True)}
    return [torch.from_numpy(value) for value in session.run(None, feed)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_exported_program_of_any_shape(
    shape: tuple[int, int], plain: lr.LipschitzRNN, exported: ExportedProgram, generator: torch.Generator
) -> None:
    x = sequence(generator, *shape, 3).float()
    for found, expected in zip(exported.module()(x), plain(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_exported_program_without_the_package(exported: ExportedProgram) -> None:
    """Nothing in it but PyTorch's own operators, so that it can be loaded where this package is not installed."""
    namespaces = set()
    for module in (exported.graph_module, *exported.graph_module.modules()):
        for node in module.graph.nodes:
            if node.op == "call_function" and hasattr(node.target, "namespace"):
                namespaces.add(node.target.namespace)
    assert namespaces <= {"aten", "higher_order", "prims", "_operator"}


def test_matrices_are_formed_once_in_an_exported_program(exported: ExportedProgram) -> None:
    """M enters outside of the loop, and the body of the loop holds nothing but the two products of a step."""
    body = exported.graph_module.scan_combine_graph_0
    operations = Counter(str(node.target) for node in body.graph.nodes if node.op == "call_function")
    products = sum(count for name, count in operations.items() if "matmul" in name or "mm" in name)
    assert products == 2
    assert not [name for name in operations if "eye" in name]
    outside = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert sum("eye" in name for name in outside) == 2  # −γI of A and of W


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_onnx_of_any_shape(
    shape: tuple[int, int], sequences: Sequences, sequences_file: Path, generator: torch.Generator
) -> None:
    x, dt = sequence(generator, *shape, 3).float(), 0.05 * sequence(generator, *shape).abs().float()
    for found, expected in zip(run_file(sequences_file, x, dt), sequences(x, dt), strict=True):
        torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-5)


def test_onnx_is_a_loop_with_two_products_a_stage(sequences_file: Path) -> None:
    """One scan a direction; in each body two products for each of two stages, and nothing that builds A or W."""
    graph = onnx.load(sequences_file).graph
    scans = [node for node in graph.node if node.op_type == "Scan"]
    assert len(scans) == 2
    for scan in scans:
        (body,) = [attribute.g for attribute in scan.attribute if attribute.name == "body"]
        counts = Counter(node.op_type for node in body.node)
        assert counts["MatMul"] + counts["Gemm"] == 4
        assert counts["EyeLike"] == 0
    assert len(graph.node) < 60


def test_onnx_one_step(one_step: OneStep, one_step_file: Path, generator: torch.Generator) -> None:
    """Streaming through onnxruntime, any batch: the state goes out and comes in again."""
    for batch in (1, 2, 5):
        h = expected = torch.zeros(batch, 8)
        for x in sequence(generator, 20, batch, 3).float():
            (h,) = run_file(one_step_file, x, h)
            expected = one_step(x, expected)
        torch.testing.assert_close(h, expected.detach(), rtol=1e-5, atol=1e-5)


def test_saved_and_loaded(plain: lr.LipschitzRNN, exported: ExportedProgram, tmp_path: Path) -> None:
    torch.export.save(exported, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    x = torch.linspace(-1, 1, 9 * 4 * 3).reshape(9, 4, 3)
    torch.testing.assert_close(loaded(x)[0], plain(x)[0], rtol=1e-5, atol=1e-6)


def test_times_lengths_and_states_of_any_shape(generator: torch.Generator) -> None:
    rnn = layer(generator, bidirectional=True).float().eval()

    def arguments(T: int, B: int) -> dict[str, Tensor]:
        times, lengths = 0.05 * sequence(generator, T, B).abs().float(), torch.arange(B) % T + 1
        return {"hx": sequence(generator, 2, B, 5).float(), "timespans": times, "lengths": lengths}

    shapes = {"input": {0: ANY, 1: ANY}, "hx": {1: ANY}, "timespans": {0: ANY, 1: ANY}, "lengths": {0: ANY}}
    program = torch.export.export(rnn, (torch.zeros(7, 2, 3),), arguments(7, 2), dynamic_shapes=shapes).module()
    for T, B in ((11, 5), (3, 4)):
        x, others = sequence(generator, T, B, 3).float(), arguments(T, B)
        for found, expected in zip(program(x, **others), rnn(x, **others), strict=True):
            torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.needs("onnxscript")
@pytest.mark.parametrize("integrator", ["euler", "heun"])
def test_a_contracting_layer_is_refused_for_onnx_with_the_way_to_do_it(integrator: str) -> None:
    """torch.export takes it; PyTorch's own message about the inverse would not say what to do."""
    contracting = lr.LipschitzRNN(3, 4, stability="contracting", integrator=integrator).eval()
    with pytest.raises(Exception, match=r"ONNX has no operator for the inverse .* stores them from hidden_matrices"):
        torch.onnx.export(contracting, (torch.zeros(5, 2, 3),), dynamo=True, verbose=False)


@pytest.mark.parametrize("options", [{"recompute_every": 32}, {"stability": "contracting", "parallel": "auto"}])
def test_what_is_for_training_does_not_fix_the_length(options: dict[str, Any]) -> None:
    rnn = lr.LipschitzRNN(3, 16, **options).eval()
    program = torch.export.export(rnn, (torch.randn(50, 8, 3),), dynamic_shapes=({0: ANY, 1: ANY},)).module()
    x = torch.randn(70, 2, 3)
    torch.testing.assert_close(program(x)[0], rnn(x)[0])
