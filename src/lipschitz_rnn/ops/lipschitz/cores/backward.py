"""The backward kernel: one core takes a few rows of the batch back through all of time.

The mathematics is that of ``adjoint.py``. κ and d of a chunk of steps stay in the cache until they enter the gradients
of the matrices, whose sums over other rows are added in the end, in a fixed order.
"""

from __future__ import annotations

from typing import Any

from lipschitz_rnn.ops.lipschitz.cores.code import Code, Pointer, Value, Variable
from lipschitz_rnn.ops.lipschitz.cores.noise import noise_factor
from lipschitz_rnn.ops.lipschitz.cores.products import PANEL
from lipschitz_rnn.ops.lipschitz.cores.step import KERNEL_ARGUMENTS, Step


class _Scratch:
    """Where things lie: y and ηᵢ of the rows; of every step in the chunk Hᵢ, kᵢ, Σdᵢ, (κᵢ, dᵢ) and (x, 1)."""

    def __init__(self, step: Step, start: Pointer) -> None:
        self.step = step
        rows, stages, self.plane = step.rows, step.stages, step.gap * step.rows
        self.span, self.wide_span = self.plane * step.given["chunk"], step.wide_gap * rows * step.given["chunk"]
        self.adjoint = start
        self.etas = start.at(self.plane)
        self.states = self.etas.at(self.plane * stages)
        self.slopes = self.states.at(self.span * stages)
        self.drive = self.slopes.at(self.span * stages)
        self.both = self.drive.at(self.span)
        self.inputs = self.both.at(self.wide_span * stages)


def write_backward(code: Code, product: Any, transposed: Any) -> None:
    def body(table: Pointer, scratch: Pointer, s: Value, group: Value, first: Value, rows: Value) -> None:
        step = Step(code, table, s, first, rows)
        given, at = step.given, _Scratch(step, scratch)
        step.load("grad_last", at.adjoint)
        end = Variable(code, given["steps"])
        with code.loop(given["chunks"]):
            stop = end.get()
            short = (stop - given["chunk"]).compare("<", 0)
            start = code.select(short, code.like(0, None), stop - given["chunk"])
            _write_states(step, at, product, start, stop)
            with code.loop(stop - start) as back:
                _write_step(step, at, product, stop - 1 - back, stop - 1 - back - start)
            _write_sums(step, at, transposed, group, start, stop)
            end.set(start)
        step.unload("grad_start", at.adjoint)

    code.function("backward", KERNEL_ARGUMENTS, body, exported=True)


def _write_states(step: Step, at: _Scratch, product: Any, start: Value, stop: Value) -> None:
    """Hᵢ, and where they are needed kᵢ, of all steps of the chunk: nothing here depends on the step before."""
    code, given = step.code, step.given
    with code.loop(stop, start=start) as t:
        own = at.states.at(at.plane * (t - start))
        with code.either(t.compare("==", 0)) as (first, later):
            with first:
                step.load("start", own)
            with later, step.vectors(step.rows) as (r, column):
                tape = step.row("tape", r, t=t - 1, k=code.like(0, None))
                own.put(step.fetch(tape, column), r * step.gap + column)
    with code.when(given["recompute"].compare("!=", 0)), code.loop(step.stages) as i:
        states, slopes, coefficients = at.states.at(at.span * i), at.slopes.at(at.span * i), step.coefficients(i)
        with code.when(i.compare("!=", 0)), code.loop(stop, start=start) as t, step.vectors(step.rows) as (r, column):
            place = at.plane * (t - start) + r * step.gap + column
            own = at.slopes.at(place)
            change = step.combined(coefficients, i, own, at.span)
            states.put(code.fma(change, step.length(t, r), at.states.vector(place)), place)
        step.multiply(product, step.rows * (stop - start), states, step.gap, "slope_panels", step.units, slopes,
                      step.gap, width=step.width)  # fmt: skip
        with code.loop(stop, start=start) as t, step.vectors(step.rows) as (r, column):
            slot = slopes.at(at.plane * (t - start) + r * step.gap + column)
            slot.put(slot.vector() + step.fetch(step.row("tape", r, t=t, k=i + 1), column))


def _write_step(step: Step, at: _Scratch, product: Any, t: Value, c: Value) -> None:
    """Back through one step, the c-th of its chunk: y becomes ∂L/∂h before it."""
    code, given, stages = step.code, step.given, step.stages
    with code.when(given.array("grad_states").given()), step.vectors(step.rows) as (r, column):
        slot = at.adjoint.at(r * step.gap + column)
        slot.put(slot.vector() + step.fetch(step.row("grad_states", r, t=t), column))
    if code.size == 4:
        with code.when(given.array("noise_words").given()), step.vectors(step.rows) as (r, column):
            slot = at.adjoint.at(r * step.gap + column)
            slot.put(slot.vector() * noise_factor(step, t, r, column))
    sums = at.drive.at(at.plane * c)
    with code.loop(stages) as done:
        i = stages - 1 - done
        both = at.both.at(at.wide_span * i + step.wide_gap * step.rows * c)
        _write_stage(step, at, t, i, both, sums)
        step.multiply(product, step.rows, both, step.wide_gap, "backward_panels", step.padded * 2,
                      at.etas.at(at.plane * i), step.gap, width=step.width)  # fmt: skip
    with code.when(given.array("grad_timespans").given()):
        _write_length(step, at, t, c)
    with code.when(given.array("grad_drive").given()), step.vectors(step.rows) as (r, column):
        step.deliver(step.row("grad_drive", r, t=t), column, sums.vector(r * step.gap + column))
    with step.vectors(step.rows) as (r, column):
        place = r * step.gap + column
        total = Variable(code, at.adjoint.vector(place))
        with code.loop(stages) as i:
            total.set(total.get() + at.etas.vector(at.plane * i + place))
        at.adjoint.put(total.get(), place)


def _write_stage(step: Step, at: _Scratch, t: Value, i: Value, both: Pointer, sums: Pointer) -> None:
    """κᵢ = ε(bᵢy + Σⱼ>ᵢ aⱼᵢηⱼ) and dᵢ = κᵢ ⊙ σ′, side by side, and the sum of d so far."""
    code, stages = step.code, step.stages
    weight = step.coefficients(stages).scalar(i)

    def write(slope: Any) -> None:
        with step.vectors(step.rows) as (r, column):
            place = r * step.gap + column
            total = Variable(code, at.adjoint.vector(place) * weight)
            with code.loop(stages, start=i + 1) as j:
                coefficient = step.coefficients(j).scalar(i)
                with code.when(coefficient.compare("!=", 0.0)):
                    total.set(code.fma(at.etas.vector(at.plane * j + place), coefficient, total.get()))
            kappa = total.get() * step.length(t, r)
            d = kappa * slope(step.fetch(step.row("tape", r, t=t, k=i + 1), column))
            pair = both.at(r * step.wide_gap + column)
            pair.put(kappa)
            pair.put(d, step.padded)
            before = Variable(code, code.zero())
            with code.when((i + 1).compare("!=", stages)):
                before.set(sums.vector(place))
            sums.put(before.get() + d, place)

    step.slope(step.given["nonlinearity"], write)


def _write_length(step: Step, at: _Scratch, t: Value, c: Value) -> None:
    """∂L/∂ε of one step: y·Σ bᵢkᵢ + Σⱼ ηⱼ·Σᵢ aⱼᵢkᵢ."""
    code, stages = step.code, step.stages
    with code.loop(step.rows) as r:
        total = Variable(code, code.zero())
        with code.loop(step.padded, step=code.lanes) as column:
            place = r * step.gap + column
            slopes = at.slopes.at(at.plane * c + place)
            change = step.combined(step.coefficients(stages), stages, slopes, at.span)
            total.set(code.fma(at.adjoint.vector(place), change, total.get()))
            with code.loop(stages, start=code.like(1, None)) as j:
                change = step.combined(step.coefficients(j), j, slopes, at.span)
                total.set(code.fma(at.etas.vector(at.plane * j + place), change, total.get()))
        step.row("grad_timespans", r, t=t).put(code.sum(total.get()))


def _write_sums(step: Step, at: _Scratch, transposed: Any, group: Value, start: Value, stop: Value) -> None:
    """Adds a chunk to the gradients of the matrices: Σ κᵢHᵢᵀ and Σ dᵢHᵢᵀ, Σ x dᵀ and Σ d."""
    code, given = step.code, step.given
    panel, depth = PANEL * code.lanes, step.rows * (stop - start)
    with code.when(given.array("grad_matrices").given()), code.loop(step.stages) as i:
        out = given.at("grad_matrices", s=step.s, g=group)
        transposed(step.padded * 2, depth, step.width, at.both.at(at.wide_span * i), step.wide_gap,
                   at.states.at(at.span * i), panel, step.gap, out, step.gap, 1)  # fmt: skip
    with code.when(given.array("grad_inputs").given()):
        features = given["features"]
        pitch = features + 1
        with code.loop(stop, start=start) as t, code.loop(step.rows) as r:
            own = at.inputs.at(((t - start) * step.rows + r) * pitch)
            x = step.row("drive", r, t=t)
            with code.loop(features) as q:
                own.put(x.scalar(q), q)
            own.put(code.one(), features)
        out = given.at("grad_inputs", s=step.s, g=group)
        transposed(pitch, depth, step.width, at.inputs, pitch, at.drive, panel, step.gap, out, step.gap, 1)
