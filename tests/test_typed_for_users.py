"""What a type checker tells users of this package: no `Any` where the package knows better."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

PROGRAM = """
from typing import assert_type

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import lipschitz_rnn as lr
from lipschitz_rnn.stability import Certificate
from lipschitz_rnn.units.base import Recurrent
from lipschitz_rnn.units.stream import Stream

rnn = lr.LipschitzRNN(3, 5)
x = torch.zeros(7, 2, 3)
packed = pack_sequence([x[:, 0]])

assert_type(rnn.step_size, float)
assert_type(rnn.max_step, float | None)
assert_type(rnn.integrator, str)
assert_type(rnn.output_size, int)
assert_type(rnn.penalty(), Tensor)
assert_type(rnn.hidden_matrices(), tuple[Tensor, Tensor])
assert_type(rnn(x), tuple[Tensor, Tensor])
assert_type(rnn(x, rnn(x)[1], timespans=x[..., 0], lengths=torch.tensor([7, 3])), tuple[Tensor, Tensor])
assert_type(rnn(x, need_output=False), tuple[None, Tensor])
assert_type(rnn(packed), tuple[PackedSequence, Tensor])
assert_type(rnn.stream()(x[0, 0], 0.1), Tensor)
assert_type(rnn.stream().state, Tensor)
assert_type(rnn.cell().step_size, float)

unit = lr.units.build("lem", 3, 5)
assert_type(unit, Recurrent)
assert_type(unit.output_size, int)
assert_type(unit(x), tuple[Tensor, Tensor | tuple[Tensor, ...]])
assert_type(unit.stream(2), Stream)
assert_type(lr.units.info("lem").timespans, bool)
assert_type(lr.stability.certify(rnn), Certificate)

rnn(x, None, torch.zeros(7, 2))  # wrong
rnn.step_size = "fast"  # wrong
unit(x, steps=3)  # wrong
"""


@pytest.mark.slow
def test_a_users_program_is_typed(tmp_path: Path) -> None:
    """In the project's own folder, where `make types` has left what mypy knows of PyTorch."""
    path = tmp_path / "users_program.py"
    path.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    found = {int(line.split(":")[1]) for line in result.stdout.splitlines() if ": error:" in line}
    wrong = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}
    assert found == wrong, result.stdout + result.stderr
