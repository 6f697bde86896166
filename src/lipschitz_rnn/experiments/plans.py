"""Which runs of a study are asked for, and how a page that comes of them is written."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from lipschitz_rnn.experiments.campaign import Plan
from lipschitz_rnn.experiments.record_checks import file_inside
from lipschitz_rnn.experiments.report.document import Block, Picture, to_markdown
from lipschitz_rnn.training.checkpoint import atomic_write


def choose_plans(plans: Sequence[Plan], only: Sequence[str]) -> list[Plan]:
    """Those that `only` names, whole (ordered-mnist/alpha), by a part (alpha) or by a pattern (ordered*); or all."""
    for pattern in only:
        if not any(_matches(plan.name, pattern) for plan in plans):
            names = ", ".join(plan.name for plan in plans)
            raise ValueError(f"no run matches --only {pattern!r}; there are {names}")
    return [plan for plan in plans if not only or any(_matches(plan.name, pattern) for pattern in only)]


def _matches(name: str, pattern: str) -> bool:
    return f"/{pattern.strip('/')}/" in f"/{name}/" or fnmatchcase(name, pattern)


def write_page(blocks: Sequence[Block], path: Path) -> list[Path]:
    """A page as Markdown with its pictures in figures/ beside it; what was written."""
    written = [path]
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, to_markdown(blocks).encode())
    for block in blocks:
        if isinstance(block, Picture):
            written.append(file_inside(path.parent, f"figures/{block.name}.svg"))
            written[-1].parent.mkdir(exist_ok=True)
            atomic_write(written[-1], block.svg)
    return written
