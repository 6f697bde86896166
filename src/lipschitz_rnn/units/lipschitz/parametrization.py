"""Hidden matrices from the symmetric-skew decomposition.

    S(M) = (1−β)(M + Mᵀ) + β(M − Mᵀ) − γI = M + (1−2β)Mᵀ − γI

β interpolates between a symmetric (0) and a skew-symmetric (1) matrix; γ shifts the spectrum to the left.
"""

from __future__ import annotations

from typing import Any, Self, overload

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.common.tracing import forward_mode, plain_eager
from lipschitz_rnn.ops.common.validation import require_tensor, shape_of
from lipschitz_rnn.ops.lipschitz.pair import symmetric_skew
from lipschitz_rnn.units.lipschitz import settings
from lipschitz_rnn.units.lipschitz.settings import SettingsModule


class NoInverseError(ValueError, NotImplementedError):
    """No M gives this matrix. ``parametrize`` then initialises M with the tensor itself."""


class SymmetricSkew(SettingsModule):
    """M ↦ S(M), for ``torch.nn.utils.parametrize.register_parametrization`` or a plain call.

    Args:
        beta: in [0, 1].
        gamma: at least 0.

    Shapes: any (…, N, N).
    """

    stackable_options = ("beta", "gamma")  # tensors in an ensemble whose members use different values
    checks = settings.SKEW_CHECKS
    saved = ("beta", "gamma")
    beta: float
    gamma: float

    def __init__(self, beta: float, gamma: float) -> None:
        super().__init__()
        self.beta, self.gamma = beta, gamma

    @property
    def factor(self) -> float:
        """The factor of Mᵀ: 1 − 2β."""
        return 1.0 - 2.0 * self.beta

    @property
    def is_plain(self) -> bool:
        """Whether β and γ are numbers, not tensors, and nothing is attached that a call would run."""
        attached = self._forward_hooks or self._forward_pre_hooks or "forward" in self.__dict__
        return not (attached or isinstance(self.beta, Tensor) or isinstance(self.gamma, Tensor))

    def forward(self, M: Tensor) -> Tensor:
        _require_square(M)
        return symmetric_skew(M, self.factor, self.gamma)

    def right_inverse(self, S: Tensor) -> Tensor:
        """The M with S(M) = S.

        For β = 0 and β = 1 half of M is lost: M then exists only if S + γI is symmetric or skew-symmetric.
        """
        _require_square(S)
        shifted = S + self.gamma * torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)
        symmetric, skew = (shifted + shifted.mT) / 2, (shifted - shifted.mT) / 2
        for beta, lost, name in ((0.0, skew, "symmetric"), (1.0, symmetric, "skew-symmetric")):
            if self.beta == beta:
                if bool((lost.abs().amax() > 1e-6 * (1 + shifted.abs().amax())).item()):
                    raise NoInverseError(
                        f"beta is {self.beta:g}, which makes S + gamma I {name} for every M, but the given matrix "
                        f"is off by {float(lost.abs().amax()):.3g}. Pass a {name} matrix, or use 0 < beta < 1"
                    )
                return (symmetric + skew - lost) / 2
        return symmetric / (2 * (1 - self.beta)) + skew / (2 * self.beta)

    def contains(self, S: Tensor, tolerance: float = 1e-6) -> bool:
        """Whether some M gives S, up to ``tolerance`` relative to the largest entry."""
        _require_square(S)
        if 0.0 < self.beta < 1.0:
            return True
        shifted = S + self.gamma * torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)
        lost = shifted - shifted.mT if self.beta == 0.0 else shifted + shifted.mT
        return bool((lost.abs().amax() / 2 <= tolerance * (1 + shifted.abs().amax())).item())

    def spectrum_bounds(self, M: Tensor) -> tuple[Tensor, Tensor]:
        """An interval that contains the real part of every eigenvalue of S(M).

        The symmetric part of S is 2(1−β)M_sym − γI with M_sym = (M + Mᵀ)/2, and its spectrum bounds the real parts of
        the eigenvalues of S. (Proposition 1 of the paper omits the factor 2.)

        Returns:
            The lower and the upper end, each of shape (…).
        """
        _require_square(M)
        eigenvalues = torch.linalg.eigvalsh((M + M.mT) / 2)
        scale = 2.0 * (1.0 - self.beta)
        return scale * eigenvalues[..., 0] - self.gamma, scale * eigenvalues[..., -1] - self.gamma

    def extra_repr(self) -> str:
        return f"beta={self.beta:g}, gamma={self.gamma:g}"


class _PairSetting:
    """A setting of both maps of a pair: read as (for A, for W), set with one number for both or with a pair."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, pair: Any, owner: type | None = None) -> Any:
        return self if pair is None else (getattr(pair.skew_A, self.name), getattr(pair.skew_W, self.name))

    def __set__(self, pair: SymmetricSkewPair, value: float | tuple[float, float]) -> None:
        values = [SymmetricSkew.checks[self.name](self.name, number) for number in as_pair(self.name, value)]
        for skew, number in zip((pair.skew_A, pair.skew_W), values, strict=True):
            setattr(skew, self.name, number)


class SymmetricSkewPair(SettingsModule):
    """The matrices A and W of one recurrent layer, each computed from its own free matrix.

    ``M_A`` and ``M_W`` are initialised from N(0, (init_scale/N)²).
    """

    stackable_options = ("init_scale",)
    checks = settings.PAIR_CHECKS
    init_scale: float
    beta, gamma = _PairSetting("beta"), _PairSetting("gamma")

    def __init__(
        self,
        hidden_size: int,
        beta: float | tuple[float, float],
        gamma: float | tuple[float, float],
        init_scale: float,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        betas, gammas = as_pair("beta", beta), as_pair("gamma", gamma)
        self.init_scale = init_scale
        self.skew_A = SymmetricSkew(betas[0], gammas[0])
        self.skew_W = SymmetricSkew(betas[1], gammas[1])
        self.M_A = nn.Parameter(torch.empty(hidden_size, hidden_size, device=device, dtype=dtype))
        self.M_W = nn.Parameter(torch.empty(hidden_size, hidden_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for M in (self.M_A, self.M_W):
            nn.init.normal_(M, std=self.init_scale / M.shape[0])

    def forward(self) -> tuple[Tensor, Tensor]:
        maps = self.skew_A, self.skew_W
        if plain_eager() and not forward_mode() and all(type(skew) is SymmetricSkew and skew.is_plain for skew in maps):
            A, W = _EagerPair.apply(self.M_A, self.M_W, *maps)
            return A, W
        return self.skew_A(self.M_A), self.skew_W(self.M_W)


class HiddenSetting:
    """β or γ of a unit's matrices, (for A, for W); None for a contracting unit, which does not use them."""

    def __init__(self, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, cell: None, owner: type | None = None) -> Self: ...

    @overload
    def __get__(self, cell: Any, owner: type | None = None) -> tuple[float, float] | None: ...

    def __get__(self, cell: Any | None, owner: type | None = None) -> Self | tuple[float, float] | None:
        return self if cell is None else getattr(cell.hidden, self.name, None)

    def __set__(self, cell: Any, value: float | tuple[float, float]) -> None:
        if not isinstance(cell.hidden, SymmetricSkewPair):
            raise AttributeError(f"{self.name} cannot be set: a contracting unit does not use it")
        setattr(cell.hidden, self.name, value)


class _EagerPair(torch.autograd.Function):
    """Both maps at once for plain eager code: on a GPU six kernel launches for forward and backward instead of twelve.

    For a short scan, launching those takes longer than the scan itself.
    """

    @staticmethod
    def forward(ctx: Any, M_A: Tensor, M_W: Tensor, *maps: SymmetricSkew) -> tuple[Tensor, Tensor]:
        ctx.factors = [skew.factor for skew in maps]
        ctx.set_materialize_grads(False)
        A, W = (torch.add(M, M.mT, alpha=skew.factor) for M, skew in zip((M_A, M_W), maps, strict=True))
        for S, skew in zip((A, W), maps, strict=True):
            if skew.gamma != 0.0:
                S.diagonal(dim1=-2, dim2=-1).sub_(skew.gamma)
        return A, W

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        pairs = zip(gradients, ctx.factors, strict=True)
        return (*[None if G is None else torch.add(G, G.mT, alpha=factor) for G, factor in pairs], None, None)


def as_pair(name: str, value: float | tuple[float, float]) -> tuple[float, float]:
    """A pair (for A, for W) from one number or a pair."""
    if not isinstance(value, (tuple, list)):
        return value, value
    if len(value) != 2:
        raise ValueError(f"{name} is {value!r}; pass one number, or a pair (for A, for W)")
    return value[0], value[1]


def _require_square(M: Tensor) -> None:
    require_tensor("matrix", M)
    if M.dim() < 2 or M.shape[-1] != M.shape[-2]:
        raise ValueError(f"the matrix has shape {shape_of(M)}; it must be square, (…, N, N)")
