"""σ and its slope inside a kernel."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tanh(z, FAST: tl.constexpr):
    """tanh to float32 accuracy, or to about 11 bits by the GPU's own instruction."""
    if FAST:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [z], dtype=tl.float32, is_pure=True, pack=1)
    # Near zero the quotient below cancels, so a polynomial serves there: an odd minimax fit on |z| ≤ 0.55.
    q = z * z
    small = z + z * q * (
        -3.33333176e-01 + q * (1.33325861e-01 + q * (-5.38523081e-02 + q * (2.10716722e-02 + q * -6.27423064e-03)))
    )
    decay = tl.exp(-2.0 * tl.abs(z))  # never overflows
    large = (1.0 - decay) / (1.0 + decay)
    large = tl.where(z < 0.0, -large, large)
    return tl.where(tl.abs(z) < 0.55, small, large)


@triton.jit
def sigmoid(z):
    decay = tl.exp(-tl.abs(z))
    return tl.where(z < 0.0, decay, 1.0) / (1.0 + decay)


@triton.jit
def sigma(z, NONLINEARITY: tl.constexpr, FAST: tl.constexpr):
    if NONLINEARITY == "tanh":
        return tanh(z, FAST)
    elif NONLINEARITY == "sigmoid":
        return sigmoid(z)
    elif NONLINEARITY == "relu":
        return tl.where(z > 0.0, z, tl.where(z == z, 0.0, z))  # NaN stays NaN
    else:
        return z


@triton.jit
def sigma_slope(s, NONLINEARITY: tl.constexpr):
    """σ′(z) from s = σ(z)."""
    if NONLINEARITY == "tanh":
        return 1.0 - s * s
    elif NONLINEARITY == "sigmoid":
        return s * (1.0 - s)
    elif NONLINEARITY == "relu":
        return tl.where(s > 0.0, 1.0, 0.0)
    else:
        return tl.full(s.shape, 1.0, tl.float32)
