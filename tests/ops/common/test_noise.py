"""Noise on states: the generator, what it is made into, and its statistics."""

from __future__ import annotations

import math

import noise_numbers
import pytest
import torch
from torch import Tensor

from lipschitz_rnn.ops.common.noise import StateNoise, draw_factor, draw_noise, shifted
from lipschitz_rnn.ops.common.philox import philox

# kat_vectors of the Random123 library, by the authors of the paper: key, counter, result.
PUBLISHED = [
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 2, (2**32 - 1,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0xA4093822, 0x299F31D0),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def rows(*seeds: int, additive: float = 1.0, multiplicative: float = 1.0) -> Tensor:
    noise = StateNoise(torch.tensor(seeds), additive=additive, multiplicative=multiplicative)
    return noise.rows((len(seeds),), torch.empty(0))


@pytest.mark.parametrize(("key", "counter", "result"), PUBLISHED)
def test_philox_gives_the_published_numbers(key: tuple[int, ...], counter: tuple[int, ...], result: tuple) -> None:
    found = philox(tuple(map(torch.tensor, key)), tuple(map(torch.tensor, counter)))  # type: ignore[arg-type]
    assert tuple(int(word) for word in found) == result
    assert noise_numbers.philox(key, counter) == result  # type: ignore[arg-type]


def test_every_entry_is_that_of_its_own_counter() -> None:
    seeds, shape = (7, 2**53 - 1), (3, 4, 5)
    factor, added = draw_noise(rows(*seeds), 1.0, shape, first=6, part=1)
    assert factor.dtype == added.dtype == torch.float32
    for s, seed in enumerate(seeds):
        for c, b, n in ((0, 0, 0), (2, 3, 4), (1, 2, 3), (2, 0, 1)):
            u, normal = noise_numbers.entry(seed, 6 + c, b, n, part=1)
            assert float(factor[s, c, b, n]) - 1.0 == pytest.approx(u, abs=2e-7)
            assert float(added[s, c, b, n]) == pytest.approx(normal, abs=2e-6)
    torch.testing.assert_close(draw_factor(rows(*seeds), 1.0, shape, 6), draw_noise(rows(*seeds), 1.0, shape, 6)[0])


def test_parts_of_a_call_have_the_numbers_of_the_whole() -> None:
    noise = rows(3, 4)
    whole = draw_noise(noise, 1.0, (9, 6, 8))
    for start in (0, 2, 7):
        part = draw_noise(shifted(noise, start), 1.0, (2, 6, 8))
        torch.testing.assert_close(part[0], whole[0][:, start : start + 2], rtol=0, atol=0)
    seeds = torch.tensor([3, 4])
    later = StateNoise(seeds, 1.0, 1.0, first_sample=2, first_step=1).rows((2,), torch.empty(0))
    torch.testing.assert_close(draw_noise(later, 1.0, (3, 4, 5))[1], whole[1][:, 1:4, 2:, :5], rtol=0, atol=0)


def test_mean_variance_and_tails() -> None:
    """Of half a million entries; a mean of n numbers of variance v is within 5 √(v/n) of what it should be."""
    factor, normal = draw_noise(rows(11, 12), 1.0, (64, 64, 64))
    u, n = (factor - 1.0).double(), factor.numel()
    for values, second, fourth in ((u, 1 / 3, 1 / 5), (normal.double(), 1.0, 3.0)):
        eighth = 1 / 9 if second < 1 else 105.0
        assert abs(float(values.mean())) < 5 * math.sqrt(second / n)
        assert abs(float(values.pow(3).mean())) < 5 * math.sqrt((1 / 7 if second < 1 else 15.0) / n)
        assert abs(float(values.square().mean()) - second) < 5 * math.sqrt((fourth - second**2) / n)
        assert abs(float(values.pow(4).mean()) - fourth) < 5 * math.sqrt((eighth - fourth**2) / n)
    assert float(u.abs().max()) <= 1.0
    for bound in (1.0, 2.0, 3.0):
        share = math.erfc(bound / math.sqrt(2.0))
        assert abs(float((normal.abs() > bound).double().mean()) - share) < 5 * math.sqrt(share / n)


@pytest.mark.parametrize("axis", range(4), ids=["networks", "steps", "samples", "units"])
def test_neighbours_are_independent(axis: int) -> None:
    """No correlation of values or of squares, between u and ξ either, along any axis: 5 standard errors."""
    factor, normal = draw_noise(rows(5, 6), 1.0, (48, 50, 46))
    parts = {"u": (factor - 1.0).double() * math.sqrt(3.0), "normal": normal.double()}
    for one in parts.values():
        for other in parts.values():
            for power in (1, 2):
                first = one.narrow(axis, 0, one.shape[axis] - 1) ** power
                second = other.narrow(axis, 1, one.shape[axis] - 1) ** power
                first, second = first - first.mean(), second - second.mean()
                limit = 5.0 * float(first.std() * second.std()) / math.sqrt(first.numel())
                assert abs(float((first * second).mean())) < limit
    assert abs(float((parts["u"] * parts["normal"]).mean())) < 5.0 / math.sqrt(factor.numel())


def test_strength_grows_with_the_root_of_the_time() -> None:
    times = torch.tensor([[[0.0, 0.03], [0.12, 0.27]]], dtype=torch.float64)
    seed = torch.tensor([9])
    noise = StateNoise(seed, additive=0.2, multiplicative=0.1, step_size=0.03).rows((1,), torch.empty(0))
    (factor, added), (unit, normal) = draw_noise(noise, times, (2, 2, 6)), draw_noise(rows(9), 1.0, (2, 2, 6))
    scale = torch.tensor([[[0.0, 1.0], [2.0, 3.0]]]).unsqueeze(-1)
    torch.testing.assert_close(factor - 1.0, 0.1 * scale * (unit - 1.0), rtol=1e-5, atol=2e-7)
    torch.testing.assert_close(added, 0.2 * scale * normal, rtol=1e-6, atol=1e-7)
    assert bool((factor[0, 0, 0] == 1.0).all())
    assert bool((added[0, 0, 0] == 0.0).all())


@pytest.mark.parametrize(
    ("changes", "error", "named"),
    [
        ({"seed": 3}, TypeError, "3"),
        ({"seed": torch.zeros(3)}, ValueError, r"\(3\)"),
        ({"additive": -0.1}, ValueError, "additive"),
        ({"multiplicative": math.nan}, ValueError, "multiplicative"),
        ({"step_size": 0.0}, ValueError, "step_size"),
    ],
)
def test_wrong_noise_is_refused(changes: dict, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        StateNoise(**({"seed": torch.zeros(2)} | changes)).rows((2,), torch.empty(0))
