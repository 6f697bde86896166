"""Compile the kernels of the scan for one GPU without having it.

Run by ``compile_for`` in ``without_gpu`` with CAPABILITY PRECISION INTEGRATOR N…; each kernel's line has its N.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
from without_gpu import compile_instead_of_launching

from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme

capability, precision, integrator = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
row = compile_instead_of_launching(capability)
# Imported only now: the modules take what was replaced by name.
from lipschitz_rnn.ops.lipschitz.pair_call import PairCall  # noqa: E402
from lipschitz_rnn.ops.lipschitz.triton import backend, inputs, pair_scan  # noqa: E402

torch.set_float32_matmul_precision({"bf16x6": "highest", "tf32": "high", "bf16x3": "high"}.get(precision, "highest"))
S, T, B = 1, 3, 128
for N in map(int, sys.argv[4:]):
    row["N"] = N
    A, W, U, b = (torch.zeros((S, N, *shape), dtype=dtype) for shape in ((N,), (N,), (1,), ()))
    scheme = Scheme(0.03, 1.0, integrator, "tanh")
    problem = Problem(torch.zeros((S, T, B, 1), dtype=dtype), A, W, None, U, b, None, scheme)
    tape = torch.zeros((S, T, 2 * len(scheme.tableau), B, N), dtype=dtype)
    backend.forward(problem, tape, True, True)
    backend.backward(problem, tape, None, torch.zeros((S, B, N), dtype=dtype), [True] * 7)
    three = (problem.drive.expand(S, T, B, 3).contiguous(), U.expand(S, N, 3).contiguous())
    inputs.expanded_drive(replace(problem, drive=three[0], input_weight=three[1]))
    inputs.input_gradients(torch.zeros((S, T, B, N), dtype=dtype), three[0], precision)
    sizes, places = (T, B, 1, N), (B, 1, 1)
    facts = (places, (N, 1, N, 1), (-0.5, 0.1, -0.5, 0.1), scheme, dtype, dtype, A.device, False, True)
    layer = pair_scan.prepare(problem, PairCall(sizes, *facts, True, True, False))
    if layer is not None:
        x, hidden, U, b = problem.drive[0], A[0], problem.input_weight[0], problem.bias[0]  # type: ignore[index]
        states, last, tape, operand = layer.forward(x, hidden, hidden, None, U, b)
        layer.backward((x, None, U, tape, operand), states, last, (True,) * 6)  # type: ignore[arg-type]
