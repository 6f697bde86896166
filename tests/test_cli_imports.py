"""`--version` and `--help` without PyTorch, and a list of commands that says what the commands say themselves."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer.main

from lipschitz_rnn.cli import Commands, app


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_no_pytorch_for_version_and_help(argument: str) -> None:
    """PyTorch alone takes more than a second to import; a list of commands must not wait for it."""
    program = (
        "import sys\nfrom lipschitz_rnn.cli import app\n"
        f"try:\n    app(['{argument}'])\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = ('torch', 'numpy', 'lipschitz_rnn.units', 'lipschitz_rnn.training')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.full
def test_import_brings_little_beyond_pytorch() -> None:
    """`import lipschitz_rnn` and its layer load PyTorch and NumPy, and none of torch's compiler."""
    program = (
        "import sys, lipschitz_rnn as lr; lr.LipschitzRNN; "
        "new = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names); "
        "print(*sorted(name for name in new if not name.startswith('_'))); "
        "print('torch._dynamo' in sys.modules, 'torch._inductor' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    before = subprocess.run(
        [sys.executable, "-c", program.replace("lipschitz_rnn as lr; lr.LipschitzRNN", "torch, numpy")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) <= set(before.stdout.split()) | {"lipschitz_rnn"}
    assert done.stdout.splitlines()[1] == "False False"


def test_the_list_says_what_the_commands_say() -> None:
    group = typer.main.get_group(app)
    context = group.make_context("lipschitz-rnn", [], resilient_parsing=True)
    for stand_in in Commands.lazy:
        _, command, _ = group.resolve_command(context, [str(stand_in.name)])
        assert (command.help or "").split("\n\n")[0] == stand_in.help, stand_in.name
        assert command.name == stand_in.name
