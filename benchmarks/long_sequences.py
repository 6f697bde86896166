"""The measurements behind docs/long-sequences.md: bound against error, and a long task on raw audio.

python benchmarks/long_sequences.py bound --picture docs/images/long-sequences.svg
python benchmarks/long_sequences.py audio --steps 262144 --updates 30        # needs the spoken digits
python benchmarks/long_sequences.py memory --hidden 128                      # ten million steps on a GPU
python benchmarks/long_sequences.py lengths --hidden 128 --picture FILE.svg --json FILE.json  # time against length
python benchmarks/long_sequences.py picture --json FILE.json --picture FILE.svg               # the same, drawn again
python benchmarks/long_sequences.py trained --weights RUN                    # a trained layer on MNIST, image by image
python benchmarks/long_sequences.py page --out FOLDER [--weights RUN]        # all times of the page, on a GPU
lipschitz-rnn bench --parallel --device cuda                                 # the table of times, about two minutes
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from long_sequence_times import CLAIMED, LENGTHS, chosen_device, lengths, page, redraw, speed_up, trained_rows
from rich.console import Console
from torch import Tensor, nn

import lipschitz_rnn as lr
from lipschitz_rnn.benchmark.time_parallel import to_table
from lipschitz_rnn.drawing import BLUE, GREY, RED, new_figure, to_svg
from lipschitz_rnn.ops import Parallel
from lipschitz_rnn.tasks.audio import read_recordings
from lipschitz_rnn.tasks.sources import FSDD


def bound_against_error(hidden: int, steps: int) -> list[tuple[float, int, float, float, float]]:
    """(rate, warm-up, difference, bound, complete bound) in float64, the warm-up fixed: what it leaves of the error."""
    found = []
    for rate in (0.01, 0.1, 1.0):
        torch.manual_seed(0)
        layer = lr.LipschitzRNN(1, hidden, stability="contracting", rate=rate, dtype=torch.float64)
        x = torch.randn(steps, 1, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        with torch.no_grad():
            exact, _ = layer(x)
            layer.full_bounds = True
            for warm_up in (50, 100, 200, 400, 800, 1600):
                layer.parallel = Parallel(10, warm_up=warm_up, passes=2, fixed=True)
                states, _ = layer(x)
                (bound,) = layer.bounds
                difference = float((states - exact).norm(dim=-1).max())
                found.append((rate, warm_up, difference, float(bound.states), float(bound.complete)))
                proved = f"bound {float(bound.states):.2e}, complete {float(bound.complete):.2e}"
                print(f"rate {rate:g}, warm-up {warm_up}: difference {difference:.2e}, {proved}", flush=True)
    return found


def draw(rows: list[tuple[float, int, float, float, float]], picture: Path) -> None:
    figure, (axis,) = new_figure(1, width=6.2)
    for rate, colour in zip((0.01, 0.1, 1.0), (RED, BLUE, GREY), strict=True):
        own = [row for row in rows if row[0] == rate]
        steps = [row[1] for row in own]
        axis.loglog(steps, [max(row[3], 1e-16) for row in own], color=colour, label=f"bound, rate {rate:g}")
        seen = [max(row[2], 1e-16) for row in own]
        axis.loglog(steps, seen, "o", color=colour, markersize=4, label=f"difference seen, rate {rate:g}")
    axis.set_xlabel("steps of each chunk that are run again")
    axis.set_ylabel("largest error of a state")
    axis.legend(fontsize=7, frameon=False)
    picture.write_bytes(to_svg(figure))


def audio(steps: int, root: str | None) -> Tensor:
    """Spoken digits one after another, (steps, 1, 1), with mean 0 and variance 1."""
    sounds = read_recordings(FSDD, root, True)
    wave = np.concatenate([sounds[name] for name in sorted(sounds)[: 2 + steps // 1500]])[: steps + 1]
    values = torch.from_numpy(np.ascontiguousarray(wave)).float()
    if len(values) <= steps:
        raise SystemExit(f"the recordings have {len(values)} samples; ask for fewer than {steps} steps")
    return ((values - values.mean()) / values.std()).reshape(-1, 1, 1)


def train(wave: Tensor, parallel: str | int | None, updates: int, hidden: int) -> tuple[list[float], float, str]:
    """Predict the next sample: the losses, the seconds, and how the last call was cut."""
    torch.manual_seed(0)
    layer = lr.LipschitzRNN(1, hidden, stability="contracting", step_size=0.3, rate=0.1, parallel=parallel)
    head = nn.Linear(hidden, 1)
    optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=3e-3)
    losses, started = [], time.perf_counter()
    for _ in range(updates):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(head(layer(wave[:-1])[0]), wave[1:])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, time.perf_counter() - started, repr(layer.bounds[0]) if layer.bounds else "sequential"


def memory(steps: int, hidden: int) -> None:
    """A training step of a single long sequence with ``recompute_every``: its time, and the memory that it took."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.randn(steps, 1, 1, device=device)
    for readout in ("last state", "every state"):
        torch.manual_seed(0)
        layer = lr.LipschitzRNN(1, hidden, stability="contracting", recompute_every=512, parallel="auto", device=device)
        head, seconds = nn.Linear(hidden, 1, device=device), 0.0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        for _ in range(2):
            started = time.perf_counter()
            output, last = layer(x, need_output=readout == "every state")
            read = last if output is None else output
            head(read).square().mean().backward()
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - started
            del output, last, read
        peak = torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else float("nan")
        print(f"T = {steps:,}, N = {hidden}, loss of the {readout}: {seconds:.2f} s a training step, ", end="")
        print(f"peak {peak:.2f} GB; {layer.bounds[0]!r}, adjoint passes {layer.bounds[0].adjoint_passes}", flush=True)


def trained(weights: str, steps: int, data_dir: str | None) -> None:
    """A trained contracting layer: τ, ρ, step and speed-up."""
    rows = list(trained_rows(weights, steps, data_dir))
    Console().print(to_table(rows, chosen_device()))
    for row in rows:
        print(speed_up(row))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("bound", "audio", "lengths", "memory", "trained", "page", "picture"))
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--json", type=Path, help="of lengths and picture: the numbers that are drawn")
    parser.add_argument("--out", type=Path, default=Path("long-sequences"), help="of page: the folder for all results")
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--hidden", type=int, default=None)
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--weights", help="of a contracting layer: a run folder, or a .safetensors file")
    parser.add_argument("--data-dir")
    given = parser.parse_args()
    hidden = given.hidden or (128 if given.what == "page" else 64)
    if given.what == "bound":
        rows = bound_against_error(hidden, given.steps or 20_000)
        if given.picture is not None:
            draw(rows, given.picture)
        return
    if given.what == "lengths":
        lengths(given.steps or LENGTHS[-1], hidden, given.picture, given.json)
        return
    if given.what == "picture":
        if given.json is None or given.picture is None:
            parser.error("picture needs --json, the numbers that lengths or page have written, and --picture")
        redraw(given.json, given.picture)
        return
    if given.what == "page":  # --steps makes all of it small, for a try
        sizes = (131_072, CLAIMED) if given.steps is None else (max(given.steps // 8, 1), given.steps)
        page(given.out, hidden, given.weights, given.data_dir, sizes, given.steps or LENGTHS[-1])
        return
    if given.what == "memory":
        memory(given.steps or 10_000_000, hidden)
        return
    if given.what == "trained":
        if given.weights is None:
            parser.error("trained needs --weights: a run folder or a .safetensors file of a contracting layer")
        trained(given.weights, given.steps or CLAIMED, given.data_dir)
        return
    wave = audio(given.steps or 131_072, given.data_dir)
    for parallel in (None, "auto"):
        losses, seconds, cut = train(wave, parallel, given.updates, hidden)
        print(f"parallel={parallel}: {seconds:.1f} s, loss {losses[0]:.6f} → {losses[-1]:.6f}; {cut}", flush=True)


if __name__ == "__main__":
    main()
