"""Lengths and times between samples under noise, under attack and in the Hessian: passed on and never changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from robustness_models import CLASSES, FEATURES, STEPS, problem, trained
from torch import Tensor, nn

from lipschitz_rnn import tasks
from lipschitz_rnn.robustness import deepfool, fgsm, hessian, noise_curve, pgd, salt_and_pepper, valid_range
from lipschitz_rnn.robustness.noise import KINDS
from lipschitz_rnn.training import Settings, build_model, evaluate


class Fixed(nn.Module):
    """A model with its timespans and lengths inside, one series after another: another way to the same scores."""

    def __init__(self, model: nn.Module, lengths: Tensor, timespans: Tensor) -> None:
        super().__init__()
        self.model, self.lengths, self.timespans = model, lengths, timespans

    def forward(self, inputs: Tensor) -> Tensor:
        rows = []
        for b, length in enumerate(self.lengths[: inputs.shape[1]].tolist()):
            part = slice(b, b + 1)
            rows.append(self.model(inputs[:length, part], timespans=self.timespans[:length, part])[0])
        return torch.cat(rows)


@pytest.fixture
def uneven() -> tuple[nn.Module, Tensor, Tensor, dict[str, Tensor]]:
    """A model, inputs with NaN in the padding, the classes that the model gives, lengths and timespans."""
    model = trained("lem")
    inputs, _ = problem(7)
    generator = torch.Generator().manual_seed(2)
    timespans = 0.2 + torch.rand(STEPS, 7, generator=generator)
    lengths = torch.tensor([6, 3, 5, 6, 1, 4, 2])
    padding = torch.arange(STEPS)[:, None] >= lengths
    targets = Fixed(model, lengths, timespans)(inputs).argmax(-1)
    inputs = inputs.masked_fill(padding[..., None], torch.nan)
    return model, inputs, targets, {"lengths": lengths, "timespans": timespans.masked_fill(padding, -1.0)}


ATTACKS: dict[str, Any] = {
    "pgd": lambda *a, **k: pgd(*a, radius=0.05, **k),
    "random pgd": lambda *a, **k: pgd(
        *a, radius=0.05, random_start=True, generator=torch.Generator().manual_seed(0), batch_size=100, **k
    ),
    "fgsm": fgsm,
    "deepfool": deepfool,
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_perturbs_valid_inputs_only_and_equals_that_on_series_alone(
    name: str, uneven: tuple[nn.Module, Tensor, Tensor, dict[str, Tensor]]
) -> None:
    model, inputs, targets, given = uneven
    options: dict[str, Any] = {} if name == "random pgd" else {"batch_size": 3}
    result = ATTACKS[name](model, inputs, targets, **given, **options)
    padding = torch.arange(STEPS)[:, None] >= given["lengths"]
    assert result.correct.all()
    assert torch.equal(result.perturbed.isnan(), inputs.isnan())
    moved = (result.perturbed - inputs).masked_fill(padding[..., None], 0.0)
    torch.testing.assert_close(result.l2, moved.transpose(0, 1).flatten(1).norm(dim=1), rtol=1e-5, atol=1e-6)
    assert (moved != 0).any()
    alone = Fixed(model, given["lengths"], given["timespans"])
    same = ATTACKS[name](alone, inputs.nan_to_num(), targets, **({} if name == "random pgd" else {"batch_size": 7}))
    assert torch.equal(result.fooled, same.fooled)
    if name != "random pgd":  # which there also moves what nobody reads
        theirs = (same.perturbed - inputs).masked_fill(padding[..., None], 0.0)
        torch.testing.assert_close(moved, theirs, rtol=1e-3, atol=2e-5)


def test_batch_first_takes_the_times_in_the_layout_of_the_inputs(
    uneven: tuple[nn.Module, Tensor, Tensor, dict[str, Tensor]],
) -> None:
    model, inputs, targets, given = uneven
    expected = pgd(model, inputs, targets, **given)

    class BatchFirst(nn.Module):
        def forward(self, x: Tensor, lengths: Tensor, timespans: Tensor) -> Tensor:
            return model(x.transpose(0, 1), lengths, timespans=timespans.T)[0]

    turned = given | {"timespans": given["timespans"].T}
    result = pgd(BatchFirst(), inputs.transpose(0, 1), targets, **turned, batch_first=True, batch_size=2)
    torch.testing.assert_close(result.perturbed.transpose(0, 1), expected.perturbed, equal_nan=True)
    with pytest.raises(ValueError, match=r"timespans have shape \(6, 6\)"):
        pgd(model, inputs, targets, lengths=given["lengths"], timespans=given["timespans"][:, :6])


def test_the_hessian_is_that_of_the_loss_with_these_times(
    uneven: tuple[nn.Module, Tensor, Tensor, dict[str, Tensor]],
) -> None:
    model, inputs, _, given = uneven
    targets = torch.arange(7) % CLASSES
    common: dict[str, Any] = {"parameters": model.head, "exact": True, "dtype": torch.float64}
    found = hessian(model, inputs, targets, **common, **given, batch_size=3)
    alone = Fixed(model, given["lengths"], given["timespans"].double())
    expected = hessian(alone, inputs.nan_to_num(), targets, **common)
    for name in ("lambda_max", "lambda_min", "trace", "loss"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-6, abs=1e-9)
    without = hessian(model, inputs, targets, **common, lengths=given["lengths"])
    assert without.loss != pytest.approx(found.loss, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_curve_of_a_task_with_times_starts_at_its_accuracy(kind: Any) -> None:
    task = tasks.load("irregular-digits")
    settings = Settings(task=task.name, unit="lem", hidden_size=6, epochs=1, device="cpu")
    model = build_model(settings, task, 0)
    curve = noise_curve(model, task, (0.0, 0.2), seeds=(0,), kind=kind, batch_size=100)
    assert curve.mean[0] == pytest.approx(evaluate(model, task))
    assert curve.samples == 360
    bounds = valid_range(tasks.load(task.name, times="input"))
    assert bounds is not None
    assert torch.equal(torch.as_tensor(bounds[1]), torch.tensor([1.0, 8.0]))


def test_salt_and_pepper_counts_and_changes_valid_values_only() -> None:
    inputs = torch.full((STEPS, 5, FEATURES), 0.5)
    lengths = torch.tensor([6, 3, 1, 5, 4])
    noisy = salt_and_pepper(inputs, 0.3, torch.Generator().manual_seed(4), lengths=lengths)
    padding = torch.arange(STEPS)[:, None] >= lengths
    assert (noisy[padding] == 0.5).all()
    low, high = ((noisy == value).sum((0, 2)).tolist() for value in (0.0, 1.0))
    replaced = [round(0.3 * FEATURES * length) for length in lengths.tolist()]
    assert low == [count // 2 for count in replaced]
    assert high == [count - count // 2 for count in replaced]
