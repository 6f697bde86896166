"""One file a model: every unit comes back as it was, and files that are not whole models are named."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_models import irregular, make_model
from optional import needs
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import lipschitz_rnn as lr
from lipschitz_rnn import data, load_run, units
from lipschitz_rnn.data import saving
from lipschitz_rnn.training import Settings, fit
from lipschitz_rnn.units import registry as unit_registry

OPTIONS: dict[str, dict[str, Any]] = {
    "lipschitz": {
        "beta": (0.8, 0.6),
        "step_size": 0.2,
        "integrator": "midpoint",
        "num_layers": 2,
        "max_step": 0.4,
    },
    "lstm": {"forget_bias": 1.0, "num_layers": 2},
    "fastgrnn": {"density": 0.5, "quantize": True},
    "rnn": {"nonlinearity": "relu"},
    "nais": {"step_size": 0.1},  # a contraction for steps of at most 1, and gaps reach ten typical ones
}


@pytest.mark.parametrize("unit", units.available())
def test_every_unit_comes_back_with_its_options(unit: str, tmp_path: Path) -> None:
    model = make_model(unit, options=OPTIONS.get(unit), hidden_size=4)
    path = model.save(tmp_path / "model.safetensors", {"metric": "accuracy"})
    found = data.load_model(path)
    assert found.extra == {"metric": "accuracy"}
    series = irregular(5, seed=3)
    np.testing.assert_allclose(data.predict(found.models[0], series), data.predict(model, series), atol=1e-6)
    assert found.models[0].unit.recipe == model.unit.recipe  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["classify", "regress", "sequence", "forecast"])
def test_seeds_of_one_file_predict_their_mean(kind: str, tmp_path: Path) -> None:
    models = [make_model(kind=kind, seed=seed, missing="since") for seed in range(3)]
    found = data.load_model(data.save_model(tmp_path / "model.safetensors", models))
    series = irregular(6, seed=2)
    predicted = found.predict(series)
    each = np.stack([data.predict(model, series) for model in models])
    if kind in ("classify", "sequence"):
        each = np.exp(each) / np.exp(each).sum(-1, keepdims=True)
        assert set(predicted.labels) <= {"a", "b", "c"}
        np.testing.assert_allclose(predicted.mean.sum(-1), 1.0, atol=1e-6)
    np.testing.assert_allclose(predicted.members, each, atol=1e-5)
    np.testing.assert_allclose(predicted.mean, each.mean(0), atol=1e-5)
    np.testing.assert_allclose(predicted.spread, each.std(0, ddof=1), atol=1e-5)
    assert predicted.mean.shape[0] == (len(series) if kind in ("classify", "regress") else series.total)


def test_float64_and_a_float32_copy_keep_their_precision(tmp_path: Path) -> None:
    for dtype in (torch.float32, torch.float64):
        model = make_model(dtype=dtype)
        found = data.SeriesModel.load(model.save(tmp_path / f"{dtype}.safetensors"))
        assert {value.dtype for value in found.unit.parameters()} == {dtype}
        for own, expected in zip(found.unit.parameters(), model.unit.parameters(), strict=True):
            assert torch.equal(own, expected)


def test_a_folder_as_pretrained(tmp_path: Path) -> None:
    model = make_model("gru")
    model.save_pretrained(tmp_path / "new" / "folder")
    found = data.SeriesModel.from_pretrained(tmp_path / "new" / "folder")
    series = irregular(3)
    np.testing.assert_allclose(data.predict(found, series), data.predict(model, series), atol=1e-6)
    data.save_model(tmp_path / "two.safetensors", [model, make_model("gru", seed=1)])
    with pytest.raises(ValueError, match="2 networks"):
        data.SeriesModel.load(tmp_path / "two.safetensors")
    with pytest.raises(ValueError, match="is the name of a file"):
        model.save_pretrained(tmp_path / "model.safetensors")


def test_a_run_folder_becomes_one_file(tmp_path: Path) -> None:
    series = irregular(24, longest=12)
    task = data.SeriesTask(series, step_size=0.1)
    settings = Settings(
        task=task.name, hidden_size=4, epochs=1, batch_size=8, unit_options={"step_size": 0.1}, seeds=(0, 1)
    )
    result = fit(settings, task, tmp_path / "run")
    run = load_run(tmp_path / "run", task=task)
    models = [data.SeriesModel.from_record(network, run.shapes.series) for network in run.networks]
    found = data.load_model(data.save_model(tmp_path / "model.safetensors", models))
    for index, network in enumerate(result.models):
        expected = data.predict(data.SeriesModel.from_record(network, task.record()), series)
        np.testing.assert_allclose(data.predict(found.models[index], series), expected, atol=1e-6)
    with pytest.raises(data.ModelFileError, match="run folder"):
        data.load_model(tmp_path / "run")


def test_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_model().save(tmp_path / "model.safetensors")
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        make_model(seed=1).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_damaged_foreign_and_newer_files_are_named(tmp_path: Path) -> None:
    path = make_model().save(tmp_path / "model.safetensors")
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[-5] ^= 1
    cases = {
        "cut": content[:-100],
        "flipped": bytes(flipped),
        "empty": b"",
        "text": b"not a model",
        "short": b"\x00" * 9,
    }
    for name, damaged in cases.items():
        (place := tmp_path / f"{name}.safetensors").write_bytes(damaged)
        with pytest.raises(data.ModelFileError, match=str(place)):
            data.load_model(place)
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    foreign, newer = tmp_path / "foreign.safetensors", tmp_path / "newer.safetensors"
    save_file(tensors, foreign, {"format": "pt"})
    save_file(tensors, newer, metadata | {"format": "lipschitz-rnn-series/2", "version": "9.0"})
    for place, named in (
        (foreign, "not written by"),
        (newer, "9.0"),
        (tmp_path / "none.safetensors", "does not exist"),
    ):
        with pytest.raises(data.ModelFileError, match=named):
            data.load_model(place)
    with pytest.raises(ValueError, match="load_model"):
        load_run(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about.pop("target"),
        lambda about: about["networks"][0].pop("unit"),
        lambda about: about["networks"][0]["unit"].update(hidden_size=6),
        lambda about: about["networks"][0]["unit"].update(input_size=9),
        lambda about: about["networks"][0]["unit"].update(name="somebody's"),
        lambda about: about["networks"][0].update(dtype="nothing"),
        lambda about: about["preprocessing"].update(unheard=1),
        lambda about: about.update(networks=[]),
    ],
)
def test_a_description_that_does_not_fit_is_refused(change: Any, tmp_path: Path) -> None:
    """With a right checksum, as a file of another version or of somebody with an editor."""
    path = make_model().save(tmp_path / "model.safetensors")
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = dict(file.metadata())
    about = json.loads(metadata["about"])
    change(about)
    text = json.dumps(about)
    save_file(tensors, path, metadata | {"about": text, "sha256": saving.checksum(tensors, text)})
    with pytest.raises(data.ModelFileError, match=r"model\.safetensors"):
        data.load_model(path)


def test_models_that_would_not_come_back_are_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    plain = make_model("gru")
    own = data.SeriesModel(plain.preprocessing, nn.GRU(plain.preprocessing.output_size, 4), plain.head, plain.target)
    with pytest.raises(ValueError, match="GRU"):
        own.save(path)
    deep = data.SeriesModel(plain.preprocessing, plain.unit, nn.Sequential(plain.head), plain.target)
    with pytest.raises(ValueError, match="Sequential"):
        deep.save(path)
    changed = make_model()
    changed.unit.alpha = 0.5  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"alpha is 0\.5"):
        changed.save(path)
    hooked = make_model()
    hooked.unit.register_forward_hook(lambda module, inputs, result: (2.0 * result[0], result[1]))
    with pytest.raises(ValueError, match="other outputs"):
        hooked.save(path)
    with pytest.raises(ValueError, match="differ in their preprocessing"):
        data.save_model(path, [make_model(), make_model(scaling="minmax", seed=1)])
    with pytest.raises(ValueError, match="differ in their target"):
        data.save_model(path, [make_model(), make_model(kind="regress")])
    for bad, error in (([], ValueError), ([nn.Linear(1, 1)], TypeError)):
        with pytest.raises(error):
            data.save_model(path, bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="extra"):
        plain.save(path, {"model": object()})
    with pytest.raises(ValueError, match="safetensors"):
        plain.save(tmp_path / "model.bin")
    assert os.listdir(tmp_path) == []


def test_units_of_somebody_else(tmp_path: Path) -> None:
    """Saved with the name of their registered unit; loading never imports the module that the file names."""

    class Own(nn.Module):
        def __init__(self, input_size: int, hidden_size: int, leak: float = 0.5) -> None:
            super().__init__()
            self.leak, self.inner = leak, nn.GRU(input_size, hidden_size)

        def forward(self, x: torch.Tensor, hx: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
            output, h_n = self.inner(x, hx)
            return self.leak * output, h_n

    units.register("own-of-a-test")(Own)
    path = make_model("own-of-a-test", options={"leak": 0.25}).save(tmp_path / "model.safetensors")
    assert data.load_model(path).models[0].unit.leak == 0.25
    del unit_registry._OWN._own["own-of-a-test"], unit_registry._FACTS["own-of-a-test"]
    with pytest.raises(data.ModelFileError, match="own-of-a-test"):
        data.load_model(path)


def test_wrong_columns_are_named(tmp_path: Path) -> None:
    found = data.load_model(make_model().save(tmp_path / "model.safetensors"))
    other = data.from_arrays([np.zeros((2, 4))], columns=["x", "z"], times=[np.arange(4.0)])
    with pytest.raises(data.SeriesError, match="'y'"):
        found.predict(other)
    without = data.from_arrays([np.zeros((2, 4))], columns=["x", "y"])
    with pytest.raises(data.SeriesError, match="times"):
        found.predict(without)
    turned = irregular(4, seed=5)
    expected = found.predict(turned).mean
    again = replace(turned, values=turned.values[:, ::-1].copy(), columns=("y", "x"))
    np.testing.assert_allclose(found.predict(again).mean, expected, atol=1e-12)


@needs("huggingface_hub")
def test_the_hub_s_mixin_in_a_local_folder(tmp_path: Path) -> None:
    from lipschitz_rnn.data.hub import HubModels

    models = [make_model(seed=seed) for seed in range(2)]
    HubModels(tuple(models), {"metric": "accuracy"}).save_pretrained(tmp_path / "repository")
    names = sorted(os.listdir(tmp_path / "repository"))
    assert names == ["README.md", "config.json", "model.safetensors"]
    found = HubModels.from_pretrained(tmp_path / "repository")
    assert isinstance(found, HubModels)
    assert found.extra == {"metric": "accuracy"}
    series = irregular(4)
    expected = data.SavedModels(tuple(models)).predict(series).mean
    np.testing.assert_allclose(found.predict(series).mean, expected, atol=1e-6)
    found.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["classes"] == ["a", "b", "c"]
    assert len(data.load_model(tmp_path / "again").models) == 2


def test_the_recipe_of_a_unit_builds_it_again() -> None:
    unit = units.build("lipschitz", 3, 4, beta=0.5)
    assert units.build(**unit.recipe).recipe == unit.recipe
    assert not hasattr(lr.LipschitzRNN(3, 4), "recipe")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere; create it"):
        make_model("gru").save(tmp_path / "nowhere" / "model.safetensors")


def test_a_forecast_of_a_version_that_did_not_look_ahead_opens_as_it_was() -> None:
    old = make_model("gru", "forecast", ahead=False)
    record = old.preprocessing.to_dict()
    del record["ahead"]
    assert data.Preprocessing.from_dict(record).fitted == old.preprocessing.fitted
    assert make_model("gru", "forecast").preprocessing.fitted != old.preprocessing.fitted
