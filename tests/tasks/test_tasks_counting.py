"""Random numbers by counting: repeatable anywhere, and random enough to train on."""

import math

import torch

from lipschitz_rnn.tasks.counting import _bits, sample_keys, standard_normal, uniform


def test_values_are_fixed_for_all_time() -> None:
    keys = sample_keys(torch.arange(3), 0, "train")
    assert keys.tolist() == [0, 824515495, 1722258072]
    assert _bits(keys, 2).tolist() == [[-51026004, -1429868894], [-1326687098, -1344411720], [1207357690, 1410147156]]


def test_a_value_depends_on_key_and_position_alone() -> None:
    keys = sample_keys(torch.arange(100), 3, "test")
    whole = uniform(keys, 50)
    assert torch.equal(whole[[7, 3]], uniform(keys[[7, 3]], 50))
    assert torch.equal(whole[:, :20], uniform(keys, 20))
    assert torch.equal(whole.view(4, 25, 50), uniform(keys.view(4, 25), 50))


def test_splits_seeds_and_samples_have_their_own_keys() -> None:
    keys = [
        sample_keys(torch.arange(20_000), seed, split) for seed in range(3) for split in ("train", "validation", "test")
    ]
    assert len(torch.cat(keys).unique()) > 180_000 - 10  # 32-bit keys: about four collisions by chance


def test_uniform_numbers() -> None:
    values = uniform(sample_keys(torch.arange(1_000), 0, "train"), 1_000)
    assert values.min() >= 0
    assert values.max() < 1
    counts = torch.histc(values, 100, 0, 1)
    chi_square = ((counts - 10_000) ** 2 / 10_000).sum()
    assert 50 < chi_square < 160  # 99 degrees of freedom; 160 has probability 1e-4
    for other in (values[:, 1:], values[1:]):  # neighbours in position and in index
        part = values[: len(other), : other.shape[1]]
        correlation = torch.corrcoef(torch.stack([part.flatten(), other.flatten()]))[0, 1]
        assert correlation.abs() < 0.005


def test_normal_numbers() -> None:
    values = standard_normal(sample_keys(torch.arange(1_000), 0, "train"), 1_000).double()
    assert values.isfinite().all()
    assert values.mean().abs() < 0.005
    assert (values.square().mean() - 1).abs() < 0.007
    assert (values.pow(4).mean() - 3).abs() < 0.05
    outside = (values.abs() > 3).double().mean()
    assert abs(outside - math.erfc(3 / math.sqrt(2))) < 3e-4
