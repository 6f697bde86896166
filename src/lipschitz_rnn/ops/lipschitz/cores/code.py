"""A thin layer over LLVM's instructions, so that a kernel reads like the loops it consists of.

Numbers are 64-bit integers, reals of one precision, and vectors of as many of those as a register holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

WORD, BIT, ADDRESS = ir.IntType(64), ir.IntType(1), ir.PointerType()


def _is_whole(kind: Any) -> bool:
    """Whole numbers or vectors of them, not reals."""
    return isinstance(kind.element if isinstance(kind, ir.VectorType) else kind, ir.IntType)


class Value:
    """A number in a register of the program being written; ``+ - * /`` and comparisons write the instruction."""

    def __init__(self, code: Code, raw: Any) -> None:
        self.code, self.raw = code, raw

    def _apply(self, name: str, other: Any) -> Value:
        return self._exactly(name if _is_whole(self.raw.type) else f"f{name}", other)

    def _exactly(self, name: str, other: Any) -> Value:
        operation = getattr(self.code.builder, name)
        return Value(self.code, operation(self.raw, self.code.like(other, self).raw))

    def __add__(self, other: Any) -> Value:
        return self._apply("add", other)

    def __sub__(self, other: Any) -> Value:
        return self._apply("sub", other)

    def __mul__(self, other: Any) -> Value:
        return self._apply("mul", other)

    def __truediv__(self, other: Any) -> Value:
        return self._exactly("fdiv", other)

    def __and__(self, other: Any) -> Value:
        return self._exactly("and_", other)

    def __xor__(self, other: Any) -> Value:
        return self._exactly("xor", other)

    def __lshift__(self, places: int) -> Value:
        return self._exactly("shl", places)

    def __rshift__(self, places: int) -> Value:
        """Zeros come in from the left."""
        return self._exactly("lshr", places)

    def compare(self, relation: str, other: Any) -> Value:
        """``relation`` as in Python; with a NaN only ``!=`` is true."""
        right, build = self.code.like(other, self).raw, self.code.builder
        if _is_whole(self.raw.type):
            return Value(self.code, build.icmp_signed(relation, self.raw, right))
        ordered = build.fcmp_unordered if relation == "!=" else build.fcmp_ordered
        return Value(self.code, ordered(relation, self.raw, right))


class Pointer(Value):
    """The address of reals; offsets count reals."""

    def at(self, offset: Any) -> Pointer:
        index = self.code.like(offset, None).raw
        return Pointer(self.code, self.code.builder.gep(self.raw, [index], source_etype=self.code.real))

    def scalar(self, offset: Any = 0) -> Value:
        return Value(self.code, self.code.builder.load(self.at(offset).raw, typ=self.code.real))

    def vector(self, offset: Any = 0) -> Value:
        loaded = self.code.builder.load(self.at(offset).raw, align=self.code.size, typ=self.code.vector)
        return Value(self.code, loaded)

    def put(self, value: Value, offset: Any = 0) -> None:
        self.code.builder.store(value.raw, self.at(offset).raw, align=self.code.size)

    def given(self) -> Value:
        """Whether it points anywhere: an array that is not there has address zero."""
        return Value(self.code, self.code.builder.ptrtoint(self.raw, WORD)).compare("!=", 0)


class Variable:
    """A value that changes; LLVM keeps it in a register."""

    def __init__(self, code: Code, start: Value) -> None:
        self.code, self.kind = code, type(start)
        with code.builder.goto_entry_block():
            self.slot = code.builder.alloca(start.raw.type)
        self.set(start)

    def get(self) -> Any:
        return self.kind(self.code, self.code.builder.load(self.slot, typ=self.slot.allocated_type))

    def set(self, value: Value) -> None:
        self.code.builder.store(value.raw, self.slot)


class Code:
    """A module in the making, for one precision and one width of register.

    Attributes:
        size: bytes of a real.
        lanes: reals in a vector.
        tile_rows: how many rows of a product are held in registers at once.
    """

    def __init__(self, size: int, lanes: int, tile_rows: int) -> None:
        self.module, self.size, self.lanes, self.tile_rows = ir.Module(), size, lanes, tile_rows
        self.real = ir.FloatType() if size == 4 else ir.DoubleType()
        self.vector = ir.VectorType(self.real, lanes)
        self.builder = ir.IRBuilder()

    def function(self, name: str, arguments: Sequence[str], body: Callable[..., Any], *, exported: bool = False) -> Any:
        """Writes a function; an argument whose name ends in ``*`` is a pointer, others are whole numbers."""
        kinds = [ADDRESS if argument.endswith("*") else WORD for argument in arguments]
        function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), kinds), name)
        function.linkage = "external" if exported else "internal"
        function.attributes.add("noinline")
        outer, self.builder = self.builder, ir.IRBuilder(function.append_basic_block())
        body(*(Pointer(self, raw) if raw.type == ADDRESS else Value(self, raw) for raw in function.args))
        self.builder.ret_void()
        self.builder = outer

        def call(*values: Any) -> None:
            self.builder.call(function, [self.like(value, None).raw for value in values])

        return call

    def like(self, value: Any, other: Value | None) -> Value:
        """A Python number as a constant of the type of ``other``, or as a whole number; a scalar as a vector."""
        kind = WORD if other is None else other.raw.type
        if not isinstance(value, Value):
            repeated = isinstance(kind, ir.VectorType)
            return Value(self, ir.Constant(kind, [value] * kind.count if repeated else value))
        if isinstance(kind, ir.VectorType) and value.raw.type == kind.element:
            return self.splat(value, kind)
        return value

    def splat(self, value: Value, kind: Any = None) -> Value:
        """A scalar in every lane of a vector, of the full width unless ``kind`` says otherwise."""
        kind = kind or self.vector
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value.raw, ir.IntType(32)(0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), None)
        return Value(self, self.builder.shuffle_vector(first, first, zeros))

    def interleaved(self, evens: Value, odds: Value) -> Value:
        """Two vectors of half the width as one: the first of each, then the second of each, …"""
        half = evens.raw.type.count
        order = [place for i in range(half) for place in (i, half + i)]
        mask = ir.Constant(ir.VectorType(ir.IntType(32), 2 * half), order)
        return Value(self, self.builder.shuffle_vector(evens.raw, odds.raw, mask))

    def zero(self) -> Value:
        return Value(self, ir.Constant(self.vector, [0.0] * self.lanes))

    def one(self) -> Value:
        return Value(self, ir.Constant(self.real, 1.0))

    def sum(self, vector: Value) -> Value:
        """Of a vector's lanes, in pairs."""
        lanes = [Value(self, self.builder.extract_element(vector.raw, WORD(i))) for i in range(self.lanes)]
        while len(lanes) > 1:
            lanes = [one + other for one, other in zip(lanes[::2], lanes[1::2], strict=True)]
        return lanes[0]

    def intrinsic(self, name: str, *operands: Value) -> Value:
        kind = operands[0].raw.type
        suffix = f"v{kind.count}f{8 * self.size}" if isinstance(kind, ir.VectorType) else f"f{8 * self.size}"
        full = f"llvm.{name}.{suffix}"
        known = self.module.globals.get(full)
        if known is None:
            known = ir.Function(self.module, ir.FunctionType(kind, [kind] * len(operands)), full)
        return Value(self, self.builder.call(known, [operand.raw for operand in operands]))

    def fma(self, a: Value, b: Any, c: Any) -> Value:
        """a b + c in one rounding."""
        return self.intrinsic("fma", a, self.like(b, a), self.like(c, a))

    def select(self, condition: Value, one: Any, other: Any) -> Value:
        like = one if isinstance(one, Value) else other
        one, other = self.like(one, like), self.like(other, like)
        return Value(self, self.builder.select(condition.raw, one.raw, other.raw))

    def as_bits(self, value: Value) -> Value:
        bits = ir.VectorType(ir.IntType(8 * self.size), value.raw.type.count)
        return Value(self, self.builder.bitcast(value.raw, bits))

    def as_reals(self, value: Value) -> Value:
        return Value(self, self.builder.bitcast(value.raw, ir.VectorType(self.real, value.raw.type.count)))

    def low_bits(self, words: Value) -> Value:
        """The lower half of each 64-bit number."""
        return Value(self, self.builder.trunc(words.raw, ir.VectorType(ir.IntType(32), words.raw.type.count)))

    def from_signed(self, bits: Value) -> Value:
        return Value(self, self.builder.sitofp(bits.raw, ir.VectorType(self.real, bits.raw.type.count)))

    def from_unsigned(self, bits: Value) -> Value:
        return Value(self, self.builder.uitofp(bits.raw, ir.VectorType(self.real, bits.raw.type.count)))

    def shifted_right(self, bits: Value, places: int) -> Value:
        """With the sign coming in from the left."""
        return Value(self, self.builder.ashr(bits.raw, self.like(places, bits).raw))

    def word(self, table: Pointer, place: int) -> Value:
        """A whole number from a table of them."""
        address = self.builder.gep(table.raw, [WORD(place)], source_etype=WORD)
        return Value(self, self.builder.load(address, typ=WORD))

    def pointer(self, address: Value) -> Pointer:
        return Pointer(self, self.builder.inttoptr(address.raw, ADDRESS))

    @contextmanager
    def loop(self, stop: Any, start: Any = 0, step: int = 1) -> Iterator[Value]:
        """Counts upwards while a whole step fits below ``stop``."""
        index = Variable(self, self.like(start, None))
        function = self.builder.function
        head, body, after = (function.append_basic_block() for _ in range(3))
        self.builder.branch(head)
        self.builder.position_at_end(head)
        inside = (index.get() + (step - 1)).compare("<", stop)
        self.builder.cbranch(inside.raw, body, after)
        self.builder.position_at_end(body)
        current = index.get()
        yield current
        index.set(current + step)
        self.builder.branch(head)
        self.builder.position_at_end(after)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        with self.builder.if_then(condition.raw):
            yield

    def either(self, condition: Value) -> Any:
        """``with code.either(condition) as (one, other):`` and inside it a ``with`` for each."""
        return self.builder.if_else(condition.raw)

    def switch(self, selector: Value, cases: Sequence[Callable[[], None]]) -> None:
        """One of the cases, by its number."""
        after = self.builder.function.append_basic_block()
        blocks = [self.builder.function.append_basic_block() for _ in cases]
        chosen = self.builder.switch(selector.raw, after)
        for number, (block, case) in enumerate(zip(blocks, cases, strict=True)):
            chosen.add_case(WORD(number), block)
            self.builder.position_at_end(block)
            case()
            self.builder.branch(after)
        self.builder.position_at_end(after)
