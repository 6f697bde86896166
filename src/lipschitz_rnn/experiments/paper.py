"""The paper's tables as data: every cell with the settings that made it and the number that is printed.

Numbers are as printed: percent for accuracy, bits, perplexity and squared error for the rest. `sigma` in the paper is
the standard deviation of M; the layer's `init_scale` is sigma · N.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lipschitz_rnn.training import Settings


@dataclass(frozen=True)
class Cell:
    """One number of a table. `spread`: minimum, average, maximum over ten seeds where the paper gives them."""

    table: str
    task: str
    unit: str
    printed: float
    hidden_size: int | None = None
    integrator: str | None = None
    task_options: Mapping[str, Any] = field(default_factory=dict)
    spread: tuple[float, float, float] | None = None
    validation: float | None = None
    parameters: str = ""

    @property
    def name(self) -> str:
        """For example ordered-mnist/lipschitz/128/euler; with the options of the task where two cells need them."""
        options = [f"{key}-{value}" for key, value in self.task_options.items()]
        parts = [self.task, *options, self.unit, self.hidden_size, self.integrator]
        return "/".join(str(part) for part in parts if part is not None)


def _lipschitz(table: str, task: str, size: int, parameters: str, **by_integrator: Any) -> list[Cell]:
    """Cells of our unit; values are a number, or (number, spread)."""
    cells = []
    for integrator, value in by_integrator.items():
        printed, spread = value if isinstance(value, tuple) else (value, None)
        cells.append(Cell(table, task, "lipschitz", printed, size, integrator, spread=spread, parameters=parameters))
    return cells


def _others(table: str, task: str, values: Mapping[str, tuple[float, int | None]], **more: Any) -> list[Cell]:
    return [Cell(table, task, unit, printed, size, **more) for unit, (printed, size) in values.items()]


MNIST, CIFAR, TIMIT = "Pixel-by-pixel MNIST", "Pixel-by-pixel CIFAR-10", "TIMIT"
CHARACTERS, WORDS = "Penn Treebank, characters", "Penn Treebank, words"

CELLS: tuple[Cell, ...] = (
    *_lipschitz(
        MNIST, "ordered-mnist", 64, "9K", euler=(99.0, (98.9, 99.0, 99.0)), midpoint=(99.1, (98.9, 99.0, 99.1))
    ),
    *_lipschitz(
        MNIST, "ordered-mnist", 128, "34K", euler=(99.4, (99.0, 99.2, 99.4)), midpoint=(99.3, (98.9, 99.1, 99.3))
    ),
    *_lipschitz(
        MNIST, "permuted-mnist", 64, "9K", euler=(94.2, (93.5, 93.8, 94.2)), midpoint=(94.2, (93.5, 93.9, 94.2))
    ),
    *_lipschitz(
        MNIST, "permuted-mnist", 128, "34K", euler=(96.3, (95.6, 95.9, 96.3)), midpoint=(96.2, (95.4, 95.8, 96.2))
    ),
    *_others(
        MNIST,
        "ordered-mnist",
        {
            "lstm": (97.3, 128), "momentum-lstm": (99.1, 256), "urnn": (95.1, 512), "full-urnn": (96.9, 512),
            "soft-orth": (94.1, 128), "kronecker": (96.4, 512), "antisymmetric": (98.0, 128), "irnn": (98.1, 128),
            "exprnn": (98.4, 360), "nais": (94.3, 128),
        },
    ),
    *_others(
        MNIST,
        "permuted-mnist",
        {
            "lstm": (92.7, 128), "momentum-lstm": (94.7, 256), "urnn": (91.4, 512), "full-urnn": (94.1, 512),
            "soft-orth": (91.4, 128), "kronecker": (94.5, 512), "antisymmetric": (95.8, 128), "irnn": (95.6, 128),
            "exprnn": (96.2, 360), "nais": (90.8, 128),
        },
    ),
    *_lipschitz(CIFAR, "ordered-cifar10", 128, "34K", euler=60.5, midpoint=60.3),
    *_lipschitz(CIFAR, "ordered-cifar10", 256, "134K", euler=64.2, midpoint=64.2),
    *_others(CIFAR, "ordered-cifar10", {"lstm": (59.7, 128), "antisymmetric": (58.7, 256)}),
    *_lipschitz(CIFAR, "noise-padded-cifar10", 128, "46K", euler=57.4, midpoint=57.3),
    *_lipschitz(CIFAR, "noise-padded-cifar10", 256, "158K", euler=59.0, midpoint=58.9),
    *_others(
        CIFAR, "noise-padded-cifar10", {"lstm": (11.6, 128), "antisymmetric": (48.3, 256), "irnn": (54.5, 128)}
    ),
    Cell(TIMIT, "timit", "lipschitz", 2.82, 256, "euler", {}, (2.82, 2.98, 3.10), 2.95, "198K"),
    Cell(TIMIT, "timit", "lipschitz", 2.76, 256, "midpoint", {}, (2.76, 2.81, 2.84), 2.86, "198K"),
    *_others(
        TIMIT,
        "timit",
        {
            "lstm": (9.37, 158), "momentum-lstm": (5.87, 158), "srlstm": (5.83, 158), "full-urnn": (14.45, 256),
            "scornn": (7.36, 425), "exprnn": (5.48, 425),
        },
    ),
    *(
        Cell(CHARACTERS, "ptb-char", unit, printed, size, integrator, {"length": length}, parameters="1.32M")
        for length, values in (
            (150, {"rnn": 2.89, "rnn-orth": 1.62, "eurnn": 1.61, "exprnn": 1.49, "nnrnn": 1.47, "antisymmetric": 1.60}),
            (300, {"rnn": 2.90, "rnn-orth": 1.66, "eurnn": 1.62, "exprnn": 1.52, "nnrnn": 1.49, "antisymmetric": 1.64}),
        )
        for unit, printed, size, integrator in (
            ("lipschitz", 1.43 if length == 150 else 1.46, 750, "euler"),
            *((unit, printed, None, None) for unit, printed in values.items()),
        )
    ),
    Cell(WORDS, "ptb-word", "lipschitz", 115.36, 160, "euler", validation=124.55, parameters="50K"),
    *_others(
        WORDS,
        "ptb-word",
        {
            "lstm": (117.41, None), "spectral-rnn": (130.20, None), "fastrnn": (127.76, None),
            "fastgrnn-lsq": (115.92, None), "fastgrnn": (116.11, None), "irnn": (115.71, None),
        },
    ),
)  # fmt: skip


def _tuned(task: str, size: int, sigma: float, **values: Any) -> dict[str, Any]:
    """A row of the paper's table of tuning parameters, with what all its rows share."""
    names = ("beta", "gamma", "step_size")
    unit_options = {name: values.pop(name) for name in names} | {"integrator": "euler"}
    unit_options["init_scale"] = sigma * size
    return {"task": task, "hidden_size": size, "unit_options": unit_options} | values


_STEP = {"schedule": "step", "decay_epochs": (90,), "epochs": 100}
_IMAGES = {"gamma": 0.001, **_STEP}
_SMALL_STEP = {"beta": 0.75, "step_size": 0.03, "decay_factor": 0.1, "optimiser": "adam", **_IMAGES}
_CIFAR = {"step_size": 0.01, "decay_factor": 0.2, "optimiser": "sgd", "learning_rate": 0.1, **_IMAGES}


def tuning(task: str, hidden_size: int | None = None) -> dict[str, Any] | None:
    """The paper's settings of our unit on a task, at its largest N or at `hidden_size`; None where it has none.

    Where the paper contradicts itself the sensible reading is taken: CIFAR-10 with lr 0.1 is SGD with momentum. For
    the gradient clipping of TIMIT it gives no value ("relatively insensitive"); ours is 1.
    """
    row = {
        "ordered-mnist": lambda n: _tuned("ordered-mnist", n, 0.1 / n, learning_rate=0.003, **_SMALL_STEP),
        "permuted-mnist": lambda n: _tuned("permuted-mnist", n, 0.1 / 128, learning_rate=0.0035, **_SMALL_STEP),
        "ordered-cifar10": lambda n: _tuned("ordered-cifar10", n, 6 / 256, beta=0.65, **_CIFAR),
        "noise-padded-cifar10": lambda n: _tuned("noise-padded-cifar10", n, 6 / 256, beta=0.75, **_CIFAR),
        "timit": lambda n: _tuned(
            "timit", n, 12 / 256, beta=0.8, gamma=[0.8, 0.001], step_size=0.9, learning_rate=0.001, clip=1.0,
            epochs=1200,
        ),
        "ptb-char": lambda n: _tuned(
            "ptb-char", n, 12 / 256, beta=0.8, gamma=[0.5, 0.001], step_size=0.1, learning_rate=0.005, epochs=200
        ),
        "ptb-word": lambda n: _tuned(
            "ptb-word", n, 10 / 256, beta=0.8, gamma=[0.9, 0.001], step_size=0.01, learning_rate=0.1,
            optimiser="rmsprop", smoothing=0.9, epochs=500,
        ),
    }.get(task)  # fmt: skip
    sizes = {"ordered-cifar10": 256, "noise-padded-cifar10": 256, "timit": 256, "ptb-char": 750, "ptb-word": 160}
    return None if row is None else row(hidden_size or sizes.get(task, 128))


def find_cell(settings: Settings) -> Cell | None:
    """The paper's cell that a run can be laid beside: same task and unit, and same size and integrator where given."""
    integrator = str(settings.unit_options.get("integrator", "euler")).replace("rk2", "midpoint")
    for cell in CELLS:
        same_options = all(_option(settings, key) == value for key, value in cell.task_options.items())
        same_network = cell.hidden_size in (None, settings.hidden_size) or cell.unit != "lipschitz"
        same_kind = (cell.task, cell.unit) == (settings.task, settings.unit) and cell.integrator in (None, integrator)
        if same_kind and same_options and same_network:
            return cell
    return None


def _option(settings: Settings, key: str) -> Any:
    return settings.task_options.get(key, {"length": 150}.get(key))


@dataclass(frozen=True)
class RobustnessRow:
    """A row of the paper's third table: accuracy under attack in percent, and the Hessian of the unit's parameters."""

    pgd: float
    deepfool_l2: float
    deepfool_linf: float
    largest: float  # λ_max
    trace: float
    condition: float  # λ_max / λ_min as printed; it fits |λ_min| of the most negative eigenvalue


ROBUSTNESS: dict[str, RobustnessRow] = {
    "neural-ode": RobustnessRow(88.5, 69.6, 44.5, 0.30, 4.7, 37.6),
    "antisymmetric": RobustnessRow(84.7, 83.4, 44.3, 0.24, 4.8, 35.5),
    "lipschitz": RobustnessRow(93.0, 89.2, 54.1, 0.14, 3.1, 23.2),
}

# The ablation study: the β at which α is varied, the β that the paper finds best (it prints no other number of it), and
# the α beyond which the unit degenerates.
ABLATION_BETA: dict[str, float] = {"ordered-mnist": 0.65, "permuted-mnist": 0.8}
ABLATION_BEST_BETA: dict[str, tuple[float, float]] = {"ordered-mnist": (0.65, 0.7), "permuted-mnist": (0.8, 0.85)}
ABLATION_LARGEST_ALPHA = 1.6
