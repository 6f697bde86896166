"""The matrices of a contracting unit, kept between calls that need no gradient, while its parameters stay as they are.

To build them takes a GPU about 80 small operations, more than a short scan. Nothing tells for sure that a parameter has
changed: writes through ``.data``, fused optimizers, CUDA graphs and other processes leave its version as it was. So the
values themselves are compared with those that the matrices were built from. A GPU answers late: a call may use the
matrices in the meantime, and runs again in the rare case that they were old.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.common.dtypes import without_autocast
from lipschitz_rnn.ops.common.tracing import exporting, forward_mode, plain_eager
from lipschitz_rnn.ops.common.validation import has_values
from lipschitz_rnn.ops.lipschitz.parallel.contraction import Contraction
from lipschitz_rnn.ops.lipschitz.parallel.plan import Parallel
from lipschitz_rnn.units.lipschitz.contracting import ContractingPair
from lipschitz_rnn.units.recurrence import forward_hooks

if TYPE_CHECKING:
    from lipschitz_rnn.units.lipschitz.cell import LipschitzRNNCell
    from lipschitz_rnn.units.lipschitz.layer import LipschitzRNN

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_PLAIN = (Tensor, nn.Parameter)


class Kept(NamedTuple):
    """What a pair gave when its parameters had these values. Nobody may write to these tensors."""

    key: Hashable
    values: Tensor  # all parameters one after another, as integers: NaN equals itself, and 0 is not −0
    A: Tensor
    W: Tensor
    contraction: Contraction


class Use(NamedTuple):
    """What was kept, for one call, which must ask in the end whether it was right, and run again if not."""

    kept: Kept
    confirmed: Callable[[], bool]


# Not an attribute of the pair: copies and pickles have none, and it goes when the pair goes.
_kept: WeakKeyDictionary[ContractingPair, Kept] = WeakKeyDictionary()


def kept_matrices(cell: LipschitzRNNCell, *, late: bool = False) -> Use | None:
    """Matrices and contraction of a cell; None where they must be made for this call alone.

    Args:
        late: a call that can run twice need not wait for a GPU's answer now.
    """
    pair = cell.hidden
    if not isinstance(pair, ContractingPair) or not plain_eager() or forward_mode() or exporting():
        return None
    if type(pair) is not ContractingPair or changed_by_others(cell, pair) or torch.jit.is_tracing():  # type: ignore[attr-defined]
        return None
    parameters: list[Any] = [pair._parameters.get(name) for name in pair.free]
    if pair.bounded_gain:  # W depends on the input weights
        parameters.append(cell._parameters.get("weight_ih"))
    key = _key(pair, parameters)
    if key is None:
        return None
    with torch.no_grad(), without_autocast(parameters[0].device):
        values = torch.cat([parameter.reshape(-1) for parameter in parameters])
        bits, found = values.view(_BITS[values.element_size()]), _kept.get(pair)
        if found is not None and found.key == key:  # another version is another value, most likely
            if late and _answers_late(bits):
                return Use(found, _compared(pair, found, bits))
            if torch.equal(found.values, bits):
                return Use(found, _at_once)
        found = _kept[pair] = _built(pair, key, [parameter.shape for parameter in parameters], values, bits)
    return Use(found, _at_once)


def _answers_late(values: Tensor) -> bool:
    return values.is_cuda


def _at_once() -> bool:
    return True


def _compared(pair: ContractingPair, found: Kept, bits: Tensor) -> Callable[[], bool]:
    """Starts the comparison. The function that is returned waits for that alone, not for what was started after it."""
    same = torch.eq(found.values, bits).all().to("cpu", non_blocking=True)
    done = None
    if bits.is_cuda:
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(bits.device))

    def confirmed() -> bool:
        if done is not None:
            done.synchronize()
        if not bool(same):
            _kept.pop(pair, None)
        return bool(same)

    return confirmed


def _built(pair: ContractingPair, key: Hashable, shapes: list[torch.Size], values: Tensor, bits: Tensor) -> Kept:
    """From the copied values, so that matrices and values belong together whatever other threads do to the pair."""
    parts = values.split([shape.numel() for shape in shapes])
    free = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
    A, W = pair.build(*free)
    factor, root = math.exp(-pair.rate * pair.step_size), pair.stretch(free[4])
    return Kept(key, bits, A, W, Contraction(factor, root, pair.step_size))


def _key(pair: ContractingPair, parameters: list[Any]) -> Hashable | None:
    """What the matrices depend on besides values; None where a gradient is wanted, or values cannot be read."""
    first = parameters[0]
    if any(type(parameter) not in _PLAIN or parameter.is_inference() for parameter in parameters):
        return None
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters):
        return None
    kind = (first.dtype, first.device)
    if any((parameter.dtype, parameter.device) != kind for parameter in parameters) or not has_values(first):
        return None
    # Another stream does not wait for the one in which the matrices were built.
    stream = torch.cuda.current_stream(first.device).cuda_stream if first.is_cuda else None
    state = tuple((parameter.shape, parameter._version) for parameter in parameters)
    return pair.settings, kind, state, stream, torch.is_inference_mode_enabled()


def can_run_twice(layer: LipschitzRNN, cell: LipschitzRNNCell) -> bool:
    """Whether nothing shows of a run that is not the last: no numbers drawn, no other process that waits."""
    alone = not isinstance(layer.parallel, Parallel) or layer.parallel.group is None
    return alone and not (cell.training and cell.noisy)


def changed_by_others(cell: LipschitzRNNCell, pair: ContractingPair) -> bool:
    """Whether the matrices that run may be others than those that the construction of the pair gives."""
    from lipschitz_rnn.units.lipschitz.cell import LipschitzRNNCell

    own = type(pair).forward is ContractingPair.forward and "forward" not in vars(pair)
    overridden = type(cell).hidden_matrices is not LipschitzRNNCell.hidden_matrices
    return any(forward_hooks(pair)) or not own or "hidden_matrices" in vars(cell) or overridden
