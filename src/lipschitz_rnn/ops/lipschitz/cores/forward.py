"""The forward kernel: one core takes a few rows of the batch through all of time.

The rows' state and both matrices stay in that core's cache, and no core waits for another.
"""

from __future__ import annotations

from typing import Any

from lipschitz_rnn.ops.lipschitz.cores.code import Code, Pointer, Value, Variable
from lipschitz_rnn.ops.lipschitz.cores.noise import disturbed
from lipschitz_rnn.ops.lipschitz.cores.step import KERNEL_ARGUMENTS, Step


def write_forward(code: Code, product: Any) -> None:
    def body(table: Pointer, scratch: Pointer, s: Value, group: Value, first: Value, rows: Value) -> None:
        step = Step(code, table, s, first, rows)
        given, stages, units, plane = step.given, step.stages, step.units, step.gap * rows
        state, point, slopes, both = (scratch.at(plane * i) for i in (0, 1, 2, stages + 2))
        step.load("start", state)
        with code.loop(given["steps"]) as t, code.loop(stages) as i:
            at = code.select(i.compare("==", 0), state, point)
            step.multiply(product, rows, Pointer(code, at.raw), step.gap, "forward_panels", units, both,
                          step.wide_gap, width=step.width * 2)  # fmt: skip
            with code.when(given["features"].compare("!=", 0)):
                step.multiply(product, rows, step.row("drive", code.like(0, None), t=t), given["drive.b"],
                              "input_panels", given["features"], both, step.wide_gap, width=step.width,
                              accumulate=True)  # fmt: skip
            _write_slope(step, t, i, both, slopes.at(plane * i))
            _write_advance(step, t, i, state, slopes, point)
        step.unload("last", state)

    code.function("forward", KERNEL_ARGUMENTS, body, exported=True)


def _write_slope(step: Step, t: Value, i: Value, both: Pointer, slope: Pointer) -> None:
    """kᵢ = αA Hᵢ + σ(W Hᵢ + u) from the products."""
    code, given = step.code, step.given
    direct, save = given["features"].compare("==", 0), given["save"].compare("!=", 0)

    def write(sigma: Any) -> None:
        with step.vectors(step.rows) as (r, column):
            place = both.at(r * step.wide_gap + column)
            slot = slope.at(r * step.gap + column)
            slot.put(place.vector() + given.at("bias", s=step.s).vector(column))
            with code.when(direct):
                slot.put(place.vector() + step.fetch(step.row("drive", r, t=t), column))
            value = sigma(slot.vector())
            slot.put(place.vector(step.padded) + value)
            with code.when(save):
                step.deliver(step.row("tape", r, t=t, k=i + 1), column, value)

    step.sigma(given["nonlinearity"], write)


def _write_advance(step: Step, t: Value, i: Value, state: Pointer, slopes: Pointer, point: Pointer) -> None:
    """The point of stage i + 1, or after the last stage the new state: h + ε Σ cⱼkⱼ, and its noise."""
    code = step.code
    last, keep = (i + 1).compare("==", step.stages), step.given["keep"].compare("!=", 0)
    coefficients = step.coefficients(i + 1)
    with step.vectors(step.rows) as (r, column):
        place, plane = r * step.gap + column, step.gap * step.rows
        change = step.combined(coefficients, i + 1, slopes.at(place), plane)
        value = code.fma(change, step.length(t, r), state.vector(place))
        with code.either(last) as (finish, go_on):
            with finish:
                new = Variable(code, value)
                if code.size == 4:
                    with code.when(step.given.array("noise_words").given()):
                        new.set(disturbed(step, t, r, column, value))
                state.put(new.get(), place)
                with code.when(keep):
                    step.deliver(step.row("tape", r, t=t, k=code.like(0, None)), column, new.get())
            with go_on:
                point.put(value, place)
