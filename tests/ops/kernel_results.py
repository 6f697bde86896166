"""What tests of kernels share: sizes and dtypes, the error of a result, and the same results from a captured graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Shape = tuple[int, int, int, int]  # S, T, B, N
# The dtype of the inputs and the one of the products; the state is float32 in each.
DTYPES = {
    "float32": (torch.float32, torch.float32),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "float16": (torch.float16, torch.float16),
    "wide inputs": (torch.float32, torch.bfloat16),
}


def error(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm().clamp_min(1e-30))


def replayed(run: Callable[[], list[Tensor]]) -> list[Tensor]:
    """What a CUDA graph of ``run`` writes when it is replayed, into memory that is NaN before."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()  # kernels compile
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    for result in captured:
        result.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    return [result.clone() for result in captured]  # which outlive the graph and its memory
