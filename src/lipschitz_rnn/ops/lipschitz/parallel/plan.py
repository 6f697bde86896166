"""How a sequence is cut: chunks, warm-up and passes, from the factor, the tolerance and the device."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from lipschitz_rnn.ops.common.validation import require_count, require_number

ROWS_OF_A_CORE = 16  # samples that walk together in the CPU's kernels, and fill the products of a GPU's
SHORTEST_CHUNK = 256  # below, a launch and a warm-up cost more than the steps they save
USUAL_WARM_UP = 512
ROUNDING_UNITS = 64  # of mismatch that no warm-up removes: two rounded trajectories do not meet exactly
MOST_PASSES = 3


@dataclass(frozen=True)
class Parallel:
    """Settings of the parallel scan; ``parallel="auto"`` and ``parallel=8`` stand for ``Parallel(chunks=…)``.

    Attributes:
        chunks: into how many the sequence is cut, or ``"auto"``.
        tolerance: how large the proved error of the states may be, relative to the largest state of the sample in the
            metric of the contraction; gradients likewise, relative to the largest adjoint. On top of it come 64 units
            of rounding of the dtype.
        warm_up: steps before a chunk that are run first, from the state zero; None chooses.
        passes: how often the chunks may be run, each time from the ends found before, until the tolerance is met.
            After the last pass that misses it, the chunks are run one after another, which is the sequential scan. With
            ``fixed`` this is the number of passes, and nothing waits for the result.
        fixed: run exactly ``passes`` passes and leave it to the caller to check the bound, as a CUDA graph must.
        proved: False also runs networks without a known contraction, to a measured residual below the tolerance; such
            results are marked as not proved.
    """

    chunks: int | str = "auto"
    tolerance: float = 1e-6
    warm_up: int | None = None
    passes: int = MOST_PASSES
    fixed: bool = False
    proved: bool = True

    def __post_init__(self) -> None:
        if self.chunks != "auto":
            if isinstance(self.chunks, str):
                raise ValueError(f"parallel is {self.chunks!r}; pass 'auto', a number of chunks, or None")
            require_count("parallel", self.chunks)
        require_number("tolerance", self.tolerance, low=0.0, open_low=True)
        if self.warm_up is not None and (isinstance(self.warm_up, bool) or not isinstance(self.warm_up, int)):
            raise TypeError(f"warm_up is {self.warm_up!r}; it must be a whole number of steps, or None")
        if self.warm_up is not None and self.warm_up < 0:
            raise ValueError(f"warm_up is {self.warm_up}; it must be at least 0")
        require_count("passes", self.passes)

    @classmethod
    def read(cls, given: Parallel | str | int, tolerance: float) -> Parallel:
        if isinstance(given, Parallel):
            return given
        if isinstance(given, bool) or not isinstance(given, (str, int)):
            raise TypeError(f"parallel is {given!r}; pass 'auto', a number of chunks, Parallel(...), or None")
        return cls(chunks=given, tolerance=tolerance)


@dataclass(frozen=True)
class Plan:
    """K chunks of C steps after ``head`` steps that are run first, as T = head + K·C; each chunk after a warm-up."""

    chunks: int
    steps: int
    head: int
    warm_up: int

    def __str__(self) -> str:
        return f"{self.chunks} chunks of {self.steps} steps after a warm-up of {self.warm_up}"


def make_plan(settings: Parallel, steps: int, rows: int, factor: float, device: torch.device, tolerance: float) -> Plan:
    """The cut of ``steps`` steps of ``rows`` samples; one chunk means that nothing is gained by cutting."""
    chunks = settings.chunks
    if isinstance(chunks, str):
        chunks = _dividing(max(1, min(useful_rows(device) // max(1, rows), steps // SHORTEST_CHUNK)), steps)
    elif chunks > steps:
        raise ValueError(f"parallel is {chunks} chunks, but the sequence has {steps} steps; use at most that many")
    length = steps // chunks
    warm_up = max(USUAL_WARM_UP, length // 8) if settings.warm_up is None else settings.warm_up
    if settings.warm_up is None and 0.0 < factor < 1.0:
        warm_up = min(warm_up, math.ceil(math.log(tolerance) / math.log(factor)))  # enough, and proved to be
    return Plan(chunks, length, steps - chunks * length, min(warm_up, length))


def useful_rows(device: torch.device) -> int:
    """How many samples at once keep a device busy."""
    if device.type == "cuda":
        return ROWS_OF_A_CORE * torch.cuda.get_device_properties(device).multi_processor_count
    return ROWS_OF_A_CORE * torch.get_num_threads()


def _dividing(wanted: int, steps: int) -> int:
    """A number of chunks near the one wanted that leaves few steps over."""
    nearby = range(max(1, wanted - wanted // 4), wanted + 1)
    return min(nearby, key=lambda chunks: (steps % chunks + steps // chunks, -chunks))


def allowed(tolerance: float, dtype: torch.dtype) -> float:
    """The tolerance with the rounding that it cannot exclude."""
    return tolerance + ROUNDING_UNITS * torch.finfo(dtype).eps
