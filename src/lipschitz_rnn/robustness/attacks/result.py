"""What an attack did to each sample, and the averages that a table shows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class AttackResult:
    """Perturbation sizes are fractions of the valid range; samples that are misclassified anyway are not attacked."""

    name: str
    settings: dict[str, Any]
    perturbed: Tensor  # in the layout of the inputs; equal to them where nothing was attacked
    correct: Tensor  # (B,) bool, classified correctly without the attack; only these were attacked
    fooled: Tensor  # (B,) bool, the correct ones that the attack changed
    l2: Tensor  # (B,), size of each perturbation
    linf: Tensor  # (B,)

    @property
    def samples(self) -> int:
        return len(self.correct)

    @property
    def clean_accuracy(self) -> float:
        return int(self.correct.sum()) / self.samples

    @property
    def accuracy(self) -> float:
        """Under attack: the fraction of all samples that stay correct."""
        return int((self.correct & ~self.fooled).sum()) / self.samples

    @property
    def success_rate(self) -> float:
        """The fraction of the attacked samples that were fooled; NaN if none was attacked."""
        attacked = int(self.correct.sum())
        return int(self.fooled.sum()) / attacked if attacked else math.nan

    def mean_size(self, norm: str, successful: bool = True) -> float:
        """Mean perturbation in "l2" or "linf", of the successful attacks or of all; NaN where there are none."""
        if norm not in ("l2", "linf"):
            raise ValueError(f'norm is {norm!r}; it must be "l2" or "linf"')
        sizes = (self.l2 if norm == "l2" else self.linf)[self.fooled if successful else self.correct]
        return sizes.double().mean().item()

    def to_dict(self) -> dict[str, Any]:
        """The averages as plain values, None where there is no number."""
        numbers = {
            "clean_accuracy": self.clean_accuracy,
            "accuracy": self.accuracy,
            "success_rate": self.success_rate,
            "l2_successful": self.mean_size("l2"),
            "linf_successful": self.mean_size("linf"),
            "l2_all": self.mean_size("l2", successful=False),
            "linf_all": self.mean_size("linf", successful=False),
        }
        finite = {key: value if math.isfinite(value) else None for key, value in numbers.items()}
        return {"attack": self.name, **self.settings, "samples": self.samples, **finite}
