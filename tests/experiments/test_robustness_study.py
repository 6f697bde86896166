"""The robustness study: networks kept at a target loss, what the page says of them, and one small study."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from lipschitz_rnn.cli import app
from lipschitz_rnn.documents.blocks import to_markdown
from lipschitz_rnn.experiments.pages.sections import blocks
from lipschitz_rnn.experiments.results import Record, read_records, write_record
from lipschitz_rnn.experiments.runner import load_task
from lipschitz_rnn.experiments.studies.robustness import STUDY
from lipschitz_rnn.experiments.studies.robustness.page import draw_noise
from lipschitz_rnn.experiments.target_loss import KeepEveryEpoch, Taken, load_taken, lowest_common_loss, take_at_loss
from lipschitz_rnn.robustness import AttackResult
from lipschitz_rnn.robustness.measuring import accuracy_within
from lipschitz_rnn.training import RunError, Settings, fit
from lipschitz_rnn.training.history import read_run
from lipschitz_rnn.training.runs import load_run


def test_the_study_trains_the_papers_units_on_rows_of_mnist_by_sgd() -> None:
    plans = {plan.settings.unit: plan.settings for plan in STUDY.plans()}
    assert list(plans) == ["neural-ode", "antisymmetric", "lipschitz", "urnn"]
    for settings in plans.values():
        assert (settings.task, settings.optimiser, settings.hidden_size) == ("rows-mnist", "sgd", 128)
        assert len(settings.seeds) == 5
        assert settings.schedule == "constant"
    assert len({plans[unit].learning_rate for unit in ("neural-ode", "antisymmetric", "lipschitz")}) == 1
    steps = {unit: settings.unit_options.get("step_size") for unit, settings in plans.items()}
    assert steps == {"neural-ode": 0.03, "antisymmetric": 0.03, "lipschitz": 0.03, "urnn": None}


def test_the_command_of_a_plan_repeats_what_was_asked_for() -> None:
    options = {"target_loss": 0.3, "samples": 50}
    method = STUDY.measures.configured(True, options).method  # type: ignore[attr-defined]
    assert (method.target_loss, method.attacked, method.radius_pgd) == (0.3, 50, 0.07)
    (plan,) = STUDY.plans(["urnn"], quick=True, seeds=(4,), options=options, changes={"epochs": 2})
    command = "lipschitz-rnn reproduce robustness --quick --seeds 4 --epochs 2 --target-loss 0.3 --samples 50"
    assert plan.command == command
    assert "digits" in plan.why


def small(**changes: Any) -> Settings:
    values: dict[str, Any] = {"hidden_size": 5, "seeds": (0, 1), "epochs": 3, "batch_size": 64, "optimiser": "sgd"}
    values |= {"task_options": {"steps": 8}, "learning_rate": 0.05, "device": "cpu", "log_steps": 4}
    return Settings(task="digits", **values | changes)


def same(left: torch.nn.Module, right: torch.nn.Module) -> bool:
    return all(torch.equal(value, right.state_dict()[name]) for name, value in left.state_dict().items())


def train_keeping(folder: Path, **changes: Any) -> list[list[float | None]]:
    fit(small(**changes), load_task(small()), folder, probe=KeepEveryEpoch(folder))
    return read_run(folder).training_losses()


def load_at_loss(folder: Path, target: float) -> tuple[list[torch.nn.Module], list[Taken]]:
    taken = [each for each in take_at_loss(folder, target) if each is not None]
    return [load_taken(folder, index, each) for index, each in enumerate(taken)], taken


def test_networks_are_taken_after_the_first_epoch_at_the_target(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    losses = train_keeping(tmp_path / "run")
    second = max(member[1] or 0.0 for member in losses)
    assert all((member[0] or 0.0) > second > (member[2] or 9.0) for member in losses)  # it learns, epoch by epoch
    networks, taken = load_at_loss(tmp_path / "run", second)
    fit(small(epochs=2), load_task(small()), tmp_path / "short")
    expected = load_run(tmp_path / "short").checkpoint("last")
    for index, network in enumerate(networks):
        assert taken[index] == Taken(1, losses[index][1] or 0.0, True)
        assert same(network, expected[index])


def test_networks_that_never_come_down_to_the_target_are_taken_at_their_lowest_loss(tmp_path: Path) -> None:
    losses = train_keeping(tmp_path / "run", epochs=2)
    networks, taken = load_at_loss(tmp_path / "run", 0.0)
    last = load_run(tmp_path / "run").checkpoint("last")
    assert taken == [Taken(1, member[1] or 0.0, False) for member in losses]
    assert all(same(network, expected) for network, expected in zip(networks, last, strict=True))
    (tmp_path / "run" / "epochs" / "epoch-0001.safetensors").unlink()
    with pytest.raises(RunError, match=r"epoch-0001\.safetensors"):
        load_at_loss(tmp_path / "run", 0.0)


def test_the_common_loss_is_one_that_every_network_came_down_to(tmp_path: Path) -> None:
    fast = train_keeping(tmp_path / "fast")
    slow = train_keeping(tmp_path / "slow", learning_rate=0.02, unit="neural-ode")
    target = lowest_common_loss([tmp_path / "fast", tmp_path / "slow"])
    assert target == max(min(loss for loss in member if loss is not None) for member in fast + slow)
    for name in ("fast", "slow"):
        assert all(each.reached for each in load_at_loss(tmp_path / name, target)[1])


def test_a_run_cut_off_keeps_the_epochs_that_it_had(tmp_path: Path) -> None:
    losses = train_keeping(tmp_path / "run")
    before = [load_at_loss(tmp_path / "run", target)[0][0] for target in (0.0, 100.0)]
    sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1].unlink()
    (tmp_path / "run" / "epochs" / "epoch-0002.safetensors").unlink()
    fit(small(), load_task(small()), tmp_path / "run", resume=True, probe=KeepEveryEpoch(tmp_path / "run"))
    assert read_run(tmp_path / "run").training_losses() == losses
    after = [load_at_loss(tmp_path / "run", target)[0][0] for target in (0.0, 100.0)]
    assert all(same(left, right) for left, right in zip(before, after, strict=True))


def test_accuracy_within_a_ball_counts_smaller_perturbations_only() -> None:
    correct, fooled = torch.tensor([True, True, True, False]), torch.tensor([True, True, False, False])
    sizes = torch.tensor([0.1, 0.5, 0.05, 0.0])
    attacked = AttackResult("deepfool-l2", {}, torch.zeros(1), correct, fooled, sizes, 2 * sizes)
    assert [accuracy_within(attacked, "l2", radius) for radius in (0.01, 0.1, 1.0)] == [0.75, 0.5, 0.25]
    assert accuracy_within(attacked, "linf", 0.1) == 0.75


def network(shift: float, noise: float) -> dict[str, Any]:
    attack = {"accuracy": 0.5 + shift, "accuracy_within": 0.6 + shift, "clean_accuracy": 0.9, "samples": 10}
    attack |= {"radius": 0.07, "l2_successful": 1.0, "linf_successful": None}
    attack |= {"within": {"radii": [0.0, 0.1], "accuracy": [0.9, 0.6 + shift]}}
    curvature = {"lambda_max": 2.0 - shift, "lambda_min": -0.5, "trace": 9.0, "condition_number": 4.0}
    curvature |= {"samples": 5, "trace_error": 0.1}
    curve = {kind: {"amounts": [0.0, 0.1], "accuracy": [0.9, noise]} for kind in ("white", "salt-and-pepper")}
    attacks = {"pgd": attack, "pgd-wide": attack, "deepfool-l2": attack, "deepfool-linf": attack, "hessian": curvature}
    return attacks | {"noise": curve, "accuracy": 0.9}


def record(unit: str, shifts: tuple[float, ...], kind: str = "paper") -> Record:
    taken = [{"epoch": 3, "loss": 0.04, "reached": True}, {"epoch": 5, "loss": 0.06, "reached": False}]
    method = {"target_loss": 0.05, "steps": 7, "step_size": 0.01, "radius_l2": 1.0, "radius_linf": 0.07}
    method |= {"radius_pgd": 0.01}
    networks = [network(shift, 0.7 + shift) for shift in shifts]
    settings = {"task": "rows-mnist", "unit": unit, "hidden_size": 8, "epochs": 9, "momentum": 0.9, "clip": 1.0}
    settings |= {"learning_rate": 0.1, "seeds": list(range(len(shifts)))}
    return Record(
        "robustness", f"rows-mnist/{unit}", kind, settings, [], {}, "accuracy", True, True, 1234, 20, 1.0, "vmap",
        {"device": "a machine"}, "lipschitz-rnn reproduce robustness",
        measures={"method": method, "taken": taken, "networks": networks},
    )  # fmt: skip


def test_the_table_has_mean_and_spread_with_the_papers_number_beside() -> None:
    records = [record("lipschitz", (0.1, 0.2)), record("neural-ode", (0.0, 0.0)), record("urnn", (0.0, 0.1))]
    text = to_markdown(blocks(STUDY, records))
    assert "| Lipschitz | 2 | 65.0 ± 7.1 (93) | 75.0 ± 7.1 (89.2) | 75.0 ± 7.1 (54.1) | 1.85 ± 0.07 (0.14)" in text
    assert "| Lipschitz | 1,234 | 0.0500 (0.0400 to 0.0600) | 4 to 6 of 9 | 1 of 2 | 90.00 % |" in text
    assert "unitary | 1,234" in text


def test_the_figure_has_a_line_for_each_unit() -> None:
    figure = draw_noise([record("lipschitz", (0.0, 0.2)), record("urnn", (0.1,), "paper")])
    white, _ = figure.axes
    assert [line.get_label() for line in white.lines] == ["Lipschitz", "unitary"]
    assert list(white.lines[0].get_ydata()) == pytest.approx([90.0, 80.0])


@pytest.mark.slow
@pytest.mark.needs("foolbox")
def test_the_command_writes_table_figure_and_json_and_goes_on(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    arguments = ["reproduce", "robustness", "--quick", "-o", str(tmp_path), "--seeds", "0,3", "--epochs", "2"]
    arguments += ["--samples", "20", "--only", "antisymmetric", "--only", "urnn"]
    answer = CliRunner().invoke(app, [*arguments, "--json"])
    assert answer.exit_code == 0, answer.output
    written = [Path(path).relative_to(tmp_path).as_posix() for path in json.loads(answer.stdout)["written"]]
    figures = ["figures/robustness-quick-noise.svg", "figures/robustness-quick-distances.svg"]
    assert written[:3] == ["robustness.md", *figures]
    first, second = read_records(tmp_path / "results", "robustness")
    assert [len(record.measures["networks"]) for record in (first, second)] == [2, 2]
    measured = first.measures["networks"][0]
    assert measured["pgd"]["samples"] == 20
    assert measured["pgd"]["accuracy"] <= measured["pgd"]["clean_accuracy"]
    assert measured["hessian"]["lambda_max"] > 0.0
    clean = pytest.approx(measured["accuracy"], abs=1.01 / 360)  # up to a sample at the border
    assert measured["noise"]["white"]["accuracy"][0] == clean
    assert "pgd" not in second.measures["networks"][0]  # the unitary unit stands in the figure only
    page = (tmp_path / "robustness.md").read_text()
    (tmp_path / "quick" / "digits" / "antisymmetric" / "measures" / "network-0.json").unlink()  # as if cut off
    again = CliRunner().invoke(app, [*arguments, "--resume"])
    assert again.exit_code == 0, again.output
    assert re.findall(r"(\S+), (seed \d): measuring", again.output) == [("quick/digits/antisymmetric", "seed 0")]
    assert (tmp_path / "robustness.md").read_text() == page
    alone = CliRunner().invoke(app, [*arguments[:-4], "--only", "urnn", "--resume"])
    assert alone.exit_code == 0, alone.output
    assert (tmp_path / "robustness.md").read_text() == page  # it stands among the others


def test_notes_beside_the_records_are_printed_on_the_page(tmp_path: Path) -> None:
    """results/robustness/notes.md: what a person found out about the numbers."""
    write_record(record("lipschitz", (0.1, 0.2)), tmp_path / "results")
    notes = tmp_path / "results" / "robustness" / "notes.md"
    notes.write_text("## Where the ordering does not hold\n\nThe trace, because of the seed.\n")
    assert CliRunner().invoke(app, ["report", str(tmp_path / "results")]).exit_code == 0
    page = (tmp_path / "docs" / "results" / "robustness.md").read_text()
    assert "| Lipschitz | 2 |" in page
    assert "## Where the ordering does not hold\n\nThe trace, because of the seed.\n" in page
    assert CliRunner().invoke(app, ["report", "--check", str(tmp_path / "results")]).exit_code == 0
    notes.write_text("Another reason.\n")
    changed = CliRunner().invoke(app, ["report", "--check", str(tmp_path / "results")])
    assert changed.exit_code == 1
    assert "+Another reason." in changed.output
