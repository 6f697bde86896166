"""Every unit trains on an irregular file, and its whole model gives what the trained network gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from optional import needs
from series_files import waves, write_csv

from lipschitz_rnn import data, units
from lipschitz_rnn.experiments.file_runs import file_settings
from lipschitz_rnn.training import fit

pytestmark = [needs("pandas"), pytest.mark.full]


@pytest.mark.filterwarnings("ignore:timespans reaches")  # units whose own step is long
@pytest.mark.parametrize("unit", units.available())
def test_every_unit_trains_on_a_file(tmp_path: Path, unit: str) -> None:
    path = write_csv(tmp_path / "waves.csv", waves(30, longest=40))
    options = {"path": str(path), "target": "state", "series": "machine", "time": "clock"}
    settings, task = file_settings(options, {"unit": unit, "epochs": 1, "hidden_size": 8, "device": "cpu"})
    network = fit(settings, task).models[0]
    whole = data.SeriesModel.from_record(network, task.record())
    found = data.predict(whole, task.series)[task.windows["test"].series]
    batch = task.batch("test", torch.arange(task.size("test")))
    times = {} if batch.timespans is None else {"timespans": batch.timespans}
    assert bool(times) == units.info(unit).timespans
    expected, _ = network(batch.inputs, batch.lengths, **times)
    np.testing.assert_allclose(found, expected.detach(), atol=1e-5)
