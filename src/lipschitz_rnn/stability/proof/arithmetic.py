"""How the kernels round while they run: one model for each precision, which no backend of this package exceeds.

Every kernel takes a step in the same way: products with αA, W and U, a sum into the argument of σ, σ itself, and a sum
into the state. Where the kernels differ (order of a sum, fused operations, tensor cores that cut off, approximations
of σ) the model has the worst of them. What is rounded before the first step, the matrices, is in ``precision``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lipschitz_rnn.stability.proof.precision import Precision, as_precision

BACKENDS = ("any", "cpu", "triton")

# A tensor core adds 16 products (TF32: 8) and a partial sum, each cut off at the last place of the largest: 2u for each
# of 9 in 8 terms. The kernels multiply long sums by up to 1 + 0.03u for each term against that. Else u for each term.
CUT_OFF_SUM, PLAIN_SUM = 2.5, 1.0
# Triton's kernels take ``high`` in bfloat16 parts up to these sizes, three and two of them.
_THREE_PARTS, _TWO_PARTS = 32, 128


@dataclass(frozen=True)
class Arithmetic:
    """Relative errors of the operations of a step.

    Attributes:
        unit: u of the dtype in which states and sums are kept.
        matrices: of an entry of αA, W or U, where a product takes it in a lower precision.
        operand: of a state, and of an input, when it becomes the operand of a product.
        sums: of a sum of n terms, divided by n u.
        stored: of a product, a sum or a value of σ that is kept in 16 bits within a step.
        received: of inputs when they are cast before anything else, and of U x + b when it is kept in 16 bits.
        sigma: of σ, relative to its value.
        sigma_absolute: of σ, absolute, where an approximation is good in that sense only.
        returned: of outputs, when they are cast to the dtype that the caller sees.
        smallest: what underflow can take from one operand, product or sum.
        largest: numbers beyond this may overflow.
    """

    unit: float
    matrices: float
    operand: float
    sums: float
    stored: float
    received: float
    sigma: float
    sigma_absolute: float
    returned: float
    smallest: float
    largest: float

    def product(self, terms: int) -> float:
        """Of a sum of ``terms`` products, relative to the sum of their magnitudes; the matrix is taken as held."""
        return 1.01 * (self.operand + self.stored + (self.sums * terms + 4) * self.unit)


_U32, _U64 = 2.0**-24, 2.0**-53
_FLOAT32 = Arithmetic(
    unit=_U32,
    matrices=0.0,
    operand=2.02 * 2.0**-24,  # three bfloat16 parts of both operands, without the products of the smallest ones
    sums=CUT_OFF_SUM,
    stored=0.0,
    received=0.0,
    sigma=8 * _U32,  # four units in the last place: PyTorch, NumPy, the compiled kernels and Triton's
    sigma_absolute=0.0,
    returned=2 * _U32,  # states that are kept in units of the step
    smallest=2.0**-120,
    largest=1e38,
)
_MODELS = {
    "float64": replace(
        _FLOAT32, unit=_U64, operand=0.0, sigma=8 * _U64, returned=2 * _U64, smallest=2.0**-1000, largest=1e307
    ),
    "float32": _FLOAT32,
    # TF32 may be cut off; 1 − 2/(1 + e^{2z}) loses near zero; tanh.approx has 11 bits.
    "high": replace(_FLOAT32, matrices=1.01 * 2.0**-10, operand=2.0**-10, sigma_absolute=16 * _U32),
    "medium": replace(_FLOAT32, matrices=1.01 * 2.0**-8, operand=2.0**-8, sigma=2.0**-10.9),
    # A GPU rounds what it stores; Triton's interpreter cuts it off.
    "bfloat16": replace(
        _FLOAT32, operand=2.0**-8, stored=2.0**-7, received=3.1 * 2.0**-8, sigma=2.0**-7, returned=1.01 * 2.0**-7
    ),
    "float16": replace(
        _FLOAT32,
        operand=2.0**-11,
        stored=2.0**-10,
        received=3.1 * 2.0**-11,
        sigma=2.0**-10,
        returned=1.01 * 2.0**-11,
        smallest=2.0**-24,
        largest=3e4,
    ),
}


def arithmetic(name: str, backend: str = "any", size: int = 0) -> Arithmetic:
    """The model of a precision, for all backends or for one of them.

    ``cpu`` keeps every sum and state of a half-precision recurrence in float32, and no processor cuts off. ``triton``
    takes ``high`` by parts, for hidden sizes up to 128, and rounds nothing but operands, σ and inputs to 16 bits.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; choose one of {', '.join(BACKENDS)}")
    precision: Precision = as_precision(name)
    if precision.name == "exact":
        raise ValueError(
            "precision is 'exact', and exact arithmetic does not round; give the precision that the network runs in, "
            "for example precision='float32'"
        )
    model = _MODELS[precision.name]
    half = precision.name in ("bfloat16", "float16")
    if backend == "cpu":
        model = replace(model, sums=PLAIN_SUM)
        if precision.name == "float32":
            model = replace(model, operand=0.0)
        if half:  # only what comes in and goes out
            cast = 1.01 * (2.0**-8 if precision.name == "bfloat16" else 2.0**-11)
            model = replace(model, operand=0.0, stored=0.0, received=cast, returned=cast, sigma=_FLOAT32.sigma)
    if backend == "triton":
        if half:
            model = replace(model, stored=0.0, sigma=_MODELS["medium"].sigma)
        if precision.name == "high" and size <= _TWO_PARTS:
            if size <= _THREE_PARTS:
                model = replace(model, matrices=0.0, operand=_FLOAT32.operand)
            else:  # what two parts leave out of the state, and the product of both second parts
                model = replace(model, matrices=1.01 * 2.0**-16, operand=2.0**-15)
    return model
