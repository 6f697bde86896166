"""Sweep files: what they mean, and what is wrong with them is told before anything runs."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tiny_sweeps import SETTINGS, tiny_sweep
from typer.testing import CliRunner

from lipschitz_rnn.cli import app
from lipschitz_rnn.experiments.sweeps.packing import Packer, Trial, variant_of
from lipschitz_rnn.experiments.sweeps.reading import Sweep, make_sweep, read_sweep
from lipschitz_rnn.experiments.sweeps.running import check_sweep
from lipschitz_rnn.experiments.sweeps.space import border_points, grid_points, read_parameter

ROOT = Path(__file__).parents[2]


def points(sweep: Sweep) -> list[dict[str, Any]]:
    return grid_points(sweep.space, sweep.fixed)


def test_a_grid_is_the_product_of_its_lists() -> None:
    found = points(tiny_sweep({"learning_rate": [0.1, 0.2], "hidden_size": [3, 4, 5]}))
    assert len(found) == 6
    assert found[0] == {"learning_rate": 0.1, "hidden_size": 3}


def test_conditional_parameters_exist_only_where_they_mean_something() -> None:
    space = {
        "unit_options": {
            "beta": {"values": [0.6, 0.8], "when": {"unit": "lipschitz"}},
            "step_size": {"values": [0.1, 0.2, 0.3], "when": {"unit": ["lipschitz", "cornn"]}},
        },
        "unit": ["lipschitz", "gru", "cornn"],
    }
    found = points(tiny_sweep(space))
    assert len(found) == 6 + 1 + 3
    assert {"unit": "gru"} in found
    assert {"unit": "cornn", "unit_options.step_size": 0.2} in found


def test_conditions_on_conditional_parameters_and_on_fixed_settings() -> None:
    space = {
        "optimiser": ["adam", "sgd"],
        "momentum": {"values": [0.5, 0.9], "when": {"optimiser": "sgd"}},
        "clip": {"values": [1.0], "when": {"momentum": 0.9}},
        "dropout": {"values": [0.1], "when": {"hidden_size": 99}},
    }
    found = points(tiny_sweep(space))
    assert found == [
        {"optimiser": "adam"},
        {"optimiser": "sgd", "momentum": 0.5},
        {"optimiser": "sgd", "momentum": 0.9, "clip": 1.0},
    ]


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"low": 1, "high": 9, "step": 4}, [1, 5, 9]),
        ({"low": 0.0, "high": 1.0, "count": 3}, [0.0, 0.5, 1.0]),
        ({"low": 0.01, "high": 1.0, "count": 3, "log": True}, [0.01, 0.1, 1.0]),
        ({"low": 1, "high": 100, "count": 3, "log": True}, [1, 10, 100]),
        ([["a"], 2], [["a"], 2]),
    ],
)
def test_values_of_a_grid(given: Any, values: list[Any]) -> None:
    assert read_parameter("x", given).grid() == (values if isinstance(given, list) else pytest.approx(values))


def test_border_points_reach_every_value_and_both_ends() -> None:
    sweep = tiny_sweep(
        {"learning_rate": {"low": 0.1, "high": 0.9}, "optimiser": ["adam", "sgd"],
         "momentum": {"low": 0.1, "high": 0.5, "when": {"optimiser": "sgd"}}},
        sweep={"method": "random", "trials": 3},
    )  # fmt: skip
    found = list(border_points(sweep.space, sweep.fixed))
    assert {point["learning_rate"] for point in found} == {0.1, 0.9}
    assert {point.get("momentum") for point in found} >= {0.1, 0.5}


def test_settings_of_a_point_are_the_preset_the_file_and_the_point() -> None:
    sweep = make_sweep(
        {"settings": {"task": "digits", "epochs": 7, "unit_options": {"beta": 0.7}}, "space": {"learning_rate": [0.5]}}
    )
    settings = sweep.resolve({"learning_rate": 0.5}, device="cpu")
    assert (settings.epochs, settings.learning_rate, settings.hidden_size, settings.device) == (7, 0.5, 64, "cpu")
    assert settings.unit_options == {"beta": 0.7, "step_size": 0.1}


def test_a_setting_is_the_value_where_a_condition_does_not_hold() -> None:
    space = {"optimiser": ["adam", "sgd"], "learning_rate": {"values": [0.001], "when": {"optimiser": "adam"}}}
    sweep = make_sweep({"settings": SETTINGS | {"learning_rate": 0.1}, "space": space})
    assert [sweep.resolve(point).learning_rate for point in points(sweep)] == [0.001, 0.1]


def trials(sweep: Sweep) -> list[Trial]:
    return [Trial(number, point, sweep.resolve(point)) for number, point in enumerate(points(sweep))]


def test_what_can_share_an_ensemble_shares_a_run() -> None:
    space = {"learning_rate": [0.01, 0.02], "unit_options": {"beta": [0.6, 0.7, 0.8], "integrator": ["euler", "heun"]}}
    found = trials(tiny_sweep(space, seeds=[0, 1]))
    jobs = Packer(32).pack(found)
    assert len(found) == 12
    assert sorted(len(job.trials) for job in jobs) == [3, 3, 3, 3]
    for job in jobs:
        assert len(job.settings.members) == 6
        for trial in job.trials:
            assert job.settings.of_variant(job.settings.variants[variant_of(job, trial)]) == trial.settings
    assert sorted(len(job.trials) for job in Packer(4).pack(found)) == [1] * 4 + [2] * 4
    assert len(Packer(1).pack(found)) == 12


def test_units_without_such_options_are_not_packed() -> None:
    found = trials(tiny_sweep({"unit": ["gru", "lstm"], "learning_rate": [0.01, 0.02]}))
    assert [len(job.trials) for job in Packer(32).pack(found)] == [1, 1, 1, 1]


def test_a_pair_is_no_number_and_has_a_run_of_its_own() -> None:
    found = trials(tiny_sweep({"unit_options": {"gamma": [0.1, 0.2, [0.1, 0.2]]}}))
    assert sorted(len(job.trials) for job in Packer(32).pack(found)) == [1, 2]


BASE = {name: value for name, value in SETTINGS.items() if name != "learning_rate"}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"spcae": {}}, "'spcae' (did you mean 'space'?)"),
    ({"space": {}}, "[space] is empty"),
    ({"space": {"learning_rat": [0.1]}}, "'learning_rat' in [space] cannot be varied (did you mean 'learning_rate'?)"),
    ({"space": {"learning_rate": []}}, "give a list of at least one"),
    ({"space": {"learning_rate": 0.1}}, "give a list of values, or a range"),
    ({"space": {"learning_rate": [0.1, 0.1]}}, "give each once"),
    ({"space": {"learning_rate": {"low": 0.1, "high": 0.1}}}, "which is empty"),
    ({"space": {"learning_rate": {"low": 0.1, "hihg": 0.2}}}, "'hihg' (did you mean 'high'?)"),
    ({"space": {"learning_rate": {"low": 0.1, "high": 0.2}}}, "add count or step"),
    ({"space": {"learning_rate": {"low": -1, "high": 0.2, "log": True, "count": 2}}}, "low must be above 0"),
    ({"space": {"seeds": [0, 1]}}, "put them into [settings]"),
    ({"space": {"unit": ["lipschits"]}}, "lipschitz"),
    ({"space": {"unit_options": {"betta": [0.5]}}}, "'betta' (did you mean 'beta'?)"),
    ({"space": {"task_options": {"lenght": [5]}}}, "'lenght' (did you mean 'length'?)"),
    ({"space": {"data": {"scaling": ["none"]}}}, "own data have no options"),
    ({"space": {"task": ["addign"]}, "settings": {}}, "'addign' (did you mean 'adding'?)"),
    ({"space": {"hidden_size": [3]}}, "hidden_size is in [settings] and in [space]"),
    ({"space": {"clip": {"values": [1.0], "when": {"unt": "gru"}}}}, "depends on 'unt' (did you mean 'unit'?)"),
    ({"space": {"clip": {"values": [1.0], "when": {"dropout": 0.1}},
                "dropout": {"values": [0.1], "when": {"clip": 1.0}}}}, "wait for each other"),
    ({"space": {"learning_rate": {"low": 0.0, "high": 1.0, "step": 1e-9}}}, "more than 100,000 values"),
    ({"space": {"learning_rate": {"low": 0.1, "high": 1.0, "count": 10**9}}}, "from 1 to 100,000"),
    ({"settings": BASE | {"unit_options": 3}}, "write a table [settings.unit_options]"),
    ({"settings": BASE | {"epoch": 3}}, "'epoch' (did you mean 'epochs'?)"),
    ({"settings": BASE | {"preset": "fast"}}, "one of working, paper, quick"),
    ({"settings": {"epochs": 3}}, "no task is given"),
    ({"sweep": {"method": "baies"}}, "'baies' (did you mean 'bayes'?)"),
    ({"sweep": {"method": "random"}}, "without trials"),
    ({"sweep": {"trials": 4}}, "a grid has as many as it has points"),
    ({"sweep": {"method": "random", "trials": 0}}, "at least 1"),
    ({"sweep": {"method": "random", "trials": "many"}}, "a whole number"),
    ({"sweep": {"prunning": "median"}}, "'prunning' (did you mean 'pruning'?)"),
    ({"sweep": {"best_per": ["units"]}}, "'units' (did you mean 'unit'?)"),
    ({"final": {"epochs": 3}}, "[final] names no seeds"),
    ({"final": {"seeds": [1], "unit_options": 3}}, "write a table [final.unit_options]"),
    ({"settings": BASE | {"variants": [{"beta": 0.6}]}}, "put what differs into [space]"),
    ({"settings": BASE | {"unit_options": {"beta": 0.6}}, "space": {"unit_options": {"beta": [0.7]}}},
     "unit_options.beta is in [settings] and in [space]"),
    ({"space": {"unit": ["gru", "lipschitz"],
                "unit_options": {"beta": {"values": [0.6], "when": {"unit": "lipschits"}}}}},
     "but [space] has 'gru' or 'lipschitz': it would never be used"),
    ({"space": {"clip": {"values": [1.0], "when": {"decay_factor": 0.1}}}}, "neither in [space] nor in [settings]"),
    ({"space": {"unit_options": {"beta": [0.5]}, "unit_options.beta": [0.6]}}, "twice, with quotes and without"),
    ({"space": {"unit_options.betta": [0.5]}}, "'betta' (did you mean 'beta'?)"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[message for _, message in WRONG])
def test_wrong_files(change: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        make_sweep({"settings": BASE, "space": {"learning_rate": [0.1]}} | change)
    assert message in str(caught.value)


def test_a_path_may_be_in_quotes() -> None:
    sweep = make_sweep({"settings": BASE, "space": {"unit_options.beta": [0.5, 0.6]}})
    assert sweep.resolve({"unit_options.beta": 0.6}).unit_options["beta"] == 0.6
    assert sweep.space == make_sweep({"settings": BASE, "space": {"unit_options": {"beta": [0.5, 0.6]}}}).space


JUNK = (None, True, -1, float("nan"), "", [], [[]], [None], {}, {"values": 3}, {"low": "a", "high": 1},
        {"values": [1], "when": {"unit": {"a": 1}}})  # fmt: skip
PLACES = (
    "sweep", "settings", "space", "data", "final", "sweep.method", "sweep.trials", "sweep.metric", "sweep.best_per",
    "settings.task", "settings.unit", "settings.unit_options", "settings.seeds", "settings.device", "space.unit",
    "space.learning_rate", "space.task", "space.unit_options", "space.data", "final.seeds",
)  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_junk_anywhere_is_a_message(place: str, tmp_path: Path) -> None:
    """Never another error than the two that commands turn into a line and exit code 2."""
    for junk in JUNK:
        file: dict[str, Any] = {"settings": dict(BASE), "space": {"learning_rate": [0.1]}}
        table, _, name = place.partition(".")
        if name:
            file.setdefault(table, {})[name] = junk
        else:
            file[table] = junk
        with suppress(ValueError, TypeError):
            check_sweep(make_sweep(file), tmp_path / "out")
    assert not (tmp_path / "out").exists()


FILES = [
    ('[space]\nlearning_rat = [0.1]\n[settings]\ntask = "adding"', "learning_rate"),
    ('[space]\nlearning_rate = [0.1, -1]\n[settings]\ntask = "adding"', "learning_rate is -1"),
    ('[sweep]\nmetric = "acuracy"\n[space]\nclip = [1.0]\n[settings]\ntask = "digits"', "did you mean 'accuracy'?"),
    ('[space]\nunit_options.beta = [3.0]\n[settings]\ntask = "adding"', "beta"),
    ('[space]\nunit_options.beta = [0.5, "0.7"]\n[settings]\ntask = "adding"', "pass a number (at beta=0.7)"),
    ('[space]\nclip = [1.0]\n[settings]\ntask = "nowhere.csv"', "nowhere.csv"),
    ("[space", "not valid TOML"),
    ('[space]\nclip = [1.0]\n[settings]\ntask = "adding"\n[final]\nseeds = [1]\nunit = "gruu"', "gruu"),
    ('[space]\nclip = [1.0]\n[settings]\ntask = "adding"\n[final]\nseeds = [1]\nunit_options.betta = 1.0', "betta"),
    ('[space]\nclip = [1.0]\n[settings]\ntask = "adding"\n[final]\nseeds = [1]\nepochs = -1', "0 (in [final])"),
]


@pytest.mark.parametrize(("text", "message"), FILES, ids=[message for _, message in FILES])
def test_wrong_files_end_with_2_before_anything_runs(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    done = CliRunner().invoke(app, ["sweep", str(file), "-o", str(tmp_path / "out")])
    assert (done.exit_code, message in " ".join(done.output.split())) == (2, True), done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("engine", ["optuna", "ray"])
def test_what_is_not_installed_is_told_before_anything_runs(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, engine, None)
    file = tmp_path / "one.toml"
    method = '[sweep]\nmethod = "random"\ntrials = 2\n' if engine == "optuna" else ""
    file.write_text(f'{method}[space]\nclip = [1.0]\n[settings]\ntask = "adding"\nepochs = 1\n')
    more = ["--engine", "ray"] if engine == "ray" else []
    done = CliRunner().invoke(app, ["sweep", str(file), "-o", str(tmp_path / "out"), *more])
    assert done.exit_code == 2, done.output
    assert f'pip install "lipschitz-rnn[{"ray" if engine == "ray" else "sweep"}]"' in " ".join(done.output.split())
    assert not (tmp_path / "out" / "runs").exists()


def test_a_cluster_that_does_not_answer_is_told(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    file = tmp_path / "one.toml"
    file.write_text('[space]\nclip = [1.0]\n[settings]\ntask = "adding"\nepochs = 1\n')
    for address in ("127.0.0.1:1", "nonsense"):
        done = CliRunner().invoke(app, ["sweep", str(file), "-o", str(tmp_path / "out"), "--engine", "ray",
                                        "--address", address])  # fmt: skip
        assert done.exit_code == 2, done.output
        assert address in done.output


def test_committed_sweep_files_can_be_read() -> None:
    files = sorted((ROOT / "sweeps").glob("*.toml"))
    assert files
    for file in files:
        assert read_sweep(file).space
