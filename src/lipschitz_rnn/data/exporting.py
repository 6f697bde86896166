"""Whole models as ONNX or PyTorch programs, each checked against PyTorch before it is written."""

from __future__ import annotations

import copy
import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from lipschitz_rnn._version import __version__
from lipschitz_rnn.data.ensemble import SeriesEnsemble, require_alike
from lipschitz_rnn.data.errors import SeriesError, SeriesWarning
from lipschitz_rnn.data.export_checks import (
    Feed,
    expected_steps,
    largest_difference,
    lost_in_float32,
    made_inputs,
    real_inputs,
)
from lipschitz_rnn.data.fitting import Fitted
from lipschitz_rnn.data.model import SeriesModel
from lipschitz_rnn.data.scanning import for_export
from lipschitz_rnn.data.series import SeriesSet
from lipschitz_rnn.data.stepping import StepModel, require_streaming
from lipschitz_rnn.storage import atomic_write

ENDINGS = (".onnx", ".pt2")
LARGEST_DIFFERENCE = 1e-5
_KEY = "lipschitz_rnn"  # of the description in a file's metadata
Inputs = tuple[Tensor, ...]
Run = Callable[[Inputs], list[Tensor]]


class ExportError(SeriesError):
    """A model cannot be exported, or the exported one differs from PyTorch. Nothing was written."""


@dataclass(frozen=True)
class Exported:
    """A written program."""

    path: Path
    difference: float
    """The largest difference to PyTorch in the check, relative to the largest prediction if that is above 1."""
    compared: int
    """How many predictions were compared."""
    about: dict[str, Any]
    """What the file says about itself: inputs, outputs, columns, classes and more."""


def export_model(
    path: str | os.PathLike[str],
    models: Sequence[SeriesModel],
    *,
    step: bool = False,
    float64: bool = False,
    series: SeriesSet | None = None,
) -> Exported:
    """Write models that differ in their seeds as one program: raw values in, the mean of their predictions out.

    Inputs: `values` (B, T, p), NaN where missing; `times` (B, T) float64, if the models use them; `next_times` (B,)
    float64, when to predict the sample after the end, for forecasts trained on irregular times; `lengths` (B,) int64. B
    and T are free. Output: `probabilities` of the classes, or the `prediction` in the target's unit, as
    `SeriesEnsemble` gives it. With `step`, one sample of each series: `values` (B, p), `times` (B,), `state` (B, ·)
    float64, zeros before the first sample; the output has the next `state` beside the prediction.

    Args:
        path: a file that ends in .onnx or .pt2.
        float64: take values in float64; otherwise float32. Values and targets with a large offset need it; a
            `SeriesWarning` names those that float32 would round.
        series: check with these series; otherwise with made ones.

    Raises:
        ExportError: the program differs from PyTorch by more than 1e-5, or cannot be made. Nothing is written then.
    """
    place = Path(path)
    if place.suffix not in ENDINGS:
        raise ValueError(f"the file is {str(path)!r}; its name must end in {' or '.join(ENDINGS)}")
    require_alike(models)
    for model in models:
        if place.suffix == ".onnx" and getattr(model.unit, "complex_arithmetic", False):
            raise ExportError(
                f"the unit {_name(model)!r} computes with complex numbers, which ONNX does not have; use .pt2"
            )
        require_streaming(model)
    rounded = None if float64 else lost_in_float32(models[0])
    if rounded is not None:
        warnings.warn(rounded, SeriesWarning, stacklevel=2)
    models = [copy.deepcopy(model).cpu().eval() for model in models]
    eager = SeriesEnsemble(models)
    dtype = torch.float64 if float64 else torch.float32
    module: nn.Module = StepModel(models) if step else SeriesEnsemble([for_export(model) for model in models])
    graph = _Graph(module, uses_times(models[0]), models[0].preprocessing.fitted.ahead, step)
    traced = made_inputs(models[0], 3, 7, dtype, seed=1)
    example = graph.arguments(traced.first_sample() if step else traced)
    about = _describe(models, graph, dtype)
    program = _trace(graph, example, models[0])
    write = _onnx_bytes if place.suffix == ".onnx" else _pt2_bytes
    content = write(program, example, about, models[0])
    run = (_onnx_runner if place.suffix == ".onnx" else _pt2_runner)(content, graph.names)
    worst, compared = 0.0, 0
    feeds = [made_inputs(models[0], rows, steps, dtype, seed=rows) for rows, steps in ((5, 23), (1, 2), (2, 1))]
    feeds += [] if series is None else real_inputs(models[0], series, dtype)
    for feed in feeds:
        found, expected = (_run_steps if step else _run_batch)(run, graph, eager, feed)
        worst = max(worst, largest_difference(found, expected))
        compared += expected.numel()
    if not worst <= LARGEST_DIFFERENCE:
        raise ExportError(
            f"the exported model differs from PyTorch by {worst:.3g}, more than {LARGEST_DIFFERENCE:g}; nothing was "
            "written. Large values need float64 (--float64)"
        )
    atomic_write(place, content)
    return Exported(place, worst, compared, about)


def uses_times(model: SeriesModel) -> bool:
    fitted = model.preprocessing.fitted
    return fitted.gap is not None and (fitted.time_use != "ignored" or fitted.missing == "since")


class _Graph(nn.Module):
    """The module with exactly the inputs that the exported program has."""

    def __init__(self, module: nn.Module, timed: bool, ahead: bool, step: bool) -> None:
        super().__init__()
        self.module, self.timed, self.ahead, self.step = module, timed, ahead, step
        self.names = ["values", *(["times"] if timed else []), *(["next_times"] if ahead else [])]
        self.names.append("state" if step else "lengths")

    def forward(self, *inputs: Tensor) -> Any:
        return self.module(inputs[0], inputs[1] if self.timed else None, inputs[-1], inputs[2] if self.ahead else None)

    def arguments(self, feed: Feed, state: Tensor | None = None) -> Inputs:
        last = feed.lengths
        if isinstance(self.module, StepModel):
            rows = feed.values.shape[0]
            last = torch.zeros(rows, self.module.size, dtype=torch.float64) if state is None else state
        times = (feed.times,) if self.timed and feed.times is not None else ()
        return (feed.values, *times, *((feed.next_times,) if self.ahead and feed.next_times is not None else ()), last)

    @property
    def shapes(self) -> tuple[tuple[dict[int, Any], ...]]:
        """Free axes: rows, and steps of whole series."""
        rows, steps = {0: Dim.DYNAMIC}, {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}
        each = rows if self.step else steps
        return ((each, *((each,) if self.timed else ()), *((rows,) if self.ahead else ()), rows),)


def _describe(models: Sequence[SeriesModel], graph: _Graph, dtype: torch.dtype) -> dict[str, Any]:
    model = models[0]
    fitted, target = model.preprocessing.fitted, model.target
    output = "probabilities" if target.classes is not None else "prediction"
    return {
        "version": __version__,
        "task": target.kind,
        "target": list(target.names),
        "classes": None if target.classes is None else list(target.classes),
        "columns": list(fitted.columns),
        "categories": {name: list(table) for name, table in fitted.categories.items()},
        "times": _describe_times(fitted) if graph.timed else None,
        "values": str(dtype).removeprefix("torch."),
        "inputs": graph.names,
        "outputs": [output, "new_state"] if graph.step else [output],
        "state_size": graph.module.size if isinstance(graph.module, StepModel) else None,
        "networks": len(models),
        "unit": _name(model),
    }


def _describe_times(fitted: Fitted) -> dict[str, Any]:
    """In the unit of the training times (seconds, for dates): a program cannot warn about times in another one."""
    assert fitted.gap is not None
    return {"typical_gap": fitted.gap, "longest_gap": fitted.longest_gap * fitted.gap, "regular": fitted.regular}


def _name(model: SeriesModel) -> str:
    return str(dict(getattr(model.unit, "recipe", {})).get("name", type(model.unit).__name__))


def _trace(graph: _Graph, example: Inputs, model: SeriesModel) -> ExportedProgram:
    with _quiet(), torch.no_grad():
        try:
            return torch.export.export(graph.eval(), example, dynamic_shapes=graph.shapes)
        except Exception as error:  # anything may happen inside the tracer, also for somebody's own unit
            raise ExportError(_cannot(model, "exported", error)) from error


def _cannot(model: SeriesModel, what: str, error: Exception) -> str:
    reason = " ".join(str(error).split())[:300]
    return (
        f"the unit {_name(model)!r} cannot be {what} ({type(error).__name__}: {reason}); try --step, .pt2, or another "
        "unit"
    )


def _onnx_bytes(program: ExportedProgram, example: Inputs, about: dict[str, Any], model: SeriesModel) -> bytes:
    try:
        import onnx
        import onnxruntime  # noqa: F401 (for the check)
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(f'ONNX needs {error.name}; install it with: pip install "lipschitz-rnn[export]"') from error
    with _quiet():
        try:
            written = torch.onnx.export(
                program,
                example,
                dynamo=True,
                verbose=False,
                input_names=about["inputs"],
                output_names=about["outputs"],
            )
        except Exception as error:  # as above
            raise ExportError(_cannot(model, "written as ONNX", error)) from error
    assert written is not None
    proto = written.model_proto
    onnx.helper.set_model_props(proto, {_KEY: json.dumps(about, sort_keys=True)})
    content: bytes = proto.SerializeToString()
    return content


def _pt2_bytes(program: ExportedProgram, example: Inputs, about: dict[str, Any], model: SeriesModel) -> bytes:
    buffer = io.BytesIO()
    with _quiet():
        torch.export.save(program, buffer, extra_files={f"{_KEY}.json": json.dumps(about, sort_keys=True)})
    return buffer.getvalue()


def _onnx_runner(content: bytes, names: Sequence[str]) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(inputs: Inputs) -> list[Tensor]:
        feed = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
        return [torch.from_numpy(value) for value in session.run(None, feed)]

    return run


def _pt2_runner(content: bytes, names: Sequence[str]) -> Run:
    with _quiet():
        loaded = torch.export.load(io.BytesIO(content)).module()

    def run(inputs: Inputs) -> list[Tensor]:
        with torch.no_grad():
            result = loaded(*inputs)
        return [result] if isinstance(result, Tensor) else list(result)

    return run


def _run_batch(run: Run, graph: _Graph, eager: SeriesEnsemble, feed: Feed) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        times, then = feed.times if graph.timed else None, feed.next_times if graph.ahead else None
        expected = eager(feed.values, times, feed.lengths, then)
    (found,) = run(graph.arguments(feed))
    if eager.target.readout == "all":  # what lies beyond the end has no meaning
        inside = torch.arange(feed.values.shape[1]) < feed.lengths.unsqueeze(-1)
        return found[inside], expected[inside]
    return found, expected


def _run_steps(run: Run, graph: _Graph, eager: SeriesEnsemble, feed: Feed) -> tuple[Tensor, Tensor]:
    """A whole series through the step, sample after sample, against the batch of all its beginnings."""
    feed = feed.without_padding()
    state: Tensor | None = None
    found = []
    for index in range(feed.values.shape[1]):
        prediction, state = run(graph.arguments(feed.sample(index), state))
        found.append(prediction)
    return torch.stack(found, 1), expected_steps(eager, feed, graph.timed)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' warnings, which are about PyTorch's own code."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "torch._export", "onnxscript")]
    loggers.append(logging.getLogger("torch.onnx._internal.exporter._registration"))
    before = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)
