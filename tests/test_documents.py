"""Every example in the documents runs, every link leads somewhere, and no path of a build machine is left."""

import doctest
import importlib
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.core
import typer.main
from typer.testing import CliRunner

from lipschitz_rnn.cli import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])
FENCE = re.compile(r"^```(\w+)[ \t]*([^\n]*)\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)|<img[^>]*\ssrc=\"([^\"]+)\"")
FOREIGN_PATH = re.compile(r"(?<![\w.~$])/(?:home|root|work|tmp|Users|mnt)/")


def runnable_blocks(text: str) -> list[tuple[int, str, str]]:
    """(line of its first statement, language, code) of the Python blocks and of those marked ``sh run``, in order."""
    found = []
    for match in FENCE.finditer(text):
        line, option = text.count("\n", 0, match.start()) + 2, match[2].strip()
        if match[1] == "python":
            assert option in ("", "no-run"), f"line {line - 1}: unknown option {option!r} of a block"
        if (match[1], option) in (("python", ""), ("sh", "run")):
            found.append((line, match[1], match[3]))
    return found


def run_commands(text: str) -> None:
    """Each line is a command of this package, called in this process."""
    for line in text.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        assert program == "lipschitz-rnn", f"only lipschitz-rnn can run in a page's test: {line}"
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, f"{line}\n{done.output}"


def each(documents: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("document", documents, ids=lambda path: str(path.relative_to(ROOT)))


# The same steps as tutorials/csv-to-onnx.md, which runs in `make test`.
LONG = {ROOT / "docs" / "start.md"}
WITH_CODE = [path for path in DOCUMENTS if runnable_blocks(path.read_text(encoding="utf-8"))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "document",
    [pytest.param(path, marks=[pytest.mark.full] if path in LONG else []) for path in WITH_CODE],
    ids=[str(path.relative_to(ROOT)) for path in WITH_CODE],
)
def test_examples_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, in one namespace, in an empty folder. ``python no-run`` on the fence is the only way out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    if "matplotlib" in sys.modules:
        sys.modules["matplotlib"].use("Agg")
    namespace: dict[str, object] = {"__name__": "__main__"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for line, language, code in runnable_blocks(document.read_text(encoding="utf-8")):
            if language == "sh":
                run_commands(code)
            else:
                # The newlines in front make a traceback point to the line of the document.
                exec(compile("\n" * (line - 1) + code, str(document), "exec"), namespace)


@each(DOCUMENTS)
def test_local_links_lead_somewhere(document: Path) -> None:
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    targets = [next(filter(None, match.groups())) for match in LINK.finditer(text)]
    local = [target for target in targets if not re.match(r"[a-z]+:|#", target)]
    missing = [target for target in local if not (document.parent / target.partition("#")[0]).exists()]
    assert not missing


@each(DOCUMENTS)
def test_every_row_of_a_table_has_as_many_cells_as_its_head(document: Path) -> None:
    """A | in a cell is written \\|: what comes after one more cell than the head has is not shown."""
    assert not ragged_rows(document.read_text(encoding="utf-8"))


def ragged_rows(text: str) -> list[str]:
    found, cells = [], 0
    for line in FENCE.sub("", text).splitlines():
        own = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        if own and cells and own != cells:
            found.append(line)
        cells = cells if own and cells else own
    return found


@each(DOCUMENTS)
def test_no_path_of_a_build_machine(document: Path) -> None:
    assert not FOREIGN_PATH.search(document.read_text(encoding="utf-8"))


@each(DOCUMENTS)
def test_commands_exist(document: Path) -> None:
    """Every ``lipschitz-rnn <command>`` and ``make <target>`` that a document names."""
    text = document.read_text(encoding="utf-8")
    commands = {command.name for command in typer.main.get_group(app).commands.values()}
    assert set(re.findall(r"(?:^|`)lipschitz-rnn ([a-z]+)", text, re.MULTILINE)) <= commands
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)) <= targets


def parse(arguments: list[str]) -> None:
    """Raise what Click raises for a command line; nothing runs."""
    command: Any = typer.main.get_group(app)
    context = command.make_context("lipschitz-rnn", list(arguments))
    while isinstance(command, typer.core.TyperGroup):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)


def commands_in(text: str) -> list[list[str]]:
    """The arguments of this package's commands in the shell blocks of a page."""
    blocks = [match[3].replace("\\\n", " ") for match in FENCE.finditer(text) if match[1] == "sh"]
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    return [
        line[line.index(name) + 1 :] for line in lines for name in line if name in ("lipschitz-rnn", "lipschitz_rnn")
    ]


def test_commands_in_shell_blocks_have_the_options_that_they_name() -> None:
    found = [line for document in DOCUMENTS for line in commands_in(document.read_text(encoding="utf-8"))]
    assert len(found) > 50
    for arguments in found:
        try:
            parse(arguments)
        except (typer.Exit, SystemExit):  # --help, --version
            continue
    with pytest.raises(Exception, match="No such option: --nonsense"):
        parse(["train", "digits", "--nonsense"])


def test_the_checks_see_what_they_look_for() -> None:
    text = "a\n```python\nx = 1\n```\n\n```python no-run\ny\n```\n```sh run\nz\n```\n[one](docs/no.md) ![two](no.png)\n"
    assert runnable_blocks(text) == [(3, "python", "x = 1\n"), (10, "sh", "z\n")]
    with pytest.raises(AssertionError, match="unknown option 'norun'"):
        runnable_blocks("```python norun\n```\n")
    assert [next(filter(None, match.groups())) for match in LINK.finditer(text)] == ["docs/no.md", "no.png"]
    assert FOREIGN_PATH.search(f"in {os.sep}home/somebody/data")
    assert not FOREIGN_PATH.search("see https://example.org/home/page and ~/work/data")
    assert ragged_rows("| a | b |\n|---|---|\n| c | |x| |\n| d | \\|y\\| |\n") == ["| c | |x| |"]
    assert len(DOCUMENTS) >= 4


@pytest.mark.parametrize("module", ["units.lipschitz.layer", "units.lipschitz.cell", "ops.lipschitz.scan"])
def test_examples_in_docstrings(module: str) -> None:
    found = doctest.testmod(importlib.import_module(f"lipschitz_rnn.{module}"), extraglobs={"torch": torch})
    assert found.failed == 0
