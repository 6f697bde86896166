"""The short way through a layer: whether a call is a plain one, and the operation that then does all of it.

A plain call has one layer and direction, symmetric-skew matrices with nothing attached to them, and no times, lengths
or noise. Whatever else it is, it takes the long way, which also finds what is wrong with it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.common.dtypes import operand_dtype
from lipschitz_rnn.ops.common.tracing import forward_mode, plain_eager
from lipschitz_rnn.ops.common.triton.support import interpreting
from lipschitz_rnn.ops.lipschitz.pair import pair_scan
from lipschitz_rnn.units.lipschitz.cell import LipschitzRNNCell
from lipschitz_rnn.units.lipschitz.parametrization import SymmetricSkew, SymmetricSkewPair

if TYPE_CHECKING:
    from lipschitz_rnn.units.lipschitz.layer import LipschitzRNN

logger = logging.getLogger("lipschitz_rnn")
_PLAIN = (Tensor, nn.Parameter)


def quick_call(layer: LipschitzRNN, input: Any, hx: Any, need_output: Any) -> tuple[Tensor | None, Tensor] | None:
    """The output and h_n of a plain call with a batch; None for any other."""
    if type(input) not in _PLAIN or (backend := _backend(layer.backend, input)) is None:
        return None
    if not plain_eager() or forward_mode() or torch.jit.is_tracing():  # type: ignore[attr-defined]
        return None
    if layer.recompute_every is not None or input.dim() != 3:
        return None
    if layer.parallel is not None or "run" in layer.__dict__ or "run_layer" in layer.__dict__:
        return None
    if not (need_output is True or need_output is False) or not (hx is None or type(hx) in _PLAIN):
        return None
    if input.is_nested or input.layout is not torch.strided or input._is_zerotensor():
        return None
    if hx is not None and (hx.is_nested or hx.layout is not torch.strided or hx._is_zerotensor()):
        return None
    cells: Any = layer._modules["cells"]
    cell: Any = cells._modules.get("l0")
    if len(cells._modules) != 1 or type(cell) is not LipschitzRNNCell:
        return None
    own: dict[str, Any] = cell.__dict__
    noisy = cell.training and (own.get("noise") != 0.0 or own.get("multiplicative_noise") != 0.0)
    if noisy or own.get("max_step") is not None or "hidden_matrices" in own:
        return None
    hidden: Any = cell._modules["hidden"]
    maps, scheme = _maps(hidden), _scheme(own)
    if maps is None or scheme is None:
        return None
    matrices: dict[str, Any] = hidden._parameters
    others: dict[str, Any] = cell._parameters
    M_A: Any = matrices.get("M_A")
    M_W: Any = matrices.get("M_W")
    U: Any = others.get("weight_ih")
    b: Any = others.get("bias_ih")
    if type(M_A) not in _PLAIN or type(M_W) not in _PLAIN or type(U) not in _PLAIN:
        return None
    if type(b) not in _PLAIN and not (b is None and "bias_ih" in others):
        return None
    dtype = operand_dtype(U)
    if dtype == U.dtype and (input.dtype != dtype or (hx is not None and hx.dtype != dtype)):
        return None
    found = pair_scan(
        input, M_A, M_W, hx, U, b,
        maps=maps, scheme=scheme, dtype=dtype, backend=backend, need_output=need_output, batch_first=layer.batch_first,
    )  # fmt: skip
    if found is not None and logger.isEnabledFor(logging.DEBUG):
        logger.debug("lipschitz_scan runs on %s (%s)", backend, "the whole layer as one operation")
    return found


def _backend(requested: str, input: Tensor) -> str | None:
    """The backend with kernels for a plain call on this device, if it may be that one."""
    if input.is_cuda or (requested == "triton" and interpreting()):
        return "triton" if requested in ("auto", "triton") else None
    return "cpu" if input.is_cpu and requested in ("auto", "cpu") else None


def _maps(hidden: Any) -> tuple[float, float, float, float] | None:
    """f and γ of A, then of W; None if something could change the matrices on their way."""
    if type(hidden) is not SymmetricSkewPair or _hooked(hidden) or "forward" in hidden.__dict__:
        return None
    found: list[float] = []
    for name in ("skew_A", "skew_W"):
        skew: Any = hidden._modules[name]
        numbers = skew.__dict__
        beta, gamma = numbers.get("beta"), numbers.get("gamma")
        if type(skew) is not SymmetricSkew or not skew.is_plain or type(beta) is not float or type(gamma) is not float:
            return None
        found += [1.0 - 2.0 * beta, gamma]
    return found[0], found[1], found[2], found[3]


def _scheme(own: dict[str, Any]) -> tuple[float, float, str, str] | None:
    """The arguments of a ``Scheme``."""
    step_size, alpha = own.get("step_size"), own.get("alpha")
    if type(step_size) is not float or type(alpha) is not float:  # tensors in an ensemble
        return None
    return step_size, alpha, own["integrator"], own["nonlinearity"]


def _hooked(module: nn.Module) -> bool:
    """Whether a call of the module would run hooks, of its own or of all modules."""
    own = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(own) or bool(nn.modules.module._has_any_global_hook())
