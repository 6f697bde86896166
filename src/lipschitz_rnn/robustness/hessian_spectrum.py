"""Curvature of the loss around a trained network: extreme eigenvalues, trace, condition number, density."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lipschitz_rnn.robustness.curvature import Loss, LossHessian, Which, cross_entropy
from lipschitz_rnn.robustness.density import Density, outside, tridiagonal
from lipschitz_rnn.robustness.model_calls import Progress, ignore_progress
from lipschitz_rnn.tasks import Batch

LARGEST_EXACT = 20_000  # parameters, whose full Hessian takes 3 GB in float64
_SMALL = 64  # parameters, below which the full Hessian costs no more than an estimate
_BASIS = 32  # vectors that ARPACK keeps between restarts
RESTARTS = 200


class NotConverged(RuntimeError):
    """The eigenvalues were not found to the accuracy that was asked for."""


@dataclass(frozen=True)
class HessianResult:
    """The Hessian H of the mean loss in numbers. Exact results have a trace error of zero."""

    lambda_max: float
    lambda_min: float  # the most negative eigenvalue; of a positive definite H the smallest
    trace: float
    trace_error: float  # standard error of the estimate
    density: Density
    loss: float
    gradient_norm: float  # zero at a minimum
    parameters: int
    samples: int
    products: int  # Hessian-vector products that were spent
    exact: bool

    @property
    def condition_number(self) -> float:
        """λ_max / |λ_min| with the most negative λ_min: what fits the figures that the paper prints as κ(H)."""
        return self.lambda_max / abs(self.lambda_min) if self.lambda_min else math.inf

    def to_dict(self, density: bool = True) -> dict[str, Any]:
        names = ("lambda_max", "lambda_min", "trace", "trace_error", "condition_number", "loss", "gradient_norm")
        numbers = {name: float(getattr(self, name)) for name in names}
        values: dict[str, Any] = {key: value if math.isfinite(value) else None for key, value in numbers.items()}
        values |= {name: getattr(self, name) for name in ("parameters", "samples", "products", "exact")}
        return values | ({"density": self.density.to_dict()} if density else {})


def hessian(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    loss: Loss = cross_entropy,
    parameters: Which = "all",
    exact: bool = False,
    tolerance: float = 1e-3,
    probes: int = 32,
    runs: int = 4,
    steps: int = 40,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    lengths: Tensor | None = None,
    timespans: Tensor | None = None,
    batch_first: bool = False,
    batch_size: int = 1000,
    progress: Progress = ignore_progress,
) -> HessianResult:
    """Eigenvalues at both ends, trace, condition number and density of the Hessian of the mean loss.

    Matrix-free unless `exact`: the ends of the spectrum by ARPACK's Lanczos, the density by stochastic Lanczos
    quadrature, the trace by Hutchinson's estimator, the mean of vᵀH v over random signs v, outside the space that a
    Lanczos run has explored.

    Args:
        model: from inputs to outputs, alone or first in a tuple. Left as it is: a copy in evaluation mode is used.
        inputs: (T, B, p) or tokens (T, B); (B, T, …) with `batch_first`.
        targets: whatever `loss` compares the outputs with; classes (B,) for the default.
        loss: from outputs and a `tasks.Batch` to a mean, such as `task.loss`; cross-entropy by default.
        parameters: "all", "unit" (those of model.unit), or a submodule.
        exact: form the full Hessian, with one product for each parameter.
        tolerance: relative accuracy of the two eigenvalues.
        probes: random vectors for the trace.
        runs: random vectors that start a Lanczos run for the density, of `steps` products each.
        generator: of the random vectors; a fresh one with seed 0 by default.
        dtype: in which to compute, such as torch.float64; that of the model by default.
        lengths: (B,), passed on to model and loss where sequences are padded.
        timespans: (T, B), or (B, T) with `batch_first`, passed on to the model as `timespans=` where given.
        batch_size: samples in one graph. Where all fit into one, the graph is built only once.
        progress: called with what is being estimated, the products done, and their number where it is known.
    """
    for name, given, least in (("probes", probes, 2), ("runs", runs, 1), ("steps", steps, 2)):
        if given < least:
            raise ValueError(f"{name} is {given!r}; it must be at least {least}")
    if not 0.0 < tolerance < 1.0:
        raise ValueError(f"tolerance is {tolerance!r}; it must be between 0 and 1")
    batch = Batch(inputs, targets, lengths, timespans)
    operator = LossHessian(model, batch, loss, parameters, batch_first=batch_first, batch_size=batch_size, dtype=dtype)
    gradient, value = operator.gradient()
    if not math.isfinite(value):
        raise ValueError(f"the loss is {value}; the Hessian of a diverged network has no meaning")
    exact = exact or operator.size <= _SMALL
    if exact:
        if operator.size > LARGEST_EXACT:
            raise ValueError(
                f"exact=True forms a matrix of {operator.size:,} × {operator.size:,} numbers; the limit is "
                f"{LARGEST_EXACT:,} parameters. Leave exact out, or choose parameters of a submodule"
            )
        ends, trace, error, density = _exact(operator, progress)
    else:
        require_scipy()
        source = torch.Generator().manual_seed(0) if generator is None else generator
        ends = _ends(operator, tolerance, source, progress)
        trace, error, density = _estimates(operator, probes, runs, steps, source, progress)
    return HessianResult(
        lambda_max=ends[1],
        lambda_min=ends[0],
        trace=trace,
        trace_error=error,
        density=density,
        loss=value,
        gradient_norm=gradient.norm().item(),
        parameters=operator.size,
        samples=operator.samples,
        products=operator.products,
        exact=exact,
    )


def require_scipy() -> None:
    try:
        import scipy.sparse.linalg  # noqa: F401
    except ImportError as error:
        raise ImportError('the Hessian needs SciPy: pip install "lipschitz-rnn[robustness]"') from error


def _exact(operator: LossHessian, progress: Progress) -> tuple[tuple[float, float], float, float, Density]:
    matrix = operator.dense(lambda done: progress("full Hessian", done, operator.size))
    values = torch.linalg.eigvalsh(matrix).double().cpu().numpy()
    density = Density.of(values, np.full(len(values), 1.0 / len(values)))
    return (float(values[0]), float(values[-1])), float(values.sum()), 0.0, density


def _ends(
    operator: LossHessian, tolerance: float, generator: torch.Generator, progress: Progress
) -> tuple[float, float]:
    """Smallest and largest eigenvalue: ARPACK for both ends of the spectrum at once."""
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

    def product(vector: np.ndarray) -> np.ndarray:
        row = torch.from_numpy(np.asarray(vector, dtype=np.float64).reshape(1, -1)).to(operator.device, operator.dtype)
        image = (operator @ row)[0].double().cpu().numpy()
        progress("eigenvalues", operator.products, None)
        return image

    n = operator.size
    start = torch.randn(n, generator=generator, device=generator.device, dtype=torch.float64).cpu().numpy()
    seen = LinearOperator((n, n), matvec=product, dtype=np.float64)
    # Newer versions of SciPy restart from random numbers of their own unless they are given some.
    fixed = {"rng": np.random.default_rng(0)} if "rng" in inspect.signature(eigsh).parameters else {}
    try:
        ends = eigsh(
            seen,
            k=2,
            which="BE",
            v0=start,
            ncv=min(n, _BASIS),
            tol=tolerance,
            maxiter=RESTARTS,
            return_eigenvectors=False,
            **fixed,
        )
    except ArpackError as error:
        raise NotConverged(
            f"the eigenvalues did not converge to {tolerance:g} in {operator.products} products; use a larger "
            "tolerance, or dtype=torch.float64 where float32 is too coarse"
        ) from error
    return float(ends.min()), float(ends.max())


def _estimates(
    operator: LossHessian, probes: int, runs: int, steps: int, generator: torch.Generator, progress: Progress
) -> tuple[float, float, Density]:
    """Trace with its standard error, and density. A first Lanczos run finds what should not be left to chance.

    tr H = tr QᵀHQ + tr PHP with P = I − QQᵀ, for any orthonormal Q. With the basis of that run for Q the first part is
    known, and holds the few large eigenvalues of a network. The density has them at their places, each with its share.
    """
    before, total = operator.products, (1 + runs) * min(steps, operator.size) + probes

    def random_signs() -> Tensor:
        drawn = torch.randint(2, (operator.size,), generator=generator, device=generator.device)
        return (2 * drawn - 1).to(operator.device, operator.dtype)

    def note() -> None:
        progress("trace and density", operator.products - before, total)

    first = tridiagonal(operator, random_signs(), steps, note=note)
    found = first.converged()
    left = runs if len(found.values) < operator.size else 0
    others = [tridiagonal(operator, random_signs(), steps, found.vectors, note) for _ in range(left)]
    density = Density.of_runs(found, others, operator.size)
    estimates = np.empty(probes)
    for probe in range(probes):
        vector = outside(random_signs(), first.basis)
        rest = (operator @ vector[None])[0].double().dot(vector.double()).item()
        estimates[probe] = first.diagonal.sum() + rest
        note()
    return float(estimates.mean()), float(estimates.std(ddof=1) / math.sqrt(probes)), density
