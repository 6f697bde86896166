"""Which samples of a task are measured, and the range of their values."""

from __future__ import annotations

import torch
from torch import Tensor

from lipschitz_rnn.tasks import Batch, Split, Task
from lipschitz_rnn.tasks.cifar import MEAN, STD, OrderedCifar10
from lipschitz_rnn.tasks.irregular import LONGEST, IrregularDigits
from lipschitz_rnn.tasks.mnist import PermutedMnist
from lipschitz_rnn.tasks.pixels import PixelTask

Range = tuple[float | Tensor, float | Tensor]  # lowest and highest value: numbers, or tensors (p,) or (T, p)


def draw_samples(task: Task, split: Split = "test", samples: int | None = None, seed: int = 0) -> Batch:
    """`samples` different samples of a split, drawn by `seed`, in the order of the data; all of them for None."""
    if task.stateful:
        raise ValueError(
            f"task {task.name!r} carries its state from one window to the next; robustness is measured on tasks with "
            "independent samples"
        )
    count = task.size(split)
    if samples is not None and not 1 <= samples <= count:
        raise ValueError(f"samples is {samples}; the {split} split of {task.name!r} has {count}")
    indices = torch.arange(count)
    if samples is not None and samples < count:
        drawn = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:samples]
        indices = drawn.sort().values
    return task.batch(split, indices)


def valid_range(task: Task) -> Range | None:
    """The range of values that a task's inputs can take, as for pixels; None if there are no limits."""
    if isinstance(task, PixelTask):
        raw = isinstance(task, PermutedMnist) and task.options["scaling"] == "raw"
        return 0.0, 255.0 if raw else 1.0
    if isinstance(task, IrregularDigits):
        if task.times != "input":
            return 0.0, 1.0
        return torch.zeros(2, device=task.device), torch.tensor([1.0, LONGEST], device=task.device)
    if isinstance(task, OrderedCifar10):
        mean, std = torch.tensor(MEAN), torch.tensor(STD)
        limits = torch.stack((-mean / std, (1.0 - mean) / std)).to(task.device)
        if task.layout == "planes":  # a step is three neighbours of one plane, and plane follows plane
            limits = limits.repeat_interleave(1024, dim=1).view(2, 1024, 3)
        return limits[0], limits[1]
    return None


def unit_range(bounds: Range | None, like: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest value and width of a range, for sequences (…, T, p), as tensors like `like`; 0 and 1 for None."""
    try:
        low, high = (0.0, 1.0) if bounds is None else bounds
    except (TypeError, ValueError):
        raise TypeError(f"bounds are {bounds!r}; give a pair: the lowest and the highest valid value") from None
    low, high = (torch.as_tensor(end, dtype=like.dtype, device=like.device) for end in (low, high))
    if not bool((low < high).all()):
        raise ValueError(f"bounds are {bounds!r}; the lowest value must be smaller than the highest")
    return low, high - low
