"""`lipschitz-rnn compare`: runs and records side by side, in five formats."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from invented_records import invented
from optional import needs
from typer.testing import CliRunner

from lipschitz_rnn.cli import app
from lipschitz_rnn.experiments.campaign import Plan
from lipschitz_rnn.experiments.comparison import compare, write_comparison
from lipschitz_rnn.experiments.comparison.latex import escape, to_latex
from lipschitz_rnn.experiments.comparison.writing import matrix, to_csv, to_dict
from lipschitz_rnn.experiments.results import write_record
from lipschitz_rnn.training import RunError, Settings
from lipschitz_rnn.training.folder import RunFolder

pytestmark = needs("scipy", "matplotlib")


def record(folder: Path, name: str, tests: Sequence[float], **changes: Any) -> None:
    values: dict[str, Any] = {"task": "digits", "seeds": tuple(range(len(tests))), **changes}
    made = invented(Plan("made", name, "paper", Settings(**values), "lipschitz-rnn"), tests)
    seeds = [{**each, "seed": values["seeds"][index % len(tests)]} for index, each in enumerate(made.seeds)]
    write_record(replace(made, seeds=seeds), folder)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Three units on two tasks: lstm is clearly worse, the others differ by noise."""
    folder = tmp_path / "results"
    for task, up in (("digits", 0.0), ("ordered-mnist", 0.05)):
        record(folder, f"{task}/lipschitz", [0.90 + up, 0.91 + up, 0.92 + up, 0.9 + up], task=task)
        record(folder, f"{task}/gru", [0.91 + up, 0.90 + up, 0.92 + up, 0.905 + up], task=task, unit="gru")
        record(folder, f"{task}/lstm", [0.70 + up, 0.72 + up, 0.715 + up, 0.7 + up], task=task, unit="lstm")
    return folder


def test_matrix_pairs_and_ranks(results: Path) -> None:
    found = compare([results])
    assert (found.rows, found.columns) == (("gru", "lipschitz", "lstm"), ("digits", "ordered-mnist"))
    cell = found.cells["lipschitz", "digits"]
    assert cell.summary is not None
    assert cell.summary.mean == pytest.approx(0.9075)
    assert cell.seconds == pytest.approx(128.4 / 4)
    assert len(found.pairs) == 6
    clear = {(pair.first, pair.second) for pair in found.pairs if pair.adjusted is not None and pair.adjusted < 0.05}
    assert clear == {("gru", "lstm"), ("lipschitz", "lstm")}
    assert found.ranking is not None
    assert (found.ranking.names[-1], found.ranking.blocks) == ("lstm", 2)
    assert found.best("digits") == "gru"


def test_validation_scores_can_be_compared(results: Path) -> None:
    cell = compare([results], split="validation").cells["lipschitz", "digits"]
    assert cell.summary is not None
    assert cell.summary.mean == pytest.approx(0.8975)


def test_pairs_use_common_seeds_only(tmp_path: Path) -> None:
    record(tmp_path, "a", [0.5, 0.6, 0.7], seeds=(0, 1, 2))
    record(tmp_path, "b", [0.4, 0.8], unit="gru", seeds=(0, 1))
    (pair,) = compare([tmp_path]).pairs
    assert (pair.seeds, pair.difference) == (2, pytest.approx((0.1 - 0.2) / 2))


def test_rows_without_a_common_seed_are_not_tested(tmp_path: Path) -> None:
    record(tmp_path, "a", [0.5, 0.6, 0.7], seeds=(0, 1, 2))
    record(tmp_path, "b", [0.4, 0.8], unit="gru", seeds=(2, 7))
    assert compare([tmp_path]).pairs == ()


def test_scores_that_are_not_finite_are_none(tmp_path: Path) -> None:
    """They would make a mean that nothing beats; the table says how many are left out."""
    record(tmp_path, "a", [0.5, math.nan, math.inf])
    record(tmp_path, "b", [0.6, 0.7, 0.8], unit="gru")
    found = compare([tmp_path])
    cell = found.cells["lipschitz", "digits"]
    assert (cell.scores, cell.diverged) == ({0: 0.5, 1: None, 2: None}, 2)
    assert found.best("digits") == "gru"
    assert matrix(found).rows[0][1] == "50.00 % (2 of 3 diverged)"
    assert r"$50.00$ (2 of 3 diverged)" in to_latex(found)
    json.loads(json.dumps(to_dict(found), allow_nan=False))


def test_a_seed_that_diverged_has_no_score(tmp_path: Path) -> None:
    """Its score would be that of the weights before; without a result, the number of parameters is not known."""
    plan = Plan("made", "a", "paper", Settings(task="digits", seeds=(0, 1, 2)), "lipschitz-rnn")
    made = invented(plan, [0.5, 0.6, 0.9])
    late = [{**seed, "diverged_step": 70 if seed["seed"] == 2 else None} for seed in made.seeds]
    write_record(replace(made, seeds=late, parameters=0), tmp_path)
    found = compare([tmp_path])
    cell = found.cells["lipschitz", "digits"]
    assert (cell.scores, cell.diverged) == ({0: 0.5, 1: 0.6, 2: None}, 1)
    assert "(1 of 3 diverged)" in matrix(found).rows[0][1]
    assert to_csv(found).splitlines()[1].split(",")[-3:-1] == ["1", ""]


def test_equal_means_are_all_bold(tmp_path: Path) -> None:
    for unit, scores in (("gru", [0.5, 0.7]), ("lstm", [0.7, 0.5]), ("rnn", [0.5, 0.6])):
        record(tmp_path, unit, scores, unit=unit)
    found = compare([tmp_path])
    assert [row[1].startswith("**") for row in matrix(found).rows] == [True, True, False]
    assert to_latex(found).count(r"\mathbf") == 2


def test_what_is_given_twice_counts_once(results: Path) -> None:
    assert compare([results, results, results / "made"]) == compare([results])


def test_files_of_one_name_are_different_tasks(tmp_path: Path) -> None:
    for name, path in (("a", "/a/log.csv"), ("b", "/b/log.csv"), ("c", "/c/digits.csv"), ("d", "/c/other.csv")):
        record(tmp_path, name, [0.5], task="file", task_options={"path": path})
    record(tmp_path, "e", [0.5])
    assert compare([tmp_path]).columns == ("a/log.csv", "b/log.csv", "digits.csv", "other", "digits")


def test_rows_are_told_apart_by_as_little_as_possible(tmp_path: Path) -> None:
    record(tmp_path, "a", [0.5], unit_options={"beta": 0.5}, hidden_size=64)
    record(tmp_path, "b", [0.6], unit_options={"beta": 0.8}, hidden_size=64)
    record(tmp_path, "c", [0.6], unit="gru", hidden_size=32)
    assert compare([tmp_path]).rows == ("lipschitz, beta = 0.5", "lipschitz, beta = 0.8", "gru")
    assert compare([tmp_path], by=["hidden_size", "beta"]).rows == ("64, beta = 0.5", "64, beta = 0.8", "32")
    assert compare([tmp_path], by=["beta", "unit", "beta"]).rows[2] == "no beta, unit = gru"
    with pytest.raises(ValueError, match=r"seed 0 of lipschitz on digits is in made/a\.json and in made/b\.json"):
        compare([tmp_path], by=["unit"])
    with pytest.raises(ValueError, match=r"cannot be named by 'bta'.*beta"):
        compare([tmp_path], by=["bta"])


def test_a_record_with_variants_is_one_row_each(tmp_path: Path) -> None:
    record(tmp_path, "a", [0.5, 0.7], variants=({"beta": 0.5}, {"beta": 0.8}))
    found = compare([tmp_path])
    assert found.rows == ("lipschitz, beta = 0.5", "lipschitz, beta = 0.8")
    assert [cell.seconds for cell in found.cells.values()] == pytest.approx([128.4 / 4] * 2)


def test_task_options_that_differ_make_columns(tmp_path: Path) -> None:
    record(tmp_path, "a", [0.5], task="adding", task_options={"length": 100})
    record(tmp_path, "b", [0.5], task="adding", task_options={"length": 200})
    assert compare([tmp_path]).columns == ("adding, length=100", "adding, length=200")


def test_ranks_over_seeds_of_one_task_say_so(tmp_path: Path) -> None:
    for unit, score in (("gru", 0.9), ("lstm", 0.8), ("rnn", 0.7)):
        record(tmp_path, unit, [score, score + 0.01, score - 0.02], unit=unit)
    found = compare([tmp_path])
    assert found.ranking is not None
    assert found.ranked_over == "3 seeds of digits, which says nothing about other tasks"


def test_every_format_holds_the_numbers(results: Path, tmp_path: Path) -> None:
    found = compare([results])
    written = write_comparison(found, tmp_path / "out")
    assert {path.name for path in written.values()} == {f"comparison.{kind}" for kind in written}
    page = written["md"].read_text()
    assert "**90.88 ± 0.85 %**" in page
    assert all((tmp_path / "out" / "figures" / f"{name}.svg").exists() for name in ("ranks", "curves-1", "curves-2"))
    (row,) = (line for line in page.splitlines() if line.startswith("| digits | gru | lipschitz |"))
    difference, interval = row.split(" | ")[4:6]
    assert difference == "0.13 points"  # of the means 90.88 % and 90.75 %
    assert interval.startswith("−")
    assert interval.endswith(" points")
    assert "-" not in interval
    assert re.search(r"\| \d\d\.\d\d to \d\d\.\d\d % \|", page)  # the interval of a mean
    lines = list(csv.DictReader(written["csv"].read_text().splitlines()))
    assert len(lines) == 6
    assert float(next(line["mean"] for line in lines if line["row"] == "lstm")) == pytest.approx(0.70875)
    values = json.loads(written["json"].read_text())
    assert values["cells"][0]["scores"] == {"0": 0.91, "1": 0.9, "2": 0.92, "3": 0.905}
    assert len(values["pairs"]) == 6
    html = written["html"].read_text()
    assert (html.count("<svg role"), html.count("<figure data-panels")) == (3, 2)  # ranks are no curves


@needs("pylatexenc")
def test_latex_is_a_table_with_booktabs_rules(results: Path) -> None:
    from pylatexenc.latexwalker import LatexEnvironmentNode, LatexMacroNode, LatexWalker

    record(results, "odd", [0.3, 0.4], unit="own_unit & 50%", task="digits")
    found = compare([results])
    text = to_latex(found)
    nodes, _, _ = LatexWalker(text, tolerant_parsing=False).get_latex_nodes()
    (table,) = [node for node in nodes if isinstance(node, LatexEnvironmentNode)]
    (tabular,) = [node for node in table.nodelist if isinstance(node, LatexEnvironmentNode)]
    assert (table.environmentname, tabular.environmentname) == ("table", "tabular")
    macros = [node.macroname for node in tabular.nodelist if isinstance(node, LatexMacroNode)]
    assert [name for name in macros if name.endswith("rule")] == ["toprule", "midrule", "bottomrule"]
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.replace(r"\&", "").count("&") for line in lines} == {3}
    assert len(lines) == 2 + len(found.rows)
    assert r"own\_unit \& 50\%" in text
    assert r"\mathbf{90.88}" in text


def test_latex_escapes_everything() -> None:
    assert escape("a_b & 5% {x} $ # ~ ^ \\ β") == (
        r"a\_b \& 5\% \{x\} \$ \# \textasciitilde{} \textasciicircum{} \textbackslash{} $\beta$"
    )


def test_unfinished_runs_are_left_out(results: Path, tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run") as folder:
        folder.open(Settings("digits", epochs=7), {}, {}, resume=False)
    with pytest.raises(RunError, match=r"no run is complete.*0 of 7 epochs"):
        compare([tmp_path / "run"])
    assert len(compare([results, tmp_path / "run"]).left_out) == 1


def test_the_command(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["compare", str(results), "-o", str(out), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["written"]["tex"] == str(out / "comparison.tex")
    done = CliRunner().invoke(app, ["compare", str(results), "-o", str(out)])
    assert done.exit_code == 0
    assert "4 of 6 differences have p < 0.05" in done.output
    for wrong, code in ((["--alpha", "2"], 2), (["--by", "nothing"], 2)):
        assert CliRunner().invoke(app, ["compare", str(results), "-o", str(out), *wrong]).exit_code == code
    assert CliRunner().invoke(app, ["compare", str(tmp_path / "nowhere")]).exit_code == 1
