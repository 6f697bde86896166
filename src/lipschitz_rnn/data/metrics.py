"""The numbers that people expect of a classifier or a regression, from scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

PERCENT = ("accuracy", "balanced accuracy", "F1 (macro)", "AUC")


def class_metrics(labels: npt.NDArray[np.int64], probabilities: npt.NDArray[Any]) -> dict[str, float | None]:
    """Accuracy, balanced accuracy, F1 and AUC. labels: (n,); probabilities: (n, classes).

    F1 is the mean over the classes that occur in the labels or in the predictions, as in scikit-learn: a class that is
    in neither would count as wrong without a mistake. AUC is the area under the ROC curve, for several classes the mean
    over one class against the others; None if a class is absent, since it is not defined then. All are None if a
    probability is NaN: such a network predicts nothing.
    """
    metrics = _sklearn()
    if np.isnan(probabilities).any():
        return dict.fromkeys(PERCENT)
    found = probabilities.argmax(1)
    classes = np.arange(probabilities.shape[1])
    present = np.unique(labels)
    recalls = [float((found[labels == label] == label).mean()) for label in present]
    auc = None
    if len(present) == len(classes):
        scores = probabilities[:, 1] if len(classes) == 2 else probabilities / probabilities.sum(1, keepdims=True)
        auc = float(metrics.roc_auc_score(labels, scores, multi_class="ovr", labels=classes))
    return {
        "accuracy": float((found == labels).mean()),
        "balanced accuracy": float(np.mean(recalls)),
        "F1 (macro)": float(metrics.f1_score(labels, found, average="macro", zero_division=0.0)),
        "AUC": auc,
    }


def number_metrics(values: npt.NDArray[Any], predicted: npt.NDArray[Any]) -> dict[str, float | None]:
    """MAE, RMSE and R² in the unit of the target, over all values (n, q) that are not NaN; R² is the mean over q.

    All are None if one of these values has no finite prediction.
    """
    error = predicted - values
    known = np.isfinite(values)
    if not np.isfinite(error[known]).all():
        return dict.fromkeys(("MAE", "RMSE", "R²"))
    scores = []
    for column in range(values.shape[1]):
        rows = known[:, column]
        spread = float(((values[rows, column] - values[rows, column].mean()) ** 2).sum()) if rows.any() else 0.0
        if spread > 0.0:
            scores.append(1.0 - float((error[rows, column] ** 2).sum()) / spread)
    return {
        "MAE": float(np.abs(error[known]).mean()) if known.any() else None,
        "RMSE": float(np.sqrt((error[known] ** 2).mean())) if known.any() else None,
        "R²": float(np.mean(scores)) if scores else None,
    }


def spread(metrics: Sequence[Mapping[str, float | None]]) -> dict[str, list[float | None]]:
    """One list per metric with the values of all seeds."""
    return {name: [each[name] for each in metrics] for name in metrics[0]}


def calibration(
    labels: npt.NDArray[np.int64], probabilities: npt.NDArray[Any], bins: int = 10
) -> list[dict[str, float]]:
    """How often the predicted class was right, by the probability that was given to it: one entry per bin in use. Rows
    of NaN are in no bin."""
    known = ~np.isnan(probabilities).any(1)
    labels, probabilities = labels[known], probabilities[known]
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    place = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    used = [place == index for index in range(bins) if (place == index).any()]
    return [
        {"confidence": float(confidence[b].mean()), "accuracy": float(right[b].mean()), "count": int(b.sum())}
        for b in used
    ]


def calibration_error(labels: npt.NDArray[np.int64], probabilities: npt.NDArray[Any], bins: int = 10) -> float:
    """The expected calibration error: the mean gap between probability and accuracy; NaN if nothing is predicted."""
    found = calibration(labels, probabilities, bins)
    total = sum(entry["count"] for entry in found)
    gaps = sum(entry["count"] * abs(entry["confidence"] - entry["accuracy"]) for entry in found)
    return gaps / total if total else math.nan


def confusion(labels: npt.NDArray[np.int64], found: npt.NDArray[np.int64], classes: int) -> npt.NDArray[np.int64]:
    """(true, predicted) counts."""
    return np.bincount(labels * classes + found, minlength=classes * classes).reshape(classes, classes)


def _sklearn() -> Any:
    try:
        from sklearn import metrics
    except ImportError as error:
        raise ImportError("the metrics need scikit-learn; install it with: pip install lipschitz-rnn[data]") from error
    return metrics
