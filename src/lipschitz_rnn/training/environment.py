"""Describes code and machine of a run: enough to know a year later what produced a number."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import torch

from lipschitz_rnn._version import __version__


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Versions, commit, processor and command line, as plain values."""
    return {
        "lipschitz_rnn": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "cuda": torch.version.cuda,
        "platform": platform.platform(),
        "device": describe_device(device),
        "threads": torch.get_num_threads(),
        "command": sys.argv,
    }


def describe_device(device: torch.device) -> str:
    """The name of the processor, as a reader of the report would call it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    return f"{name}, {os.cpu_count()} cores"


def commit() -> str | None:
    """The commit of the checkout that the package runs from, marked if files differ; None if it is installed."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # Otherwise a package installed in another project's environment would report that project's commit.
    if git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    name = git("rev-parse", "HEAD")
    return f"{name}-changed" if name and git("status", "--porcelain", "--untracked-files=no", ".") else name
