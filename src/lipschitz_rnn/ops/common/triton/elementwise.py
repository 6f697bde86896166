"""σ and its slope inside a kernel."""

from __future__ import annotations

import triton
import triton.language as tl

from lipschitz_rnn.ops.common.triton.products import INTERPRETING


@triton.jit
def tanh(z, PRECISION: tl.constexpr):
    """tanh as good as the products around it: 11 bits by the GPU's own instruction, 10⁻⁷ absolute, or float32."""
    if PRECISION == "bf16" and not INTERPRETING:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [z], dtype=tl.float32, is_pure=True, pack=1)
    if PRECISION == "tf32" or PRECISION == "bf16x3":
        return 1.0 - 2.0 / (1.0 + tl.exp(2.0 * z))
    # Near zero the quotient below cancels, so a polynomial serves there: an odd minimax fit on |z| ≤ 0.55.
    q = z * z
    series = 2.10716722e-02 - 6.27423064e-03 * q
    series = -5.38523081e-02 + series * q
    series = 1.33325861e-01 + series * q
    series = -3.33333176e-01 + series * q
    small = z + z * q * series
    decay = tl.exp(-2.0 * tl.abs(z))  # never overflows
    large = (1.0 - decay) / (1.0 + decay)
    large = tl.where(z < 0.0, -large, large)
    return tl.where(tl.abs(z) < 0.55, small, large)


@triton.jit
def sigmoid(z):
    decay = tl.exp(-tl.abs(z))
    return tl.where(z < 0.0, decay, 1.0) / (1.0 + decay)


@triton.jit
def sigma(z, NONLINEARITY: tl.constexpr, PRECISION: tl.constexpr):
    if NONLINEARITY == "tanh":
        s = tanh(z, PRECISION)
    elif NONLINEARITY == "sigmoid":
        s = sigmoid(z)
    elif NONLINEARITY == "relu":
        s = tl.where(z > 0.0, z, tl.where(z == z, 0.0, z))  # NaN stays NaN
    else:
        s = z
    return s


@triton.jit
def sigma_slope(s, NONLINEARITY: tl.constexpr):
    """σ′(z) from s = σ(z)."""
    if NONLINEARITY == "tanh":
        slope = 1.0 - s * s
    elif NONLINEARITY == "sigmoid":
        slope = s * (1.0 - s)
    elif NONLINEARITY == "relu":
        slope = tl.where(s > 0.0, 1.0, 0.0)
    else:
        slope = tl.full(s.shape, 1.0, tl.float32)
    return slope
