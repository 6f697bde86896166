"""Noise on the state inside the kernels: the numbers of ``ops.common.noise``, drawn where they are used.

Two neighbouring units share the words of one counter, so a vector needs half as many counters as it has lanes. For
reals of 4 bytes only: noise is drawn in float32.
"""

from __future__ import annotations

import math

from llvmlite import ir

from lipschitz_rnn.ops.common.philox import KEY_STEPS, MULTIPLIERS, ROUNDS
from lipschitz_rnn.ops.common.philox import WORD as ALL_BITS
from lipschitz_rnn.ops.lipschitz.cores.code import WORD, Code, Value
from lipschitz_rnn.ops.lipschitz.cores.sigma import LN2_HIGH, LN2_LOW, MANTISSA
from lipschitz_rnn.ops.lipschitz.cores.step import Step

Words = tuple[Value, Value, Value, Value]

HALF_PI = 1.5707963705062866  # the nearest float32, and what it leaves of π / 2
HALF_PI_LEFT = math.pi / 2 - HALF_PI
ROOT_HALF_BITS = 0x3F3504F3  # of √½ in float32


def disturbed(step: Step, t: Value, r: Value, column: Value, state: Value) -> Value:
    """(1 + m √Δt u) h + a √Δt ξ for one vector of one sample's state."""
    words = _words(step, t, r, column)
    added = _normal(step.code, words) * step.row("additive", r, t=t).scalar()
    return step.code.fma(state, _factor(step, t, r, words), added)


def noise_factor(step: Step, t: Value, r: Value, column: Value) -> Value:
    """1 + m √Δt u, the slope of the disturbed state."""
    return _factor(step, t, r, _words(step, t, r, column))


def _factor(step: Step, t: Value, r: Value, words: Words) -> Value:
    return step.code.fma(_uniform(step.code, words), step.row("multiplicative", r, t=t).scalar(), 1.0)


def _words(step: Step, t: Value, r: Value, column: Value) -> Words:
    """Four random words for each pair of units of a vector, as 64-bit numbers."""
    code = step.code
    keys = step.given.at("noise_words", s=step.s)
    k0, k1, first_sample, first_step = (code.word(keys, place) for place in range(4))
    kind = ir.VectorType(WORD, code.lanes // 2)
    pairs = Value(code, ir.Constant(kind, list(range(code.lanes // 2)))) + (column >> 1)
    c0, c1, c2, c3 = pairs, first_sample + step.first + r, first_step + t, code.like(0, None)
    for _ in range(ROUNDS):
        first, second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c2 = code.like((second >> 32) ^ c1 ^ k0, pairs), (first >> 32) ^ c3 ^ k1
        c1, c3 = second & ALL_BITS, first & ALL_BITS
        k0, k1 = (k0 + KEY_STEPS[0]) & ALL_BITS, (k1 + KEY_STEPS[1]) & ALL_BITS
    return c0, c1, c2, c3


def _uniform(code: Code, words: Words) -> Value:
    """In [−1, 1]: the last two words as signed numbers."""
    evens, odds = (code.from_signed(code.low_bits(word)) for word in words[2:])
    return code.interleaved(evens, odds) * 2.0**-31


def _normal(code: Code, words: Words) -> Value:
    """Box and Muller: radius from the first word, angle from the second, cosine and sine for the two units."""
    first, second = (code.from_unsigned(code.low_bits(word)) for word in words[:2])
    radius = code.intrinsic("sqrt", _log(code, code.fma(first, 2.0**-32, 2.0**-33)) * -2.0)
    cosine, sine = _cosine_and_sine(code, second * (2.0 * math.pi * 2.0**-32))
    return code.interleaved(radius * cosine, radius * sine)


def _log(code: Code, x: Value) -> Value:
    """ln x = e ln 2 + 2 artanh s with x = 2ᵉ m, √½ ≤ m < √2 and s = (m − 1) / (m + 1), for normal x > 0."""
    bits = code.as_bits(x)
    exponent = code.shifted_right(bits - ROOT_HALF_BITS, MANTISSA[4])
    m = code.as_reals(bits - (exponent << MANTISSA[4]))
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    series = code.like(2.0 / 11.0, x)
    for k in (9, 7, 5, 3, 1):
        series = code.fma(series, square, 2.0 / k)
    e = code.from_signed(exponent)
    return code.fma(e, LN2_HIGH[4], code.fma(e, LN2_LOW[4], s * series))


def _cosine_and_sine(code: Code, angle: Value) -> tuple[Value, Value]:
    """Of angles from 0 to 2π: the Taylor series at the distance to the nearest multiple of π / 2."""
    shift = 1.5 * 2.0 ** MANTISSA[4]  # adding it rounds to a whole number, and leaves that in the lowest bits
    shifted = code.fma(angle, 2.0 / math.pi, shift)
    n = shifted - shift
    r = code.fma(n, -HALF_PI_LEFT, code.fma(n, -HALF_PI, angle))
    square = r * r
    cosine, sine = (code.like(1.0 / math.factorial(k), r) for k in (12, 11))
    for k in range(10, -1, -2):
        cosine = code.fma(cosine, square * -1.0, 1.0 / math.factorial(k))
    for k in range(9, 0, -2):
        sine = code.fma(sine, square * -1.0, 1.0 / math.factorial(k))
    sine = sine * r
    quarter = code.as_bits(shifted)
    odd = (quarter & 1).compare("!=", 0)
    one, other = code.select(odd, sine, cosine), code.select(odd, cosine, sine)
    # The cosine is negative in the second and third quarter, the sine in the third and fourth.
    return _flipped(code, one, quarter + 1), _flipped(code, other, quarter)


def _flipped(code: Code, value: Value, quarter: Value) -> Value:
    """With the other sign where the second bit of ``quarter`` is set."""
    return code.as_reals(code.as_bits(value) ^ ((quarter & 2) << 30))
