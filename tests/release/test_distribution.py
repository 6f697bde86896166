"""Wheel and sdist, built and used in an environment of their own.

The new environments see the packages of this one through a .pth file, so that PyTorch is not downloaded again; the
package itself comes from the wheel alone. What is tested is what the wheel contains, not what an index resolves.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from optional import needs

import lipschitz_rnn as lr

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.full, needs("build", "setuptools")]


def call(*command: str | Path, cwd: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(wheel, sdist). The wheel is built from the sdist, as `python -m build` does, from tracked files only."""
    folder = tmp_path_factory.mktemp("dist")
    names = call("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    copy = folder / "source"
    for name in names:
        if name.startswith(("src/", "tests/")) or "/" not in name:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, copy, cwd=folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def new_environment(folder: Path, wheel: Path) -> Path:
    """Its Python, with the wheel installed and the other packages of this environment in reach behind it."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    (target,) = (folder / "lib").glob("python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    call(*pip, "--no-deps", "--no-index", "--target", target, wheel, cwd=folder)
    here = Path(sys.prefix, "lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")
    # Without `import` lines of .pth files there, so that an editable installation of this package stays out.
    (target / "others.pth").write_text(f"{here}\n", encoding="utf-8")
    return python


def test_the_wheel_has_what_it_needs(built: tuple[Path, Path]) -> None:
    wheel, sdist = built
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = call("git", "ls-files", "src", cwd=ROOT).splitlines()
    assert {name.removeprefix("src/") for name in tracked} <= names
    assert not [name for name in names if name.startswith(("tests/", "docs/"))]
    assert wheel.name == f"lipschitz_rnn-{lr.__version__}-py3-none-any.whl"
    with tarfile.open(sdist) as archive:
        inside = archive.getnames()
    assert any(name.endswith("/LICENSE") for name in inside)
    assert any(name.endswith("_version.py") for name in inside)


def test_the_wheel_in_an_environment_of_its_own(built: tuple[Path, Path], tmp_path: Path) -> None:
    python = new_environment(tmp_path / "new", built[0])
    home = call(python, "-c", "import lipschitz_rnn; print(lipschitz_rnn.__file__)", cwd=tmp_path).strip()
    assert Path(home).is_relative_to(tmp_path), home
    assert call(python, "-m", "lipschitz_rnn", "--version", cwd=tmp_path).strip() == lr.__version__
    arguments = ["train", "adding", "-t", "length=10", "-n", "4", "-e", "1", "-b", "8", "--out", "run"]
    call(python, "-m", "lipschitz_rnn", *arguments, cwd=tmp_path)
    modules = "units stability robustness tasks training data estimators benchmark ops experiments.report cli"
    program = "import importlib\n" + "".join(
        f"importlib.import_module('lipschitz_rnn.{name}')\n" for name in modules.split()
    )
    program += "import lipschitz_rnn as lr\nlr.LipschitzRNN.from_pretrained('ordered-mnist-128')"
    call(python, "-c", program, cwd=tmp_path)
