"""What a certificate says about several parts: their directions of time, their clocks, and samples of several steps."""

import json
import math

import pytest
import torch

import lipschitz_rnn as lr
from lipschitz_rnn.stability import certify, incremental_gain
from lipschitz_rnn.stability.proof.certificate import combine
from lipschitz_rnn.stability.proof.inputs import count_steps, subjects
from lipschitz_rnn.stability.proof.norms import geometric_sum, power


def stable(**options: object) -> lr.LipschitzRNN:
    return lr.LipschitzRNN(2, 4, **{"gamma": 2.0, "step_size": 0.1, "dtype": torch.float64, **options})


def test_two_directions_are_certified_each_along_its_own_time() -> None:
    """A reverse part starts at the end: its first state reaches the forward part above it just before that finishes."""
    torch.manual_seed(0)
    model = stable(num_layers=2, bidirectional=True)
    x, first = torch.randn(400, 1, 2, dtype=torch.float64), torch.zeros(4, 1, 4, dtype=torch.float64)
    moved = first.clone()
    moved[1] += 5.0
    with torch.no_grad():
        (before, last), (after, other) = model(x, first), model(x, moved)
    assert (last[2] - other[2]).abs().max() > 0.01  # so the whole does not forget at the end of a sequence …
    assert (before[200] - after[200]).abs().max() < 1e-8  # … but it does in the middle
    whole = certify(model)
    assert whole.holds
    assert whole.reverse
    assert [part.reverse for part in whole.parts] == [False, True, False, True]
    forward = certify(stable(num_layers=2))
    assert not forward.reverse
    assert forward.sentence() != whole.sentence()
    assert json.loads(json.dumps(whole.to_dict(), allow_nan=False))["parts"][1]["reverse"] is True


def test_parts_with_different_steps_have_no_common_rate() -> None:
    model = stable(num_layers=2)
    model.cell(1).step_size = 0.3
    whole = certify(model)
    assert whole.holds
    assert math.isnan(whole.rate)
    assert whole.step_range is None
    assert whole.factor == max(part.factor for part in whole.parts)
    assert all(step in whole.sentence() for step in ("0.1", "0.3"))
    assert "nan" not in whole.sentence()
    assert json.loads(json.dumps(whole.to_dict(), allow_nan=False))["rate"] is None


def test_parts_with_different_precisions_are_both_named() -> None:
    parts = [certify(stable(), precision=precision) for precision in ("float32", "bfloat16")]
    whole = combine(parts)
    assert whole.precision == "bfloat16, float32"
    assert all(precision in whole.sentence() for precision in ("float32", "bfloat16"))
    assert whole.rate == min(part.rate for part in parts)


@pytest.mark.parametrize("span", [1.0, (0.9, 1.0)], ids=["one span", "a range"])
def test_gain_counts_every_step_of_a_split_sample(span: float | tuple[float, float]) -> None:
    torch.manual_seed(1)
    model = stable(step_size=1.0, max_step=0.05)
    certificate = certify(model, step_size=span)
    gain = incremental_gain(certificate, input_matrix=model.cell().weight_ih)
    x = torch.zeros(16, 1, 2, dtype=torch.float64)
    moved = x.clone()
    moved[:10] += torch.tensor([1.0, -2.0], dtype=torch.float64)
    with torch.no_grad():
        apart = (model(x)[0] - model(moved)[0]).norm(dim=-1).flatten().numpy()
    sizes = (x - moved).norm(dim=-1).flatten()
    assert (apart <= gain.bound(sizes)).all()
    assert apart.max() <= gain.peak * float(sizes.max())
    if span == 1.0:
        assert certificate.substeps == (20, 20)
        assert "20" in certificate.sentence()
        assert gain.factor == pytest.approx(certificate.factor**20)
        assert gain.peak == pytest.approx(gain.per_step / (1 - gain.factor))


def test_steps_of_a_sample_are_counted() -> None:
    assert count_steps((1.0, 1.0), None) == (1, 1)
    assert count_steps((0.05, 0.05), 0.05) == (1, 1)
    assert count_steps((0.6, 0.6), 0.2) == (3, 3)
    fewest, most = count_steps((0.1, 0.6), 0.2)
    assert fewest == 1
    assert most >= 3
    assert subjects(stable(max_step=0.03))[0].substeps == (4, 4)
    assert power(0.5, 7) == pytest.approx(0.5**7)
    assert power(0.5, 7) >= 0.5**7
    for count in (1, 2, 7, 20):
        assert geometric_sum(0.9, count) == pytest.approx((1 - 0.9**count) / 0.1)
        assert geometric_sum(1.0, count) >= count
