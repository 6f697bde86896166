"""``reproduce figures``: one run with both β, its record, its page, and the drawings without training."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from invented_records import invented
from typer.testing import CliRunner

from lipschitz_rnn.cli import app
from lipschitz_rnn.documents.blocks import to_markdown
from lipschitz_rnn.experiments.campaign import Campaign, Plan
from lipschitz_rnn.experiments.pages.committed import check_pages, write_pages
from lipschitz_rnn.experiments.pages.sections import blocks
from lipschitz_rnn.experiments.results import Record, read_records
from lipschitz_rnn.experiments.studies.figures import STUDY
from lipschitz_rnn.experiments.studies.figures.drawings import DRAWINGS
from lipschitz_rnn.experiments.studies.figures.page import draw_training, read_tracks
from lipschitz_rnn.stability.studies.paper import PENDULUM_SETTINGS, fit_pendulum, measure_lemma2, spectrum_against_beta
from lipschitz_rnn.stability.studies.tracking import spectral_curves, spectral_probe
from lipschitz_rnn.training import Watcher
from lipschitz_rnn.training.runs import load_run


def call(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["reproduce", "figures", *map(str, arguments)])


def test_both_betas_are_variants_of_one_run_with_the_tasks_preset() -> None:
    (plan,) = STUDY.plans()
    assert (plan.name, plan.kind, plan.why) == ("ordered-mnist/spectra", "paper", "")
    assert plan.command == "lipschitz-rnn reproduce figures"
    (other,) = STUDY.plans(options={"task": "permuted-mnist"})
    assert (other.name, other.kind) == ("other/permuted-mnist/spectra", "other")
    assert other.command == "lipschitz-rnn reproduce figures --task permuted-mnist"
    members = [(member.variant["beta"], member.seed) for member in plan.settings.members]
    assert members == [(0.65, 0), (0.65, 1), (0.65, 2), (0.95, 0), (0.95, 1), (0.95, 2)]
    assert (plan.settings.hidden_size, plan.settings.epochs, plan.settings.decay_epochs) == (128, 100, (90,))


def test_what_is_not_as_in_the_paper_stands_in_command_and_reason() -> None:
    (short,) = STUDY.plans(seeds=(3, 5), changes={"epochs": 20, "precision": "bfloat16"})
    assert short.settings.decay_epochs == (18,)
    assert short.command.endswith("figures --only ordered-mnist/spectra --seeds 3,5 --epochs 20 --precision bfloat16")
    assert short.why == "20 epochs, not the paper's 100"
    (digits,) = STUDY.plans(quick=True)
    assert digits.command == "lipschitz-rnn reproduce figures --quick"
    assert (digits.kind, digits.settings.task) == ("quick", "digits")


def test_unknown_task_is_wrong_usage(tmp_path: Path) -> None:
    result = call("-o", tmp_path, "--task", "imagenet")
    assert result.exit_code == 2
    assert "imagenet" in result.output
    assert not list(tmp_path.iterdir())


def test_a_dry_run_lists_the_run() -> None:
    assert call("--dry-run", "--task", "permuted-mnist").output.split() == ["other/permuted-mnist/spectra"]
    (entry,) = json.loads(call("--dry-run", "--json").stdout)
    assert entry["settings"]["variants"] == [{"beta": 0.65}, {"beta": 0.95}]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan, Record]:
    """A tiny run whose rate is so low that its networks stay where they start."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("figures")
    (plan,) = STUDY.plans(quick=True, seeds=(0, 4), changes={"epochs": 2, "hidden_size": 5, "device": "cpu"})
    plan = replace(plan, settings=replace(plan.settings, learning_rate=1e-12, schedule="constant", optimiser="sgd"))
    campaign = Campaign(folder, folder / "results", commit="abc", measures=STUDY.measures)
    records, failed = campaign.run([plan], lambda _: Watcher())
    assert not failed
    return folder, plan, records[0]


def test_the_record_keeps_the_real_parts_of_every_network_and_epoch(trained: tuple[Path, Plan, Record]) -> None:
    folder, plan, record = trained
    assert record == read_records(folder / "results")[0]
    models = load_run(folder / plan.name).checkpoint("last")
    for matrix in "AW":
        values = record.curves[f"{matrix}_real_max"]
        assert [len(member) for member in values] == [2] * 4
        expected = [values[f"{matrix}.real_max"] for values in spectral_probe(models)]
        assert [member[-1] for member in values] == pytest.approx(expected, rel=1e-4)
        start = record.measures["before_training"][f"{matrix}_real_max"]
        assert start == pytest.approx(expected, rel=1e-3)  # nothing moved
        assert len(set(start)) == 4  # but the networks differ
        assert all(len(f"{abs(value):e}".split("e")[0].rstrip("0").replace(".", "")) <= 5 for value in start)
    assert set(record.curves) == {"train_loss", "validation_loss", "validation_accuracy", "A_real_max", "W_real_max"}


def test_curves_take_the_largest_layer_and_none_where_a_network_is_not_finite() -> None:
    probes: list[dict[str, Any]] = [
        {"kind": "probe", "0/A.real_max": [0.1234567, 0.5], "1/A.real_max": [-1.0, 0.75], "A.symmetric_max": [9, 9]},
        {"kind": "probe", "0/A.real_max": [0.2, None], "1/A.real_max": [0.3, None]},
    ]
    assert spectral_curves(probes) == {"A_real_max": [[0.12346, 0.3], [0.75, None]]}
    assert spectral_curves([]) == {}


def invented_tracks(low: list[float], high: list[float | None]) -> Record:
    """Two seeds of each β that start at 0.1; W goes half as far as A, and the second seed as far as the first."""
    record = invented(STUDY.plans(seeds=(0, 1))[0], [0.9, 0.94])
    tracks: list[list[Any]] = [low, low, high, high]
    half = [[None if value is None else value / 2 for value in member] for member in tracks]
    start = {f"{matrix}_real_max": [0.1] * 4 for matrix in "AW"}
    curves = {**record.curves, "A_real_max": tracks, "W_real_max": half}
    lost = 7 if None in high else None
    seeds = [{**seed, "diverged_step": lost if index > 1 else None} for index, seed in enumerate(record.seeds)]
    return replace(record, seeds=seeds, curves=curves, measures={"before_training": start, "drawings": {}})


@pytest.fixture
def only_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without the drawings that take seconds."""
    monkeypatch.setattr("lipschitz_rnn.experiments.studies.figures.page.DRAWINGS", {})


@pytest.mark.usefixtures("only_training")
def test_the_page_says_start_end_maximum_and_what_the_paper_says() -> None:
    text = to_markdown(blocks(STUDY, [invented_tracks([0.5, -0.3, -0.1], [0.05, -0.02, -0.04])]))
    row = "| ordered-mnist | 0.65 | 2 | 90.00 % | 92.00 % | 94.00 % | 0.1 | −0.1 | 0.5 | 0.1 | −0.05 | 0.25 |"
    assert row in text
    assert "](figures/figures-spectrum-over-training-ordered-mnist.svg)" in text


@pytest.mark.usefixtures("only_training")
def test_tracks_say_how_far_real_parts_move_and_how_long_they_are_negative() -> None:
    low, high = read_tracks(invented_tracks([0.5, -0.3, -0.1], [0.05, -0.02, 0.02]))
    assert (low.change("A"), low.change("W"), low.negative_epochs()) == pytest.approx((0.4, 0.25, 2))
    assert (high.change("A"), high.negative_epochs()) == pytest.approx((0.12, 1))
    record = invented_tracks([0.2, -0.1, -0.3], [None, None, None])
    assert [len(tracks.values["A"]) for tracks in read_tracks(record)] == [2, 0]
    assert "2 of 4 networks diverged" in to_markdown(blocks(STUDY, [record]))
    rows = [
        line for line in to_markdown(blocks(STUDY, [record])).splitlines() if line.startswith("| ordered-mnist | 0.")
    ]
    assert ["–" in row for row in rows] == [False, True]


def test_the_figure_has_a_panel_for_each_beta_with_the_mean_over_seeds() -> None:
    record = invented_tracks([0.5, -0.3], [0.05, -0.02])
    moved = [*record.curves["A_real_max"]]
    moved[1] = [0.7, -0.5]
    left, right = draw_training(replace(record, curves={**record.curves, "A_real_max": moved})).axes
    assert left.get_ylim() == right.get_ylim()
    assert left.lines[0].get_ydata() == pytest.approx([0.1, 0.6, -0.4])


def test_drawings_show_the_numbers_of_the_record(trained: tuple[Path, Plan, Record]) -> None:
    numbers = trained[2].measures["drawings"]
    fits, betas, lemma = (drawing.draw(numbers[name]) for name, drawing in DRAWINGS.items())
    again = fit_pendulum(*PENDULUM_SETTINGS[1])
    star = fits.axes[1].lines[-1]
    assert np.ravel(star.get_data()) == pytest.approx(again.equilibrium, rel=1e-3)
    path = np.column_stack(fits.axes[1].lines[1].get_data())
    assert path[-1] == pytest.approx(again.trajectory((0.0, 1.5))[-1], abs=0.01)  # in coarser steps
    study = spectrum_against_beta(128)
    assert [axis.get_title() for axis in betas.axes] == ["N = 64", "N = 128"]
    lines = np.array([line.get_ydata() for line in betas.axes[1].lines])
    expected = np.concatenate([study.real_max, study.real_min, study.lower_bound, study.upper_bound])
    np.testing.assert_allclose(lines, expected, rtol=1e-4, atol=1e-7)
    assert lemma.axes[0].lines[0].get_ydata() == pytest.approx(measure_lemma2().change, rel=1e-4)
    labels = [label.get_text() for label in lemma.axes[0].get_xticklabels()]
    assert labels == ["0.2", "0.1", "0.05", "0.025", "0.0125"]


@pytest.mark.slow
def test_a_page_computes_nothing_and_passes_the_check(
    trained: tuple[Path, Plan, Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that another machine, which rounds otherwise, writes the same page."""
    for name in ("fit_pendulum", "spectrum_against_beta", "measure_lemma2"):
        monkeypatch.delattr(f"lipschitz_rnn.experiments.studies.figures.drawings.{name}")
    results = trained[0] / "results"
    written = write_pages(results, tmp_path)
    names = ["spectrum-over-training-digits", "pendulum", "spectrum-against-beta", "lemma2"]
    assert [path.stem for path in written if path.suffix == ".svg"] == [f"figures-{name}" for name in names]
    picture = tmp_path / "figures" / "figures-lemma2.svg"
    picture.write_text(picture.read_text().replace("drawn from ", "drawn from 0"))
    assert check_pages(results, tmp_path) == [f"{picture} was drawn from other records"]  # and nothing else


def test_what_is_said_of_the_drawings_is_so() -> None:
    inner, outer = (1.0, 0.0), ((0.0, 1.5), (-1.8, 0.0))
    fits = [fit_pendulum(beta, gamma) for beta, gamma in PENDULUM_SETTINGS]

    def sizes(fit: Any, start: tuple[float, float]) -> tuple[float, float]:
        """Of the first and of the last turn."""
        size = np.linalg.norm(fit.trajectory(start, time=100.0, step=0.02) - fit.equilibrium, axis=1)
        return size[:350].max(), size[-350:].max()

    limits = [sizes(fits[0], start)[1] for start in (inner, *outer)]
    assert max(limits) - min(limits) < 0.05
    for fit in fits[1:3]:
        assert np.diff(sizes(fit, inner)) < 0
        assert all(np.diff(sizes(fit, start)) > 0 for start in outer)
    assert np.diff(sizes(fits[3], inner)) == pytest.approx(0.0, abs=1e-2)
    for size in (64, 128):
        study = spectrum_against_beta(size, betas=(0.5, 0.55, 0.6))
        printed = (study.upper_bound - 0.001) / 2, (study.lower_bound - 0.001) / 2  # half as wide, moved by −γ
        assert np.all((study.real_max > printed[0]) | (study.real_min < printed[1]))
    lemma = measure_lemma2()
    law = lemma.change / (1 - lemma.betas) ** 2
    assert law[1:] == pytest.approx(law[-1], rel=0.05)
    assert law[0] / law[-1] == pytest.approx(1.5, abs=0.1)


@pytest.mark.slow
def test_the_command_draws_all_writes_page_and_json_and_goes_on(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    small = [
        "--quick",
        "-o",
        tmp_path,
        "--epochs",
        2,
        "--seeds",
        "0",
        "--device",
        "cpu",
        "--offline",
        "--commit",
        "abc",
    ]
    answer = call(*small, "--json")
    assert answer.exit_code == 0, answer.output
    written = [Path(path).relative_to(tmp_path).as_posix() for path in json.loads(answer.stdout)["written"]]
    assert (written[0], written[-1]) == ("figures.md", "results/figures/quick-digits-spectra.json")
    assert len(written) == 6
    assert all((tmp_path / name).exists() for name in written)
    page = (tmp_path / "figures.md").read_text()
    for name in DRAWINGS:
        assert f"](figures/figures-{name}.svg)" in page
    assert call(*small).exit_code == 2  # the folder holds a run
    again = call(*small, "--resume")
    assert again.exit_code == 0, again.output
    assert (tmp_path / "figures.md").read_text() == page
