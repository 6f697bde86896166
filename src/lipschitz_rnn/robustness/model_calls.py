"""How a model is called here: in evaluation mode, on any device, with the first of its results taken as outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.common.validation import require_number, require_tensor
from lipschitz_rnn.tasks import Batch

Progress = Callable[[str, int, int | None], None]  # stage, units done so far, units in all where known


def ignore_progress(stage: str, done: int, total: int | None) -> None:
    """The default: report nothing."""


def outputs_of(
    model: nn.Module, inputs: Tensor, lengths: Tensor | None = None, timespans: Tensor | None = None
) -> Tensor:
    """The outputs of a model for inputs in its own layout; a state returned with them is dropped.

    Works for `training.SequenceModel`, which returns (outputs, state), and for any module that returns the outputs.
    `lengths` and `timespans` are passed only if given, so that a plain module need not accept them.
    """
    times = {} if timespans is None else {"timespans": timespans}
    result = model(inputs, **times) if lengths is None else model(inputs, lengths, **times)
    return result[0] if isinstance(result, tuple) else result


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Dropout off and parameters frozen, with gradients for the inputs still available; everything is restored.

    cuDNN has a backward pass only in training mode. PyTorch's recurrent modules are therefore put into that mode with
    dropout zero; dropout is all that the mode changes in them.
    """
    modes = [(module, module.training) for module in model.modules()]
    needs = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    recurrent = [(module, module.dropout) for module in model.modules() if isinstance(module, nn.RNNBase)]
    model.eval()
    try:
        for module, _ in recurrent:
            module.training, module.dropout = True, 0.0
        for parameter, _ in needs:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter, need in needs:
            parameter.requires_grad_(need)
        for recurrent_module, dropout in recurrent:
            recurrent_module.dropout = dropout
        for each, mode in modes:
            each.training = mode


def check_batch(batch: Batch, axis: int) -> int:
    """The number of samples, which must be the same in all tensors; `axis` is the sample axis of the inputs."""
    inputs, targets, lengths, timespans = batch.inputs, batch.targets, batch.lengths, batch.timespans
    for name, given in (("inputs", inputs), ("targets", targets), ("lengths", lengths), ("timespans", timespans)):
        if given is not None or name in ("inputs", "targets"):
            require_tensor(name, given)
    if inputs.dim() not in (2, 3):
        raise ValueError(
            f"inputs have shape {tuple(inputs.shape)}; they must be (T, B, p), or (B, T, p) with batch_first=True"
        )
    count = inputs.shape[axis]
    if count == 0:
        raise ValueError("inputs hold no samples; give at least one")
    # Targets of the whole sequence come as (B, …), those of every step as (T, B, …) or (B, T, …) like the inputs.
    if count not in targets.shape[:2]:
        raise ValueError(f"there are {count} samples, but targets have shape {tuple(targets.shape)}")
    if lengths is not None and lengths.shape != (count,):
        raise ValueError(f"lengths have shape {tuple(lengths.shape)}; for {count} samples they must be ({count},)")
    if timespans is not None and timespans.shape != inputs.shape[:2]:
        raise ValueError(
            f"timespans have shape {tuple(timespans.shape)}; they must be {tuple(inputs.shape[:2])}, as the first two "
            "axes of the inputs"
        )
    return count


def padding_of(inputs: Tensor, lengths: Tensor, batch_first: bool) -> Tensor:
    """Where inputs (T, B, …), or (B, T, …) with `batch_first`, are padding: bool, with the number of axes of inputs."""
    steps = torch.arange(inputs.shape[1 if batch_first else 0], device=inputs.device)
    ends = lengths.to(inputs.device)
    beyond = steps >= ends[:, None] if batch_first else steps[:, None] >= ends
    return beyond.reshape(*beyond.shape, *(1,) * (inputs.dim() - 2))


def check_classes(targets: Tensor, count: int) -> None:
    if targets.shape != (count,) or targets.is_floating_point() or targets.dtype == torch.bool:
        raise ValueError(
            f"targets have shape {tuple(targets.shape)} and type {targets.dtype}; they must be the classes of "
            f"{count} sequences, integers of shape ({count},)"
        )


def check_device(model: nn.Module, inputs: Tensor) -> None:
    place = next((parameter.device for parameter in model.parameters()), inputs.device)
    if place != inputs.device:
        raise ValueError(f"the model is on {place}, but the inputs are on {inputs.device}; move both to one device")


def check_positive(name: str, value: float) -> None:
    require_number(name, value, low=0.0, open_low=True)
