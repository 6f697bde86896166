"""The nonlinearities on vectors of reals.

tanh and the logistic function come from one reduction, e^y = 2ⁿ(1 + p) with p = e^r − 1 and |r| ≤ ½ ln 2, where p is
the Taylor polynomial. For y = −2|x|, e^y − 1 = 2ⁿp + (2ⁿ − 1) has no cancellation, and tanh|x| = −m / (2 + m) with
m = e^y − 1 is accurate for all x: within 3 units in the last place in float32 and float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lipschitz_rnn.ops.lipschitz.cores.code import Code, Pointer, Value
from lipschitz_rnn.ops.lipschitz.cores.sizes import NONLINEARITIES

TERMS = {4: 7, 8: 13}  # of the Taylor series: the next one is below half a unit in the last place
MANTISSA = {4: 23, 8: 52}
BIAS = {4: 127, 8: 1023}
LN2_HIGH = {4: 0.693145751953125, 8: 0.6931471803691238}  # with so few digits that n times it is exact
LN2_LOW = {4: 1.42860682030941723e-6, 8: 1.9082149292705877e-10}
TANH_IS_ONE = {4: 10.0, 8: 20.0}
EXP_IS_SMALL = {4: 87.0, 8: 708.0}


def _exponential_parts(code: Code, y: Value) -> tuple[Value, Value]:
    """2ⁿ and p of e^y = 2ⁿ(1 + p), for y ≤ 0 that does not underflow."""
    size = code.size
    shift = 1.5 * 2.0 ** MANTISSA[size]  # adding it rounds to a whole number, and leaves that in the lowest bits
    shifted = code.fma(y, 1.0 / math.log(2.0), shift)
    n = shifted - shift
    r = code.fma(n, -LN2_LOW[size], code.fma(n, -LN2_HIGH[size], y))
    q = code.like(1.0 / math.factorial(TERMS[size]), y)
    for k in range(TERMS[size] - 1, 1, -1):
        q = code.fma(q, r, 1.0 / math.factorial(k))
    p = code.fma(r * r, q, r)
    exponent = code.as_bits(shifted) << MANTISSA[size]
    return code.as_reals(exponent + (BIAS[size] << MANTISSA[size])), p


def _at_most(code: Code, x: Value, limit: float) -> Value:
    """A NaN stays one."""
    return code.select(x.compare(">", limit), limit, x)


def tanh(code: Code, x: Value) -> Value:
    y = _at_most(code, code.intrinsic("fabs", x), TANH_IS_ONE[code.size]) * -2.0
    scale, p = _exponential_parts(code, y)
    m = code.fma(scale, p, scale - 1.0)
    return code.intrinsic("copysign", m / (m + 2.0), x)


def sigmoid(code: Code, x: Value) -> Value:
    size = code.intrinsic("fabs", x)
    scale, p = _exponential_parts(code, _at_most(code, size, EXP_IS_SMALL[code.size]) * -1.0)
    e = code.select(size.compare(">", EXP_IS_SMALL[code.size]), 0.0, code.fma(scale, p, scale))
    return code.select(x.compare("<", 0.0), e, code.like(1.0, x)) / (e + 1.0)


def relu(code: Code, x: Value) -> Value:
    return code.select(x.compare("<", 0.0), 0.0, x)


FUNCTIONS: dict[str, Callable[[Code, Value], Value]] = {
    "tanh": tanh,
    "relu": relu,
    "sigmoid": sigmoid,
    "identity": lambda code, x: x,
}

# σ′ from the value s = σ(z)
SLOPES: dict[str, Callable[[Code, Value], Value]] = {
    "tanh": lambda code, s: code.fma(s * -1.0, s, 1.0),
    "relu": lambda code, s: code.select(s.compare(">", 0.0), code.like(1.0, s), 0.0),
    "sigmoid": lambda code, s: s * (code.like(1.0, s) - s),
    "identity": lambda code, s: code.like(1.0, s),
}


def write_apply(code: Code) -> None:
    """``apply(nonlinearity, vectors, values)``: σ in place, so that it can be tested by itself."""

    def body(number: Value, vectors: Value, values: Pointer) -> None:
        def case(name: str) -> Callable[[], None]:
            def write() -> None:
                with code.loop(vectors * code.lanes, step=code.lanes) as i:
                    values.put(FUNCTIONS[name](code, values.vector(i)), i)

            return write

        code.switch(number, [case(name) for name in NONLINEARITIES])

    code.function("apply", ("nonlinearity", "vectors", "values*"), body, exported=True)
