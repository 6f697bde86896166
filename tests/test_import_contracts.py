"""The import contracts of pyproject.toml hold, and an import that breaks one is found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# A module that must stay below another one, and an import in it that points the wrong way.
PLANTED = {
    "ops above units": ("ops/common/dtypes.py", "from lipschitz_rnn.units import registry"),
    "training above experiments": ("training/schedules.py", "import lipschitz_rnn.experiments.presets"),
    "one scan in another": ("ops/lstm/reference.py", "from lipschitz_rnn.ops.modrelu import reference"),
    "a proof that searches": ("stability/proof/rates.py", "from lipschitz_rnn.stability.search import clock"),
    "a proof with a solver": ("stability/proof/rates.py", "import cvxpy"),
    "inside a function": ("tasks/base.py", "def late():\n    from lipschitz_rnn.training import loop\n    return loop"),
    "a module without a layer": ("newcomer.py", "import math"),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources with the same contracts."""
    pytest.importorskip("importlinter", reason="import-linter is not installed")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    return tmp_path


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", program, "--no-cache"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        capture_output=True,
        text=True,
    )


def test_contracts_hold_and_a_planted_import_breaks_one(tree: Path) -> None:
    kept = lint(tree)
    assert kept.returncode == 0, kept.stdout
    for case, (name, line) in PLANTED.items():
        file = tree / "src" / "lipschitz_rnn" / name
        before = file.read_text(encoding="utf-8") if file.exists() else None
        file.write_text(f"{before or ''}\n\n{line}\n", encoding="utf-8")
        broken = lint(tree)
        assert broken.returncode == 1, f"{case}: {broken.stdout}{broken.stderr}"
        assert name.removesuffix(".py").replace("/", ".") in broken.stdout, case
        if before is None:
            file.unlink()
        else:
            file.write_text(before, encoding="utf-8")
