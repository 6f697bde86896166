"""Programs that leave Python: raw values in, predictions out, equal to PyTorch in any shape."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_models import irregular, make_model
from optional import needs
from torch import Tensor

from lipschitz_rnn import data, units

# The first step of a series is as long as max_step here: rounding must not split it.
CONTRACTING = {"stability": "contracting", "step_size": 0.1, "max_step": 0.1}
OPTIONS: dict[str, dict[str, Any]] = {"nais": {"step_size": 0.1}, "lipschitz": CONTRACTING}
pytestmark = needs("onnx", "onnxscript", "onnxruntime")


def run_onnx(path: Path, feed: dict[str, Tensor]) -> list[Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [node.name for node in session.get_inputs()] == list(feed)
    return [torch.from_numpy(out) for out in session.run(None, {name: value.numpy() for name, value in feed.items()})]


@pytest.mark.slow
def test_onnx_takes_raw_values(tmp_path: Path) -> None:
    """On series that the command did not see, with holes, irregular times and padding."""
    model = make_model(options=CONTRACTING, missing="since")
    done = data.export_model(tmp_path / "model.onnx", [model])
    assert done.difference <= 1e-5
    assert done.compared > 20
    series = irregular(11, seed=5)
    values, times, lengths = series.padded()
    assert times is not None
    (found,) = run_onnx(done.path, {"values": values.float(), "times": times, "lengths": lengths})
    expected = data.SavedModels((model,)).predict(series).mean
    np.testing.assert_allclose(found, expected, atol=1e-5)
    import onnx

    about = json.loads({item.key: item.value for item in onnx.load(done.path).metadata_props}["lipschitz_rnn"])
    assert about["classes"] == ["a", "b", "c"]
    assert about["columns"] == ["x", "y"]
    fitted = model.preprocessing.fitted
    assert fitted.gap is not None
    longest = fitted.longest_gap * fitted.gap
    assert about["times"] == {"typical_gap": fitted.gap, "longest_gap": longest, "regular": False}


@pytest.mark.full
def test_onnx_step_runs_a_whole_series(tmp_path: Path) -> None:
    model = make_model("gru", "forecast", missing="mask")
    done = data.export_model(tmp_path / "step.onnx", [model], step=True, series=irregular(4, seed=6))
    values, times, _ = irregular(1, seed=7).padded()
    assert times is not None
    state = torch.zeros(1, done.about["state_size"], dtype=torch.float64)
    with torch.no_grad():
        expected = model(values, times)
    for k in range(values.shape[1]):
        # The last sample is predicted for one typical gap later, the others for when the next one comes.
        gap = model.preprocessing.fitted.gap
        then = times[:, k + 1] if k + 1 < values.shape[1] else times[:, k] + gap
        feed = {"values": values[:, k].float(), "times": times[:, k], "next_times": then, "state": state}
        prediction, state = run_onnx(done.path, feed)
        torch.testing.assert_close(prediction.double(), expected[:, k].double(), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("step", [pytest.param(False, marks=pytest.mark.full), True])
def test_pt2_of_two_seeds_in_float64(step: bool, tmp_path: Path) -> None:
    """One of them with a complex state, which ONNX does not have."""
    models = [make_model("urnn", "regress"), make_model("rnn", "regress", seed=1)]
    done = data.export_model(tmp_path / "model.pt2", models, step=step, float64=True)
    extra = {"lipschitz_rnn.json": ""}
    program = torch.export.load(done.path, extra_files=extra).module()
    assert json.loads(extra["lipschitz_rnn.json"])["values"] == "float64"
    if not step:
        series = irregular(5, seed=3)
        found = program(*series.padded())
        np.testing.assert_allclose(found, data.SavedModels(tuple(models)).predict(series).mean, rtol=1e-6)


class _Own(torch.nn.Module):
    """Somebody's own unit; `factor` is what it multiplies its first input by."""

    def forward(self, x: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        state = torch.zeros(1, x.shape[1], 4) if hx is None else hx
        return x[..., :1].expand(-1, -1, 4) * self.factor(x), state

    def factor(self, x: Tensor) -> Tensor | float:
        return len(x)  # of the whole series: one step cannot know it


class _Branching(_Own):
    def factor(self, x: Tensor) -> Tensor | float:
        return 2.0 if float(x.sum()) > 0 else 1.0


def test_a_program_that_differs_is_not_written(tmp_path: Path) -> None:
    plain = make_model("rnn")
    own = data.SeriesModel(plain.preprocessing, _Own(), plain.head, plain.target)
    with pytest.raises(data.ExportError, match="differs from PyTorch by"):
        data.export_model(tmp_path / "model.pt2", [own])
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_exported_is_named(tmp_path: Path) -> None:
    with pytest.raises(data.ExportError, match="urnn"):
        data.export_model(tmp_path / "model.onnx", [make_model("urnn")])
    with pytest.raises(ValueError, match=r"\.pth"):
        data.export_model(tmp_path / "model.pth", [make_model()])
    plain = make_model("rnn")
    own = data.SeriesModel(plain.preprocessing, _Branching(), plain.head, plain.target)
    with pytest.raises(data.ExportError, match="_Branching"):
        data.export_model(tmp_path / "model.pt2", [own])
    assert os.listdir(tmp_path) == []


MODES = ("mask", "forward", "since")
CASES = [(unit, MODES[place % 3]) for place, unit in enumerate(units.available())]
CASES += [(unit, mode) for unit in ("lipschitz", "gru") for mode in MODES if (unit, mode) not in CASES]


@pytest.mark.full
@pytest.mark.parametrize(("unit", "missing"), CASES)
def test_every_unit_in_every_format(unit: str, missing: str, tmp_path: Path) -> None:
    """Batch, step and PyTorch agree at every sample of irregular series; the check is part of the export."""
    kind = "classify" if missing == "mask" else "forecast"
    model = make_model(unit, kind, missing=missing, options=OPTIONS.get(unit))
    ending = "pt2" if units.build(unit, 2, 4).complex_arithmetic else "onnx"  # type: ignore[union-attr]
    for step in (False, True):
        done = data.export_model(tmp_path / f"model.{ending}", [model], step=step, series=irregular(6, seed=1))
        assert done.difference <= 1e-5


def test_a_layer_in_chunks_predicts_short_series() -> None:
    model = make_model(options=CONTRACTING | {"parallel": 4})
    short = data.from_arrays([np.ones((2, 2))], times=[np.array([0.0, 1.0])], columns=["x", "y"])
    assert np.isfinite(data.SavedModels((model,)).predict(short).mean).all()


@pytest.mark.full
def test_a_layer_in_chunks_is_exported_without_them(tmp_path: Path) -> None:
    model = make_model(options=CONTRACTING | {"parallel": 4})
    assert data.export_model(tmp_path / "model.pt2", [model]).difference <= 1e-5
    assert data.export_model(tmp_path / "step.pt2", [model], step=True).difference <= 1e-5
