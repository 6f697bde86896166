"""What each unit reaches on two small tasks: the table "What each unit reached" of docs/units.md.

    python benchmarks/units_learn.py --out reached.json   # all units, about half an hour on one CPU core
    python benchmarks/units_learn.py exprnn lem           # two of them
    python benchmarks/units_learn.py --table reached.json # the tables of docs/units.md

`digits`: 8 × 8 images, one pixel a step (T = 64), test accuracy in percent after the last epoch. Rates and steps were
found in a few tries by the same accuracy, so the numbers show that a unit learns, and rank nothing. `adding`: the sum
of two marked numbers among T = 100, mean squared error on 1,000 fresh sequences; always guessing the mean gives 0.167.
A unit passes with at least 80 % on the first or below 0.0835 on the second.
"""

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import lipschitz_rnn.tasks as tasks
from lipschitz_rnn import units


@dataclass(frozen=True)
class Recipe:
    """How a unit is trained. Adam with gradients clipped at norm 1; the rate falls to zero along a cosine."""

    rate: float = 3e-3
    hidden_size: int = 64
    epochs: int = 40
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        options = "".join(f", {key} {value}" for key, value in self.options.items())
        return f"N {self.hidden_size}, rate {self.rate:g}, {self.epochs} epochs{options}"


USUAL = Recipe()
FAST = Recipe(rate=1e-2)
# Units that integrate an equation need time to pass: over T = 64 steps a step of 0.03 would be 2 units of time.
RECIPES: dict[str, dict[str, Recipe]] = {
    "digits": dict.fromkeys(units.available(), USUAL)
    | {
        "rnn": Recipe(epochs=60),
        "lstm": FAST,
        "gru": FAST,
        "momentum-lstm": FAST,
        "srlstm": Recipe(rate=1e-2, epochs=60),
        "antisymmetric": Recipe(rate=1e-2, options={"step_size": 0.3}),
        "antisymmetric-gated": Recipe(rate=1e-2, options={"step_size": 0.3}),
        "nais": Recipe(rate=2e-2, hidden_size=128, epochs=80, options={"kappa": 0.001}),
        "irnn": Recipe(epochs=80),
        "neural-ode": Recipe(rate=1e-2, options={"step_size": 0.3}),
        "residual": Recipe(rate=1e-2, options={"step_size": 0.3}),
        "fastrnn": Recipe(rate=2e-2),
        "fastgrnn": FAST,
        "fastgrnn-lsq": FAST,
        "lipschitz": Recipe(rate=1e-2, options={"step_size": 0.3}),
        "lipschitz-gated": Recipe(rate=1e-2, options={"step_size": 0.3}),
        "cornn": Recipe(rate=1e-2, options={"step_size": 0.2, "gamma": 1.0, "epsilon": 0.5}),
        "lem": FAST,
    },
    # A contraction forgets in which order pixels came, but it can add: its ReLU gates what is marked.
    "adding": {
        "nais": Recipe(rate=5e-3, epochs=4, options={"nonlinearity": "relu", "step_size": 0.1, "kappa": 0.001}),
    },
}
DIGITS_PASS, ADDING_PASS = 80.0, 0.167 / 2


class Classifier(nn.Module):
    """A unit and a linear head on its last output."""

    def __init__(self, name: str, recipe: Recipe, task: Any) -> None:
        super().__init__()
        self.unit = units.build(name, task.input_size, recipe.hidden_size, **recipe.options)
        self.head = nn.Linear(int(self.unit.output_size), task.output_size)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.unit(x)[0][-1])

    def penalty(self) -> Tensor:
        own = getattr(self.unit, "penalty", None)
        return self.head.weight.new_zeros(()) if own is None else own()


def train(name: str, recipe: Recipe, task: Any, seed: int = 0, batch: int = 64) -> tuple[float, float]:
    """The metric on the test part after training, and the seconds it took."""
    started = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Classifier(name, recipe, task)
    order = torch.Generator().manual_seed(seed)
    count = task.size("train")
    optimiser = torch.optim.Adam(model.parameters(), lr=recipe.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, recipe.epochs * -(-count // batch))
    for _ in range(recipe.epochs):
        for indices in torch.randperm(count, generator=order).split(batch):
            data = task.batch("train", indices, order)
            loss = task.loss(model(data.inputs), data) + model.penalty()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
    return evaluate(model, task), time.perf_counter() - started


@torch.no_grad()
def evaluate(model: nn.Module, task: Any) -> float:
    model.eval()
    total, weight = 0.0, 0.0
    for indices in torch.arange(task.size("test")).split(500):
        data = task.batch("test", indices)
        part, share = task.measure(model(data.inputs), data)
        total, weight = total + float(part), weight + float(share)
    return float(task.metric.finish(total / weight)) * (100.0 if task.metric.percent else 1.0)


def tables(results: dict[str, dict[str, float]]) -> str:
    """The two tables of docs/units.md: what the units are, and what they reached."""
    lines = ["| unit | equation | paper | keeps | parameters |", "|---|---|---|---|---|"]
    for about in map(units.info, units.available()):
        paper = f"{about.paper} {about.year}"
        lines.append(f"| `{about.name}` | {about.equation} | {paper} | {about.constraint} | {about.parameters:,} |")
    lines += ["", "| unit | digits, accuracy % | adding, T = 100, error | trained with |", "|---|---|---|---|"]
    for name in units.available():
        digits, adding = (results.get(task, {}).get(name) for task in ("digits", "adding"))
        recipes = "; ".join(str(RECIPES[task][name]) for task in RECIPES if name in RECIPES[task])
        reached = "–" if digits is None else f"{digits:.1f}", "–" if adding is None else f"{adding:.4f}"
        lines.append(f"| `{name}` | {reached[0]} | {reached[1]} | {recipes} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=units.available(), help="units (all)")
    parser.add_argument("--out", type=Path, help="a JSON file to add the results to")
    parser.add_argument("--table", type=Path, help="print the tables of docs/units.md from this file and stop")
    arguments = parser.parse_args()
    if arguments.table:
        print(tables(json.loads(arguments.table.read_text())))
        return
    torch.set_num_threads(1)
    loaded = {"digits": tasks.load("digits"), "adding": tasks.load("adding", length=100)}
    for name in arguments.names:
        for task, recipes in RECIPES.items():
            if name not in recipes:
                continue
            value, seconds = train(name, recipes[name], loaded[task])
            passed = value >= DIGITS_PASS if task == "digits" else value < ADDING_PASS
            print(f"{name:20} {task:7} {value:8.4f} {'passed' if passed else '':7} {seconds:4.0f} s", flush=True)
            if arguments.out:
                results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
                results.setdefault(task, {})[name] = value
                arguments.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
