"""Pages of committed results: made from the records, and every difference is found."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path

import pytest
from invented_records import invented
from typer.testing import CliRunner

from lipschitz_rnn.cli import app
from lipschitz_rnn.documents.blocks import to_markdown
from lipschitz_rnn.documents.files import has_marks
from lipschitz_rnn.experiments.pages.committed import check_pages, make_pages, write_pages
from lipschitz_rnn.experiments.pages.sections import blocks
from lipschitz_rnn.experiments.paper import CELLS
from lipschitz_rnn.experiments.results import read_records, write_record
from lipschitz_rnn.experiments.studies import STUDIES, cifar, mnist

ROOT = Path(__file__).parents[2]
MARKS = "Before.\n\n<!-- results:mnist -->\nold\n<!-- /results:mnist -->\n\nAfter.\n"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of invented numbers, their pages, and a README beside them."""
    folder = tmp_path_factory.mktemp("pages")
    asked = ["ordered-mnist/lipschitz/128", "permuted-mnist/lipschitz/64/euler", "lstm", "sweep", "checks/*/clipped"]
    plans = mnist.STUDY.plans(asked, groups=["tuned"])
    for index, plan in enumerate(plans):
        tests = [0.97 + 0.0001 * index, 0.98 + 0.0001 * index, 0.99]
        write_record(invented(plan, [0.9911, 0.9917, 0.992] if plan.kind == "paper" else tests), folder / "results")
    (folder / "README.md").write_text(MARKS)
    code, output = call(folder / "results")
    assert code == 0, output
    return folder


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(original, tmp_path / "copy"))


@pytest.fixture
def page(original: Path) -> str:
    return (original / "docs" / "results" / "mnist.md").read_text()


def call(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["report", *map(str, arguments)])
    return done.exit_code, done.output


def test_the_readme_can_show_the_whole_paper(root: Path) -> None:
    (root / "README.md").write_text(MARKS.replace("mnist", "paper"))
    code, output = call(root / "results")
    assert code == 0, output
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (root / "README.md").read_text().splitlines()
        if line.startswith("|")
    ][2:]
    assert [row[0] for row in rows].count("Ordered CIFAR-10") == 4
    assert len(rows) == sum(cell.unit == "lipschitz" for cell in CELLS)
    ours = {(row[0], row[1], row[2]): row[3:] for row in rows}
    assert ours["Ordered MNIST", "128", "midpoint"] == ["3", "99.20", "99.16", "–", "99.3", "99.1 (momentum-lstm)"]
    assert ours["Ordered MNIST", "128", "Euler"][3] != "–"  # tuned
    assert ours["Penn Treebank, words", "160", "Euler"] == ["–", "–", "–", "–", "115.36", "115.71 (irnn)"]
    assert call("--check", root / "results")[0] == 0
    (root / "README.md").write_text((root / "README.md").read_text().replace("99.16", "99.17"))
    assert call("--check", root / "results")[0] == 1


def test_a_diverged_seed_is_counted_and_has_no_score(root: Path) -> None:
    """Its test score is that of the weights before it diverged: it would drag mean and minimum with it."""
    (plan,) = mnist.STUDY.plans(["ordered-mnist/lipschitz/128/midpoint"])
    whole = invented(plan, [0.9911, 0.9917, 0.5])
    record = dataclasses.replace(whole, seeds=[*whole.seeds[:2], {**whole.seeds[2], "diverged_step": 7}])
    assert (record.scores(), record.diverged, record.best()) == ([0.9911, 0.9917], 1, 0.9917)
    write_record(record, root / "results")
    (root / "README.md").write_text(MARKS.replace("mnist", "paper"))
    assert call(root / "results")[0] == 0
    told = "is counted, but has no score: best and mean are over the others"
    page, readme = (root / "docs" / "results" / "mnist.md").read_text(), (root / "README.md").read_text()
    assert page.count("| 3 (1 diverged) | 99.17 | 99.14 |") == 1
    assert "ordered-mnist/lipschitz/128/midpoint | 3 (1 diverged) | 99.11 | 99.14 | 99.17 |" in page
    assert told in page
    assert "| midpoint | 3 (1 diverged) | 99.17 | 99.14 |" in readme
    assert "Diverged seeds are counted" in readme


@pytest.mark.parametrize("name", ["mnist", "cifar", "ptb"])
def test_a_page_of_quick_runs_has_their_scores_and_none_of_the_papers_tables(name: str) -> None:
    study = STUDIES[name]
    text = to_markdown(blocks(study, [invented(plan, [0.5, 0.7]) for plan in study.plans(quick=True)]))
    assert text.count("## Scores") == 1
    assert "the paper |" not in text
    assert "experiment**: not the paper's" not in text


def test_what_is_committed_here_is_what_the_results_give() -> None:
    """The check of this repository: tables, figures and the README belong to the JSON beside them."""
    assert has_marks(ROOT / "README.md")
    assert check_pages(ROOT / "results", ROOT / "docs" / "results", ROOT / "README.md") == []


def test_the_first_table_holds_best_mean_and_the_papers_number(page: str) -> None:
    row = next(line for line in page.splitlines() if line.startswith("| **Lipschitz RNN, Euler** | 128"))
    assert "| 100 | 3 | 99.20 | 99.16 |" in row
    assert row.endswith("| 99.4 |")
    lstm = next(line for line in page.splitlines() if line.startswith("| lstm (1997)"))
    assert lstm.endswith("| 97.3 (N = 128) |")
    assert re.search(r"\| momentum-lstm \| 256 \|( – \|){7} 99.1 \|", page)  # the paper's alone


def test_the_table_on_initialisation_has_both_epochs_and_the_paper(page: str) -> None:
    name = "| ordered-mnist/lipschitz/128/euler | 3 |"
    assert f"{name} 99.11 | 99.16 | 99.20 | 98.91 | 98.96 | 99.00 | 99.0 | 99.2 | 99.4 |" in page


def test_checks_stand_beside_the_cell_that_they_change(page: str) -> None:
    row = next(line for line in page.splitlines() if line.startswith("| checks/ordered-mnist/lipschitz/128/clipped"))
    assert row.endswith("| 99.16 | 98.96 |")
    row = next(line for line in page.splitlines() if line.startswith("| checks/permuted-mnist/lipschitz/128/clipped"))
    assert row.endswith("| – | – |")  # its cell has not run


def test_what_was_written_passes_the_check(root: Path) -> None:
    readme = (root / "README.md").read_text()
    assert readme.startswith("Before.")
    assert readme.endswith("After.\n")
    assert "| Ordered | 128 | Euler | 99.20 | 99.16 |" in readme
    assert "lipschitz-rnn reproduce mnist" in readme
    for picture in re.findall(r"\]\((figures/[^)]+)\)", (root / "docs" / "results" / "mnist.md").read_text()):
        assert (root / "docs" / "results" / picture).read_bytes().startswith(b"<?xml")
    assert call("--check", root / "results") == (0, f"{root}/docs/results matches {root}/results\n")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("docs/results/mnist.md", lambda text: text.replace("99.16", "99.61"), "99.61"),
        ("docs/results/README.md", lambda text: "", "Some GPU"),
        ("README.md", lambda text: text.replace("99.16", "99.61"), "99.61"),
        ("docs/results/figures/mnist-seeds.svg", lambda text: text.replace("drawn from ", "drawn from 0"), "other rec"),
    ],
)
def test_every_change_by_hand_is_found(root: Path, name: str, change: object, message: str) -> None:
    path = root / name
    path.write_text(change(path.read_text()))  # type: ignore[operator]
    code, output = call("--check", root / "results")
    assert code == 1
    assert message in output
    assert name in output


def test_new_numbers_missing_and_left_over_files_are_found(root: Path) -> None:
    (root / "docs" / "results" / "figures" / "mnist-learning.svg").unlink()
    (root / "docs" / "results" / "old.md").write_text("x")
    (plan,) = mnist.STUDY.plans(["ordered-mnist/lipschitz/128/midpoint"])
    write_record(invented(plan, [0.5]), root / "results")
    text = "\n".join(check_pages(root / "results", root / "docs" / "results", root / "README.md"))
    assert "mnist-learning.svg is missing" in text
    assert "old.md is not made from" in text
    assert "mnist-seeds.svg was drawn from other records" in text
    assert "+| ordered-mnist/lipschitz/128/midpoint | 1 | 50.00" in text


def test_pages_elsewhere_leave_the_readme_alone(root: Path) -> None:
    (root / "README.md").write_text(MARKS)
    assert call(root / "results", "-o", root / "page")[0] == 0
    assert (root / "README.md").read_text() == MARKS
    assert (root / "page" / "mnist.md").read_text() == (root / "docs" / "results" / "mnist.md").read_text()


def test_without_results_there_is_nothing_to_differ(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    assert call("--check", tmp_path / "results")[0] == 0
    (tmp_path / "README.md").write_text(MARKS)
    assert call("--check", tmp_path / "results")[0] == 1
    write_pages(tmp_path / "results", tmp_path / "docs" / "results", tmp_path / "README.md")
    assert "committed yet" in (tmp_path / "README.md").read_text()
    assert call("--check", tmp_path / "results")[0] == 0
    assert call("--check", tmp_path / "nowhere")[0] == 1


def test_notes_and_unknown_studies_have_their_place(root: Path) -> None:
    (root / "results" / "mnist" / "notes.md").write_text("## What we found\n\nIt rains.\n")
    (root / "results" / "essay").mkdir()
    (root / "results" / "essay" / "notes.md").write_text("# Words alone\n")
    (plan,) = mnist.STUDY.plans(["ordered-mnist/lipschitz/128/euler"])
    write_record(dataclasses.replace(invented(plan, [0.5, 0.7]), study="weather"), root / "results")
    pages = {name: content.decode() for name, content in make_pages(root / "results").items()}
    assert "It rains." in pages["mnist.md"]
    assert "50.00 % | 60.00 % | 70.00 %" in pages["weather.md"]
    assert "[weather](weather.md)" in pages["README.md"]
    assert pages["essay.md"].startswith("# Words alone")
    assert "| [essay](essay.md) | – | – | – | – |" in pages["README.md"]


def test_the_same_records_give_the_same_picture(root: Path) -> None:
    for name, content in make_pages(root / "results").items():
        assert (root / "docs" / "results" / name).read_bytes() == content


def test_what_is_said_of_the_printed_rate_is_what_its_rows_show() -> None:
    """In records, and in plans, which give the text of the next ones."""
    records = read_records(ROOT / "results", "cifar")
    printed = [record for record in records if record.name.startswith("printed/")]
    tasks = {record.settings["task"] for record in printed if any(s["diverged_step"] is not None for s in record.seeds)}
    assert tasks == {"ordered-cifar10"}
    reasons = [(record.settings["task"], record.why) for record in records]
    reasons += [(plan.settings.task, plan.why) for plan in cifar.STUDY.plans(groups=["adam", "fixed"])]
    assert {task for task, why in reasons if re.search(r"SGD.*diverges", why)} == tasks
