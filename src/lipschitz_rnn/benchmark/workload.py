"""What every contestant computes: the sizes, and the same random numbers for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.units.lipschitz import SymmetricSkew

BETA, GAMMA = 0.75, (0.2, 0.001)  # γ of A is large enough that the state does not grow at any length
WEIGHT_SCALE = 0.1


@dataclass(frozen=True)
class Workload:
    """Sizes of a scan; the defaults are those of the paper's ordered MNIST.

    ``readout`` is what the loss reads: the last state, or all of them.
    """

    batch: int = 128
    length: int = 784
    features: int = 1
    hidden: int = 128
    networks: int = 1
    integrator: str = "euler"
    readout: Literal["last", "all"] = "last"
    step_size: float = 0.03
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and field.name != "seed" and value < 1:
                raise ValueError(f"{field.name} is {value}; it must be at least 1")
        if self.readout not in ("last", "all"):
            raise ValueError(f"readout is {self.readout!r}; choose last or all")
        object.__setattr__(self, "integrator", get_integrator(self.integrator).name)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def sizes(self) -> str:
        text = f"B = {self.batch}, T = {self.length}, p = {self.features}, N = {self.hidden}, {self.integrator}"
        return text if self.networks == 1 else f"S = {self.networks} networks, {text}"


# Beside the default sizes on a CPU: what people train there, and one sequence, forward only.
SMALL, ONE_SEQUENCE = Workload(batch=32, length=200, hidden=32), Workload(batch=1)


class Data:
    """Random inputs and weights of a workload on one device.

    bfloat16 can represent every number, so all precisions solve the same problem and are compared with one float64
    result.
    """

    def __init__(self, workload: Workload, device: torch.device) -> None:
        self.workload, self.device = workload, device
        self._generator = torch.Generator().manual_seed(workload.seed)
        S, T, B, p, N = (getattr(workload, n) for n in ("networks", "length", "batch", "features", "hidden"))
        self.x = self._positive((S, T, B, p))
        self.U = self._normal((S, N, p), 1.0 / math.sqrt(p))
        self.b = self._normal((S, N), 0.1)
        self.M_A, self.M_W = (self._normal((S, N, N), WEIGHT_SCALE / math.sqrt(N)) for _ in range(2))
        self._cotangent = self._positive((S, T, B, N) if workload.readout == "all" else (S, B, N))

    def _normal(self, shape: tuple[int, ...], scale: float) -> Tensor:
        """Gaussian numbers, drawn on the CPU so that they are the same on every device."""
        values = torch.randn(shape, generator=self._generator) * scale
        return rounded(values).to(self.device)

    def _positive(self, shape: tuple[int, ...]) -> Tensor:
        """Numbers between 0.5 and 1: their sums do not cancel, which would make the errors a matter of luck."""
        values = 0.5 + 0.5 * torch.rand(shape, generator=self._generator)
        return rounded(values).to(self.device)

    @cached_property
    def matrices(self) -> tuple[Tensor, Tensor]:
        """A and W, (S, N, N)."""
        pair = (SymmetricSkew(BETA, gamma)(M.double()) for M, gamma in zip((self.M_A, self.M_W), GAMMA, strict=True))
        A, W = (rounded(matrix) for matrix in pair)
        return A, W

    def changed(self, change: Callable[[Tensor], Tensor]) -> Data:
        """This object with every tensor replaced by ``change`` of it, the matrices A and W included."""
        A, W = self.matrices
        self.matrices = change(A), change(W)
        for name in ("x", "U", "b", "M_A", "M_W", "_cotangent"):
            setattr(self, name, change(getattr(self, name)))
        return self

    def cotangent(self, dtype: torch.dtype) -> Tensor:
        """The gradient of the loss with respect to the states it reads."""
        return self._cotangent.to(dtype)


def rounded(values: Tensor) -> Tensor:
    """Rounded to bfloat16, as float64."""
    return values.to(torch.bfloat16).double()
