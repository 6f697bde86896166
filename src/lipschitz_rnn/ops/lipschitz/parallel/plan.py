"""How a sequence is cut: chunks, warm-up and passes, from the factor, the tolerance and the device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from lipschitz_rnn.ops.common.validation import require_count, require_number
from lipschitz_rnn.ops.lipschitz.problem import Problem

# Samples that walk together in the CPU's kernels. 8 are as quick as 16, and the chunks are longer; but the kernels take
# batches of more than 16 in sixteens.
ROWS_OF_A_CORE = {1: 8, 2: 8}
ROWS_OF_MANY_CORES = 16
ROWS_OF_A_BLOCK = 8  # samples for which a GPU's kernels are at their quickest
# Below, what is run again costs more than is saved: a GPU is idle otherwise, a core has its hands full.
SHORTEST_CHUNK = {"cuda": 256, "cpu": 4096}
FEWEST_CHUNKS = {"cuda": 2, "cpu": 8}  # of the shortest, or the sequence is left in one piece
USUAL_WARM_UP = 256
ROUNDING_UNITS = 64  # of mismatch that no warm-up removes: two rounded trajectories do not meet exactly
MOST_PASSES = 4  # on a CPU, which a pass keeps busy


def most_passes(device: torch.device, chunks: int) -> int:
    """How many passes may be tried: on a GPU each costs no more than a chunk, and the alternative is all of them."""
    return max(MOST_PASSES, chunks // 8) if device.type == "cuda" else MOST_PASSES


@dataclass(frozen=True)
class Parallel:
    """Settings of the parallel scan; ``parallel="auto"`` and ``parallel=8`` stand for ``Parallel(chunks=…)``.

    Attributes:
        chunks: into how many the sequence is cut, or ``"auto"``.
        tolerance: how large the proved error of the states may be, relative to the largest state of the sample in the
            metric of the contraction; gradients likewise, relative to the largest adjoint. On top of it come 64 units
            of rounding of the dtype.
        warm_up: how many steps of a chunk are run again from the end of the one before, before the result is compared
            with what was there; None chooses. More follow until the tolerance is met.
        passes: how often whole chunks may be run for that, at least 2; None chooses. If so many miss the tolerance, or
            will, the chunks are run one after another, which is the sequential scan. With ``fixed`` this is the number
            of passes, 2 if None, the last of ``warm_up`` steps, and nothing waits for the result.
        fixed: run exactly ``passes`` passes and leave it to the caller to check the bound, as a CUDA graph must.
        proved: False also runs networks without a known contraction, to a measured residual below the tolerance; such
            results are marked as not proved.
        group: a process group of ``torch.distributed``, or True for all processes: each then passes its own stretch of
            the time axis, in the order of the ranks and all of the same length.
    """

    chunks: int | str = "auto"
    tolerance: float = 1e-6
    warm_up: int | None = None
    passes: int | None = None
    fixed: bool = False
    proved: bool = True
    group: Any = None

    def __post_init__(self) -> None:
        if self.chunks != "auto":
            if isinstance(self.chunks, str):
                raise ValueError(f"parallel is {self.chunks!r}; pass 'auto', a number of chunks, or None")
            require_count("parallel", self.chunks)
        require_number("tolerance", self.tolerance, low=0.0, open_low=True)
        if self.warm_up is not None:
            require_count("warm_up", self.warm_up)
        if self.passes is not None and require_count("passes", self.passes) < 2:
            raise ValueError("passes is 1; at least 2 are needed, because the first one only guesses")

    @classmethod
    def read(cls, given: Parallel | str | int, tolerance: float) -> Parallel:
        if isinstance(given, Parallel):
            return given
        if isinstance(given, bool) or not isinstance(given, (str, int)):
            raise TypeError(f"parallel is {given!r}; pass 'auto', a number of chunks, Parallel(...), or None")
        return cls(chunks=given, tolerance=tolerance)


@dataclass(frozen=True)
class Plan:
    """K chunks of C steps after ``head`` steps that are run first, as T = head + K·C."""

    chunks: int
    steps: int
    head: int
    warm_up: int  # the steps after which it is first tried to join two passes

    def __str__(self) -> str:
        return f"{self.chunks} chunks of {self.steps} steps"

    def first_stop(self, every: int | None) -> int:
        """After how many steps of a chunk two passes may join, if they are close enough."""
        return self._at_mark(self.warm_up, every)

    def first_stop_again(self, every: int | None, before: float, now: float, tolerance: float) -> int:
        """The same after a whole pass, which has brought the distance from ``before`` to ``now``."""
        return self._at_mark(self._steps_to(tolerance, self.steps, before, now), every)

    def next_stop(self, every: int | None, before: tuple[int, float], now: tuple[int, float], tolerance: float) -> int:
        """Where to look again, after (step, distance) at two places."""
        (earlier, larger), (step, distance) = before, now
        return self._at_mark(step + self._steps_to(tolerance, step - earlier, larger, distance), every)

    def _steps_to(self, tolerance: float, taken: int, larger: float, distance: float) -> int:
        """How many more steps it takes from a distance, if it goes on as before.

        It slows down on the way, because what fades fast is gone first: a quarter of the tolerance is aimed at, and an
        eighth is added. Passes that do not approach each other are run to the end.
        """
        shrunk = math.log(larger / distance) if 0.0 < distance < larger < math.inf else 0.0
        if shrunk <= 0.0:
            return self.steps
        more = 1.125 * taken * math.log(4.0 * distance / tolerance) / shrunk
        return math.ceil(min(max(more, self.warm_up / 4), self.steps))

    def _at_mark(self, step: int, every: int | None) -> int:
        return min(self.steps, step if every is None else -(-step // every) * every)


def make_plan(settings: Parallel, problem: Problem, backend: str, factor: float = 1.0, whole: bool = False) -> Plan:
    """The cut of a lifted problem; one chunk means that nothing is gained by cutting.

    Args:
        factor: ρ of a step, if it is known beforehand.
        whole: no step may be left over.
    """
    chunks, (networks, steps, batch, _) = settings.chunks, problem.shape
    if isinstance(chunks, str):
        device = "cuda" if problem.A.is_cuda else "cpu"
        most = steps // SHORTEST_CHUNK[device]
        useful = useful_rows(problem, backend) // max(1, networks * batch)
        chunks = _dividing(max(1, min(useful, most)), steps) if most >= FEWEST_CHUNKS[device] else 1
        if whole:
            chunks = next(number for number in range(chunks, 0, -1) if steps % number == 0)
    elif chunks > steps:
        raise ValueError(f"parallel is {chunks} chunks, but the sequence has {steps} steps; use at most that many")
    if whole and steps % chunks:
        raise ValueError(f"parallel is {chunks} chunks, which do not divide the {steps} steps of each process")
    length = steps // chunks
    warm_up = settings.warm_up or usual_warm_up(factor, allowed(settings.tolerance, problem.A.dtype))
    return Plan(chunks, length, steps - chunks * length, min(warm_up, length))


def usual_warm_up(factor: float, tolerance: float) -> int:
    """The steps after which the tolerance is proved to be met, where these are few: there is no need to look before.

    Where they are many, the data is likely to fade long before, and is looked at.
    """
    if not 0.0 < factor < 1.0:
        return USUAL_WARM_UP
    proved = 16 * math.ceil(math.log(tolerance) / math.log(factor) / 16) if tolerance < 1.0 else 16
    return proved if proved <= 2 * USUAL_WARM_UP else USUAL_WARM_UP


def useful_rows(problem: Problem, backend: str) -> int:
    """How many samples at once keep a device busy, and no more: on a GPU a second round of blocks doubles the time."""
    device = problem.A.device
    if device.type != "cuda" and torch.compiler.is_compiling():
        from lipschitz_rnn.ops.lipschitz.parallel.compiled import threads

        return _rows_of_cores(threads())
    if device.type != "cuda":
        return _rows_of_cores(torch.get_num_threads())
    if backend == "triton" and not torch.compiler.is_compiling():  # which cannot look at the kernels' plans
        from lipschitz_rnn.ops.lipschitz.parallel.occupancy import rows_at_once  # imports Triton

        return rows_at_once(problem)
    return ROWS_OF_A_BLOCK * torch.cuda.get_device_properties(device).multi_processor_count


def _rows_of_cores(cores: int) -> int:
    return cores * ROWS_OF_A_CORE.get(cores, ROWS_OF_MANY_CORES)


def _dividing(wanted: int, steps: int) -> int:
    """A number of chunks near the one wanted that leaves few steps over, or none, which saves a copy of all states."""
    nearby = range(max(1, wanted - wanted // 4), wanted + 1)

    def cost(chunks: int) -> int:
        length, left = divmod(steps, chunks)
        return length + left + (length // 8 if left else 0)

    best = wanted
    for chunks in reversed(nearby):  # torch.compile does not know min() with a key
        if cost(chunks) < cost(best):
            best = chunks
    return best


def allowed(tolerance: float, dtype: torch.dtype) -> float:
    """The tolerance with the rounding that it cannot exclude."""
    return tolerance + ROUNDING_UNITS * torch.finfo(dtype).eps
