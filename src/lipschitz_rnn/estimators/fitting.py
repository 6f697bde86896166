"""From the parameters of an estimator to trained networks: settings, the validation part, and the training itself."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from lipschitz_rnn.data import SeriesModel, SeriesTask, named_unit, unit_step, with_max_step, with_step
from lipschitz_rnn.estimators.progress import History
from lipschitz_rnn.tasks import Task
from lipschitz_rnn.training import Settings, build_model, fit
from lipschitz_rnn.training.settings import described_settings

Integers = npt.NDArray[np.int64]
_MANY = 1000  # cases, from which on some are kept for validation
FEWEST = 4  # validation cases: the score of fewer says little, so all cases train

# The parameters of estimators that are settings of a run, under the name that they have there.
_SETTINGS = {
    "hidden_size": "hidden_size",
    "num_layers": "num_layers",
    "dropout": "dropout",
    "epochs": "epochs",
    "lr": "learning_rate",
    "schedule": "schedule",
    "weight_decay": "weight_decay",
    "clip": "clip",
    "patience": "patience",
    "device": "device",
}
_WARMUP = 0.2  # one-cycle, cosine: the part of the run in which the learning rate rises


Method = TypeVar("Method", bound=Callable[..., Any])


def in_ordinary_mode(method: Method) -> Method:
    """Decorator: gradients are on and new tensors are float32, whatever the caller has set for code of his own
    (`torch.inference_mode`, `torch.no_grad`, `torch.set_default_dtype`)."""

    @functools.wraps(method)
    def run(*arguments: Any, **options: Any) -> Any:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            with torch.inference_mode(False), torch.enable_grad():
                return method(*arguments, **options)
        finally:
            torch.set_default_dtype(before)

    return run  # type: ignore[return-value]


@dataclass(frozen=True)
class Trained:
    """What a fit leaves: whole models, the task's record, and the history."""

    models: tuple[SeriesModel, ...]
    settings: Settings | None
    """None for a model that no estimator trained."""
    record: dict[str, Any]
    history: dict[str, list[float]]


def plain(value: Any) -> Any:
    """NumPy's numbers, which grids of parameters consist of, as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise ValueError or TypeError for the first wrong parameter, by the name that it has in the estimator."""
    for name, setting in _SETTINGS.items():
        kind, described = described_settings()[setting]
        described.check(name, kind, plain(parameters[name]))
    for name, lowest in (("n_seeds", 1), ("epochs", 1)):
        require_count(name, parameters[name], lowest)
    if parameters["batch_size"] != "auto":
        require_count("batch_size", parameters["batch_size"], 1, ' or "auto"')
    validation_share(parameters["validation_fraction"], 0)
    noise = plain(parameters["input_noise"])
    if isinstance(noise, bool) or not isinstance(noise, int | float) or not 0.0 <= noise < math.inf:
        raise ValueError(f"input_noise is {noise!r}; it must be a number, at least 0")
    options = parameters["unit_options"]
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f'unit_options is {options!r}; give options by name, such as {{"beta": 0.8}}, or None')


def require_count(name: str, value: Any, lowest: int, otherwise: str = "") -> None:
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); it must be an integer{otherwise}")
    if value < lowest:
        raise ValueError(f"{name} is {value}; it must be at least {lowest}{otherwise}")


def validation_share(asked: Any, count: int) -> float:
    """The share to validate on of so many cases or samples."""
    share = plain(asked)
    if isinstance(share, str) and share == "auto":
        return 0.15 if count >= _MANY else 0.0
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0.0 <= share <= 0.5:
        raise ValueError(f'validation_fraction is {share!r}; it must be a number between 0 and 0.5, or "auto"')
    return float(share)


def seeds_of(generator: np.random.RandomState, count: int) -> tuple[int, ...]:
    """Different seeds; the first ones do not depend on how many follow."""
    found: dict[int, None] = {}
    while len(found) < count:
        found[int(generator.randint(2**31 - 1))] = None
    return tuple(found)


def validation_part(
    count: int, asked: Any, generator: np.random.RandomState, labels: npt.NDArray[Any] | None = None
) -> Integers:
    """The cases to validate on, sorted; none if they would be fewer than 4, or fewer than the classes.

    With labels, every class has its share, and keeps at least one case for training.
    """
    groups = [np.arange(count)] if labels is None else [np.flatnonzero(labels == each) for each in np.unique(labels)]
    wanted = round(count * validation_share(asked, count))
    place = np.empty(count)
    group_of = np.empty(count, dtype=np.int64)
    for number, group in enumerate(groups):
        place[group] = (generator.permutation(len(group)) + generator.uniform()) / len(group)
        group_of[group] = number
    if wanted < max(FEWEST, len(groups) if labels is not None else 0):
        return np.empty(0, dtype=np.int64)
    left = np.bincount(group_of)
    chosen: list[int] = []
    for case in np.argsort(-place, kind="stable"):  # the classes take turns
        if len(chosen) == wanted:
            break
        if left[group_of[case]] > 1:
            left[group_of[case]] -= 1
            chosen.append(int(case))
    return np.sort(np.array(chosen, dtype=np.int64))


def unit_settings(parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any], float | None]:
    """The unit, its options, and its step size."""
    unit, given = named_unit(parameters["unit"], parameters["unit_options"])
    options = with_step(unit, given)
    return unit, options, unit_step(unit, options)


def train(
    task: SeriesTask,
    parameters: Mapping[str, Any],
    seeds: Sequence[int],
    *,
    validated: bool,
    before: Sequence[SeriesModel] | None = None,
) -> Trained:
    """Train one network per seed; with `before`, the networks to start from, in the order of the seeds."""
    unit, options, _ = unit_settings(parameters)
    values = {setting: plain(parameters[name]) for name, setting in _SETTINGS.items()}
    values["patience"] = values["patience"] if validated else None
    settings = Settings(
        task=task.name,
        unit=unit,
        unit_options=with_max_step(unit, options) if task.preprocessing_module.fitted.time_use == "step" else options,
        seeds=tuple(seeds),
        batch_size=_batch_size(plain(parameters["batch_size"]), task),
        warmup=_WARMUP,
        log_steps=2**31 - 1,  # one record per epoch
        checkpoint_minutes=math.inf,
        **values,
    )
    history = History(int(plain(parameters["verbose"])))
    result = fit(settings, task, build=_builder(settings, before), watcher=history)
    task.to("cpu")
    # A network that diverged before its first validation has its random start only.
    networks = {
        seed: network
        for seed, network, found in zip(settings.seeds, result.models, result.seeds, strict=True)
        if found.selected_epoch is not None or before is not None
    }
    record = task.record()
    models = tuple(SeriesModel.from_record(network, record).eval() for network in networks.values())
    return Trained(models, replace(settings, seeds=tuple(networks)), record, history.values)


def _batch_size(asked: Any, task: SeriesTask) -> int:
    """By default about eight batches an epoch, so that small data sets get enough updates and large ones are fast.

    A part of a series to forecast has a goal at every sample, so one part is enough.
    """
    fewest = 1 if task.kind == "forecast" else 4
    return int(asked) if asked != "auto" else int(np.clip(task.size("train") // 8, fewest, 64))


def _builder(settings: Settings, before: Sequence[SeriesModel] | None) -> Any:
    if before is None:
        return build_model
    places = {seed: index for index, seed in enumerate(settings.seeds)}

    def continued(asked: Settings, task: Task, seed: int) -> nn.Module:
        network = build_model(asked, task, seed)
        trained = before[places[seed]]
        for name in ("unit", "head"):
            getattr(network, name).load_state_dict(copy.deepcopy(getattr(trained, name).state_dict()))
        return network

    return continued
