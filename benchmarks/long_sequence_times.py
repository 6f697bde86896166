"""Times of docs/long-sequences.md from one machine: the table, a trained network, and time against length."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lipschitz_rnn as lr
from lipschitz_rnn.benchmark.time_parallel import (
    Row,
    Size,
    chosen_precision,
    given_gradient,
    measure_layer,
    trained_layer,
)
from lipschitz_rnn.benchmark.timing import time_calls
from lipschitz_rnn.drawing import BLUE, GREY, new_figure, to_svg
from lipschitz_rnn.tasks.files import data_folders
from lipschitz_rnn.tasks.mnist import read_idx
from lipschitz_rnn.training.environment import describe_environment

CLAIMED = 1_048_576  # steps at which a trained network is to be 8 times as fast in parallel
LENGTHS = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
LONGEST_SEQUENTIAL = 3.0  # seconds of one sequential call: longer ones are left out of the picture
_IMAGES = "t10k-images-idx3-ubyte"

Point = dict[str, Any]


def chosen_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def fresh_layer(hidden: int, rate: float) -> lr.LipschitzRNN:
    torch.manual_seed(0)
    return lr.LipschitzRNN(1, hidden, stability="contracting", rate=rate, step_size=0.03)


def pixels(steps: int, root: str | None) -> Tensor | None:
    """Test images of MNIST one after another, (steps, 1, 1) from 0 to 1, as a network of ordered MNIST reads them.

    The images alone are needed, plain or packed: in the folder that is given or named by LIPSCHITZ_RNN_DATA, or in
    ``mnist`` there. None if they are not there.
    """
    places = [place / part for place in data_folders(root) for part in ("mnist", "MNIST/raw", ".")]
    files = [path for place in places for path in (place / _IMAGES, place / f"{_IMAGES}.gz") if path.is_file()]
    if not files:
        looked = ", ".join(str(place) for place in data_folders(root))
        print(f"noise as input, because {_IMAGES} is not in {looked}; set LIPSCHITZ_RNN_DATA to its folder", flush=True)
        return None
    data = gzip.decompress(files[0].read_bytes()) if files[0].suffix == ".gz" else files[0].read_bytes()
    values = torch.from_numpy(read_idx(data, files[0].name, 3)).flatten()
    repeated = values.repeat(-(-steps // len(values)))[:steps]
    return (repeated.float() * (1.0 / 255.0)).reshape(-1, 1, 1)  # as the task does it


def trained_rows(weights: str, steps: int, root: str | None, repeats: int = 5) -> Iterator[Row]:
    """Forward and training step of a trained contracting layer: a run folder or a .safetensors file."""
    device = chosen_device()
    layer = trained_layer(weights).to(device)
    x = pixels(steps, root) if layer.input_size == 1 else None
    with chosen_precision(device):
        for training in (False, True):
            yield measure_layer(layer, Size(steps, 1, training), device, repeats, x, sequential_repeats=min(repeats, 3))


def speed_up(row: Row) -> str:
    """What a row says about the claim."""
    text = f"{row.size}: {row.speed_up:.3g} times as fast"
    if row.size.length != CLAIMED:
        return f"{text}; what is claimed, 8 times, is for T = {CLAIMED:,}"
    return f"{text}, {'reached' if row.speed_up >= 8 else 'not reached'}: 8"


def table_rows(hidden: int, rate: float, lengths: Sequence[int], sequential_repeats: int) -> Iterator[Row]:
    """Every size of the page at one rate; two lengths, the shorter with a batch of eight only."""
    device = chosen_device()
    layer = fresh_layer(hidden, rate).to(device)
    short, long = lengths
    with chosen_precision(device):
        for length, batch in ((long, 8), (long, 1), (short, 8)):
            for training in (True, False):
                size = Size(length, batch, training)
                yield measure_layer(layer, size, device, 7, sequential_repeats=sequential_repeats)


def time_lengths(steps: int, hidden: int, found: Callable[[Point], None]) -> None:
    """Passes over one sequence of more and more steps at rate 1; sequentially while a call takes a few seconds."""
    device = chosen_device()
    layer = fresh_layer(hidden, 1.0).to(device)
    last: dict[tuple[bool, str], float] = {}  # seconds of a step
    with chosen_precision(device):
        for length in [length for length in LENGTHS if length <= steps]:
            x = torch.randn(length, 1, 1, generator=torch.Generator().manual_seed(1)).to(device)
            for training in (False, True):
                given = given_gradient(layer, Size(length, 1, True), device) if training else None

                def call(x: Tensor = x, given: Tensor | None = given) -> None:
                    if given is None:
                        with torch.no_grad():
                            layer(x)
                    else:
                        torch.autograd.grad(layer(x)[0], list(layer.parameters()), given)

                for way, setting in (("sequential", None), ("parallel", "auto")):
                    expected = length * last.get((training, way), 0.0)
                    if way == "sequential" and expected > LONGEST_SEQUENTIAL:
                        continue
                    layer.parallel = setting
                    times = time_calls(call, device, 1 if expected > 0.5 else 3, most_seconds=10.0)
                    last[training, way] = times.median / length
                    point: Point = {"steps": length, "training": training, "way": way, **times.to_dict()}
                    if setting is not None:
                        point |= {"bound": float(layer.bounds[0].states), "plan": str(layer.bounds[0].plan)}
                    found(point)


def draw_lengths(points: Sequence[Point], picture: Path) -> None:
    """Milliseconds against steps: forward on the left, a training step on the right."""
    figure, axes = new_figure(2, width=3.7, height=3.2)
    for axis, training in zip(axes, (False, True), strict=True):
        for way, colour, text in (("sequential", GREY, "sequential"), ("parallel", BLUE, "in parallel over time")):
            own = [point for point in points if point["training"] is training and point["way"] == way]
            if own:
                values = [point["steps"] for point in own], [point["median_ms"] for point in own]
                axis.loglog(*values, "o-", color=colour, markersize=3.5, linewidth=1.4, label=text)
        axis.set_title("training step" if training else "forward", fontsize=9)
        axis.set_xlabel("steps")
    axes[0].set_ylabel("milliseconds")
    steps, times = ([point[name] for point in points] for name in ("steps", "median_ms"))
    for axis in axes:  # the same scale on both sides, also while one of them is empty
        axis.set_xlim(0.7 * min(steps), 1.4 * max(steps))
        axis.set_ylim(0.6 * min(times), 1.7 * max(times))
        axis.minorticks_off()
    axes[0].legend(fontsize=7.5, frameon=False, loc="upper left")
    picture.write_bytes(to_svg(figure))


def redraw(numbers: Path, picture: Path) -> None:
    """The picture from its numbers, of another machine for example."""
    draw_lengths(json.loads(numbers.read_text())["points"], picture)


def lengths(steps: int, hidden: int, picture: Path | None, numbers: Path | None) -> None:
    """Times, picture and numbers. The numbers are written after every point, the picture in the end."""
    points: list[Point] = []

    def found(point: Point) -> None:
        points.append(point)
        kind = "training step" if point["training"] else "forward"
        print(f"T = {point['steps']:,}, {kind}, {point['way']}: {point['median_ms']:.4g} ms", flush=True)
        if numbers is not None:
            about = {"environment": describe_environment(chosen_device()), "hidden": hidden, "rate": 1.0}
            numbers.write_text(json.dumps({**about, "points": points}, indent=1) + "\n")

    time_lengths(steps, hidden, found)
    if picture is None:
        return
    try:
        draw_lengths(points, picture)
    except ImportError as error:  # times are worth more than a picture, which can be drawn elsewhere
        print(f"no picture: {error}; `picture --json {numbers} --picture {picture}` draws it elsewhere", flush=True)


def as_line(row: Row, name: str = "") -> str:
    """A line of the table on the page."""
    loss = "" if row.loss is None else f"{1e3 * row.loss.median:.3g} ms"
    return (
        f"| {name}{row.size} | {row.rate:g}, {row.factor:.5g}, {row.tau:.3g} | {1e3 * row.sequential.median:,.4g} ms | "
        f"{1e3 * row.parallel.median:.3g} ms | {row.speed_up:.3g} | {loss} | {row.difference:.1e} | {row.bound:.1e} | "
        f"{row.largest:.3g} |"
    )


_HEAD = (
    "| size | rate, ρ, τ seen | sequential | in parallel | times as fast | loss apart | difference | proved bound | "
    "largest state |\n|---|---|---:|---:|---:|---:|---:|---:|---:|\n"
)


def page(out: Path, hidden: int, weights: str | None, root: str | None, lengths_of: tuple[int, int], most: int) -> None:
    """Everything that the page has from a GPU, in at most three minutes on an H200, what matters most first.

    Every number is on disk as soon as it is there: ``times.json``, ``times.md``, ``lengths.json``, ``lengths.svg``.
    """
    out.mkdir(parents=True, exist_ok=True)
    if weights is not None:
        trained_layer(weights)  # raises now, not in the middle
    started, lines, rows = time.perf_counter(), [_HEAD], []

    def keep(kind: str, found: Iterator[Row]) -> None:
        for row in found:
            name = "trained, " if kind == "trained" else ""
            rows.append({"kind": kind, **row.to_dict()})
            lines.append(as_line(row, name) + "\n")
            document = {"environment": describe_environment(chosen_device()), "hidden": hidden, "rows": rows}
            (out / "times.json").write_text(json.dumps(document, indent=1) + "\n")
            (out / "times.md").write_text("".join(lines))
            print(f"{time.perf_counter() - started:.0f} s: {as_line(row, name)} {row.wrong}", flush=True)

    keep("fresh", table_rows(hidden, 1.0, lengths_of, sequential_repeats=3))
    if weights is not None:
        keep("trained", trained_rows(weights, lengths_of[1], root))
    lengths(most, hidden, out / "lengths.svg", out / "lengths.json")
    keep("fresh", table_rows(hidden, 0.01, lengths_of, sequential_repeats=1))
    print(f"all of it in {time.perf_counter() - started:.0f} s", flush=True)
