"""The Hessian of a loss as a linear operator: never formed, evaluated batch by batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipschitz_rnn.ops.common.precision import float32_products
from lipschitz_rnn.robustness.model_calls import check_batch, check_device, outputs_of
from lipschitz_rnn.tasks import Batch
from lipschitz_rnn.units.continuous import ContinuousCell
from lipschitz_rnn.units.lipschitz import LipschitzRNN

Loss = Callable[[Tensor, Batch], Tensor]
Which = Literal["all", "unit"] | nn.Module


def cross_entropy(outputs: Tensor, batch: Batch) -> Tensor:
    """Mean over all classes that the outputs (…, q) predict."""
    return F.cross_entropy(outputs.flatten(0, -2), batch.targets.flatten())


class LossHessian:
    """H = ∇² of the mean loss over all samples, with respect to n chosen parameters in one flat vector.

    A product H v is the gradient of ⟨∇ loss, v⟩. The graph of ∇ loss is built once if all samples fit into one
    batch, and again for each product otherwise. Works on a copy: the model keeps its mode, type and gradients.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        loss: Loss = cross_entropy,
        parameters: Which = "all",
        *,
        batch_first: bool = False,
        batch_size: int = 1000,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_device(model, batch.inputs)
        chosen = set(choose_parameters(model, parameters))
        self.model = differentiable_twice(model, dtype)
        self.parameters = [parameter for name, parameter in self.model.named_parameters() if name in chosen]
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name in chosen)
        self.size = sum(parameter.numel() for parameter in self.parameters)
        self.dtype, self.device = self.parameters[0].dtype, self.parameters[0].device
        self.loss = loss
        self.samples = check_batch(batch, 0 if batch_first else 1)
        self.parts, self.weights = self._split(batch, batch_first, batch_size)
        self.products = 0
        self._kept: Tensor | None = None

    def _split(self, batch: Batch, batch_first: bool, size: int) -> tuple[list[Batch], list[float]]:
        """Parts of at most `size` samples, and the weight of each in the mean loss."""
        if size < 1:
            raise ValueError(f"batch_size is {size}; it must be at least 1")
        axis = 0 if batch_first else 1
        whole = batch.map(lambda part: part.to(self.dtype) if part.is_floating_point() else part)

        def cut(start: int, count: int, target_axis: int) -> Batch:
            return Batch(
                whole.inputs.narrow(axis, start, count),
                whole.targets.narrow(target_axis, start, count),
                None if whole.lengths is None else whole.lengths[start : start + count],
                None if whole.timespans is None else whole.timespans.narrow(axis, start, count),
            )

        with torch.no_grad(), plain_kernels():
            every_step = self._outputs(cut(0, 1, 0)).dim() == 3
        starts = range(0, self.samples, size)
        parts = [cut(start, min(size, self.samples - start), axis if every_step else 0) for start in starts]
        # A loss over the valid steps of padded sequences is a mean over steps, any other one over samples.
        counts = [
            float(part.lengths.sum()) if every_step and part.lengths is not None else float(part.inputs.shape[axis])
            for part in parts
        ]
        return parts, [count / sum(counts) for count in counts]

    def _outputs(self, part: Batch) -> Tensor:
        return outputs_of(self.model, part.inputs, part.lengths, part.timespans)

    def _gradient(self, part: Batch) -> tuple[Tensor, Tensor]:
        """∇ loss of one part as a flat vector that can be differentiated, and the loss."""
        value = self.loss(self._outputs(part), part)
        pieces = torch.autograd.grad(value, self.parameters, create_graph=True, materialize_grads=True)
        return torch.cat([piece.flatten() for piece in pieces]), value.detach()

    def gradient(self) -> tuple[Tensor, float]:
        """∇ loss, (n,), and the loss."""
        total, value = torch.zeros(self.size, dtype=self.dtype, device=self.device), 0.0
        with plain_kernels():
            for part, weight in zip(self.parts, self.weights, strict=True):
                gradient, loss = self._gradient(part)
                total += weight * gradient.detach()
                value += weight * loss.item()
        return total, value

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """H v for each row: (k, n) ▶ (k, n)."""
        total = torch.zeros_like(vectors)
        with plain_kernels():
            for part, weight in zip(self.parts, self.weights, strict=True):
                total += weight * self._part_product(part, vectors)
        self.products += len(vectors)
        return total

    def _part_product(self, part: Batch, vectors: Tensor) -> Tensor:
        gradient = self._kept if self._kept is not None else self._gradient(part)[0]
        if len(self.parts) == 1:
            self._kept = gradient
        if not gradient.requires_grad:  # a loss that is linear in the parameters
            return torch.zeros_like(vectors)
        rows = [
            torch.autograd.grad(gradient, self.parameters, vector, retain_graph=True, materialize_grads=True)
            for vector in vectors
        ]
        return torch.stack([torch.cat([piece.flatten() for piece in row]) for row in rows])

    def dense(self, note: Callable[[int], None] = lambda done: None) -> Tensor:
        """All of H, (n, n), made symmetric to the last bit."""
        rows = []
        for row in range(self.size):
            unit = torch.zeros(1, self.size, dtype=self.dtype, device=self.device)
            unit[0, row] = 1.0
            rows.append((self @ unit)[0])
            note(row + 1)
        matrix = torch.stack(rows)
        return (matrix + matrix.mT) / 2.0


def choose_parameters(model: nn.Module, which: Which) -> Sequence[str]:
    """Names of the trainable parameters of a model, of its recurrent unit, or of a given submodule."""
    trainable = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    if isinstance(which, nn.Module):
        own = {id(parameter) for parameter in which.parameters()}
    elif which == "all":
        own = {id(parameter) for parameter in model.parameters()}
    elif which == "unit":
        unit = getattr(model, "unit", None)
        if not isinstance(unit, nn.Module):
            raise ValueError(
                f'parameters="unit" means model.unit, which a {type(model).__name__} does not have; pass the '
                "submodule instead, for example parameters=model.rnn"
            )
        own = {id(parameter) for parameter in unit.parameters()}
    else:
        raise ValueError(f'parameters is {which!r}; it must be "all", "unit" or a submodule of the model')
    everything = dict(model.named_parameters())
    names = [name for name in trainable if id(everything[name]) in own]
    if not names:
        raise ValueError("no trainable parameters were chosen; the Hessian needs parameters that require a gradient")
    return names


def differentiable_twice(model: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """A copy in evaluation mode and, if asked, of another type, whose scans run on the path with second derivatives.

    The fast scans take theirs from that path too; using it directly, the graph can be kept for many products.
    """
    twin = copy.deepcopy(model).eval()
    for module in twin.modules():
        if isinstance(module, LipschitzRNN | ContinuousCell):
            module.backend = "reference"
    return twin if dtype is None else twin.to(dtype)


@contextmanager
def plain_kernels() -> Iterator[None]:
    """cuDNN has no second derivative of recurrent layers, and TF32 would blur the small eigenvalues."""
    with float32_products("highest"), torch.backends.cudnn.flags(enabled=False), torch.enable_grad():
        yield
