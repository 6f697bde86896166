"""The input map of the kernels and its gradients, against float64."""

from __future__ import annotations

import pytest
import torch

from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme

pytestmark = pytest.mark.usefixtures("kernels")
EPS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
PRECISION = {torch.float32: "bf16x6", torch.bfloat16: "bf16", torch.float16: "fp16"}


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize(
    ("S", "features", "units", "bias", "strided"),
    [
        (2, 2, 5, True, False),
        (2, 3, 70, False, True),
        (2, 16, 33, True, True),
        (2, 17, 6, True, False),
        (1, 17, 6, True, False),
        (2, 140, 20, False, True),
    ],
)
def test_input_map(
    S: int, features: int, units: int, bias: bool, strided: bool, dtype: torch.dtype, device: torch.device
) -> None:
    from lipschitz_rnn.ops.lipschitz.triton.inputs import drive_gradient, expanded_drive, input_gradients

    generator = torch.Generator().manual_seed(features)
    T, B = 23, 7

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    x = normal(S, B, T, features).transpose(1, 2) if strided else normal(S, T, B, features)
    U, b, both = normal(S, units, features), normal(S, units) if bias else None, normal(S, T, B, 2 * units)
    A = torch.zeros((S, units, units), dtype=dtype, device=device)
    u = expanded_drive(Problem(x, A, A, None, U, b, None, Scheme(0.1, 1.0, "euler", "tanh")))
    d = both[..., units:]
    grad_U, grad_b = input_gradients(d, x, PRECISION[dtype])
    x64, U64, d64, b64 = x.double(), U.double(), d.double(), None if b is None else b.double()[:, None, None]
    sums = {
        "u": (u, lambda x, U, d: torch.einsum("stbp,snp->stbn", x, U)),
        "U": (grad_U, lambda x, U, d: torch.einsum("stbn,stbp->snp", d, x)),
        "b": (grad_b, lambda x, U, d: d.sum((1, 2))),
        "x": (drive_gradient(d, U), lambda x, U, d: torch.einsum("stbn,snp->stbp", d, U)),
    }
    for name, (found, formula) in sums.items():
        exact, size = formula(x64, U64, d64), formula(x64.abs(), U64.abs(), d64.abs())
        if name == "u" and b64 is not None:
            exact, size = exact + b64, size + b64.abs()
        # Sums of at most T·B terms in float32, and the result rounded once; u of many features is rounded twice.
        limit = 2 * T * B * 2.0**-24 * size + 3 * EPS[dtype] * (size if name == "u" and features > 16 else exact.abs())
        assert found.shape == exact.shape
        assert found.dtype == dtype
        assert ((found.double() - exact).abs() <= limit).all(), name
