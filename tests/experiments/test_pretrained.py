"""Trained networks as files: the best seed goes out and comes back, as a layer and as a classifier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import lipschitz_rnn as lr
from lipschitz_rnn.cli import app
from lipschitz_rnn.experiments.presets import preset_settings
from lipschitz_rnn.experiments.pretrained import export_pretrained
from lipschitz_rnn.experiments.runner import train
from lipschitz_rnn.training.runs import load_run
from lipschitz_rnn.units.lipschitz.pretrained import FOLDER, available, read_pretrained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds; gamma as a pair, which JSON turns into a list."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("pretrained") / "run"
    changes = {"epochs": 2, "hidden_size": 5, "device": "cpu", "seeds": (7, 8), "unit_options": {"gamma": [0.1, 0.01]}}
    train(preset_settings("digits", changes=changes), folder)
    return folder


@pytest.fixture(scope="module")
def file(run: Path) -> Path:
    return export_pretrained(run, run.parent / "digits-5.safetensors")


def test_the_seed_that_validation_likes_best_goes_out(run: Path, file: Path) -> None:
    seeds = json.loads((run / "result.json").read_text())["seeds"]
    best = max(seeds, key=lambda seed: seed["validation"])
    about = read_pretrained(file).about
    assert {key: about[key] for key in ("seed", "validation", "test")} == {
        key: best[key] for key in ("seed", "validation", "test")
    }
    saved = load_run(file)
    settings, (model,) = saved.settings, saved.networks
    assert settings.seeds == (best["seed"],)
    x = torch.rand(64, 3, 1)
    torch.testing.assert_close(model(x)[0], load_run(run).of_variant()[1][best["seed"]](x)[0], rtol=0.0, atol=0.0)


def test_test_scores_do_not_choose(run: Path, tmp_path: Path) -> None:
    """Turn the validation scores round, and the other seed goes out."""
    copy = tmp_path / "copy"
    (copy / "checkpoints").mkdir(parents=True)
    for name in ("config.json", "task.json", "checkpoints/best.safetensors"):
        (copy / name).write_bytes((run / name).read_bytes())
    result = json.loads((run / "result.json").read_text())
    for seed, validation, test in zip(result["seeds"], (0.1, 0.2), (0.9, 0.3), strict=True):
        seed |= {"validation": validation, "test": test}
    (copy / "result.json").write_text(json.dumps(result))
    assert read_pretrained(export_pretrained(copy, tmp_path / "x.safetensors")).about["seed"] == 8


def test_the_layer_comes_back_with_its_options(file: Path) -> None:
    (model,) = load_run(file).networks
    rnn = lr.LipschitzRNN.from_pretrained(str(file), batch_first=True)
    assert not rnn.training
    x = torch.rand(64, 3, 1)
    output, last = rnn(x.transpose(0, 1))
    expected, state = model.unit(x)
    torch.testing.assert_close(output.transpose(0, 1), expected)  # another layout in memory
    torch.testing.assert_close(last, state)
    assert [kind.gamma for kind in (rnn.cell().hidden.skew_A, rnn.cell().hidden.skew_W)] == [0.1, 0.01]


@pytest.mark.parametrize(
    "option",
    [
        {"hidden_size": 7},
        {"num_layers": 2},
        {"bias": False},
        {"bidirectional": True},
        {"beta": 0.1},
        {"gamma": 0.1},
        {"nonlinearity": "relu"},
        {"alpha": 0.5},
        {"integrator": "rk4"},
        {"step_size": 0.5},
        {"stability": "contracting"},
        {"rate": 0.1},
        {"init_scale": 1.0},
        {"max_step": 0.001},
    ],
    ids=str,
)
def test_an_option_that_makes_another_network_is_refused(option: dict[str, Any], file: Path) -> None:
    (name,) = option
    with pytest.raises(ValueError, match=rf"{name} .*digits-5"):
        lr.LipschitzRNN.from_pretrained(str(file), **option)


def test_options_that_leave_the_network_alone_are_taken(file: Path) -> None:
    plain = lr.LipschitzRNN.from_pretrained(str(file))
    same = {"hidden_size": 5, "gamma": (0.1, 0.01), "beta": plain.beta[0], "step_size": plain.step_size}
    free = {"dtype": torch.float64, "device": "cpu", "backend": "reference", "recompute_every": 4, "batch_first": True}
    rnn = lr.LipschitzRNN.from_pretrained(str(file), max_step=0.1, **same, **free)
    x = torch.rand(3, 64, 1)
    torch.testing.assert_close(rnn(x.double())[0].float(), plain(x.transpose(0, 1))[0].transpose(0, 1))
    assert (rnn.backend, rnn.recompute_every, rnn.max_step) == ("reference", 4, 0.1)
    assert lr.LipschitzRNN.from_pretrained(str(file), beta=plain.beta, gamma=plain.gamma).beta == plain.beta
    with pytest.raises(TypeError, match=r"colour, speed.*batch_first"):
        lr.LipschitzRNN.from_pretrained(str(file), speed=1, colour="red")


def test_the_documentation_lists_every_network() -> None:
    page = (Path(__file__).parents[2] / "docs/training.md").read_text()
    assert [name for name in available() if f"`{name}`" not in page] == []


def test_unknown_names_are_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'mnist-1000'.*ordered-mnist-64") as error:
        lr.LipschitzRNN.from_pretrained("mnist-1000")
    assert all(name in str(error.value) for name in available())
    with pytest.raises(ValueError, match=r"none\.safetensors"):
        read_pretrained(tmp_path / "none.safetensors")
    done = CliRunner().invoke(app, ["evaluate", "--pretrained", "mnist-1000"])
    assert done.exit_code == 2
    assert "mnist-1000" in done.output


def test_evaluate_scores_a_file_as_training_did(run: Path, file: Path) -> None:
    done = CliRunner().invoke(app, ["evaluate", "--pretrained", str(file), "--json", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    about = read_pretrained(file).about
    assert told["seeds"][0]["accuracy"] == pytest.approx(about["test"], abs=1.01 / 360)  # alone: one at the border
    for wrong in ([], [str(run), "--pretrained", str(file)], ["--pretrained", str(file), "--which", "last"]):
        assert CliRunner().invoke(app, ["evaluate", *wrong]).exit_code == 2


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.safetensors")) or [None], ids=lambda path: path and path.stem)
def test_every_network_of_the_package_loads_and_is_small(path: Path | None) -> None:
    if path is None:
        assert available() == []
        return
    assert path.stat().st_size < 2**20
    rnn = lr.LipschitzRNN.from_pretrained(path.stem)
    saved = load_run(path.stem)
    settings, (model,) = saved.settings, saved.networks
    assert rnn.hidden_size == settings.hidden_size
    assert path.stem.startswith(f"{settings.task}-{settings.hidden_size}")
    steps = () if saved.shapes.readout == "last" else (3,)
    assert model(torch.zeros(3, 2, rnn.input_size))[0].shape == (*steps, 2, saved.shapes.output_size)
