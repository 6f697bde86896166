"""Attacks against a second implementation, exact answers, and what they must leave alone."""

from __future__ import annotations

import pytest
import torch
from robustness_models import LinearClassifier, build, plain_deepfool, plain_pgd, problem, scores, trained
from torch import Tensor, nn

import lipschitz_rnn as lr
from lipschitz_rnn.robustness import AttackResult, deepfool, fgsm, pgd

ROUNDING = 1e-6


@pytest.fixture(scope="module", params=["lipschitz", "lstm"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    return trained(request.param)


@pytest.fixture(scope="module")
def samples() -> tuple[Tensor, Tensor]:
    return problem(300, seed=2)


def decided(out: Tensor) -> Tensor:
    """Where the first two scores differ by more than rounding: there another order of sums finds the same class."""
    first, second = out.topk(2, dim=1).values.unbind(1)
    return first - second > ROUNDING * first.abs().clamp_min(1.0)


def assert_same_pixels(found: Tensor, expected: Tensor) -> None:
    """Up to rounding, but for one pixel in a thousand whose slope is too small for its sign to be certain."""
    assert ((found - expected).abs() > 1e-5).float().mean() <= 1e-3


def compare(result: AttackResult, model: nn.Module, inputs: Tensor, targets: Tensor, theirs: Tensor, norm: str) -> None:
    """Same success within 1 %, and perturbations at most 5 % larger than those of the other implementation."""
    out = scores(model, inputs)
    clean = out.argmax(1) == targets
    assert torch.equal(result.correct[decided(out)], clean[decided(out)])
    assert clean.float().mean() > 0.8
    fooled = clean & (scores(model, theirs).argmax(1) != targets)
    assert fooled.float().mean() > 0.05
    assert abs(result.fooled.float().mean() - fooled.float().mean()) <= 0.01
    both = fooled & result.fooled
    distance = (theirs - inputs).transpose(0, 1).flatten(1)[both]
    other = distance.norm(dim=1) if norm == "l2" else distance.abs().amax(1)
    own = (result.l2 if norm == "l2" else result.linf)[both]
    assert own.mean() <= 1.05 * other.mean()


@pytest.mark.parametrize("radius", [None, 0.04])
def test_pgd_equals_another_implementation(
    model: nn.Module, samples: tuple[Tensor, Tensor], radius: float | None
) -> None:
    inputs, targets = samples
    result = pgd(model, inputs, targets, radius=radius)
    theirs = plain_pgd(model, inputs, targets, 7, 0.01, 0.07 if radius is None else radius)
    compare(result, model, inputs, targets, theirs, "linf")
    assert_same_pixels(result.perturbed[:, result.correct], theirs[:, result.correct])


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_deepfool_equals_another_implementation(model: nn.Module, samples: tuple[Tensor, Tensor], norm: str) -> None:
    inputs, targets = samples[0][:, :150], samples[1][:150]
    result = deepfool(model, inputs, targets, norm=norm)
    assert result.success_rate > 0.9
    compare(result, model, inputs, targets, plain_deepfool(model, inputs, norm, 7, 0.02), norm)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_deepfool_on_dark_images_equals_another_implementation(norm: str, samples: tuple[Tensor, Tensor]) -> None:
    """Where two thirds of the pixels are black, clipping takes away much of every step; few are enough to show it."""
    model, inputs = trained(), (3.0 * samples[0][:, :150] - 2.0).clamp(0.0)
    targets = scores(model, inputs).argmax(1)
    result = deepfool(model, inputs, targets, norm=norm, steps=2)
    assert 0.1 < result.success_rate < 0.95
    compare(result, model, inputs, targets, plain_deepfool(model, inputs, norm, 2, 0.02), norm)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_deepfool_on_a_linear_model_is_exact(norm: str, generator: torch.Generator) -> None:
    """The way to the nearest boundary is min |f_k| / ‖w_k‖ in the dual norm, and foolbox's 10⁻⁴ beyond it."""
    weight, bias = torch.randn(3, 24, generator=generator), torch.randn(3, generator=generator)
    inputs = 0.5 + 0.02 * torch.randn(6, 40, 4, generator=generator)  # far from the limits of the range
    model = LinearClassifier(weight, bias)
    out = model(inputs).detach()
    targets = out.argmax(1)
    others = torch.arange(3).expand(40, 3)[torch.arange(3) != targets[:, None]].view(40, 2)
    gaps = out.gather(1, targets[:, None]) - out.gather(1, others)
    normals = weight[targets][:, None] - weight[others]
    sizes = normals.norm(dim=2) if norm == "l2" else normals.abs().sum(2)
    exact, nearest = (gaps / sizes).min(1)
    near = exact < 0.4  # the others would leave the range on their way
    assert near.sum() > 10
    result = deepfool(model, inputs[:, near], targets[near], norm=norm, bounds=None)
    assert result.success_rate == 1.0
    found = result.l2 if norm == "l2" else result.linf
    torch.testing.assert_close(found, exact[near] + 1e-4, rtol=1e-4, atol=1e-6)
    new = model(result.perturbed).argmax(1)
    assert torch.equal(new, others[near].gather(1, nearest[near][:, None])[:, 0])
    inside = deepfool(model, inputs[:, near], targets[near], norm=norm)
    torch.testing.assert_close(inside.l2, result.l2, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("radius", [0.02, 0.3])
def test_nothing_leaves_the_ball_or_the_range(model: nn.Module, samples: tuple[Tensor, Tensor], radius: float) -> None:
    inputs, targets = samples
    generator = torch.Generator().manual_seed(0)
    results = {
        "linf": [
            pgd(model, inputs, targets, step_size=0.05, radius=radius),
            pgd(model, inputs, targets, radius=radius, random_start=True, generator=generator),
            fgsm(model, inputs, targets, radius=radius),
            deepfool(model, inputs, targets, norm="linf", radius=radius),
        ],
        "l2": [deepfool(model, inputs, targets, radius=radius)],
    }
    for norm, of_norm in results.items():
        for result in of_norm:
            assert result.perturbed.min() >= 0.0
            assert result.perturbed.max() <= 1.0
            distance = (result.perturbed - inputs).transpose(0, 1).flatten(1)
            size = distance.norm(dim=1) if norm == "l2" else distance.abs().amax(1)
            assert size.max() <= radius + ROUNDING
            assert size.max() > 0.5 * radius
            out = scores(model, result.perturbed)
            fooled = result.correct & (out.argmax(1) != targets)
            assert torch.equal(result.fooled[decided(out)], fooled[decided(out)])
            assert decided(out).float().mean() > 0.9
            assert result.accuracy <= result.clean_accuracy
            assert not distance[~result.correct].any()


def test_one_step_of_pgd_is_fgsm(model: nn.Module, samples: tuple[Tensor, Tensor]) -> None:
    one = pgd(model, *samples, steps=1, step_size=0.05)
    assert torch.equal(one.perturbed, fgsm(model, *samples, radius=0.05).perturbed)


def test_the_scale_of_the_pixels_does_not_matter(samples: tuple[Tensor, Tensor]) -> None:
    """A model of bytes, and one of standardised channels, attacked in the range of their own inputs."""
    own = trained()
    inputs, targets = samples
    shift, scale = torch.tensor([0.5, -1.0, 0.0, 2.0]), torch.tensor([3.0, 1.0, 0.5, 255.0])

    class Rescaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return own((x - shift) / scale)[0]

    expected = pgd(own, inputs, targets)
    found = pgd(Rescaled(), inputs * scale + shift, targets, bounds=(shift, shift + scale))
    assert found.accuracy == pytest.approx(expected.accuracy, abs=0.01)
    torch.testing.assert_close(found.linf, expected.linf, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(found.perturbed[:, found.fooled].amax((0, 1)) <= shift + scale, torch.ones(4).bool())


def test_layouts_batches_and_repetition_agree(model: nn.Module, samples: tuple[Tensor, Tensor]) -> None:
    inputs, targets = samples

    class BatchFirst(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return scores(model, x.transpose(0, 1))

    whole = pgd(model, inputs, targets)
    swapped = pgd(BatchFirst(), inputs.transpose(0, 1), targets, batch_first=True, batch_size=77)
    assert_same_pixels(swapped.perturbed.transpose(0, 1), whole.perturbed)
    draws = [
        pgd(model, inputs, targets, random_start=True, generator=torch.Generator().manual_seed(seed)).perturbed
        for seed in (0, 0, 1)
    ]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_the_model_is_left_as_it_was(samples: tuple[Tensor, Tensor]) -> None:
    """Also one in training mode with dropout, which the attack must not see."""
    model = build("lstm", num_layers=2, dropout=0.5).train()
    model.head.bias.requires_grad_(False)
    state = torch.random.get_rng_state()
    first, second = (pgd(model, *samples, steps=2) for _ in range(2))
    assert torch.equal(first.perturbed, second.perturbed)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(module.training for module in model.modules())
    assert model.unit.inner.dropout == 0.5
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["head.bias"]
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("unit", lr.units.available())
def test_every_unit_can_be_attacked(unit: str) -> None:
    inputs, _ = problem(12)
    model = build(unit, hidden=4)
    targets = scores(model.eval(), inputs).argmax(1)
    result = pgd(model, inputs, targets, steps=2, step_size=0.2)
    assert result.clean_accuracy == 1.0
    assert result.linf.max() > 0.0
    assert deepfool(model, inputs[:, :4], targets[:4], steps=2).l2.max() > 0.0


def test_padded_sequences() -> None:
    """Steps beyond the end of a sequence are not touched: they have no influence."""
    inputs, _ = problem(20)
    lengths = torch.arange(20) % 6 + 1
    model = build().eval()
    targets = model(inputs, lengths)[0].argmax(1)
    result = pgd(model, inputs, targets, lengths=lengths, batch_size=7)
    assert result.clean_accuracy == 1.0
    padding = torch.arange(6)[:, None] >= lengths
    assert torch.equal(result.perturbed[padding], inputs[padding])
    assert (result.perturbed != inputs)[~padding].any()


def test_averages_without_numbers() -> None:
    inputs, _ = problem(5)
    model = build().eval()
    wrong = (scores(model, inputs).argmax(1) + 1) % 3
    facts = deepfool(model, inputs, wrong).to_dict()
    assert facts["clean_accuracy"] == facts["accuracy"] == 0.0
    assert facts["success_rate"] is None
    assert facts["l2_successful"] is None


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"steps": 0}, "steps"),
        ({"step_size": -0.1}, "step_size"),
        ({"radius": 0.0}, "radius"),
        ({"random_start": True}, "generator"),
        ({"bounds": (0.0, 0.5)}, "outside the valid range"),
        ({"bounds": (1.0, 0.0)}, "smaller than the highest"),
        ({"batch_size": 0}, "batch_size"),
        ({"lengths": torch.ones(3, dtype=torch.int64)}, "lengths"),
    ],
)
def test_wrong_arguments(options: dict[str, object], part: str) -> None:
    inputs, targets = problem(5)
    with pytest.raises(ValueError, match=part):
        pgd(build(), inputs, targets, **options)


def test_wrong_arguments_of_deepfool_and_wrong_targets() -> None:
    inputs, targets = problem(5)
    for options, part in (
        ({"norm": "l1"}, "l1"),
        ({"candidates": 1}, "candidates"),
        ({"overshoot": -1.0}, "overshoot"),
    ):
        with pytest.raises(ValueError, match=part):
            deepfool(build(), inputs, targets, **options)
    with pytest.raises(ValueError, match="classes"):
        pgd(build(), inputs, targets.float())
    with pytest.raises(ValueError, match="on meta"):
        pgd(build().to("meta"), inputs, targets)
    with pytest.raises(ValueError, match="shape"):
        pgd(build(), inputs, targets[:3])
    with pytest.raises(ValueError, match=r"\(T, B, p\)"):
        pgd(build(), inputs[0, 0], targets)
    with pytest.raises(ValueError, match="real values"):
        pgd(build(), (inputs > 0.5).long(), targets)
