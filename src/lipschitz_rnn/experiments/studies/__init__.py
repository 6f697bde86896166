"""The paper's studies and our own, by name. Each is one object in its own file or folder."""

from __future__ import annotations

from lipschitz_rnn.experiments.studies import (
    ablation,
    cifar,
    contracting,
    curvature,
    figures,
    irregular,
    mnist,
    noise,
    ptb,
    radius,
    robustness,
    speech,
)
from lipschitz_rnn.experiments.study import Study

_MODULES = (
    mnist, robustness, curvature, ablation, figures, cifar, ptb, speech, irregular, noise, contracting, radius,
)  # fmt: skip
STUDIES: dict[str, Study] = {module.STUDY.name: module.STUDY for module in _MODULES}
