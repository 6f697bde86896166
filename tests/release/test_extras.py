"""Each extra alone: its own commands run, and the others name the extra to install. Nothing is installed for it."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# The packages that an extra brings, as they are imported; scikit-learn brings SciPy and threadpoolctl along.
PACKAGES = {
    "experiments": {"matplotlib", "sklearn", "tensorboard", "scipy", "threadpoolctl"},
    "stability": {"cvxpy", "clarabel", "scs", "scipy", "threadpoolctl"},
    "robustness": {"foolbox", "eagerpy", "scipy"},
    "export": {"onnx", "onnxscript", "onnxruntime"},
    "hub": {"huggingface_hub"},
    "data": {"pandas", "pyarrow", "sklearn", "scipy", "threadpoolctl"},
    "cpu": {"llvmlite"},
}
PAIR = (
    "import torch\nfrom safetensors.torch import save_file\n"
    "generator = torch.Generator().manual_seed(0)\nM = torch.randn(4, 4, generator=generator, dtype=torch.float64)\n"
    "W = 0.9 * torch.randn(4, 4, generator=generator).double()\n"
    "save_file({'A': M - M.T - 1.5 * torch.eye(4), 'W': W}, 'pair.safetensors')"
)
ATTACK = (
    "import torch\nimport lipschitz_rnn as lr\nfrom lipschitz_rnn.training import SequenceModel\n"
    "model = SequenceModel(lr.LipschitzRNN(2, 4), torch.nn.Linear(4, 3), 'last').eval()\n"
    "lr.robustness.pgd(model, torch.rand(5, 4, 2), torch.tensor([0, 1, 2, 0]), steps=2)"
)
RUN = ["train", "adding", "-t", "length=10", "-n", "4", "-e", "1", "-b", "8", "--out", "run"]
FILE = ["train", "log.csv", "--target", "state", "--series", "machine", "-n", "4", "-e", "1", "--out", "filed"]
CORE = [["--version"], ["units"], ["tasks"], RUN, ["evaluate", "run"]]
OWN: dict[str, list[list[str]]] = {
    "experiments": [["train", "digits", "-n", "4", "-e", "1", "--out", "digits"], ["report", "run"]],
    "stability": [["-c", PAIR], ["certify", "pair.safetensors", "--solver", "clarabel"]],
    "robustness": [["-c", ATTACK], ["robustness", "hessian", "run"]],
    "export": [["-c", "import onnx, onnxscript, onnxruntime"]],
    "hub": [["-c", "import lipschitz_rnn.data.hub"]],
    "data": [FILE, ["predict", "filed", "log.csv", "-o", "out.csv"], ["-c", "import lipschitz_rnn.estimators"]],
    "cpu": [["-c", "from lipschitz_rnn.ops.lipschitz.cores import machine"]],
}
# What says which extra to install, where it is missing.
ASKS: dict[str, list[str]] = {
    "experiments": ["train", "digits", "-n", "4", "-e", "1", "--out", "other"],
    "stability": ["certify", "pair.safetensors", "--solver", "clarabel"],
    "robustness": ["-c", ATTACK],
    "hub": ["-c", "import lipschitz_rnn.data.hub"],
    "data": [*FILE[:-1], "other-file"],
}


def commands_without(blocked: set[str], commands: list[list[str]], folder: Path) -> list[tuple[int, str]]:
    rows = [f"{i},{i % 2}.{j},{'ab'[i % 2]}" for i in range(20) for j in range(6)]
    (folder / "log.csv").write_text("\n".join(["machine,x,state", *rows]) + "\n", encoding="utf-8")
    script = Path(__file__).with_name("without_packages.py")
    arguments = [sys.executable, str(script), json.dumps(sorted(blocked)), json.dumps(commands)]
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [(code, output) for code, output in json.loads(done.stdout.splitlines()[-1])]


def test_every_extra_is_listed_here() -> None:
    tools = {"all", "peers", "dev", "docs", "release", "test", "sweep", "ray", "browser"}
    assert PROJECT["optional-dependencies"].keys() - tools == PACKAGES.keys()


@pytest.mark.full
@pytest.mark.parametrize("extra", ["", *PACKAGES])
def test_an_extra_alone(extra: str, tmp_path: Path) -> None:
    """In a process that cannot import what the other extras bring."""
    installed = PACKAGES.get(extra, set())
    blocked = set.union(*PACKAGES.values()) - installed
    asks = {other: command for other, command in ASKS.items() if not PACKAGES[other] <= installed}
    if "sklearn" in installed:
        asks.pop("experiments", None)  # the digits need only scikit-learn
    wanted = [*CORE, *OWN.get(extra, [["-c", PAIR]])]
    answers = commands_without(blocked, [*wanted, ["-c", PAIR], *asks.values()], tmp_path)
    for command, (code, output) in zip(wanted, answers, strict=False):
        assert code == 0 or (command[0] == "certify" and code == 3), (command, output)
    for (other, command), (code, output) in zip(asks.items(), answers[len(wanted) + 1 :], strict=True):
        assert code == 1, (other, command, output)
        assert f"lipschitz-rnn[{other}]" in output, (command, output)
