"""The matrix product of the kernels: tiles of the result in registers, both operands in the core's own cache."""

from __future__ import annotations

from typing import Any

from lipschitz_rnn.ops.lipschitz.cores.code import Code, Pointer, Value, Variable

PANEL = 2  # vectors in a panel, the columns that a tile of several rows spans
# Vectors that a single row takes at once, and how many must be left for later turns. Fewer than eight wait for each
# other's sums, and twelve read from the second cache faster; two turns of eight beat one of twelve and a rest of four.
ALONE = ((12, 8), (8, 8), (12, 0), (8, 0))
UNROLL = 4


def write_product(code: Code, *, transposed: bool) -> Any:
    """out = a b, or out += a b, with a (M, K), and b (K, V vectors) in panels of two vectors.

    Row k of panel j begins at ``b + j * panel + k * row``: b may be packed panel by panel, or a matrix as it is. a is
    taken by rows, a[i * stride + k], or ``transposed``, a[i + k * stride]. Each entry is one sum over k in order, so
    that a row of the result does not depend on how many rows there are.

    Arguments of the function: M, K, V, a, stride, b, panel, row, out, out_stride, accumulate.
    """

    def body(
        M: Value, K: Value, V: Value, a: Pointer, stride: Value, b: Pointer, panel: Value, row: Value,
        out: Pointer, out_stride: Value, accumulate: Value,
    ) -> None:  # fmt: skip
        def tile(first: Value, rows: int, columns: list[Value], vectors: int) -> None:
            """``rows`` of the result from row ``first``, in the panels that begin at these vectors."""
            lefts = [a.at((first + i) * (1 if transposed else stride)) for i in range(rows)]
            places = [(start, v) for start in columns for v in range(vectors)]
            rights = {start: b.at(_panel_of(start, panel)) for start in columns}
            sums = [[Variable(code, code.zero()) for _ in places] for _ in range(rows)]

            def add(k: Value) -> None:
                right = [rights[start].vector(k * row + v * code.lanes) for start, v in places]
                for left, row_sums in zip(lefts, sums, strict=True):
                    factor = code.splat(left.scalar(k * stride if transposed else k))
                    for total, vector in zip(row_sums, right, strict=True):
                        total.set(code.fma(factor, vector, total.get()))

            whole = Variable(code, code.like(0, None))
            with code.loop(K, step=UNROLL) as k:
                for ahead in range(UNROLL):
                    add(k + ahead)
                whole.set(k + UNROLL)
            with code.loop(K, start=whole.get()) as k:
                add(k)
            targets = [
                (out.at((first + i) * out_stride + (start + v) * code.lanes), total.get())
                for i, row_sums in enumerate(sums)
                for (start, v), total in zip(places, row_sums, strict=True)
            ]
            with code.either(accumulate.compare("!=", 0)) as (increase, replace):
                with increase:
                    for target, total in targets:
                        target.put(target.vector() + total)
                with replace:
                    for target, total in targets:
                        target.put(total)

        def all_rows(column: Value, vectors: int) -> None:
            done = Variable(code, code.like(0, None))
            for rows in sorted({code.tile_rows, 4, 2, 1}, reverse=True):
                with code.loop(M, start=done.get(), step=rows) as first:
                    tile(first, rows, [column], vectors)
                    done.set(first + rows)

        begin = Variable(code, code.like(0, None))
        with code.when(M.compare("==", 1)):
            for vectors, left in ALONE:
                with code.loop(V - left, start=begin.get(), step=vectors) as column:
                    tile(code.like(0, None), 1, [column + PANEL * q for q in range(vectors // PANEL)], PANEL)
                    begin.set(column + vectors)
        with code.loop(V, start=begin.get(), step=PANEL) as column:
            all_rows(column, PANEL)
            begin.set(column + PANEL)
        with code.loop(V, start=begin.get()) as column:
            all_rows(column, 1)

    def _panel_of(start: Value, panel: Value) -> Value:
        return (start >> 1) * panel

    names = ("M", "K", "V", "a*", "stride", "b*", "panel", "row", "out*", "out_stride", "accumulate")
    return code.function("product_transposed" if transposed else "product", names, body)
