"""Where the largest real parts of A and W went while networks trained, read from a record and drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lipschitz_rnn.drawing import BLUE, GREY, RED, draw_band, mean_of, new_figure
from lipschitz_rnn.experiments.results import Record

COLOURS = {"A": RED, "W": BLUE}  # the paper's


@dataclass(frozen=True)
class Tracks:
    """All seeds of one β: of each its largest real parts, before training and after every epoch."""

    beta: float
    seeds: list[Any]  # as in the record
    values: dict[str, list[list[float]]]  # A and W -> networks that did not diverge -> before training and by epoch

    @property
    def scores(self) -> list[float]:
        return [seed["test"] for seed in self.seeds if seed["test"] is not None]

    def mean(self, matrix: str, choose: Callable[[Sequence[float]], float]) -> float:
        """One number of every network, in the mean over seeds: its first value, its last, its largest."""
        return mean_of([choose(network) for network in self.values[matrix]])

    def change(self, matrix: str) -> float:
        """How far it goes from its start, at most, in the mean over seeds."""
        return self.mean(matrix, lambda network: max(abs(value - network[0]) for value in network))

    def negative_epochs(self) -> float:
        """After how many epochs both A and W have all eigenvalues left of zero, in the mean over seeds."""
        both = zip(self.values["A"], self.values["W"], strict=True)
        return mean_of([sum(a < 0 and w < 0 for a, w in zip(A[1:], W[1:], strict=True)) for A, W in both])


def read_tracks(record: Record) -> list[Tracks]:
    """The tracks of every β of a record, in its order."""
    betas = dict.fromkeys(float(seed["variant"]["beta"]) for seed in record.seeds)
    return [_of_beta(record, beta) for beta in betas]


def _of_beta(record: Record, beta: float) -> Tracks:
    own = [index for index, seed in enumerate(record.seeds) if float(seed["variant"]["beta"]) == beta]
    names = {matrix: f"{matrix}_real_max" for matrix in COLOURS}
    whole = {
        matrix: [[record.measures["before_training"][name][index], *record.curves[name][index]] for index in own]
        for matrix, name in names.items()
    }
    seeds = [record.seeds[index] for index in own]
    good = [place for place, seed in enumerate(seeds) if seed["diverged_step"] is None]
    return Tracks(beta, seeds, {matrix: [networks[place] for place in good] for matrix, networks in whole.items()})


def draw_training(record: Record) -> Any:
    """One panel for each β, on one scale: the mean over seeds as a line, all seeds within the band."""
    tracks = read_tracks(record)
    figure, axes = new_figure(len(tracks))
    for axis, each in zip(axes, tracks, strict=True):
        for matrix, colour in COLOURS.items():
            columns = list(zip(*each.values[matrix], strict=True))
            draw_band(axis, range(len(columns)), columns, colour, f"max Re λ({matrix})")
        axis.axhline(0.0, color=GREY, linewidth=0.9)
        axis.set(xlabel="epoch", ylabel="largest real part", title=f"{record.setup.task}, β = {each.beta:g}")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(frameon=False, fontsize=8)
    low, high = zip(*(axis.get_ylim() for axis in axes), strict=True)
    for axis in axes:
        axis.set_ylim(min(low), max(high))
    return figure
