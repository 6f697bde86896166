"""Records with the settings of a plan and scores that nobody measured, for tests of pages alone."""

from __future__ import annotations

from collections.abc import Sequence

from lipschitz_rnn.experiments.campaign import Plan
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.training.settings import PLACE_SETTINGS


def invented(plan: Plan, tests: Sequence[float], late: Sequence[float | None] = ()) -> Record:
    """Test scores of the seeds, in every variant; `late`: what the curves of each end with, else the test score."""
    settings = {key: value for key, value in plan.settings.to_dict().items() if key not in PLACE_SETTINGS}
    variants = plan.settings.variants or ({},)
    seeds = [
        {"seed": seed, "selected_epoch": 1, "validation": test - 0.01, "test": test, "test_last": test - 0.002}
        | {"diverged_step": None, "variant": variant}
        for variant in variants
        for seed, test in enumerate(tests)
    ]
    curve = [[0.5, *(late or (test, test))] for _ in variants for test in tests]
    curves = dict.fromkeys(("train_loss", "validation_loss", "validation_accuracy"), curve)
    environment = {"torch": "2.11", "python": "3.11", "device": "Some GPU", "commit": "0123456789abcdef"}
    return Record(
        plan.study, plan.name, plan.kind, settings, seeds, curves, "accuracy", True, True, 34314, 3, 128.4, "vmap",
        environment, plan.command, plan.why,
    )  # fmt: skip
