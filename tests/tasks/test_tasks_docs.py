"""The guide to the tasks: its examples run, and its table agrees with the code."""

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
    assert " / ".join(f"{size:,}" for size in info["sizes"].values()) in row
    if info["stateful"]:
        assert f"windows of {info['sequence_length']}" in row
    else:
        assert f"{info['sequence_length']:,} × {info['input_size']}" in row
