"""Preprocessing against plain loops, and the whole model against its parts and its export."""

from __future__ import annotations

import copy
import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from series_files import waves
from torch import nn

from lipschitz_rnn import data, units
from lipschitz_rnn.data.exact_inputs import exact_inputs
from lipschitz_rnn.data.target import Target


def irregular(count: int = 7) -> data.SeriesSet:
    made = waves(count)
    labels = np.array([one["label"] for one in made])
    return data.from_arrays([one["values"].T for one in made], labels, times=[one["times"] for one in made])


def by_loops(series: data.SeriesSet, index: int, missing: str, step: float, longest: float) -> tuple[np.ndarray, list]:
    """Inputs and timespans of one series, sample by sample."""
    assert series.times is not None
    mean, spread = np.nanmean(series.values, 0), np.nanstd(series.values, 0)
    low = int(series.offsets[index])
    high = int(series.offsets[index + 1])
    parts = [series.times[a:b] for a, b in pairwise(series.offsets)]
    gaps = [b - a for part in parts for a, b in pairwise(part)]
    gap = float(np.median(gaps))
    rows, spans = [], []
    last = [0.0, 0.0]
    when = [None, None]
    clock = 0.0
    for sample in range(low, high):
        since = 1.0 if sample == low else min((series.times[sample] - series.times[sample - 1]) / gap, longest)
        clock += 0.0 if sample == low else since
        spans.append(since * step)
        numbers, flags = [], []
        for column in range(2):
            value = series.values[sample, column]
            if not np.isnan(value):
                last[column], when[column] = (value - mean[column]) / spread[column], clock  # type: ignore[call-overload]
            gone = np.isnan(value)
            numbers.append(0.0 if gone and missing == "mask" else last[column])
            flags.append(float(gone) if missing == "mask" else np.log1p(clock - (when[column] or 0.0)))
        rows.append(numbers + ([] if missing == "forward" else flags))
    return np.array(rows), spans


@pytest.mark.parametrize("missing", ["mask", "forward", "since"])
def test_preprocessing_equals_loops(missing: str) -> None:
    series = irregular()
    module = data.Preprocessing.fit(series, missing=missing, step_size=0.05, longest_gap=3.0)  # type: ignore[arg-type]
    inputs, spans = module(*series.padded())
    assert inputs.dtype == torch.float64
    for index, length in enumerate(series.lengths):
        expected, steps = by_loops(series, index, missing, 0.05, 3.0)
        np.testing.assert_allclose(inputs[index, :length], expected, atol=1e-12)
        np.testing.assert_allclose(spans[index, :length], steps, atol=1e-12)
        assert not inputs[index, length:].any()
        assert not spans[index, length:].any()


def test_what_lies_beyond_the_end_has_no_effect() -> None:
    series = irregular()
    module = data.Preprocessing.fit(series, missing="since", step_size=0.05)
    values, times, lengths = series.padded()
    beyond = torch.arange(values.shape[1]) >= lengths[:, None]
    noisy, moved = values.clone(), times.clone()  # type: ignore[union-attr]
    noisy[beyond], moved[beyond] = 1e9, -7.0
    for a, b in zip(module(values, times, lengths), module(noisy, moved, lengths), strict=True):
        assert torch.equal(a, b)


def test_constant_missing_and_category_columns() -> None:
    pytest.importorskip("pandas")
    import pandas as pd

    table = pd.DataFrame(
        {
            "flat": [3.0, 3.0, 3.0, 3.0],
            "gone": [np.nan] * 4,
            "gear": ["low", None, "high", "low"],
            "x": [1.0, 2.0, 3.0, 6.0],
        }
    )
    module = data.Preprocessing.fit(data.from_frame(table), scaling="minmax")
    assert module.output_names == ("x", "gear = high", "gear = low", "gear missing")
    assert any("'flat'" in note for note in module.fitted.notes)
    assert any("'gone'" in note for note in module.fitted.notes)
    inputs, spans = module(*data.from_frame(table).padded())
    assert spans is None
    np.testing.assert_allclose(inputs[0], [[-1, 0, 1, 0], [-0.6, 0, 0, 1], [-0.2, 1, 0, 0], [1, 0, 1, 0]])
    unknown = torch.tensor([[[3.0, np.nan, -1.0, np.inf]]])
    np.testing.assert_allclose(module(unknown)[0], [[[0, 0, 0, 0]]])


@pytest.mark.parametrize("scaling", ["standard", "robust", "minmax", "none"])
def test_scaling_keeps_the_digits_of_a_large_offset_and_huge_values_stay_finite(scaling: str) -> None:
    values = 1e6 + np.array([[0.0, 0.1, 0.2, 0.35, 0.5]])
    series = data.from_arrays([values])
    module = data.Preprocessing.fit(series, scaling=scaling)  # type: ignore[arg-type]
    inputs = module(series.padded()[0])[0][0, :, 0].numpy()
    if scaling != "none":
        assert inputs[4] - inputs[0] == pytest.approx(5 * (inputs[1] - inputs[0]), rel=1e-8)
    assert module(torch.tensor([[[3e38], [-3e38], [torch.inf]]]))[0].isfinite().all()
    with pytest.raises(ValueError, match=r"1e\+31"):
        data.Preprocessing.fit(data.from_arrays([np.array([[0.0, 1e31]])]))


def test_what_was_learned_survives_json() -> None:
    module = data.Preprocessing.fit(irregular(), step_size=0.05)
    again = data.Preprocessing.from_dict(json.loads(json.dumps(module.to_dict())))
    assert again.fitted == module.fitted
    assert all(torch.equal(a, b) for a, b in zip(module.buffers(), again.buffers(), strict=True))


def test_times_are_asked_for_where_they_matter() -> None:
    series = irregular()
    values, times, lengths = series.padded()
    timed = data.Preprocessing.fit(series, step_size=0.05)
    with pytest.raises(ValueError, match="irregular"):
        timed(values, None, lengths)
    as_input = data.Preprocessing.fit(series)
    assert as_input.fitted.time_use == "input"
    assert as_input(values, times, lengths)[1] is None
    no_times = data.Preprocessing.fit(data.from_arrays([np.arange(3.0)]))
    with pytest.raises(ValueError, match="without times"):
        no_times(torch.zeros(1, 2, 1), torch.zeros(1, 2))
    regular = data.from_arrays([np.arange(5.0)], times=np.arange(5.0) * 60.0)
    module = data.Preprocessing.fit(regular, step_size=0.05)
    assert module.fitted.regular
    assert module.fitted.gap == 60.0
    np.testing.assert_allclose(module(*regular.padded())[1], np.full((1, 5), 0.05))


def model_of(series: data.SeriesSet, unit: str, missing: str, target: Target) -> data.SeriesModel:
    ahead = target.kind == "forecast"
    module = data.Preprocessing.fit(
        series,
        missing=missing,  # type: ignore[arg-type]
        step_size=data.unit_step(unit),
        ahead=ahead,
    )
    torch.manual_seed(0)
    return data.SeriesModel(module, units.build(unit, module.output_size, 8), nn.Linear(8, target.size), target).eval()


LABELS = Target("classify", ("state",), ("a", "b", "c"))


@pytest.mark.parametrize("unit", ["lipschitz", "lem", "gru"])
def test_the_model_reads_every_series_as_if_it_were_alone(unit: str) -> None:
    series = irregular()
    model = model_of(series, unit, "mask", LABELS).double()
    together = model(*series.padded())
    for index in range(len(series)):
        values, times, _ = series[index : index + 1].padded()
        torch.testing.assert_close(model(values, times)[0], together[index])


def test_forecasts_add_the_predicted_change_and_a_free_run_continues_them() -> None:
    series = irregular()
    target = Target("forecast", ("y",), None, (0.5,), (2.0,), (1,))
    model = model_of(series, "lipschitz", "mask", target).double()
    values, times, lengths = series.padded()
    ahead = model(values, times, lengths)
    run = model.free_run(values, times, lengths, horizon=3)
    assert run.shape == (7, 3, 1)
    assert model.preprocessing.fitted.gap is not None
    for index, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(run[index, 0], ahead[index, length - 1])
        # One more step by hand: the predicted value takes the place of y, x keeps its last one.
        known = values[index : index + 1, :length]
        x = next(value for value in reversed(known[0, :, 0].tolist()) if value == value)
        longer = torch.cat((known, torch.tensor([[[x, float(run[index, 0, 0])]]])), 1)
        when = times[index : index + 1, :length]  # type: ignore[index]
        later = torch.cat((when, when[:, -1:] + model.preprocessing.fitted.gap), 1)
        torch.testing.assert_close(model(longer, later)[0, -1], run[index, 1])
        # At other times ahead: again as if the first forecast were a sample.
        end = float(when[0, -1])
        future = torch.tensor([[end + 0.3, end + 4.0, end + 4.1]])
        other = model.free_run(known, when, None, 3, future)[0]
        torch.testing.assert_close(other[0], model(known, when, None, future[:, 0])[0, -1])
        longer[0, -1, 1] = other[0, 0]
        later = torch.cat((when, future[:, :1]), 1)
        torch.testing.assert_close(other[1], model(longer, later, None, future[:, 1])[0, -1])
        assert abs(float(other[1, 0] - run[index, 1, 0])) > 1e-4
        for wrong in (future - 1.0, future.flip(1), future[:, :2]):
            with pytest.raises(ValueError, match="future time"):
                model.free_run(known, when, None, 3, wrong)
    linear = copy.deepcopy(model)
    nn.init.zeros_(linear.head.weight), nn.init.zeros_(linear.head.bias)  # type: ignore[arg-type]
    seen = linear.preprocessing.last_seen(values, lengths)[..., 1:]
    torch.testing.assert_close(linear(values, times, lengths), seen + 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["mask", "since"])
def test_the_model_is_exported_with_its_preprocessing(missing: str) -> None:
    series = irregular(4)
    model = model_of(series, "lipschitz", missing, LABELS)
    values, times, lengths = series[:3].padded()
    batch, steps = torch.export.Dim("B"), torch.export.Dim("T", min=2)
    shapes = {"values": {0: batch, 1: steps}, "times": {0: batch, 1: steps}, "lengths": {0: batch}}
    exported = torch.export.export(model, (values.float(), times, lengths), dynamic_shapes=shapes)
    others, when, ends = series.padded()
    torch.testing.assert_close(exported.module()(others.float(), when, ends), model(others.float(), when, ends))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_what_rounding_of_the_scaling_can_do_is_bounded(dtype: torch.dtype) -> None:
    """Values far from zero with a small spread lose digits in their difference to the center."""
    rng = np.random.default_rng(0)
    drawn = [1000.0 + rng.normal(size=(40, 2)) * (1.0, 30.0) for _ in range(5)]
    module = data.Preprocessing.fit(data.from_arrays([each.T for each in drawn]))
    values = torch.from_numpy(np.stack(drawn)).to(dtype)
    found = exact_inputs(module, values, None, None, torch.float32)
    assert found.computed is not None
    off = (module(values)[0].to(torch.float32).double().transpose(0, 1) - found.inputs).abs()
    assert bool((off <= found.computed).all())
    assert float((off / found.computed).max()) > (0.05 if dtype != torch.float64 else 0.01)
    wide = data.Preprocessing.fit(data.from_arrays([1e6 + each.T for each in drawn]))
    held = exact_inputs(wide, torch.ones(1, 3, 2).to(dtype), None, None).computed
    assert held is not None
    assert bool(held.isfinite().all()) == (dtype != torch.float16)  # which ends at 65504
