"""Memory asked for before it is needed.

A step of the quickest kernels is over before the memory of a GPU answers, so a load one step ahead still waits. What
the loads will want is therefore fetched into the cache on the chip several steps earlier: that takes no registers, and
nobody waits for it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lipschitz_rnn.ops.common.triton.products import INTERPRETING

STEPS_AHEAD = tl.constexpr(8)  # about two microseconds, twice what the memory of an H200 takes


@triton.jit
def prefetch(pointers):
    """Asks for the 32 bytes around each address; all must be inside of what was allocated."""
    if not INTERPRETING:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
        )
