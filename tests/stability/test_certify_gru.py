"""Contraction of GRUs: Jacobians and pairs of runs of the module itself against the certificate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lipschitz_rnn.stability import certify, certify_gru
from lipschitz_rnn.units import build
from lipschitz_rnn.units.recurrence import UnstatedRecurrenceError


def drawn(seed: int) -> tuple[nn.GRU, float]:
    """A GRU of one layer in float64, and a bound on its inputs."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    gru = nn.GRU(int(rng.integers(1, 4)), int(rng.integers(1, 6)), bias=bool(rng.random() < 0.8)).double()
    with torch.no_grad():
        for parameter in gru.parameters():
            parameter.mul_(float(10.0 ** rng.uniform(-0.5, 0.7)))
            parameter[int(rng.integers(0, 3)) * gru.hidden_size :].mul_(float(10.0 ** rng.uniform(-1.0, 0.7)))
        gru.weight_hh_l0.mul_(float(rng.choice([0.1, 0.3, 1.0])))
    return gru, float(rng.choice([0.0, 0.3, 1.0, 4.0]))


def step(gru: nn.GRU, h: Tensor, x: Tensor) -> Tensor:
    """(B, N), (B, p) -> (B, N)."""
    return gru(x[None], h[None])[1][0]


def largest_norm(gru: nn.GRU, bound: float, scale: np.ndarray, seed: int, count: int = 200, rounds: int = 4) -> float:
    """Of the Jacobian, over states and inputs by selection and mutation; half of them start in corners."""
    generator = torch.Generator().manual_seed(seed)
    s = torch.from_numpy(scale)

    def draw(*shape: int) -> Tensor:
        return 2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1

    h, x = draw(count, gru.hidden_size), draw(count, gru.input_size)
    h[: count // 2], x[: count // 2] = h[: count // 2].sign(), x[: count // 2].sign()
    h[: count // 4] *= torch.rand(count // 4, 1, generator=generator, dtype=torch.float64)
    best = 0.0
    for _ in range(rounds):
        at = h.clone().requires_grad_()
        after = step(gru, at, bound * x)
        rows = [torch.autograd.grad(after[:, i].sum(), at, retain_graph=True)[0] for i in range(after.shape[1])]
        norms = (torch.stack(rows, 1).abs() * s / s[:, None]).sum(-1).amax(-1)
        best = max(best, float(norms.max()))
        chosen = norms.argsort(descending=True)[: count // 5].repeat(5)
        size = torch.tensor([0.0, 0.02, 0.1, 0.3, 0.6], dtype=torch.float64).repeat_interleave(count // 5)[:, None]
        h = (h[chosen] + size * draw(count, gru.hidden_size)).clamp(-1, 1)
        x = (x[chosen] + size * draw(count, gru.input_size)).clamp(-1, 1)
    return best


def test_no_jacobian_and_no_pair_of_runs_exceeds_the_factor() -> None:
    held, closest = 0, 0.0
    for seed in range(60):
        gru, bound = drawn(seed)
        certificate = certify_gru(gru, bound)
        (scale,) = certificate.scales
        found = largest_norm(gru, bound, scale, seed)
        assert found <= certificate.factor + 1e-12, seed
        closest = max(closest, found / certificate.factor)
        if not certificate.holds:
            assert "magnify" in certificate.reason
            continue
        held += 1
        generator = torch.Generator().manual_seed(seed)
        h = 2 * torch.rand(2, 20, gru.hidden_size, generator=generator, dtype=torch.float64) - 1
        s = torch.from_numpy(scale)
        with torch.no_grad():
            for _ in range(10):
                x = bound * (2 * torch.rand(20, gru.input_size, generator=generator, dtype=torch.float64) - 1)
                before = ((h[0] - h[1]).abs() / s).amax(-1)
                h = torch.stack([step(gru, each, x) for each in h])
                assert bool((((h[0] - h[1]).abs() / s).amax(-1) <= certificate.factor * before + 1e-14).all())
    assert held > 15
    assert closest > 0.97


@pytest.mark.parametrize("part", ["new", "reset", "update"])
def test_every_term_of_the_proof_is_needed(part: str) -> None:
    """One unit whose other recurrent weights are zero: without its term the claim would be false."""
    gru = nn.GRU(3, 1).double()
    row = {"reset": 0, "update": 1, "new": 2}[part]
    with torch.no_grad():
        for parameter in gru.parameters():
            parameter.zero_()
        gru.weight_ih_l0.copy_(torch.eye(3))  # every gate has an input of its own
        gru.bias_hh_l0[2] = 2.0 if part == "reset" else 0.0
        without = certify_gru(gru, 1.0).factor
        gru.weight_hh_l0[row] = {"reset": 1.5, "update": 0.3, "new": 0.7}[part]
    certificate = certify_gru(gru, 1.0)
    assert certificate.holds
    found = largest_norm(gru, 1.0, certificate.scales[0], 0, count=400, rounds=30)
    assert without < 0.99 * found
    assert 0.9 * certificate.factor < found <= certificate.factor
    if part == "new":
        assert found > 0.99 * certificate.factor  # attained


def test_layers_directions_and_precisions() -> None:
    torch.manual_seed(0)
    unit = build("gru", 2, 3, num_layers=2, bidirectional=True).eval()
    with torch.no_grad():
        for name, parameter in unit.named_parameters():
            parameter.mul_(0.3 if "hh" in name else 1.0)
    certificate = certify_gru(unit, (1.0, 2.0))
    assert certificate
    assert len(certificate.factors) == 4
    assert certificate.precision == "float32"
    wider = [certify_gru(unit, 2.0, precision=name).factor for name in ("float64", "float32", "high", "bfloat16")]
    assert wider == sorted(wider)
    assert wider[0] < wider[-1]
    assert certify_gru(unit, 1e6).factor > 0.999  # an input that closes the gate keeps the state
    large = build("gru", 2, 64)
    refused = certify_gru(large, 1.0)
    assert not refused
    assert "weight decay" in refused.next_step


def test_refusals() -> None:
    unit = build("gru", 2, 3)
    with pytest.raises(UnstatedRecurrenceError, match="certify_gru"):
        certify(unit)
    with pytest.raises(UnstatedRecurrenceError, match="not a GRU"):
        certify_gru(build("lstm", 2, 3), 1.0)
    for wrong in (-1.0, (1.0, 2.0, 3.0), float("nan"), "much"):
        with pytest.raises((ValueError, TypeError), match="input_bound"):
            certify_gru(unit, wrong)
    with torch.no_grad():
        unit.inner.weight_hh_l0[0, 0] = torch.nan
    with pytest.raises(ValueError, match="weight_hh_l0"):
        certify_gru(unit, 1.0)
    huge = build("gru", 2, 3).double()
    with torch.no_grad():
        for parameter in huge.parameters():
            parameter.mul_(1e307)
    assert not certify_gru(huge, 1.0)
    noisy = build("gru", 2, 3, num_layers=2, dropout=0.5)
    with pytest.raises(UnstatedRecurrenceError, match="dropout"):
        certify_gru(noisy, 1.0)
    hooked = build("gru", 2, 3)
    hooked.inner.register_forward_hook(lambda *given: None)
    with pytest.raises(UnstatedRecurrenceError, match="hooks"):
        certify_gru(hooked, 1.0)
