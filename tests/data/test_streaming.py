"""Whole models on live data: one sample at a time gives what whole series give, for every unit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from made_models import irregular, make_model
from torch import Tensor, nn

from lipschitz_rnn import data, units
from lipschitz_rnn.data.stepping import StepModel

OPTIONS: dict[str, dict[str, Any]] = {
    "nais": {"step_size": 0.1},
    "lipschitz": {"step_size": 0.1, "max_step": 0.2, "num_layers": 2},
}
# float32 rounds at 6e-8 per operation; a handful of steps with values near 1 stay below this.
CLOSE = {"rtol": 2e-5, "atol": 2e-5}


def batch(count: int = 3, steps: int = 9, seed: int = 9) -> tuple[Tensor, Tensor]:
    values, times, lengths = irregular(30, seed=seed).padded()
    long = (lengths >= steps).nonzero().flatten()[:count]
    assert times is not None
    return values[long, :steps], times[long, :steps]


@pytest.mark.parametrize("unit", units.available())
def test_stream_step_and_batch_agree(unit: str) -> None:
    """Every missing-mode, irregular times, float32; predictions of classes, numbers and next values at every step."""
    values, times = batch()
    for missing, kind in (("mask", "classify"), ("forward", "regress"), ("since", "forecast")):
        model = make_model(unit, kind, missing=missing, options=OPTIONS.get(unit))
        stream, step = model.stream(len(values)), StepModel([model])
        state = torch.zeros(len(values), step.size, dtype=torch.float64)
        for k in range(values.shape[1]):
            with torch.no_grad():
                expected = model(values[:, : k + 1], times[:, : k + 1])
                predicted, state = step(values[:, k], times[:, k], state)
            expected = expected[:, -1] if kind == "forecast" else expected
            torch.testing.assert_close(stream(values[:, k], times[:, k]), expected, **CLOSE)
            expected = expected.softmax(-1) if kind == "classify" else expected
            torch.testing.assert_close(predicted, expected, **CLOSE)
            torch.testing.assert_close(stream.state, state, **CLOSE)


@pytest.mark.parametrize("unit", ["lipschitz", "gru", "urnn"])
def test_forecasts_for_any_time_ahead(unit: str) -> None:
    """Whatever times a stream was asked to predict before, its state is that of the samples and their own times."""
    values, times = batch()
    model = make_model(unit, "forecast", options=OPTIONS.get(unit), missing="since")
    assert model.preprocessing.fitted.ahead
    with torch.no_grad():
        whole = model(values, times)
    stream, step = model.stream(3), StepModel([model])
    state = torch.zeros(3, step.size, dtype=torch.float64)
    for k in range(values.shape[1] - 1):
        stream(values[:, k], times[:, k], times[:, k] + 0.2)  # another question about the same sample
        stream.state = state
        found = stream(values[:, k], times[:, k], times[:, k + 1])
        with torch.no_grad():
            predicted, state = step(values[:, k], times[:, k], state, times[:, k + 1])
        torch.testing.assert_close(found, whole[:, k], **CLOSE)
        torch.testing.assert_close(predicted, whole[:, k], **CLOSE)
    with torch.no_grad():
        later = model(values, times, None, times[:, -1] + 3.0)[:, -1]
    assert float((later - whole[:, -1]).abs().max()) > 1e-4  # the time to the forecast matters
    torch.testing.assert_close(stream(values[:, -1], times[:, -1], times[:, -1] + 3.0), later, **CLOSE)
    with pytest.raises(ValueError, match="next_time"):
        stream(values[:, -1], times[:, -1] + 1.0, times[:, -1])
    with pytest.raises(ValueError, match="next_time"):
        make_model().stream()([1.0, 2.0], 1.0, 2.0)


@pytest.mark.parametrize("missing", ["mask", "forward", "since"])
@pytest.mark.parametrize("use", ["step", "input", "ignored"])
def test_every_use_of_times_and_of_missing_values(missing: str, use: str) -> None:
    values, times = batch()
    model = make_model("lipschitz", "sequence", missing=missing, times=use, dtype=torch.float64)
    stream = model.stream()
    with torch.no_grad():
        expected = model(values[:1], times[:1])[0]
    for k in range(values.shape[1]):
        found = stream(values[0, k].numpy(), float(times[0, k]))
        torch.testing.assert_close(found, expected[k], rtol=1e-12, atol=1e-12)
    stream.reset()
    torch.testing.assert_close(stream(values[0, 0], float(times[0, 0])), expected[0], rtol=1e-12, atol=1e-12)


def test_without_times_and_a_column_that_was_never_missing() -> None:
    generator = np.random.default_rng(0)
    series = data.from_arrays([generator.normal(size=(2, 8)) for _ in range(5)], columns=["x", "y"])
    series.values[3, 1] = np.nan
    model = make_model("gru", "classify", series=series, missing="since")
    stream = model.stream()
    x = torch.from_numpy(generator.normal(size=(6, 2)))
    x[2:4] = torch.nan
    for k in range(6):
        with torch.no_grad():
            expected = model(x[None, : k + 1])[0]
        torch.testing.assert_close(stream(x[k].tolist()), expected, **CLOSE)


def test_seeds_stream_their_mean_and_a_state_goes_on_elsewhere() -> None:
    values, times = batch(steps=8)
    saved = data.SavedModels(tuple(make_model(unit, seed=seed) for seed, unit in enumerate(("gru", "lstm", "urnn"))))
    first, second = saved.stream(), saved.stream()
    for k in range(4):
        first(values[0, k], times[0, k].item())
    second.state = first.state
    for k in range(4, 8):
        a, b = (stream(values[0, k], times[0, k].item()) for stream in (first, second))
        torch.testing.assert_close(a, b, rtol=0.0, atol=0.0)
    with torch.no_grad():
        expected = torch.stack([model(values[:1], times[:1])[0].softmax(-1) for model in saved.models]).mean(0)
    torch.testing.assert_close(a, expected, **CLOSE)
    fresh = saved.stream()
    assert not fresh.state.any()
    second.state = fresh.state
    torch.testing.assert_close(second(values[0, 0], 0.0), fresh(values[0, 0], 0.0), rtol=0.0, atol=0.0)


def test_a_unit_of_somebody_s_own_streams_by_its_state() -> None:
    plain = make_model("gru")
    unit = nn.LSTM(plain.preprocessing.output_size, 4, num_layers=2)
    model = data.SeriesModel(plain.preprocessing, unit, plain.head, plain.target).eval()
    values, times = batch()
    stream = model.stream(3)
    for k in range(values.shape[1]):
        found = stream(values[:, k], times[:, k])
    with torch.no_grad():
        torch.testing.assert_close(found, model(values, times), **CLOSE)
    assert stream.state.shape == (3, stream._step.size + 2 * 2 * 4)


def test_samples_by_name_with_texts() -> None:
    pd = pytest.importorskip("pandas", reason="needs pandas")
    generator = np.random.default_rng(1)
    frame = pd.DataFrame(
        {"id": np.repeat(["a", "b", "c"], 6), "x": generator.normal(size=18), "kind": ["red", "blue", "green"] * 6}
    )
    series = data.from_frame(frame, series="id")
    model = make_model("gru", series=series)
    stream, again = model.stream(), model.stream()
    codes = series.values[:3]
    for row, sample in zip(frame.to_dict("records")[:3], codes, strict=True):
        named = stream({"x": row["x"], "kind": row["kind"]})
        torch.testing.assert_close(named, again(sample))
    stream({"kind": None, "x": None})
    for wrong, named in (({"x": 1.0}, "kind"), ({"x": 1.0, "kind": "red", "z": 2.0}, "z")):
        with pytest.raises(ValueError, match=named):
            stream(wrong)


def test_misuse_is_refused_and_changes_nothing() -> None:
    model = make_model()
    stream = model.stream()
    stream([5.0, 5.0], 1.0)
    before = stream.state
    for values, time in (
        ([5.0, 5.0], 1.0),
        ([5.0, 5.0], 0.5),
        ([5.0, 5.0], math.nan),
        ([5.0, 5.0], None),
        ([5.0], 2.0),
        ([[5.0, 5.0]], 2.0),
        ([5.0, 5.0], [2.0, 3.0]),
    ):
        with pytest.raises(ValueError, match=r"time|shape"):
            stream(values, time)
    assert torch.equal(stream.state, before)
    with pytest.raises(ValueError, match="batch_size"):
        model.stream(0)
    with pytest.raises(ValueError, match="state"):
        stream.state = torch.zeros(3)
    both = make_model("gru", options={"bidirectional": True})
    with pytest.raises(ValueError, match="bidirectional"):
        both.stream()
    untimed = make_model("gru", series=data.from_arrays([np.arange(12.0).reshape(2, 6)] * 3, columns=["x", "y"]))
    with pytest.raises(ValueError, match="without times"):
        untimed.stream()([1.0, 2.0], 1.0)


def test_times_in_another_unit_are_warned_of_once_and_the_file_says_what_they_were() -> None:
    model = make_model()
    gap = model.preprocessing.fitted.gap
    assert gap is not None
    usual, other = model.stream(), model.stream(2)
    for k in range(12):  # warnings are errors here
        usual([5.0, 5.0], gap * k)
    for k in range(4):
        other([[5.0, 5.0]] * 2, [1000.0 * gap * k] * 2)
    with pytest.warns(data.SeriesWarning, match=r"samples of this stream is .*, 1e\+03 times that of the training"):
        other([[5.0, 5.0]] * 2, [4000.0 * gap] * 2)
    other.reset()
    for k in range(12):
        other([[5.0, 5.0]] * 2, [1000.0 * gap * k] * 2)


def test_infinite_and_huge_values_stay_finite() -> None:
    stream = make_model().stream()
    for time, value in enumerate((math.inf, -math.inf, 1e300, -1e300, math.nan, 0.0)):
        assert bool(stream([value, value], float(time)).isfinite().all())


def test_later_training_does_not_change_a_stream() -> None:
    model = make_model()
    stream = model.stream()
    expected = stream([5.0, 6.0], 1.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    stream.reset()
    torch.testing.assert_close(stream([5.0, 6.0], 1.0), expected)
