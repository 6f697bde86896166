"""The guide to the tasks: its examples run, and its table agrees with the code."""

import importlib
import importlib.util
import re
from pathlib import Path

import pytest

from lipschitz_rnn import tasks

GUIDE = Path(__file__).parents[2] / "docs" / "tasks.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_run(number: int) -> None:
    exec(compile(EXAMPLES[number], f"{GUIDE.name}, example {number}", "exec"), {})


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize("name", tasks.available())
def test_the_table_has_every_task_with_its_sizes(name: str) -> None:
    row = next(line for line in GUIDE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{name}` |"))
    info = tasks.info(name)
    assert " / ".join(f"{size:,}" for size in info.sizes.values()) in row
    if info.stateful:
        assert f"windows of {info.sequence_length}" in row
    else:
        assert f"{info.sequence_length:,} × {info.input_size}" in row


def test_there_is_a_section_on_adding_a_task() -> None:
    """README and CONTRIBUTING point to it."""
    assert "\n## Adding a task\n" in GUIDE.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["training.md", "tasks.md"])
def test_names_on_the_page_exist(page: str) -> None:
    """Functions and classes of the package that stand in backquotes, such as `experiments.target_loss.load_taken`."""
    text = re.sub(r"```.*?```", "", (GUIDE.parent / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    dotted = re.findall(r"`((?:tasks|experiments|training|lipschitz_rnn)\.[\w.]+)[(`]", text)
    for name in dotted:
        path = name.removeprefix("lipschitz_rnn.").removesuffix(".py")
        module, _, attribute = f"lipschitz_rnn.{path}".rpartition(".")
        try:
            found: object = getattr(importlib.import_module(module), attribute, None)
        except ModuleNotFoundError:
            found = None
        assert found is not None or importlib.util.find_spec(f"lipschitz_rnn.{path}"), name
    if page == "training.md":
        from lipschitz_rnn.experiments import target_loss

        assert all(
            hasattr(target_loss, name) for name in re.findall(r"`(\w*_(?:loss|taken))`", text) if "target" not in name
        )
