"""What happens to the eigenvalues of A and W while networks train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from lipschitz_rnn.drawing import BLUE, GREY, RED, draw_curves
from lipschitz_rnn.stability.studies.spectra import track
from lipschitz_rnn.stability.threads import one_blas_thread


def real_part_names(records: list[dict[str, Any]], matrix: str) -> list[str]:
    """What the largest real parts of A or W are called in the records of a run; one name per layer."""
    names = dict.fromkeys(name for record in records for name in record)
    return [name for name in names if name.endswith(f"{matrix}.real_max")]


def spectral_probe(models: Sequence[nn.Module]) -> list[dict[str, float]]:
    """The probe of every training run: the spectra of A and W of each network."""
    # Eigenvalues are found without holding Python's lock, each best by one thread.
    with one_blas_thread(), ThreadPoolExecutor() as pool:
        return list(pool.map(_spectra, models))


def _spectra(model: nn.Module) -> dict[str, float]:
    """Nothing for units without such matrices, or once not finite."""
    if not all(bool(parameter.isfinite().all()) for parameter in model.parameters()):
        return {}
    return track(getattr(model, "unit", model))


def hidden_matrices(model: nn.Module) -> tuple[Tensor, Tensor] | None:
    """A and W of the first layer of a model's unit, or None for units that have no such pair."""
    find = getattr(getattr(model, "unit", model), "hidden_matrices", None)
    if find is None:
        return None
    with torch.no_grad():
        A, W = find(0, 0)
    return A.detach().double().cpu(), W.detach().double().cpu()


def spectral_curves(probes: list[dict[str, Any]]) -> dict[str, list[list[float | None]]]:
    """A_real_max and W_real_max of every probe, for each member: the largest real part over all layers.

    None where a network was not finite. Nothing for units without such matrices.
    """
    curves = {}
    for matrix in "AW":
        names = real_part_names(probes, matrix)
        epochs = [
            [_largest(layers) for layers in zip(*(probe[name] for name in names), strict=True)] for probe in probes
        ]
        if names:
            curves[f"{matrix}_real_max"] = [list(member) for member in zip(*epochs, strict=True)]
    return curves


def _largest(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(f"{max(known):.5g}") if len(known) == len(values) else None


def draw_eigenvalues(axis: Any, model: nn.Module) -> None:
    """Eigenvalues of A and W in the complex plane, with the imaginary axis that they should stay left of."""
    pair = hidden_matrices(model)
    if pair is None:
        raise ValueError(f"{type(model).__name__} has no matrices A and W to draw eigenvalues of")
    for name, matrix, colour in zip("AW", pair, (RED, BLUE), strict=True):
        values = torch.linalg.eigvals(matrix)
        axis.scatter(
            values.real, values.imag, s=14, color=colour, alpha=0.75, label=f"eigenvalues of {name}", linewidths=0
        )
    axis.axvline(0.0, color=GREY, linewidth=0.9)
    axis.set(xlabel="real part", ylabel="imaginary part")
    axis.legend(frameon=False, fontsize=8)


def draw_tracks(axis: Any, curves: Mapping[str, Sequence[Sequence[float | None]]]) -> None:
    """max Re λ of A and W by epoch, from `spectral_curves`, with the zero that they should stay below."""
    for matrix, colour in (("A", RED), ("W", BLUE)):
        members = curves.get(f"{matrix}_real_max", ())
        if members:
            draw_curves(axis, range(1, len(members[0]) + 1), members, colour, f"max Re λ({matrix})")
    axis.axhline(0.0, color=GREY, linewidth=0.9)
    axis.set(xlabel="epoch", ylabel="largest real part")
    axis.legend(frameon=False, fontsize=8)
