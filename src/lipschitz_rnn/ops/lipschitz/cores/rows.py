"""What happens to a few rows of the batch between two products, vector by vector.

Scratch rows are whole vectors with a gap between them; rows of tensors end where the tensor does, so that their last
vector is read and written number by number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lipschitz_rnn.ops.lipschitz.cores.code import Code, Pointer, Value, Variable
from lipschitz_rnn.ops.lipschitz.cores.sigma import FUNCTIONS, SLOPES
from lipschitz_rnn.ops.lipschitz.cores.sizes import NONLINEARITIES


class Rows:
    """Writes loops over the vectors of rows with N units."""

    def __init__(self, code: Code, units: Value, padded: Value) -> None:
        self.code, self.units, self.padded = code, units, padded

    @contextmanager
    def vectors(self, rows: Value) -> Iterator[tuple[Value, Value]]:
        """Every vector of every row: the row, and where the vector begins in it."""
        with self.code.loop(rows) as row, self.code.loop(self.padded, step=self.code.lanes) as column:
            yield row, column

    def fetch(self, tensor: Pointer, column: Value) -> Value:
        """A vector of a tensor's row; zeros beyond its end."""
        code, left = self.code, self.units - column
        found = Variable(code, code.zero())
        with code.either(left.compare(">=", code.lanes)) as (whole, part):
            with whole:
                found.set(tensor.vector(column))
            with part, code.loop(left) as i:
                one = code.builder.insert_element(found.get().raw, tensor.scalar(column + i).raw, i.raw)
                found.set(Value(code, one))
        return found.get()

    def deliver(self, tensor: Pointer, column: Value, vector: Value) -> None:
        """The same, written."""
        code, left = self.code, self.units - column
        with code.either(left.compare(">=", code.lanes)) as (whole, part):
            with whole:
                tensor.put(vector, column)
            with part, code.loop(left) as i:
                tensor.put(Value(code, code.builder.extract_element(vector.raw, i.raw)), column + i)

    def by_nonlinearity(self, number: Value, functions: dict[str, Any], write: Callable[[Any], None]) -> None:
        """``write`` with the σ, or the slope, of the nonlinearity that has this number."""

        def case(name: str) -> Callable[[], None]:
            return lambda: write(lambda value: functions[name](self.code, value))

        self.code.switch(number, [case(name) for name in NONLINEARITIES])

    def sigma(self, number: Value, write: Callable[[Any], None]) -> None:
        self.by_nonlinearity(number, FUNCTIONS, write)

    def slope(self, number: Value, write: Callable[[Any], None]) -> None:
        self.by_nonlinearity(number, SLOPES, write)

    def combined(self, coefficients: Pointer, count: Value, first: Pointer, distance: Value) -> Value:
        """Σ cᵢkᵢ over i < count, without those whose coefficient is zero; the vectors kᵢ lie ``distance`` apart."""
        code = self.code
        total = Variable(code, code.zero())
        with code.loop(count) as i:
            coefficient = coefficients.scalar(i)
            with code.when(coefficient.compare("!=", 0.0)):
                total.set(code.fma(first.vector(distance * i), coefficient, total.get()))
        return total.get()
