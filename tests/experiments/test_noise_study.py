"""The study of noise in training: strengths as variants of one run, measured with disturbed inputs, on one page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from invented_records import invented

from lipschitz_rnn.documents.blocks import Paragraph
from lipschitz_rnn.experiments.campaign import Campaign
from lipschitz_rnn.experiments.reproduce import reproduce
from lipschitz_rnn.experiments.studies.noise import STRENGTHS, STUDY, DisturbedInputs
from lipschitz_rnn.experiments.studies.noise.page import accuracies
from lipschitz_rnn.robustness.measuring import Method


def test_from_training_to_the_page(tmp_path: Path) -> None:
    plans = STUDY.plans(quick=True, seeds=(0,), changes={"epochs": 2, "hidden_size": 8})
    campaign = Campaign(tmp_path, tmp_path / "results", measures=DisturbedInputs(Method(attacked=10, noises=1)))
    outcome = reproduce(STUDY, campaign, plans)
    (record,) = outcome.records
    assert [seed["variant"] for seed in record.seeds] == list(STRENGTHS)
    networks = record.measures["networks"]
    assert len(networks) == len(STRENGTHS)
    for seed, measured in zip(record.seeds, networks, strict=True):
        assert abs(measured["accuracy"] - seed["test"]) < 1e-6  # the same networks, without a disturbance
        assert all(0.0 <= measured[attack] <= 1.0 for attack in ("pgd", "deepfool-l2", "deepfool-linf"))
    page = (tmp_path / "noise.md").read_text()
    for strengths in STRENGTHS:
        row = f"| {strengths['noise']:g} | {strengths['multiplicative_noise']:g} |"
        assert page.count(row) == 2  # scores, and disturbed inputs


def test_the_number_of_epochs_is_said_once() -> None:
    (plan,) = STUDY.plans(["ordered-mnist"])
    for why, text in (("", "N = 128; 100 epochs."), ("100 epochs, Adam", "N = 128; 100 epochs, Adam.")):
        page = accuracies(STUDY, [invented(replace(plan, why=why), [0.5, 0.6, 0.7])])
        assert page[1] == Paragraph(text)


def test_all_strengths_of_a_task_are_one_run() -> None:
    for plan in STUDY.plans():
        variants = plan.settings.variants
        assert variants[0] == {"noise": 0.0, "multiplicative_noise": 0.0}
        assert len(plan.settings.members) == len(variants) * len(plan.settings.seeds)
