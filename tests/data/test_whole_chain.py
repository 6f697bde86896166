"""From a made irregular file to a trained, predicting and exported model, with the commands and their defaults."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from optional import needs
from series_files import waves, write_csv
from typer.testing import CliRunner

from lipschitz_rnn import data
from lipschitz_rnn.cli import app


@pytest.mark.full
@needs("pandas", "onnx", "onnxscript", "onnxruntime")
def test_train_predict_and_export(tmp_path: Path) -> None:
    """400 series of 20 to 120 samples, 10 % holes, three classes by frequency; 120 unseen ones."""
    import onnxruntime

    train, unseen = write_csv(tmp_path / "train.csv", waves(400)), waves(120, seed=77)
    new, run, out = write_csv(tmp_path / "new.csv", unseen), tmp_path / "run", tmp_path / "out.parquet"
    columns = ["--target", "state", "--series", "machine", "--time", "clock"]
    start = time.monotonic()
    for arguments in (
        ["train", train, *columns, "--out", run],
        ["predict", run, new, "-o", out],
        ["export", run, tmp_path / "model.onnx", "--check", new],
        ["export", run, tmp_path / "model.safetensors"],
    ):
        done = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert done.exit_code == 0, done.output
    assert time.monotonic() - start < 180.0
    import pandas as pd

    table = pd.read_parquet(out)
    assert (table["prediction"].to_numpy() == [one["label"] for one in unseen]).mean() > 0.95
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    series = data.as_trained(
        data.read(new, series="machine", time="clock", features=["x", "y"]),
        data.load_model(tmp_path / "model.safetensors").models[0],
    )
    values, times, lengths = series.padded()
    assert times is not None
    feed = {"values": values.float().numpy(), "times": times.numpy(), "lengths": lengths.numpy()}
    (probabilities,) = session.run(None, feed)
    found = table[["probability_a", "probability_b", "probability_c"]].to_numpy()
    np.testing.assert_allclose(probabilities, found, atol=1e-5)
