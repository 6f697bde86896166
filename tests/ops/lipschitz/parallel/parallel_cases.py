"""Contracting recurrences for the parallel scan: a plain one, and random ones, with some inputs chosen against it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops import Contraction, Parallel, ScanBound
from lipschitz_rnn.units.lipschitz.contracting import ContractingPair

WIDE = {"dtype": torch.float64}
INTEGRATORS = ("euler", "midpoint", "heun")
NONLINEARITIES = ("tanh", "sigmoid", "tanh", "identity", "relu")
INPUTS = ("random", "saturated", "jumps at borders", "slowest direction", "steps of zero", "silence")


@dataclass
class Case:
    """The arguments of a scan, which contracts, and how it is to be cut."""

    tensors: dict[str, Tensor]  # u, A, W, hx, input_weight, bias, and step_size if it is a tensor
    options: dict[str, Any]
    contraction: Contraction
    chunks: int
    warm_up: int
    lengths: Tensor | None

    def run(self, leaves: dict[str, Tensor] | None = None, **more: Any) -> tuple[Tensor, Tensor]:
        tensors = dict(leaves or self.tensors)
        states, last = lipschitz_scan(
            tensors.pop("u"), tensors.pop("A"), tensors.pop("W"), **{**self.options, **tensors, **more},
            lengths=self.lengths,
        )  # fmt: skip
        assert states is not None
        return states, last

    def in_parallel(self, bound: ScanBound, settings: Parallel, **more: Any) -> tuple[Tensor, Tensor]:
        return self.run(**more, parallel=settings, contraction=self.contraction, bound=bound)

    @property
    def cut_short(self) -> Parallel:
        """One warm-up, whatever error it leaves."""
        return Parallel(self.chunks, warm_up=self.warm_up, passes=2, fixed=True)

    def gradients(self, seed: int, **more: Any) -> tuple[dict[str, Tensor], Tensor]:
        """Gradients of a random linear function of states and last state, and the states."""
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in self.tensors.items()}
        states, last = self.run(leaves, **more)
        generator = torch.Generator().manual_seed(seed)
        weights = [torch.randn(part.shape, generator=generator, dtype=part.dtype) for part in (states, last)]
        total = (states * weights[0]).sum() * (seed % 2) + (last * weights[1]).sum()
        found = torch.autograd.grad(total, list(leaves.values()))
        return dict(zip(leaves, found, strict=True)), states.detach()


def plain_case(T: int = 120, B: int = 2, N: int = 6, chunks: int = 4, rate: float = 3.0, **options: Any) -> Case:
    """A network that forgets within a chunk."""
    torch.manual_seed(T + B + N)
    step = 0.1
    pair = ContractingPair(N, step_size=step, rate=rate, **WIDE, **options)
    A, W = (matrix.detach() for matrix in pair())
    tensors = {
        "u": torch.randn(T, B, 3, **WIDE),
        "A": A,
        "W": W,
        "hx": torch.randn(B, N, **WIDE),
        "input_weight": torch.randn(N, 3, **WIDE),
        "bias": torch.randn(N, **WIDE),
    }
    given = {"step_size": step, "integrator": pair.integrator, "nonlinearity": pair.nonlinearity}
    contraction = Contraction(math.exp(-rate * step), pair.metric_root(), step)
    return Case(tensors, given, contraction, chunks, 5, None)


def assert_same(case: Case, **options: Any) -> ScanBound:
    """States, last state and all gradients equal those of the sequential scan up to the tolerance."""
    bound = ScanBound()
    exact, states = case.gradients(1)
    more = {"parallel": case.chunks, "contraction": case.contraction, "bound": bound} | options
    found, parallel = case.gradients(1, **more)
    torch.testing.assert_close(parallel, states, rtol=1e-5, atol=1e-5)
    for name, gradient in exact.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-4, msg=lambda text, n=name: f"{n}: {text}")
    return bound


def make_case(index: int) -> Case:
    rng = np.random.default_rng(index)
    integrator, nonlinearity = INTEGRATORS[index % 3], NONLINEARITIES[index % 5]
    networks = 2 if index % 7 == 0 else 0
    N, B, K = int(rng.choice([1, 2, 3, 5, 8])), int(rng.choice([1, 1, 2, 3])), int(rng.integers(2, 7))
    T = int(rng.integers(K, 40 * K))
    step = float(10.0 ** rng.uniform(-2, 0))
    rate = float(10.0 ** rng.uniform(-2.5, -0.7)) / step
    torch.manual_seed(index)
    pairs = [
        ContractingPair(
            N, step_size=step, integrator=integrator, nonlinearity=nonlinearity, rate=rate,
            init_scale=float(rng.choice([0.1, 1.0, 5.0])), **WIDE,
        )
        for _ in range(networks or 1)
    ]  # fmt: skip
    shape = (networks,) if networks else ()
    A, W = (
        torch.stack(matrices).reshape(*shape, N, N).detach()
        for matrices in zip(*(pair() for pair in pairs), strict=True)
    )
    root = torch.stack([pair.metric_root() for pair in pairs]).reshape(*shape, N)
    kind = INPUTS[int(rng.integers(len(INPUTS)))]
    features = int(rng.integers(1, 4))
    tensors = {
        "u": torch.randn(*shape, T, B, features, **WIDE),
        "A": A,
        "W": W,
        "hx": torch.randn(*shape, B, N, **WIDE) * float(10.0 ** rng.uniform(-1, 3)),
        "input_weight": torch.randn(*shape, N, features, **WIDE),
        "bias": torch.randn(*shape, N, **WIDE),
    }
    spans = torch.rand(*shape, T, B, **WIDE) * step if index % 4 == 0 or kind == "steps of zero" else None
    if kind == "saturated":
        tensors["u"] *= 1e3
    elif kind == "jumps at borders":
        tensors["u"] = torch.zeros_like(tensors["u"])
        tensors["u"][..., T % K :: max(1, T // K), :, :] = 50.0
    elif kind == "slowest direction":
        stepped = torch.eye(N, **WIDE) + step * A
        tensors["hx"] = 1e2 * torch.linalg.svd(stepped)[2][..., :1, :].expand(*shape, B, N).clone()
        tensors["u"] *= 0.01
    elif kind == "steps of zero":
        assert spans is not None
        spans[torch.rand(spans.shape) < 0.5] = 0.0
    elif kind == "silence":
        tensors["u"], tensors["bias"] = torch.zeros_like(tensors["u"]), torch.zeros_like(tensors["bias"])
    if spans is not None:
        tensors["step_size"] = spans
    options = {"integrator": integrator, "nonlinearity": nonlinearity}
    if spans is None:
        options["step_size"] = step  # type: ignore[assignment]
    lengths = torch.from_numpy(rng.integers(1, T + 1, size=B)) if index % 5 == 2 else None
    if networks == N:
        root = torch.diag_embed(root)  # (2, 2) may mean two things
    contraction = Contraction(math.exp(-rate * step), root, step)
    return Case(tensors, options, contraction, K, int(rng.integers(1, T // K + 1)), lengths)
