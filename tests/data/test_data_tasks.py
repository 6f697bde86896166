"""Tasks of series: batches against plain loops, training against the whole model, forecasts against leaks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from optional import needs
from series_files import waves, write_csv

from lipschitz_rnn import data, load_run, tasks
from lipschitz_rnn.data.batching import bucketed_order
from lipschitz_rnn.data.calibration import scored_predictions
from lipschitz_rnn.data.metrics import calibration_error, class_metrics, number_metrics
from lipschitz_rnn.training import Settings, evaluate, fit
from lipschitz_rnn.training.patience import Patience


def labelled(count: int = 30, **more: int) -> data.SeriesSet:
    made = waves(count, **more)
    labels = np.array([one["label"] for one in made])
    return data.from_arrays([one["values"].T for one in made], labels, times=[one["times"] for one in made])


def walks(count: int = 6, length: int = 90, seed: int = 0) -> data.SeriesSet:
    generator = np.random.default_rng(seed)
    return data.from_arrays([generator.normal(size=(2, length + index)).cumsum(1) for index in range(count)])


@pytest.mark.parametrize("members", [None, 2])
def test_batches_hold_what_the_whole_model_sees(members: int | None) -> None:
    series = labelled()
    task = data.SeriesTask(series, step_size=0.05, missing="since")
    indices = torch.tensor([3, 0, 5]) if members is None else torch.tensor([[3, 0, 5], [1, 2, 4]])
    batch = task.batch("train", indices)
    assert batch.lengths is not None
    assert batch.timespans is not None
    expected, spans = task.preprocessing_module(*series.padded())
    flat = indices.flatten().tolist()
    inputs = batch.inputs.flatten(0, -4).transpose(-2, -3).flatten(0, 1) if members else batch.inputs.transpose(0, 1)
    times = batch.timespans.transpose(-1, -2).reshape(len(flat), -1)
    for place, index in enumerate(flat):
        which = int(task.windows["train"].series[index])
        length = int(series.lengths[which])
        assert batch.lengths.flatten()[place] == length
        assert series.targets is not None
        assert batch.targets.flatten()[place] == series.targets[which]
        torch.testing.assert_close(inputs[place, :length], expected[which, :length].float())
        torch.testing.assert_close(times[place, :length], spans[which, :length].float())


def test_a_trained_network_and_the_whole_model_agree() -> None:
    series = labelled(24, longest=40)
    task = data.SeriesTask(series, step_size=0.1)
    settings = Settings(
        task="series", hidden_size=8, epochs=2, batch_size=8, unit_options={"step_size": 0.1}, seeds=(0, 1)
    )
    result = fit(settings, task)
    for network in result.models:
        model = data.SeriesModel.from_record(network, task.record())
        logits = data.predict(model, series)
        batch = task.batch("test", torch.arange(task.size("test")))
        outputs, _ = network(batch.inputs, batch.lengths, timespans=batch.timespans)
        np.testing.assert_allclose(logits[task.windows["test"].series], outputs.detach(), atol=1e-5)


@needs("pandas")
def test_losses_and_scores_leave_out_what_does_not_count() -> None:
    numbers = data.from_frame(_table(), target="y", series="id")
    task = data.SeriesTask(numbers, "sequence", splits={"train": [0, 1, 2], "validation": [3], "test": [4]})
    batch = task.batch("train", torch.arange(3))
    outputs = torch.randn(*batch.inputs.shape[:2], 1)
    total, count = 0.0, 0
    for place, series in enumerate(task.windows["train"].series.tolist()):
        for step in range(int(numbers.lengths[series])):
            total += float(outputs[step, place, 0] - batch.targets[step, place, 0]) ** 2
            count += 1
    assert float(task.loss(outputs, batch)) == pytest.approx(total / count, rel=1e-5)
    value, weight = task.measure(torch.stack([outputs, outputs]), batch.map(lambda part: torch.stack([part, part])))
    assert value.tolist() == pytest.approx([total, total], rel=1e-5)
    assert weight.tolist() == [count, count]
    outputs.requires_grad_()
    task.loss(outputs, batch).backward()
    assert outputs.grad is not None
    assert outputs.grad.isfinite().all()


def _table():  # type: ignore[no-untyped-def]
    import pandas as pd

    lengths = [4, 7, 3, 5, 6]
    generator = np.random.default_rng(0)
    rows = sum(lengths)
    return pd.DataFrame(
        {"id": np.repeat(np.arange(5), lengths), "x": generator.normal(size=rows), "y": generator.normal(size=rows)}
    )


def test_balanced_weights_make_every_class_count_the_same() -> None:
    labels = np.array(["a"] * 40 + ["b"] * 10)
    series = data.from_arrays([np.random.default_rng(i).normal(size=5) for i in range(50)], labels)
    task = data.SeriesTask(series, class_weights="balanced", fractions=(0.6, 0.2, 0.2))
    batch = task.batch("train", torch.arange(task.size("train")))
    outputs = torch.randn(len(batch.targets), 2)
    each = torch.nn.functional.cross_entropy(outputs, batch.targets, reduction="none")
    mean = torch.stack([each[batch.targets == label].mean() for label in (0, 1)]).mean()
    torch.testing.assert_close(task.loss(outputs, batch), mean)


def test_forecasts_predict_the_next_sample_and_no_split_sees_another() -> None:
    series = walks()
    task = data.SeriesTask(series, "forecast", window=20, warmup=5)
    target, values = task.target, series.values
    used: dict[str, set[int]] = {}
    for split in ("train", "validation", "test"):
        windows = task.windows[split]
        batch = task.batch(split, torch.arange(len(windows)))
        seen: set[int] = set()
        for place, (start, length) in enumerate(zip(windows.start.tolist(), windows.length.tolist(), strict=True)):
            for step in range(batch.targets.shape[0]):
                goal = batch.targets[step, place].numpy()
                if np.isnan(goal).all():
                    continue
                assert step < length
                change = values[start + step + 1] - values[start + step]
                np.testing.assert_allclose(goal, (change - target.center) / target.scale, atol=1e-4)
                seen.add(start + step + 1)
        used[split] = seen
    assert not used["train"] & used["validation"] and not used["validation"] & used["test"]  # noqa: PT018
    # Everything but the first sample of each split's part of each series is predicted.
    assert len(used["train"] | used["validation"] | used["test"]) == series.total - 3 * len(series)


def test_preprocessing_learns_from_training_series_only() -> None:
    series = labelled(40)
    task = data.SeriesTask(series, step_size=0.05)
    train = task.windows["train"].series
    changed = series.values.copy()
    for index in set(range(40)) - set(train.tolist()):
        changed[series.offsets[index] : series.offsets[index + 1]] *= 100.0
    again = data.SeriesTask(replace(series, values=changed), step_size=0.05)
    assert again.preprocessing_module.fitted == task.preprocessing_module.fitted


@pytest.mark.parametrize("kind", ["sequence", "forecast"])
def test_scores_by_time_are_those_of_predictions_for_the_whole_series(kind: data.target.Kind) -> None:
    """A network that forgets nothing is in another state if it starts shortly before the scored part."""
    generator = np.random.default_rng(0)
    walk = 10.0 + generator.normal(size=900).cumsum()
    series = data.from_arrays([walk[None]])
    series = replace(series, targets=walk[:, None], target_level="sample", target_names=("y",))
    task = data.SeriesTask(series, kind, step_size=0.1)
    result = fit(Settings(task="series", hidden_size=8, epochs=1, batch_size=4, unit_options={"alpha": 0.0}), task)
    model = data.SeriesModel.from_record(result.models[0], task.record())
    goals, found, _ = scored_predictions([model], task, "test")
    error = (found[0] - goals) / task.target.scale
    assert evaluate(result.models[0], task) == pytest.approx(np.mean(error**2), rel=1e-4)


@pytest.mark.parametrize("kind", ["sequence", "forecast"])
@pytest.mark.parametrize("split_by", ["series", "time"])
def test_samples_in_several_windows_count_once(kind: data.target.Kind, split_by: data.task.SplitBy) -> None:
    """The middle of a long series lies in two windows."""
    generator = np.random.default_rng(0)
    length = 150
    middle = (np.arange(length) >= 50) & (np.arange(length) < 100)
    values = generator.normal(size=(8, 2, length)) + 10.0 * middle
    values[:, 1, middle] = np.nan
    times = np.cumsum(np.where(middle, 1.0, 3.0)) + np.zeros((8, 1))
    series = data.from_arrays(values, times=times)
    goal = values[:, 0].reshape(-1, 1) ** 2
    series = replace(series, targets=goal, target_level="sample", target_names=("y",))
    task = data.SeriesTask(series, kind, split_by=split_by, step_size=0.1, window=40)
    windows = task.windows["train"]
    seen = np.zeros(series.total, dtype=bool)
    for start, size in zip(windows.start, windows.length, strict=True):
        seen[start : start + size] = True
    if split_by == "series":
        assert seen.sum() == length * len(np.unique(windows.series))
    fitted, flat = task.preprocessing_module.fitted, series.values
    assert fitted.center[0] == pytest.approx(flat[seen, 0].mean())
    assert fitted.scale[0] == pytest.approx(flat[seen, 0].std())
    pairs = seen[:-1] & seen[1:]
    pairs[series.offsets[1:-1] - 1] = False
    assert fitted.gap == np.median(np.diff(times.reshape(-1))[pairs])
    assert f"{np.isnan(flat[seen, 1]).mean():.1%} missing" in " ".join(fitted.notes)
    learned = goal[seen, 0] if kind == "sequence" else np.diff(flat[:, 0])[pairs]
    assert task.target.center[0] == pytest.approx(learned.mean())
    assert task.target.scale[0] == pytest.approx(learned.std())


def test_bucketed_batches_have_similar_lengths_and_use_every_sample() -> None:
    lengths = torch.from_numpy(np.random.default_rng(0).integers(20, 121, 400))
    order = bucketed_order(lengths, 32, torch.Generator().manual_seed(0))
    assert sorted(order.tolist()) == list(range(400))
    batches = lengths[order[:384]].view(12, 32)
    padded, drawn = batches.max(1).values.sum(), lengths[torch.randperm(400)[:384]].view(12, 32).max(1).values.sum()
    assert padded < 0.75 * drawn
    other = bucketed_order(lengths, 32, torch.Generator().manual_seed(1))
    assert not torch.equal(order, other)
    assert (lengths[other[:384]].view(12, 32).max(1).values - batches.max(1).values).abs().max() <= 12
    equal = bucketed_order(torch.full((50,), 7), 8, torch.Generator().manual_seed(3))
    assert torch.equal(equal, torch.randperm(50, generator=torch.Generator().manual_seed(3)))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(None, "classify"), ("classify", "classify"), ("regress", "texts"), ("sequence", "per series")],
)
def test_the_kind_follows_from_the_target(kind: str | None, expected: str) -> None:
    series = labelled(12)
    if expected == "classify":
        assert data.SeriesTask(series, kind, fractions=(0.5, 0.25, 0.25)).kind == expected  # type: ignore[arg-type]
    else:
        with pytest.raises(data.SeriesError, match=expected):
            data.SeriesTask(series, kind)  # type: ignore[arg-type]


@needs("pandas")
@pytest.mark.parametrize(
    ("text", "kind", "named"),
    [
        ("id,x,y\na,1,u\na,2,v\nb,1,u\n", "classify", ["'v'", "'u'", "line 3", "'y'"]),
        ("id,x,y\na,1,3\na,2,\nb,1,4\n", "regress", ["'y'", "line 3"]),
        ("id,x,y\na,1,u\nb,2,u\nc,2,u\nd,3,u\n", "classify", ["'u'", "one class"]),
        ("id,x,y\na,1,u\nb,2,u\nc,2,u\nd,3,w\n", "classify", ["'w'"]),
        ("id,x,y\na,1,u\nb,2,v\n", "classify", ["2 series"]),
    ],
)
def test_mistakes_in_a_target_are_named(tmp_path: Path, text: str, kind: str, named: list[str]) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        data.FileTask(path=str(path), series="id", target="y", kind=kind)  # type: ignore[arg-type]
    for part in named:
        assert part in str(caught.value)


@needs("pandas")
def test_a_run_on_a_file_is_opened_again_with_its_data(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "waves.csv", waves(30, longest=30))
    options = {"path": str(path), "series": "machine", "time": "clock", "target": "state", "step_size": 0.1}
    settings = Settings(
        task="file", task_options=options, hidden_size=6, epochs=2, batch_size=8, unit_options={"step_size": 0.1}
    )
    result = fit(settings, tasks.load("file", **options), tmp_path / "run")  # type: ignore[arg-type]
    run = load_run(tmp_path / "run")
    _, scores = run.evaluate("test")
    assert scores.metric[0] == pytest.approx(result.seeds[0].test)
    record = run.shapes.series
    assert record["reading"]["series"] == "machine"
    model = data.SeriesModel.from_record(run.networks[0], record)
    assert model.target.classes == ("a", "b", "c")
    assert "file" not in tasks.available()  # it needs a path


def test_patience_waits_for_the_metric_and_for_the_loss() -> None:
    patience = Patience(2, tasks.base.ACCURACY, 2)
    patience.consider([0.5, 0.5], [1.0, 1.0])
    patience.consider([0.5, 0.5], [0.9, 1.1])  # the first improves its loss
    patience.consider([0.5, 0.6], [1.0, 1.2])
    assert not patience.is_over([True, True])
    again = Patience(2, tasks.base.ACCURACY, 2)
    again.load(patience.state())
    for one in (patience, again):
        one.consider([0.4, 0.6], [float("nan"), 1.3])
        assert one.is_over([True, False])
        assert not one.is_over([True, True])
        one.consider([0.4, 0.6], [1.0, 1.3])
        assert one.is_over([True, True])


def test_training_stops_early_and_keeps_the_best_epoch(tmp_path: Path) -> None:
    task = data.SeriesTask(labelled(30, longest=30), step_size=0.1)
    settings = Settings(
        task="series", hidden_size=4, epochs=60, batch_size=8, learning_rate=0.3, patience=3, unit="lem"
    )
    result = fit(settings, task, tmp_path / "run")
    assert result.steps < 60 * (21 // 8)
    again = fit(settings, task, tmp_path / "run", resume=True)
    assert again.steps == result.steps
    assert again.seeds == result.seeds


@needs("sklearn")
def test_metrics_agree_with_their_definitions() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 200)
    logits = generator.normal(size=(200, 3)) + 1.5 * np.eye(3)[labels]
    chances = data.probabilities(logits)
    found = class_metrics(labels, chances)
    guess = chances.argmax(1)
    recalls, scores, areas = [], [], []
    for label in range(3):
        hits = int(((guess == label) & (labels == label)).sum())
        recall, precision = hits / (labels == label).sum(), hits / (guess == label).sum()
        recalls.append(recall)
        scores.append(2 * recall * precision / (recall + precision))
        inside, outside = chances[labels == label, label], chances[labels != label, label]
        areas.append(float((inside[:, None] > outside[None]).mean()))
    assert found["accuracy"] == pytest.approx((guess == labels).mean())
    assert found["balanced accuracy"] == pytest.approx(np.mean(recalls))
    assert found["F1 (macro)"] == pytest.approx(np.mean(scores))
    assert found["AUC"] == pytest.approx(np.mean(areas))
    assert class_metrics(labels % 2, chances)["AUC"] is None
    assert class_metrics(np.array([0, 0]), np.array([[0.9, 0.1], [0.8, 0.2]]))["F1 (macro)"] == 1.0
    assert 0.0 <= calibration_error(labels, chances) < 0.2
    values = generator.normal(size=(50, 2))
    predicted = values + 0.1
    values[3, 1] = np.nan
    numbers = number_metrics(values, predicted)
    assert numbers["MAE"] == pytest.approx(0.1)
    assert numbers["RMSE"] == pytest.approx(0.1)
    assert 0.98 < numbers["R²"] < 1.0  # type: ignore[operator]


@needs("sklearn")
def test_predictions_of_nan_have_no_metrics() -> None:
    labels, chances = np.array([0, 1, 0, 1]), np.array([[0.9, 0.1], [0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
    error = calibration_error(labels, chances)
    broken = np.concatenate([chances, [[np.nan, np.nan]]])
    assert set(class_metrics(np.append(labels, 0), broken).values()) == {None}
    assert calibration_error(np.append(labels, 0), broken) == pytest.approx(error)
    assert np.isnan(calibration_error(labels[:1], broken[-1:]))
    values = np.array([[1.0], [2.0], [np.nan]])
    assert set(number_metrics(values, np.array([[1.0], [np.nan], [3.0]])).values()) == {None}
    assert number_metrics(values, np.array([[1.0], [2.0], [np.nan]]))["MAE"] == 0.0
