"""Runs with variants on their way back: loaded, evaluated and reported network by network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from lipschitz_rnn.cli import app
from lipschitz_rnn.experiments.report import group_runs
from lipschitz_rnn.experiments.runner import train
from lipschitz_rnn.training import Result, Settings, evaluate
from lipschitz_rnn.training.folder import read_settings
from lipschitz_rnn.training.history import find_runs
from lipschitz_rnn.training.runs import load_run

ONE_SAMPLE = 1.01 / 360  # of the test split: at the border it may fall to either side
TOML = """
task = "digits"
hidden_size = 6
epochs = 2
seeds = [0, 4]
device = "cpu"
variants = [{beta = 0.5}, {alpha = 0.0, step_size = 0.2}]
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("variants") / "run"
    variants = ({"beta": 0.5}, {"alpha": 0.0, "step_size": 0.2})
    settings = Settings(task="digits", hidden_size=6, epochs=2, seeds=(0, 4), device="cpu", variants=variants)
    return folder, train(settings, folder)


def test_networks_come_back_from_the_folder_with_their_options(run: tuple[Path, Result]) -> None:
    folder, result = run
    members = load_run(folder).networks
    settings, models = load_run(folder).of_variant(1)
    assert settings.unit_options == {"alpha": 0.0, "step_size": 0.2}
    assert list(models) == [0, 4]
    from lipschitz_rnn import tasks

    task = tasks.load("digits")
    for member, trained in zip(members, result.seeds, strict=True):
        assert evaluate(member, task) == pytest.approx(trained.test, abs=ONE_SAMPLE)
    assert all(torch.equal(v, members[3].state_dict()[k]) for k, v in models[4].state_dict().items())
    with pytest.raises(ValueError, match=r"variant is None; the variants of .* are 0: \{'beta': 0.5\}; 1:"):
        load_run(folder).of_variant()


def test_evaluate_names_every_network(run: tuple[Path, Result]) -> None:
    folder, result = run
    answer = json.loads(CliRunner().invoke(app, ["evaluate", str(folder), "--json"]).stdout)
    found = [(seed["variant"], seed["seed"], seed["accuracy"]) for seed in answer["seeds"]]
    expected = [(dict(seed.variant), seed.seed, pytest.approx(seed.test, abs=ONE_SAMPLE)) for seed in result.seeds]
    assert found == expected
    assert "alpha=0.0, step_size=0.2, seed 4" in CliRunner().invoke(app, ["evaluate", str(folder)]).output


def test_a_report_has_a_group_for_every_variant(run: tuple[Path, Result]) -> None:
    folder, result = run
    groups = group_runs(find_runs([folder]))
    assert [group.record.name for group in groups] == [
        "digits, lipschitz, N = 6, beta = 0.5",
        "digits, lipschitz, N = 6, alpha = 0.0, step_size = 0.2",
    ]
    assert groups[1].record.scores() == pytest.approx([seed.test for seed in result.seeds[2:]], rel=1e-5)
    _, curves = groups[1].runs[0].curve("validation", "accuracy")
    _, whole = find_whole(folder)
    assert curves == whole[2:]


def find_whole(folder: Path) -> tuple[list[int], list[list[float]]]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [record["accuracy"] for record in records if record["kind"] == "validation"]
    return [], [list(column) for column in zip(*rows, strict=True)]


def test_variants_come_from_a_file_to_the_command(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(TOML)
    arguments = ["train", "--config", str(tmp_path / "run.toml"), "-o", str(tmp_path / "run"), "-e", "1"]
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 0, answer.output
    assert read_settings(tmp_path / "run").variants == ({"beta": 0.5}, {"alpha": 0.0, "step_size": 0.2})
    assert all(text in answer.output for text in ("beta=0.5", "alpha=0.0", "step_size=0.2"))


def test_certify_takes_all_networks(run: tuple[Path, Result]) -> None:
    found = CliRunner().invoke(app, ["certify", str(run[0]), "--seed", "4", "--json"])
    assert list(json.loads(found.stdout)) == ["beta=0.5, seed 4", "alpha=0.0, step_size=0.2, seed 4"]


@pytest.mark.needs("foolbox")
def test_robustness_measures_the_variant_that_is_named(run: tuple[Path, Result]) -> None:
    command = ["robustness", "attack", str(run[0]), "--attacks", "fgsm", "--json", "--offline"]
    found = json.loads(CliRunner().invoke(app, [*command, "--variant", "1"]).stdout)
    clean = [seed["attacks"][0]["clean_accuracy"] for seed in found["seeds"]]
    expected = [seed.test for seed in run[1].seeds if seed.variant != {"beta": 0.5}]
    assert clean == pytest.approx(expected, abs=ONE_SAMPLE)
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2
    assert "0: {'beta': 0.5}" in " ".join(refused.output.split())
