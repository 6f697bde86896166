"""The rounding of a layer: all its recurrences, each above the ones that feed it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.ops.common.precision import coarsest_float32
from lipschitz_rnn.ops.lipschitz.nonlinearities import get_nonlinearity
from lipschitz_rnn.ops.lipschitz.substeps import count_substeps
from lipschitz_rnn.stability.certification import certify
from lipschitz_rnn.stability.proof.certificate import Certificate
from lipschitz_rnn.stability.proof.gain import step_gain
from lipschitz_rnn.stability.proof.matching import require_about
from lipschitz_rnn.stability.proof.modules import statements
from lipschitz_rnn.stability.proof.peak import PeakBound, anywhere, checked_vector
from lipschitz_rnn.stability.proof.precision import HALF, as_precision, in_force, rounded
from lipschitz_rnn.stability.proof.rounding import Ball, Matrix
from lipschitz_rnn.stability.proof.running import Disturbance, PartBound, RunningPart, measured, trajectory
from lipschitz_rnn.stability.proof.stepping import OWN
from lipschitz_rnn.stability.running.bound import RoundingBound, collect
from lipschitz_rnn.units.lipschitz.autocast import result_dtype
from lipschitz_rnn.units.lipschitz.layer import LipschitzRNN
from lipschitz_rnn.units.sequences import Sequences, reverse


class LayerRun:
    """A layer with its certificates, for one precision."""

    def __init__(
        self,
        layer: LipschitzRNN,
        certificate: Certificate | None,
        precision: str | None,
        backend: str | None,
        times: Any,
        radius: float,
        measure: bool,
    ) -> None:
        require_sequential(layer)
        self.layer, self.times, self.radius, self.measure = layer, times, radius, measure
        cell = layer.cell()
        on_cpu = cell.weight_ih.device.type == "cpu" and layer.backend != "triton"
        self.backend = backend or ("cpu" if on_cpu else "any")
        self.asked = precision
        self.certificate = certificate
        self.inputs_off: Tensor | None = None
        """(T, B, p): by how much the inputs that the network computes may differ from the ones given."""
        self._running: dict[str, RunningPart] = {}

    def certificates(self, spans: tuple[float, float] | None) -> tuple[Certificate, ...]:
        whole = self.certificate
        if whole is None:
            whole = certify(self.layer, step_size=spans, precision=self.asked)
        else:  # it does not say whether the layer runs what it states, now
            list(statements(self.layer))
        if not whole.holds:
            raise ValueError(
                f"the layer has no certificate, so nothing bounds how rounding adds up: {whole.reason}. "
                f"What to try: {whole.next_step}"
            )
        parts = whole.parts or (whole,)
        if len(parts) != len(self.layer.cells):
            raise ValueError(
                f"the certificate has {len(parts)} parts, but the layer has {len(self.layer.cells)} recurrences; "
                "pass certify(layer)"
            )
        return parts

    def running(self, certificate: Certificate, key: str) -> RunningPart:
        """The recurrence of a cell, with the precision that it runs in."""
        if key in self._running and self._running[key].certificate is certificate:
            return self._running[key]
        cell: Any = self.layer.cells[key]
        A, W = (matrix.detach().double().cpu().numpy() for matrix in cell.hidden_matrices())
        kind, sigma = as_precision(certificate.precision), get_nonlinearity(cell.nonlinearity)
        A, W = rounded(A, kind), rounded(W, kind)
        require_about(certificate, _named(self.layer, key), A, W, float(cell.alpha), cell.integrator, sigma)
        if certificate.nonlinearity not in (None, cell.nonlinearity):
            raise ValueError(
                f"the certificate is about {certificate.nonlinearity}, but {_named(self.layer, key)} has "
                f"{cell.nonlinearity}, which rounds differently; certify the layer again"
            )
        # A certificate that was passed in may be for a finer precision than the one that runs.
        name, inputs = running_precision(cell, self.asked or ("exact" if self.certificate else certificate.precision))
        U = cell.weight_ih.detach().double().cpu().numpy()
        b = None if cell.bias_ih is None else cell.bias_ih.detach().double().cpu().numpy()
        returned = _cast_to(self.asked, result_dtype(cell.weight_ih))
        self._running[key] = RunningPart(certificate, name, self.backend, U, b, inputs, returned)
        return self._running[key]

    def bound(self, inputs: Any, hx: Any, lengths: Tensor | None, limit: Any) -> RoundingBound | PeakBound:
        if limit is not None:
            if len(self.layer.cells) > 1:
                raise ValueError(
                    f"input_bound is for a single layer, and this one has {len(self.layer.cells)} recurrences; pass "
                    "inputs, or bound the layers one by one"
                )
            self._require_any_sequence(hx, lengths)
            (certificate,) = self.certificates(None)
            key, cell = next(iter(self.layer.cells.items()))
            part = self.running(certificate, key)
            least = _shortest(cell)
            part.factors(np.full((1, 1), least))  # raises if the certificate does not cover the layer's step
            return anywhere(part, checked_vector(limit, "input_bound", self.layer.input_size), least=least)
        sequences = self.layer.read(inputs, lengths, self.times)
        state = None if hx is None else self.layer.read_state(hx, sequences)[0]
        for name, tensor in (("inputs", sequences.inputs), ("hx", state)):
            if tensor is not None and not bool(torch.isfinite(_valid(tensor, sequences, name)).all()):
                raise ValueError(f"{name} is not finite everywhere; rounding is bounded for finite numbers")
        spans = sequences.timespans
        moving = None if spans is None else spans[spans > 0]
        covered = None if moving is None or moving.numel() == 0 else (float(moving.min()), float(moving.max()))
        parts = self.certificates(covered)
        if self.measure and len(parts) > 1:
            raise ValueError(
                f"measured=True is for a single layer, and this one has {len(parts)} recurrences; leave it out"
            )
        if self.measure:
            output, _ = self.layer.run(sequences, None if state is None else (state,), True)
            assert output is not None
            self.computed = output.detach().double().cpu().numpy()
            if sequences.lengths is not None:  # outputs beyond the end are zero, where the state rests
                self._rest(sequences.lengths.cpu().numpy())
        return self._run(sequences, state, parts)

    def _require_any_sequence(self, hx: Any, lengths: Any) -> None:
        given = {"hx": hx is not None, "lengths": lengths is not None, "timespans": self.times is not None}
        given |= {"within": self.radius > 0.0, "measured": self.measure}
        for name, present in given.items():
            if present:
                raise ValueError(
                    f"{name} goes with inputs; input_bound is about all sequences from the state zero, of any length, "
                    "with the steps of the certificate: certify with step_size=(shortest, longest) for timespans"
                )

    def _rest(self, ends: Matrix) -> None:
        for sample, end in enumerate(ends):
            self.computed[end:, sample] = self.computed[end - 1, sample]

    def bounds(self, sequences: Sequences, certificates: Sequence[Certificate]) -> RoundingBound:
        """From zero states, for inputs in float64 that were checked before."""
        return self._run(sequences, None, certificates)

    @torch.no_grad()
    def _run(self, sequences: Sequences, state: Tensor | None, certificates: Sequence[Certificate]) -> RoundingBound:
        T, B = sequences.inputs.shape[:2]
        ends = np.full(B, T) if sequences.lengths is None else sequences.lengths.cpu().numpy()
        order = torch.from_numpy(ends)
        x = sequences.inputs.double().cpu()
        if sequences.lengths is not None:
            x = x.masked_fill(torch.arange(T)[:, None, None] >= order[None, :, None], 0.0)
        found: list[PartBound] = []
        below: list[PartBound] = []
        directions = self.layer.num_directions
        for index, (key, certificate) in enumerate(zip(self.layer.cells, certificates, strict=True)):
            if index % directions == 0:
                below, current = found[len(found) - directions :] if found else [], []
            part, backwards = self.running(certificate, key), index % directions == 1
            seen = reverse(x, order) if backwards else x
            steps = self._steps(self.layer.cells[key], sequences.reversed() if backwards else sequences, ends, T, B)
            start = torch.zeros(B, part.size, dtype=torch.float64) if state is None else state[index].double().cpu()
            if below:
                disturbed: Disturbance | None = self._disturbance(part, below, order, backwards, steps)
            elif self.inputs_off is not None:
                off = reverse(self.inputs_off, order) if backwards else self.inputs_off
                disturbed = Disturbance.of_computed(part, steps, off.double().cpu().numpy())
            else:
                disturbed = Disturbance.of_inputs(part, steps, x.shape[-1], self.radius) if self.radius else None
            bound, states = self._one(self.layer.cells[key], part, seen.numpy(), start.numpy(), steps, disturbed)
            found.append(bound)
            current.append(reverse(torch.from_numpy(states), order) if backwards else torch.from_numpy(states))
            if index % directions == directions - 1:
                x = torch.cat(current, -1)
        return collect(found, directions, ends, found[-1].part.precision.name)

    def _steps(self, cell: Any, sequences: Sequences, ends: Matrix, T: int, B: int) -> Matrix:
        if sequences.timespans is None:
            steps = np.full((T, B), float(cell.step_size))
        else:
            steps = cell.without_rounding(sequences.timespans).double().cpu().numpy()
        return np.where(np.arange(T)[:, None] < ends[None], steps, 0.0)

    def _one(
        self, cell: Any, part: RunningPart, x: Matrix, start: Matrix, steps: Matrix, disturbed: Disturbance | None
    ) -> tuple[PartBound, Matrix]:
        """The bound of one recurrence at the end of each step, however many sub-steps it takes, and its states."""
        half = _in_half(cell, part)
        between = self.between(cell, part)
        longest = float(steps.max(initial=0.0))
        limit = cell.step_limit(longest if longest > 0 else cell.step_size)
        counts = np.ones_like(steps, dtype=np.int64)
        if limit is not None:
            kept = torch.float64 if part.precision.name == "float64" else torch.float32
            counts = count_substeps(torch.from_numpy(steps).to(kept), limit).numpy()
        if self.measure:
            if counts.max(initial=1) > 1 or half or disturbed is not None:
                raise ValueError(
                    "measured=True is for a single layer with results in float32 or float64, undivided steps and "
                    "within=0; leave it out"
                )
            return measured(part, x, steps, self.computed, start), self.computed
        if counts.max(initial=1) == 1:
            states = part.float64_states(x, start, steps)
            return trajectory(part, x, steps, states, start, disturbed, between), states
        index, lengths, ends = _substeps(counts, steps)
        columns = np.arange(steps.shape[1])[None]
        if disturbed is not None:
            disturbed = Disturbance(
                *(values[index, columns] for values in (disturbed.size, disturbed.argument)),
                *(
                    values[index, columns] / counts[index, columns]
                    for values in (disturbed.norm, disturbed.exact, disturbed.near)
                ),
            )
        fine = x[index, columns]
        states = part.float64_states(fine, start, lengths)
        bound = trajectory(part, fine, lengths, states, start, disturbed, between)
        added = _summed(bound.added, index, ends, len(steps))
        picked = (values[ends, columns] for values in (bound.states, bound.exact, bound.around, bound.sizes))
        return PartBound(part, added, *picked), states[ends, columns]

    def between(self, cell: Any, part: RunningPart) -> float:
        """Relative rounding of the state from step to step, where segments keep it in 16 bits."""
        return part.model.returned if self.layer.recompute_every is not None and _in_half(cell, part) else 0.0

    def _disturbance(
        self, part: RunningPart, below: list[PartBound], order: Tensor, backwards: bool, steps: Matrix
    ) -> Disturbance:
        """What the errors of the layer below do to this one, in this one's order of time."""
        assert part.U is not None
        width, sizes, arguments, share = 0, [], [], part.share(steps)
        totals = [np.zeros_like(steps) for _ in range(3)]
        for index, one in enumerate(below):
            arrays = [torch.from_numpy(values) for values in (one.states, one.exact, one.around, one.sizes)]
            if (index == 1) != backwards:
                arrays = [reverse(array, order) for array in arrays]
            *errors, size = (array.numpy() for array in arrays)
            U = part.U[:, width : width + one.part.size]
            width += one.part.size
            gain = step_gain(part.certificate, part.metric, Ball.exact(U) @ one.part.metric.T)
            gain *= OWN / math.sqrt(one.part.metric.scale)
            totals = [total + gain * share * error for total, error in zip(totals, errors, strict=True)]
            returned = one.part.model.returned * size + one.part.model.smallest
            sizes.append(np.sum(errors, axis=0)[..., None] * one.part.reach + returned)
            arguments.append(returned @ np.abs(U).T)
        return Disturbance(np.concatenate(sizes, -1), sum(arguments[1:], arguments[0]), *totals)


def _named(layer: LipschitzRNN, key: str) -> str:
    return "the layer" if len(layer.cells) == 1 else f"the layer's part {key}"


def _shortest(cell: Any) -> float:
    """The step that a sample takes without timespans, or the sub-step into which it is divided."""
    step, limit = float(cell.step_size), cell.step_limit(float(cell.step_size))
    kept = torch.float64 if cell.weight_ih.dtype == torch.float64 else torch.float32
    return step if limit is None else step / int(count_substeps(torch.tensor([step], dtype=kept), limit))


def require_sequential(layer: LipschitzRNN) -> None:
    """Raise for a layer that runs chunks beside each other."""
    if layer.parallel is not None:
        raise ValueError(
            f"the layer runs in parallel chunks (parallel={layer.parallel!r}), whose results differ from sequential "
            "ones by more than rounding; set layer.parallel = None. For the radius of the exact network alone, ask for "
            'precision="exact"; how far chunks are off is in layer.bounds'
        )


def running_precision(cell: Any, asked: str) -> tuple[str, str]:
    """What the recurrence of a cell runs in, and its products with U. ``exact``: what is in force.

    A contracting cell keeps the dtype of A and W whatever is asked, and only its products with them are exact to it.
    """
    if not cell.contracting:
        name = in_force(cell.weight_ih) if asked == "exact" else as_precision(asked).name
        return name, name
    name = str(cell.hidden_matrices()[0].dtype).removeprefix("torch.")
    if name != "float32":
        return name, name
    chosen = as_precision(asked).name
    return name, chosen if chosen in ("high", "medium") else coarsest_float32()


def _in_half(cell: Any, part: RunningPart) -> bool:
    return part.precision.name in HALF or cell.weight_ih.dtype in (torch.bfloat16, torch.float16)


def _cast_to(asked: str | None, dtype: torch.dtype) -> float:
    """Relative rounding of a result that is returned in this dtype, or under an autocast to the precision asked for."""
    kinds = {str(dtype).removeprefix("torch."), "" if asked is None else as_precision(asked).name} & set(HALF)
    return max((1.01 * 0.5 * torch.finfo(getattr(torch, kind)).eps for kind in kinds), default=0.0)


def _valid(tensor: Tensor, sequences: Sequences, name: str) -> Tensor:
    if name != "inputs" or sequences.lengths is None:
        return tensor
    inside = torch.arange(tensor.shape[0], device=tensor.device)[:, None] < sequences.lengths.to(tensor.device)
    return tensor[inside]


def _substeps(counts: Matrix, steps: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """For every sub-step its step (T′, B) and its length (T′, B); for every step its last sub-step (T, B)."""
    T, B = counts.shape
    ends = counts.cumsum(0) - 1
    total = int(ends[-1].max()) + 1
    index, lengths = np.full((total, B), T - 1), np.zeros((total, B))
    for sample in range(B):
        own = np.repeat(np.arange(T), counts[:, sample])
        index[: len(own), sample] = own
        lengths[: len(own), sample] = (steps[:, sample] / counts[:, sample])[own]
    return index, lengths, ends


def _summed(added: Matrix, index: Matrix, ends: Matrix, T: int) -> Matrix:
    """What the sub-steps of each step add together."""
    result = np.zeros((T, added.shape[1]))
    for sample in range(added.shape[1]):
        count = int(ends[-1, sample]) + 1
        np.add.at(result[:, sample], index[:count, sample], added[:count, sample])
    return result
