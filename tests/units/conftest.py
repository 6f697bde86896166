"""What the tests of units share: small units with generic parameters, and inputs from local generators."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipschitz_rnn import units

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # for units_learn


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table of what each unit reached, where the tests that train them ran."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    rows = [value for report in reports for name, value in report.user_properties if name == "unit reached"]
    if rows:
        terminalreporter.section("what each unit reached: task, validation, test, settings")
        terminalreporter.write_line("\n".join(rows))


def randomise(module: nn.Module, generator: torch.Generator, scale: float = 0.3) -> None:
    """Move every parameter off its start, so that zeros and ones of an initialisation hide nothing."""
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(scale * noise.to(parameter.dtype))


@pytest.fixture
def build_unit(generator: torch.Generator) -> Callable[..., nn.Module]:
    """A unit in float64 with generic parameters; the global generator is left as it was."""

    def build(name: str, input_size: int = 2, hidden_size: int = 8, scale: float = 0.3, **options: Any) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            unit = units.build(name, input_size, hidden_size, **options).double()
        randomise(unit, generator, scale)
        return unit

    return build


@pytest.fixture
def inputs(generator: torch.Generator) -> Callable[..., Tensor]:
    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return draw
