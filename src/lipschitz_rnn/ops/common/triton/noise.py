"""The noise of ``ops.common.noise`` inside a kernel: the same numbers from the same counters.

A tile of the state is (units, columns), where a column is a sample.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lipschitz_rnn.ops.common import noise as definition

_SEED, _SAMPLE, _STEP = tl.constexpr(definition.SEED), tl.constexpr(definition.SAMPLE), tl.constexpr(definition.STEP)
_ADDITIVE, _MULTIPLICATIVE = tl.constexpr(definition.ADDITIVE), tl.constexpr(definition.MULTIPLICATIVE)
_COLUMNS = tl.constexpr(definition.COLUMNS)
_TURN, _QUARTER = tl.constexpr(6.283185307179586 * 2.0**-32), tl.constexpr(1.5707963267948966)


@triton.jit
def read_noise(noise, network):
    """Seed, first sample, first step, a and m of one network."""
    row = noise + network * _COLUMNS
    seed = tl.load(row + _SEED).to(tl.int64)
    sample, first = tl.load(row + _SAMPLE).to(tl.int32), tl.load(row + _STEP).to(tl.int32)
    return seed, sample, first, tl.load(row + _ADDITIVE).to(tl.float32), tl.load(row + _MULTIPLICATIVE).to(tl.float32)


@triton.jit
def _words(seed, units, columns, t, UNITS: tl.constexpr, COLUMNS: tl.constexpr):
    """Four words for each entry of a tile; two neighbouring units have the same."""
    zero = tl.zeros((UNITS, COLUMNS), tl.int32)
    pairs = zero + (units.to(tl.int32) // 2)[:, None]
    return tl.philox(seed, pairs, zero + columns[None, :].to(tl.int32), zero + t.to(tl.int32), zero)


@triton.jit
def _uniform(third, fourth, odd):
    return tl.where(odd, fourth, third).to(tl.int32, bitcast=True).to(tl.float32) * 4.656612873077393e-10  # 2⁻³¹


@triton.jit
def disturb(h, seed, a, m, units, columns, t, step, mask, UNITS: tl.constexpr, COLUMNS: tl.constexpr):
    """(1 + m √Δt u) h + a √Δt ξ where ``mask`` is set, with Δt = ``step`` for each column, at step number t."""
    w0, w1, w2, w3 = _words(seed, units, columns, t, UNITS, COLUMNS)
    odd = ((units.to(tl.int32) % 2) == 1)[:, None]
    radius = tl.sqrt(-2.0 * tl.log(w0.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10))
    normal = radius * tl.cos(w1.to(tl.float32) * _TURN - tl.where(odd, _QUARTER, 0.0))
    root = tl.sqrt(step)[None, :]
    disturbed = h * (1.0 + (m * root) * _uniform(w2, w3, odd)) + (a * root) * normal
    return tl.where(mask, disturbed, h)


@triton.jit
def disturb_back(adjoint, seed, m, units, columns, t, step, mask, UNITS: tl.constexpr, COLUMNS: tl.constexpr):
    """The adjoint of ``disturb`` with its numbers held: times 1 + m √Δt u."""
    if m != 0.0:
        _, _, w2, w3 = _words(seed, units, columns, t, UNITS, COLUMNS)
        odd = ((units.to(tl.int32) % 2) == 1)[:, None]
        factor = 1.0 + (m * tl.sqrt(step)[None, :]) * _uniform(w2, w3, odd)
        adjoint = tl.where(mask, adjoint * factor, adjoint)
    return adjoint
