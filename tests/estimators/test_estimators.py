"""Classifier and regressor: against plain loops, with unequal lengths, holes, times, seeds, warm starts, mistakes."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_series import QUICK, padded, waves

estimators = pytest.importorskip("lipschitz_rnn.estimators", reason="needs scikit-learn", exc_type=ImportError)
LipschitzRNNClassifier = estimators.LipschitzRNNClassifier
LipschitzRNNForecaster = estimators.LipschitzRNNForecaster
LipschitzRNNRegressor = estimators.LipschitzRNNRegressor


def alone(model: Any, case: Any, times: Any = None) -> list[Any]:
    """The output of every network for one series, without any batch or padding."""
    when = None if times is None else torch.tensor(times)[None]
    with torch.no_grad():
        return [network(torch.tensor(case.T)[None], when)[0].double().numpy() for network in model.models_]


def test_probabilities_are_the_mean_of_the_networks() -> None:
    X, y = waves(20, classes=3)
    model = LipschitzRNNClassifier(**QUICK, n_seeds=3).fit(X, y)
    chances = model.predict_proba(X)
    assert len(model.models_) == 3
    assert model.classes_.tolist() == ["fast", "faster", "slow"]
    for case, row in zip(X, chances, strict=True):
        expected = np.zeros(3)
        for logits in alone(model, case):
            powers = [math.exp(logit) for logit in logits]
            expected += np.array(powers) / sum(powers) / 3
        np.testing.assert_allclose(row, expected, atol=1e-6)
    labels = [model.classes_[int(np.argmax(row))] for row in chances]
    assert model.predict(X).tolist() == labels
    assert model.score(X, y) == pytest.approx(np.mean(np.array(labels) == y))


def test_layouts_give_the_same_model() -> None:
    X, y = waves(16)
    first = LipschitzRNNClassifier(**QUICK).fit(X, y)
    second = LipschitzRNNClassifier(**QUICK).fit(padded(X), y)
    np.testing.assert_allclose(first.predict_proba(X), second.predict_proba(padded(X)), atol=1e-6)
    assert first.n_features_in_ == 2
    flat = np.random.default_rng(0).normal(size=(16, 10))
    flat_model = LipschitzRNNClassifier(**QUICK).fit(flat, y)
    expected = LipschitzRNNClassifier(**QUICK).fit(flat[:, np.newaxis], y).predict_proba(flat[:, np.newaxis])
    np.testing.assert_allclose(flat_model.predict_proba(flat), expected, atol=1e-6)
    assert flat_model.predict(flat[:, :4]).shape == (16,)  # other lengths are fine


def test_it_learns_in_seconds_with_holes() -> None:
    X, y = waves(40)
    generator = np.random.default_rng(1)
    for case in X:
        case[generator.random(case.shape) < 0.1] = np.nan
    model = LipschitzRNNClassifier(hidden_size=16, epochs=25, lr=0.02, random_state=0).fit(X, y)
    unseen, labels = waves(40, seed=2)
    assert model.score(unseen, labels) >= 0.95
    assert model.history_["loss"][-1] < 0.5 * model.history_["loss"][0]
    assert model.n_iter_ == len(model.history_["validation_accuracy"]) == 25


def test_labels_of_any_kind_come_back() -> None:
    X, _ = waves(12)
    for labels in ([2, 10] * 6, [1.0, 0.0] * 6, [True, False] * 6, ["b", "a"] * 6):
        y = np.array(labels)
        model = LipschitzRNNClassifier(**QUICK).fit(X, y)
        assert model.classes_.dtype == y.dtype
        assert model.classes_.tolist() == sorted(set(labels))
        assert set(model.predict(X).tolist()) <= set(labels)


def test_regression_in_the_unit_of_the_target() -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(48, 2, 6)) + generator.normal(size=(48, 2, 1))
    y = 1e4 + 50.0 * X[:, 0].mean(1)
    model = LipschitzRNNRegressor(hidden_size=16, epochs=20, lr=0.02, random_state=0, n_seeds=2).fit(X, y)
    assert model.score(X, y) > 0.8
    predicted = model.predict(X)
    for case, value in zip(X[:5], predicted, strict=False):
        assert value == pytest.approx(float(np.mean(alone(model, case))), rel=1e-6)
    both = LipschitzRNNRegressor(**QUICK).fit(X, np.stack([y, -y], 1))
    assert both.predict(X).shape == (48, 2)
    assert both.n_outputs_ == 2


def test_times_are_used() -> None:
    """The values are noise: only the times between samples tell the classes apart."""
    generator = np.random.default_rng(0)
    y = np.arange(60) % 2
    X = generator.normal(size=(60, 1, 12))
    gaps = np.where(generator.random((60, 12)) < 0.2, 3.0, 1.0 + 1.5 * y[:, np.newaxis])
    times = gaps.cumsum(1)
    options: dict[str, Any] = {"unit": "gru", "hidden_size": 8, "epochs": 15, "lr": 0.03, "random_state": 0}
    used = LipschitzRNNClassifier(**options).fit(X[:40], y[:40], times=times[:40])
    ignored = LipschitzRNNClassifier(**options, time_use="ignored").fit(X[:40], y[:40], times=times[:40])
    assert used.score(X[40:], y[40:], times=times[40:]) >= 0.95
    assert ignored.score(X[40:], y[40:], times=times[40:]) <= 0.8
    stepped = LipschitzRNNClassifier(**QUICK).fit(X, y, times=times)
    np.testing.assert_allclose(
        stepped.predict_proba(X[:1], times=times[:1])[0], _softmax(alone(stepped, X[0], times[0])[0]), atol=1e-6
    )
    shifted = stepped.predict_proba(X, times=times + 1e6)  # only differences count
    np.testing.assert_allclose(stepped.predict_proba(X, times=times), shifted, atol=1e-5)
    assert np.abs(stepped.predict_proba(X, times=2.0 * times) - shifted).max() > 1e-4
    with pytest.raises(ValueError, match="times"):
        stepped.predict(X)


def _softmax(logits: Any) -> Any:
    return np.exp(logits) / np.exp(logits).sum()


def test_random_state_decides_everything() -> None:
    X, y = waves(16)
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    parameters = {**QUICK, "input_noise": 0.2, "dropout": 0.1}
    first, again = (LipschitzRNNClassifier(**parameters).fit(X, y).predict_proba(X) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    other = LipschitzRNNClassifier(**{**parameters, "random_state": 1}).fit(X, y).predict_proba(X)
    assert np.abs(first - other).max() > 1e-3
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_network_does_not_depend_on_the_others(noise: float) -> None:
    X, y = waves(16)
    single = LipschitzRNNClassifier(**QUICK, input_noise=noise).fit(X, y)
    several = LipschitzRNNClassifier(**QUICK, input_noise=noise, n_seeds=3).fit(X, y)
    case = X[0]
    np.testing.assert_allclose(alone(single, case)[0], alone(several, case)[0], atol=1e-4)
    assert np.abs(alone(several, case)[1] - alone(several, case)[0]).max() > 1e-3


def test_warm_start_goes_on() -> None:
    X, y = waves(16)
    model = LipschitzRNNClassifier(**QUICK, warm_start=True, n_seeds=2).fit(X, y)
    before = [network.head.weight.detach().clone() for network in model.models_]
    fitted, outputs = model.models_[0].preprocessing.fitted, model.predict_proba(X)
    scaled = [10.0 * case for case in X]
    model.set_params(lr=1e-12).fit(scaled, y)
    for weight, network in zip(before, model.models_, strict=True):
        torch.testing.assert_close(network.head.weight.detach(), weight, atol=1e-9, rtol=0)
    assert model.models_[0].preprocessing.fitted == fitted  # the scales of the first fit stay
    np.testing.assert_allclose(model.predict_proba(X), outputs, atol=1e-6)
    assert len(model.history_["loss"]) == 6
    assert model.n_iter_ == 3
    model.set_params(lr=0.01).fit(X, y)
    assert np.abs(model.predict_proba(X) - outputs).max() > 1e-4
    for change, named in (({"hidden_size": 9}, "hidden_size"), ({"n_seeds": 1}, "n_seeds")):
        with pytest.raises(ValueError, match=named):
            model.set_params(**change).fit(X, y)
        model.set_params(hidden_size=8, n_seeds=2)
    with pytest.raises(ValueError, match="other"):
        model.fit(X, np.where(y == "slow", "other", y))
    numbers = LipschitzRNNRegressor(**QUICK, warm_start=True).fit(X, np.arange(16.0))
    center = numbers.models_[0].target.center
    assert numbers.fit(X, 100.0 + np.arange(16.0)).models_[0].target.center == center


def test_early_stopping_and_the_validation_part() -> None:
    X, y = waves(40)
    model = LipschitzRNNClassifier(
        hidden_size=8, epochs=60, lr=0.05, random_state=0, validation_fraction=0.25, patience=3
    ).fit(X, y)
    assert 3 < model.n_iter_ < 60
    whole = LipschitzRNNClassifier(**{**QUICK, "epochs": 5}, patience=1).fit(X, y)
    assert whole.n_iter_ == 5  # no validation part, so all epochs
    from lipschitz_rnn.estimators.fitting import validation_part

    generator = np.random.RandomState(0)
    labels = np.array([0] * 90 + [1] * 9 + [2])
    held = validation_part(100, 0.2, generator, labels)
    assert len(held) == 20
    assert np.bincount(labels[held], minlength=3).tolist() == [18, 2, 0]
    assert len(validation_part(20, 0.1, generator)) == 0  # two cases say nothing
    assert len(validation_part(999, "auto", generator)) == 0
    assert len(validation_part(1000, "auto", generator)) == 150


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"hidden_size": "8"}, "hidden_size is '8'"),
        ({"lr": -1.0}, "lr is -1"),
        ({"epochs": 0}, "epochs is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"n_seeds": 0}, "n_seeds is 0"),
        ({"validation_fraction": 0.9}, "validation_fraction is 0.9"),
        ({"input_noise": float("nan")}, "input_noise is nan"),
        ({"unit": "grru"}, "grru"),
        ({"unit_options": {"betta": 1}}, "betta"),
        ({"unit_options": 3}, "unit_options is 3"),
        ({"class_weight": "some"}, "class_weight is 'some'"),
        ({"scaling": "log"}, "scaling is 'log'"),
        ({"missing": "mean"}, "missing is 'mean'"),
        ({"device": "tpu"}, "tpu"),
        ({"patience": 0}, "patience is 0"),
    ],
)
def test_wrong_parameters_are_named(parameters: dict[str, Any], named: str) -> None:
    X, y = waves(8)
    model = LipschitzRNNClassifier(**parameters)  # the constructor takes anything
    with pytest.raises((TypeError, ValueError), match=named):
        model.fit(X, y)
    assert not hasattr(model, "classes_")


def test_wrong_data_change_nothing() -> None:
    X, y = waves(12)
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        LipschitzRNNClassifier().predict(X)
    model = LipschitzRNNClassifier(**QUICK).fit(X, y)
    before, state = model.predict_proba(X), dict(vars(model))
    infinite = padded(X)
    infinite[3, 1, 2] = np.inf
    for wrong, labels, named in (
        (X, y[:-1], "12"),
        (X, ["slow"] * 12, "one class"),
        (X, [None, *y[1:].tolist()], "position 0"),
        (infinite, y, "inf"),
        ([case[:1] if index == 4 else case for index, case in enumerate(X)], y, "case 4"),
        (np.zeros((12, 2, 5)), y, "varies"),
        (np.zeros(12), y, "Reshape"),
        ([], [], "0 sample"),
        ("series.csv", y, "series.csv"),
    ):
        with pytest.raises((ValueError, TypeError), match=named):
            model.fit(wrong, labels)
    assert vars(model) == state
    np.testing.assert_array_equal(model.predict_proba(X), before)
    with pytest.raises(ValueError, match="3 features"):
        model.predict(np.zeros((2, 3, 9)))
    with pytest.raises(ValueError, match="fitted without"):
        model.predict(X, times=[np.arange(case.shape[1] + 0.0) for case in X])
    with pytest.raises(ValueError, match="position 2"):
        LipschitzRNNRegressor(**QUICK).fit(X, np.where(np.arange(12) == 2, np.nan, 1.0))
    with pytest.raises(ValueError, match="position 5"):
        LipschitzRNNRegressor(**QUICK).fit(X, np.where(np.arange(12) == 5, 1e200, 1.0))


def test_progress_is_printed_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = waves(8)
    LipschitzRNNClassifier(**QUICK).fit(X, y)
    assert capsys.readouterr().out == ""
    LipschitzRNNClassifier(**QUICK, verbose=2).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]


def test_certificates_of_fitted_networks() -> None:
    pytest.importorskip("scipy")
    X, y = waves(12)
    options = {"stability": "contracting"}
    model = LipschitzRNNClassifier(**QUICK, unit_options=options, n_seeds=2).fit(X, y)
    assert model.certify().holds
    times = [np.random.default_rng(index).exponential(size=case.shape[1]).cumsum() for index, case in enumerate(X)]
    irregular = LipschitzRNNClassifier(**QUICK, unit_options=options).fit(X, y, times=times)
    found = irregular.certify()
    assert found.holds
    assert found.step_range[0] < found.step_range[1]
    with pytest.raises((ValueError, TypeError)):
        LipschitzRNNClassifier(**QUICK, unit="gru").fit(X, y).certify()


def test_warm_start_refuses_another_preprocessing() -> None:
    X, y = waves(8)
    model = LipschitzRNNClassifier(**QUICK, warm_start=True).fit(X, y)
    for name, value in {"scaling": "minmax", "missing": "forward", "time_use": "ignored", "longest_gap": 5.0}.items():
        before = getattr(model, name)
        with pytest.raises(ValueError, match=f"{name}="):
            model.set_params(**{name: value}).fit(X, y)
        model.set_params(**{name: before})


def test_labels_of_two_types_are_named() -> None:
    X, _ = waves(4)
    with pytest.raises(TypeError, match="int, str"):
        LipschitzRNNClassifier(**QUICK).fit(X, np.array(["a", 1, "a", 1], dtype=object))


@pytest.mark.parametrize("kind", ["float64", "bfloat16", "inference", "no_grad"])
def test_what_a_caller_set_for_torch_changes_no_training(kind: str) -> None:
    X, y = waves(12)
    expected = LipschitzRNNClassifier(**QUICK).fit(X, y).predict_proba(X)
    forecasts = LipschitzRNNForecaster(**QUICK).fit(X).predict(3)
    before = torch.get_default_dtype()
    mode = {"inference": torch.inference_mode, "no_grad": torch.no_grad}.get(kind, contextlib.nullcontext)
    if kind in ("float64", "bfloat16"):
        torch.set_default_dtype(getattr(torch, kind))
    try:
        with mode():
            model = LipschitzRNNClassifier(**QUICK).fit(X, y)
            found = model.predict_proba(X)
            again = LipschitzRNNForecaster(**QUICK).fit(X).predict(3)
            assert torch.is_inference_mode_enabled() == (kind == "inference")
        assert torch.get_default_dtype() == {"float64": torch.float64, "bfloat16": torch.bfloat16}.get(kind, before)
    finally:
        torch.set_default_dtype(before)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(again, forecasts)
    assert not any(parameter.is_inference() for parameter in model.models_[0].parameters())


def test_frames_masks_and_zones_mean_what_they_say() -> None:
    pd = pytest.importorskip("pandas", reason="needs pandas")
    X = np.random.default_rng(0).normal(size=(8, 2, 6))
    y = ["a", "b"] * 4
    model = LipschitzRNNClassifier(hidden_size=4, epochs=1, random_state=0)
    expected = model.fit(np.where(X > 1, np.nan, X), y).predict_proba(X)
    for masked in (np.ma.masked_greater(X, 1), list(np.ma.masked_greater(X, 1))):
        np.testing.assert_array_equal(model.fit(masked, y).predict_proba(X), expected)
    expected = model.fit(X, y).predict_proba(X)
    frames = [pd.DataFrame(case.T, columns=["p", "q"]) for case in X]
    assert model.fit(frames, y).n_features_in_ == 2
    np.testing.assert_array_equal(model.predict_proba(frames), expected)
    with pytest.raises(ValueError, match="does not hold numbers"):
        model.fit([pd.DataFrame({"p": ["u", "v"]})] * 8, y)
    hours = pd.date_range("2026-03-29", periods=6, freq="h", tz="Europe/Berlin")
    np.testing.assert_array_equal(
        model.fit(X, y, times=hours).predict_proba(X, times=hours),
        model.fit(X, y, times=3600.0 * np.arange(6)).predict_proba(X, times=3600.0 * np.arange(6)),
    )


def test_a_regressor_keeps_the_digits_of_a_large_target_and_refuses_dates() -> None:
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(8, 1, 6)).astype(np.float32), generator.normal(size=8)
    near = LipschitzRNNRegressor(hidden_size=4, epochs=1, random_state=0).fit(X, y).predict(X)
    far = LipschitzRNNRegressor(hidden_size=4, epochs=1, random_state=0).fit(X, 1.7e9 + y).predict(X)
    np.testing.assert_allclose(far - 1.7e9, near, atol=1e-4)
    with pytest.raises(TypeError, match="datetime64"):
        LipschitzRNNRegressor().fit(X, np.arange(8).astype("M8[D]"))


def test_warm_start_goes_on_with_the_networks_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a network that diverged before its first validation nothing is kept."""
    from lipschitz_rnn.estimators import fitting

    def one_diverged(*arguments: Any, **options: Any) -> Any:
        result = whole(*arguments, **options)
        seeds = [replace(found, selected_epoch=None if k == 0 else 0) for k, found in enumerate(result.seeds)]
        return replace(result, seeds=tuple(seeds))

    X, y = waves(8)
    whole = fitting.fit
    model = LipschitzRNNClassifier(hidden_size=4, epochs=1, n_seeds=2, warm_start=True, random_state=0)
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "fit", one_diverged)
        model.fit(X, y)
    assert len(model.models_) == 1
    before = model.models_[0].head.weight.clone()
    model.set_params(lr=1e-12).fit(X, y)
    assert len(model.models_) == 1
    np.testing.assert_allclose(model.models_[0].head.weight.detach(), before.detach(), atol=1e-6)
