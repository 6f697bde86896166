"""What both kernels share: how scratch is laid out, the coefficients of a step, products with packed matrices."""

from __future__ import annotations

from typing import Any

from lipschitz_rnn.ops.lipschitz.cores.arguments import Arguments
from lipschitz_rnn.ops.lipschitz.cores.code import WORD, Code, Pointer, Value
from lipschitz_rnn.ops.lipschitz.cores.products import PANEL
from lipschitz_rnn.ops.lipschitz.cores.rows import Rows
from lipschitz_rnn.ops.lipschitz.cores.sizes import gap

KERNEL_ARGUMENTS = ("table*", "scratch*", "network", "group", "first", "rows")


class Step(Rows):
    """A step of the samples ``first`` to ``first + rows`` of network ``s``."""

    def __init__(self, code: Code, table: Pointer, s: Value, first: Value, rows: Value) -> None:
        given = Arguments(code, table)
        super().__init__(code, given["units"], given["padded"])
        self.given, self.s, self.first, self.rows, self.stages = given, s, first, rows, given["stages"]
        self.gap, self.wide_gap = gap(self.padded, code.lanes), gap(self.padded * 2, code.lanes)
        self.width = self.padded >> (code.lanes.bit_length() - 1)  # N in vectors

    def coefficients(self, stage: Any) -> Pointer:
        """aᵢ₀, aᵢ₁, … of a stage; the weights b after the last one."""
        return self.given.array("table").at(self.stages * stage + 1)

    def row(self, name: str, r: Value, **indices: Value) -> Pointer:
        """One sample's row of an array."""
        return self.given.at(name, s=self.s, b=self.first + r, **indices)

    def length(self, t: Value, r: Value) -> Value:
        """ε of one sample's step."""
        code, given = self.code, self.given
        own = Value(code, code.builder.ptrtoint(self.row("timespans", r, t=t).raw, WORD))
        return code.pointer(code.select(given["timespans"].compare("!=", 0), own, given["table"])).scalar()

    def multiply(
        self, product: Any, rows: Value, a: Pointer, stride: Value, name: str, depth: Value, out: Pointer,
        out_stride: Value, *, width: Value, accumulate: bool = False,
    ) -> None:  # fmt: skip
        """out = a · the packed matrix ``name`` of ``depth`` rows."""
        matrix, reals = self.given.at(name, s=self.s), PANEL * self.code.lanes
        product(rows, depth, width, a, stride, matrix, depth * reals, reals, out, out_stride, int(accumulate))

    def load(self, name: str, out: Pointer) -> None:
        """An array (S, B, N) into scratch; zeros if it is not there."""
        with self.vectors(self.rows) as (r, column):
            place = out.at(r * self.gap + column)
            place.put(self.code.zero())
            with self.code.when(self.given.array(name).given()):
                place.put(self.fetch(self.row(name, r), column))

    def unload(self, name: str, source: Pointer) -> None:
        """Back from scratch, if the array is there."""
        with self.code.when(self.given.array(name).given()), self.vectors(self.rows) as (r, column):
            self.deliver(self.row(name, r), column, source.vector(r * self.gap + column))
