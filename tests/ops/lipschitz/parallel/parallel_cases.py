"""Random contracting recurrences, cuts and inputs, some of them chosen against the parallel scan."""

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
            init_scale=float(rng.choice([0.1, 1.0, 5.0])), dtype=torch.float64,
        )
        for _ in range(networks or 1)
    ]  # fmt: skip
    shape = (networks,) if networks else ()
    A, W = (
        torch.stack(matrices).reshape(*shape, N, N).detach()
        for matrices in zip(*(pair() for pair in pairs), strict=True)
    )
    root = torch.stack([pair.metric_root() for pair in pairs]).reshape(*shape, N)
    wide = {"dtype": torch.float64}
    kind = INPUTS[int(rng.integers(len(INPUTS)))]
    features = int(rng.integers(1, 4))
    tensors = {
        "u": torch.randn(*shape, T, B, features, **wide),
        "A": A,
        "W": W,
        "hx": torch.randn(*shape, B, N, **wide) * float(10.0 ** rng.uniform(-1, 3)),
        "input_weight": torch.randn(*shape, N, features, **wide),
        "bias": torch.randn(*shape, N, **wide),
    }
    spans = torch.rand(*shape, T, B, **wide) * step if index % 4 == 0 or kind == "steps of zero" else None
    if kind == "saturated":
        tensors["u"] *= 1e3
    elif kind == "jumps at borders":
        tensors["u"] = torch.zeros_like(tensors["u"])
        tensors["u"][..., T % K :: max(1, T // K), :, :] = 50.0
    elif kind == "slowest direction":
        stepped = torch.eye(N, **wide) + step * A
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
