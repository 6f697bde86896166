"""The paper's studies, by name. Each is one object in a file or folder of its own."""

from __future__ import annotations

from lipschitz_rnn.experiments.studies import ablation, figures, mnist, robustness
from lipschitz_rnn.experiments.study import Study

STUDIES: dict[str, Study] = {module.STUDY.name: module.STUDY for module in (mnist, robustness, ablation, figures)}
