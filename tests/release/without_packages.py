"""Runs commands in a process in which the packages of all extras but some cannot be imported.

`python without_packages.py '["pandas", …]' '[["train", …], …]'` prints one JSON list: [exit code, output] of each
command. A command that starts with `-c` is a program instead.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from typing import Any


class Filter:
    """A finder that finds none of some packages, as if they were not installed; also for `importlib.util.find_spec`."""

    def __init__(self, finder: Any, names: set[str]) -> None:
        self.finder, self.names = finder, names

    def __getattr__(self, name: str) -> Any:
        return getattr(self.finder, name)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.partition(".")[0] in self.names:
            return None
        return self.finder.find_spec(fullname, path, target)


def main() -> None:
    blocked, commands = json.loads(sys.argv[1]), json.loads(sys.argv[2])
    versions = importlib.metadata.version

    def version(name: str) -> str:
        if name in blocked:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions(name)

    importlib.metadata.version = version
    sys.meta_path[:] = [Filter(finder, set(blocked)) for finder in sys.meta_path]
    from typer.testing import CliRunner

    from lipschitz_rnn.cli import app

    answers = []
    for command in commands:
        if command[0] == "-c":
            try:
                exec(command[1], {})
                answers.append((0, ""))
            except ImportError as error:
                answers.append((1, str(error)))
        else:
            done = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
            answers.append((done.exit_code, done.output))
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
