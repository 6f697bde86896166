"""Matrix products inside a kernel at a chosen accuracy.

``PRECISION`` is ``bf16`` or ``fp16`` (one pass in half precision), ``tf32``, ``bf16x3`` or ``bf16x6``. A bfloat16 keeps
8 bits of a float32's 24: a matrix written as a sum of three of them is exact, and the six products whose share is above
2⁻²⁴ give a float32-accurate result on the tensor cores. Sums of two have 16 bits, more than TF32's 11, at its cost.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lipschitz_rnn.ops.common.triton.support import interpreting

# Triton's interpreter multiplies bfloat16 operands by their bits, so there the rounded values go back to float32.
INTERPRETING = tl.constexpr(interpreting())
CUT_OFF = tl.constexpr(0.0 if interpreting() else 2e-8)  # measured on an H200, per 16 terms


@triton.jit
def round_to_operand(x, PRECISION: tl.constexpr):
    """What one pass multiplies: x rounded to the operand's precision (the tensor cores themselves would truncate)."""
    if PRECISION == "tf32":
        part = x
        if not INTERPRETING:
            part = tl.inline_asm_elementwise(
                "cvt.rna.tf32.f32 $0, $1;", "=r,f", [x], dtype=tl.float32, is_pure=True, pack=1
            )
    elif PRECISION == "fp16":
        part = x.to(tl.float16)
    elif INTERPRETING:
        part = round_to_bfloat16(x.to(tl.float32))
    else:
        part = x.to(tl.bfloat16)
    if INTERPRETING:
        part = part.to(tl.float32)
    return part


@triton.jit
def round_to_bfloat16(x):
    """To the nearest, ties to even, as a GPU does; Triton's interpreter (3.9) cuts off. The result is float32."""
    bits = x.to(tl.int32, bitcast=True)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    return tl.where(x == x, nearest.to(tl.float32, bitcast=True), x)  # NaN stays NaN


@triton.constexpr_function
def parts_of(precision):
    """How many matrices of the operand's precision add up to one."""
    return {"bf16x3": 2, "bf16x6": 3}.get(precision, 1)


@triton.jit
def load_parts(operand, offsets, SIZE: tl.constexpr, PRECISION: tl.constexpr):
    """The three left operands of ``product``; the second and third only matter where there are as many parts."""
    M1 = tl.load(operand + offsets)
    if INTERPRETING:
        M1 = M1.to(tl.float32)
    M2 = M1
    M3 = M1
    if PRECISION == "bf16x6" or PRECISION == "bf16x3":
        M2 = tl.load(operand + SIZE + offsets)
        if INTERPRETING:
            M2 = M2.to(tl.float32)
    if PRECISION == "bf16x6":
        M3 = tl.load(operand + 2 * SIZE + offsets)
        if INTERPRETING:
            M3 = M3.to(tl.float32)
    return M1, M2, M3


@triton.jit
def in_registers(M, COLUMNS: tl.constexpr):
    """M itself, as the result of the product M·1, exactly.

    Results of products lie in registers just as the tensor cores take a left operand from there, so nothing has to be
    read from shared memory again; Triton would read anything else in every turn of a loop.
    """
    i = tl.arange(0, COLUMNS)
    return tl.dot(M, (i[:, None] == i[None, :]).to(M.dtype)).to(M.dtype)


@triton.jit
def settled(columns):
    """The same columns, made opaque: Triton 3.6 would reshape them in shared memory, and fails where 16 ∤ N."""
    if not INTERPRETING:
        columns = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [columns], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    return columns


@triton.jit
def product(
    M1, M2, M3, h, PRECISION: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, COLUMNS: tl.constexpr,
    PAIRED: tl.constexpr = True,
):  # fmt: skip
    """M h in float32: M is (OUT, IN), given by its parts, h (IN, COLUMNS).

    What is read of M, not what is computed, takes the time, so all parts of h that meet a part of M stand side by side
    in one product. Without PAIRED they come one after another: Triton 3.6 cannot compile the other where h comes
    straight from memory.
    """
    h1 = round_to_operand(h, PRECISION)
    if PRECISION == "tf32":
        result = tl.dot(M1, h1, input_precision="tf32")
    elif PRECISION == "bf16x3":
        h2 = round_to_operand(h - h1.to(tl.float32), PRECISION)
        if PAIRED:
            # Columns of h1 and h2 interleaved, so that a pair of results stays in one thread.
            pair = settled(tl.reshape(tl.join(h1, h2), (IN, 2 * COLUMNS)))
            both = tl.dot(M1, pair, tl.dot(M2, pair))
            first, second = tl.split(tl.reshape(both, (OUT, COLUMNS, 2)))
            result = first + second
        else:
            result = tl.dot(M1, h1, tl.dot(M1, h2, tl.dot(M2, h1)))  # small terms first
    elif PRECISION == "bf16x6":
        rest = h - h1.to(tl.float32)
        h2 = round_to_operand(rest, PRECISION)
        h3 = round_to_operand(rest - h2.to(tl.float32), PRECISION)
        # The tensor cores cut off what they add, 16 terms at a time, which shrinks a long sum by about this much.
        cut_off: tl.constexpr = 1.0 + (IN // 16) * CUT_OFF
        if not PAIRED:
            result = tl.dot(M1, h3, tl.dot(M3, h1))  # small terms first
            result = tl.dot(M1, h2, tl.dot(M2, h1, tl.dot(M2, h2, result)))
            result = tl.dot(M1, h1, result)
        elif COLUMNS == 8:
            # [h1 h2] interleaved in one half of the columns and [h3 0] in the other: again nothing leaves its thread.
            four = tl.join(tl.join(h1, h2), tl.join(h3, tl.zeros_like(h3)))
            four = settled(tl.reshape(tl.permute(four, (0, 3, 1, 2)), (IN, 4 * COLUMNS)))
            result = tl.dot(M1, four, tl.dot(M2, four, tl.dot(M3, four)))
            large, small = tl.split(tl.permute(tl.reshape(result, (OUT, 2, COLUMNS, 2)), (0, 2, 3, 1)))
            first, second = tl.split(large)
            third, _ = tl.split(small)
            result = first * cut_off + (second + third)
        else:
            pair = settled(tl.reshape(tl.join(h1, h2), (IN, 2 * COLUMNS)))
            both = tl.dot(M1, pair, tl.dot(M2, pair))
            first, second = tl.split(tl.reshape(both, (OUT, COLUMNS, 2)))
            result = first * cut_off + (second + tl.dot(M1, h3, tl.dot(M3, h1)))
    else:
        result = tl.dot(M1, h1)
    return result


@triton.jit
def stack(upper, lower, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Two (ROWS, COLUMNS) matrices on top of each other."""
    return tl.reshape(tl.permute(tl.join(upper, lower), (2, 0, 1)), (2 * ROWS, COLUMNS))


@triton.jit
def unstack(both, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The inverse of ``stack``. Rows r and ROWS + r of a product lie in one thread, so nothing moves."""
    return tl.split(tl.permute(tl.reshape(both, (2, ROWS, COLUMNS)), (1, 2, 0)))
