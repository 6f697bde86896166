"""The study of the Hessian against training loss: epochs at a grid of losses, what the page says, one small study."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from lipschitz_rnn.cli import app
from lipschitz_rnn.documents.blocks import to_markdown
from lipschitz_rnn.experiments.pages.sections import blocks
from lipschitz_rnn.experiments.presets import preset_settings
from lipschitz_rnn.experiments.results import Record, read_records
from lipschitz_rnn.experiments.runner import load_task
from lipschitz_rnn.experiments.studies.curvature import STUDY, measuring
from lipschitz_rnn.experiments.studies.curvature.measuring import epochs_at_losses
from lipschitz_rnn.experiments.studies.curvature.page import crossings, draw
from lipschitz_rnn.experiments.target_loss import Taken, load_taken
from lipschitz_rnn.robustness import HessianResult, draw_samples, hessian
from lipschitz_rnn.robustness import measuring as robustness_measuring
from lipschitz_rnn.robustness.hessian_spectrum import NotConverged
from lipschitz_rnn.training import RunError, Watcher
from lipschitz_rnn.training.history import read_run
from lipschitz_rnn.training.model import build_model


def test_the_study_trains_the_units_of_the_third_table_with_equal_settings() -> None:
    plans = {plan.settings.unit: plan.settings for plan in STUDY.plans()}
    assert list(plans) == ["neural-ode", "antisymmetric", "lipschitz"]
    assert {(s.task, s.optimiser, s.hidden_size, s.learning_rate, s.epochs) for s in plans.values()} == {
        ("rows-mnist", "sgd", 128, plans["lipschitz"].learning_rate, plans["lipschitz"].epochs)
    }


@pytest.mark.parametrize(("level", "expected"), [(0.1, [0.01]), (0.3, [0.1 * math.sqrt(0.1)]), (3.0, []), (1.0, [])])
def test_a_level_is_crossed_where_the_power_law_has_it(level: float, expected: list[float]) -> None:
    """A level that a point has is found there; one above all points, or only at the first, is not crossed."""
    places, values = [1.0, 0.1, 0.1 * math.sqrt(0.1), 0.01], [1.0, 0.5, 0.3, 0.1]
    assert crossings(places, values, level) == pytest.approx(expected)


def test_a_curve_may_pass_a_level_twice() -> None:
    law = [place**2 for place in (0.1, 1.0)]
    assert crossings([0.1, 1.0], law, 0.25) == pytest.approx([0.5])
    assert crossings([2.0, 1.0, 0.1], [0.01, 1.0, 0.01], 0.25)[1] == pytest.approx(0.5)
    assert len(crossings([2.0, 1.0, 0.1], [0.01, 1.0, 0.01], 0.25)) == 2


def record(unit: str, values: dict[float, list[float]], kind: str = "paper") -> Record:
    """Two networks; values: largest eigenvalues by loss, of the networks that reached it."""
    networks = [
        [
            {"at": loss, "epoch": 3, "train_loss": loss, "lambda_max": each[index], "lambda_min": -0.5, "trace": 9.0,
             "trace_error": 0.1, "loss": loss, "samples": 5}
            for loss, each in values.items() if index < len(each)
        ]
        for index in range(2)
    ]  # fmt: skip
    grid = {"losses": [1.0, 0.1, 0.01], "samples": 5, "probes": 2, "lanczos": 3, "tolerance": 0.01}
    settings = {"task": "rows-mnist", "unit": unit, "hidden_size": 8, "epochs": 9, "seeds": [0, 1]}
    return Record(
        "curvature", f"rows-mnist/{unit}", kind, settings, [], {}, "accuracy", True, True, 1234, 20, 1.0, "vmap",
        {"device": "a machine"}, "lipschitz-rnn reproduce curvature", "a reason",
        measures={"grid": grid, "networks": networks},
    )  # fmt: skip


def test_the_page_says_where_the_printed_numbers_appear_and_counts_networks() -> None:
    known = [record("lipschitz", {1.0: [2.0, 1.2], 0.1: [0.14], 0.01: []}), record("neural-ode", {1.0: [3.0, 3.0]})]
    text = to_markdown(blocks(STUDY, known))
    assert "Lipschitz has the printed 0.14 at a loss of 0.1" in text
    assert "Neural ODE never has the printed 0.3, but between 3.00 and 3.00 at training losses from 1 down to 1" in text
    assert "| 0.1 | – | 0.14, 1 of 2 |" in text
    assert "| 1 | 3.00 (3.00 to 3.00) | 1.60 (1.20 to 2.00) |" in text
    assert "| the paper | 0.3 | 0.14 |" in text
    assert "| 0.01 |" not in text


@pytest.mark.parametrize("kind", ["paper", "quick"])
def test_the_page_of_networks_that_reached_no_loss_says_so(kind: str) -> None:
    unmeasured = record("lipschitz", {}, kind)
    page = to_markdown(blocks(STUDY, [unmeasured]))
    assert "No network came down to a training loss of 1, the highest of the grid: nothing was measured." in page


def test_the_picture_has_a_curve_and_a_printed_line_for_each_unit() -> None:
    left, right = draw([record("lipschitz", {1.0: [2.0, 1.0], 0.1: [0.5, 0.3]})]).axes
    curve, printed = left.lines
    assert (curve.get_label(), list(curve.get_ydata())) == ("Lipschitz", pytest.approx([1.5, 0.4]))
    assert list(printed.get_ydata()) == [0.14, 0.14]
    assert list(right.lines[1].get_ydata()) == [3.1, 3.1]


@pytest.mark.full
@pytest.mark.needs("scipy")
def test_the_command_measures_networks_at_the_grid_and_goes_on(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    arguments = ["reproduce", "curvature", "--quick", "-o", str(tmp_path), "--seeds", "0", "--epochs", "4"]
    arguments += ["--samples", "40", "--only", "lipschitz"]
    answer = CliRunner().invoke(app, [*arguments, "--json"])
    assert answer.exit_code == 0, answer.output
    (found,) = read_records(tmp_path / "results", "curvature")
    (points,) = found.measures["networks"]
    folder = tmp_path / "quick" / "digits" / "lipschitz"
    losses = [loss for loss in read_run(folder).training_losses()[0] if loss is not None]
    assert [point["at"] for point in points] == [
        loss for loss in found.measures["grid"]["losses"] if min(losses) <= loss
    ]
    for point in points:
        assert point["train_loss"] == pytest.approx(losses[point["epoch"]], rel=1e-4)
        assert all(loss > point["at"] for loss in losses[: point["epoch"]])
    _agrees_with_the_whole_matrix(folder, points[-1], found)
    page = (tmp_path / "curvature.md").read_text()
    measured = sorted((folder / "curvature").iterdir())
    kept = {path: path.stat().st_mtime_ns for path in measured[:-1]}
    measured[-1].unlink()  # as if interrupted
    again = CliRunner().invoke(app, [*arguments, "--resume"])
    assert again.exit_code == 0, again.output
    assert (tmp_path / "curvature.md").read_text() == page
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert json.loads(measured[-1].read_text())["of"]["samples"] == 40


def _agrees_with_the_whole_matrix(folder: Path, point: dict[str, Any], found: Record) -> None:
    """The largest eigenvalue of a point is that of the full Hessian of the network of its epoch, to its tolerance."""
    (taken,) = epochs_at_losses(folder, [point["at"]])
    network, task = load_taken(folder, 0, taken[point["at"]]), load_task(found.setup)
    batch = draw_samples(task, "train", 40)
    exact = hessian(network, batch.inputs, batch.targets, parameters="unit", exact=True)
    assert point["lambda_max"] == pytest.approx(exact.lambda_max, rel=0.02)
    assert point["lambda_min"] == pytest.approx(exact.lambda_min, rel=0.02)


@pytest.mark.needs("scipy")
def test_the_hessian_is_measured_as_in_the_study_of_robustness(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def noting(*given: Any, **options: Any) -> HessianResult:
        asked.append(options | {"inputs": given[1], "targets": given[2]})
        return hessian(*given, **options)

    monkeypatch.setattr(robustness_measuring, "hessian", noting)
    settings = preset_settings("digits", changes={"device": "cpu", "hidden_size": 8})
    task = load_task(settings)
    network = build_model(settings, task, 0)
    how: dict[str, Any] = {"probes": 3, "lanczos": 6, "tolerance": 0.02}
    alone = measuring._measure(network, task, measuring.Grid(samples=30, **how))
    method = robustness_measuring.Method(curved=30, attacked=2, steps=1, noises=1, **how)
    among_others = robustness_measuring.measure(network, task, method)["hessian"]
    first, second = ({key: each[key] for key in each.keys() - {"generator", "batch_size"}} for each in asked)
    torch.testing.assert_close(first.pop("inputs"), second.pop("inputs"), rtol=0, atol=0)
    torch.testing.assert_close(first.pop("targets"), second.pop("targets"), rtol=0, atol=0)
    assert first == second
    for name in ("lambda_max", "lambda_min", "trace", "loss"):
        assert alone[name] == pytest.approx(among_others[name], rel=1e-5)


def test_a_measurement_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def second_fails(*given: Any) -> dict[str, float]:
        calls.append(len(calls))
        if calls[-1] == 1:
            raise NotConverged("no convergence")
        return {"lambda_max": 1.0}

    monkeypatch.setattr(measuring, "_measure", second_fails)
    monkeypatch.setattr(measuring, "load_taken", lambda *given: torch.nn.Linear(1, 1))
    settings = preset_settings("digits", changes={"device": "cpu"})
    taken = {1.0: Taken(0, 0.9, True), 0.5: Taken(3, 0.45, True), 0.2: Taken(5, 0.19, True)}
    network = measuring.CurvedNetwork("one", tmp_path, settings, 0, taken, measuring.Grid())
    with pytest.raises(RunError, match=r"at a loss of 0\.5, no convergence"):
        network.complete(lambda name: Watcher())
    assert [point["at"] for point in network.points()] == [1.0, 0.2]
    assert not network.is_complete()
    network.complete(lambda name: Watcher())
    assert (len(calls), network.is_complete()) == (4, True)
