"""Every unit again in plain float64 NumPy, written from the papers' equations, one sample and one step at a time.

Each function takes the unit's parameters and buffers by name, its options, and x (T, p); it gives the outputs (T, ·).
Nothing here is shared with the library: matrices are formed the long way (SciPy's expm, explicit rotations, outer
products), so that agreement means something.
"""

import math
from typing import Any

import numpy as np
from numpy_constrained import (
    Array,
    Parameters,
    dtriv,
    eurnn,
    exprnn,
    full_urnn,
    kronecker,
    nnrnn,
    scornn,
    sigmoid,
    skew,
    soft_orth,
    spectral_rnn,
    urnn,
)
from torch import nn


def arrays_of(module: nn.Module) -> Parameters:
    """Parameters and buffers of a unit of one layer, by their names within the cell."""
    arrays = {}
    for name, value in module.state_dict().items():
        short = name.removeprefix("cells.0.").removeprefix("cells.l0.").replace("hidden.M_", "M_")
        arrays[short] = value.numpy()
    return arrays


def lstm_state(gates: Array, c: Array) -> tuple[Array, Array]:
    i, f, g, o = np.split(gates, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def rnn(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    W, U, b = p["inner.weight_hh_l0"], p["inner.weight_ih_l0"], p["inner.bias_ih_l0"] + p["inner.bias_hh_l0"]
    h, out = np.zeros(len(W)), []
    for x_t in x:
        h = np.tanh(W @ h + U @ x_t + b)
        out.append(h)
    return np.array(out)


def lstm(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    W, U, b = p["inner.weight_hh_l0"], p["inner.weight_ih_l0"], p["inner.bias_ih_l0"] + p["inner.bias_hh_l0"]
    h, c, out = np.zeros(W.shape[1]), np.zeros(W.shape[1]), []
    for x_t in x:
        h, c = lstm_state(W @ h + U @ x_t + b, c)
        out.append(h)
    return np.array(out)


def gru(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    W, U = np.split(p["inner.weight_hh_l0"], 3), np.split(p["inner.weight_ih_l0"], 3)
    c, b = np.split(p["inner.bias_hh_l0"], 3), np.split(p["inner.bias_ih_l0"], 3)
    h, out = np.zeros(W[0].shape[1]), []
    for x_t in x:
        r = sigmoid(W[0] @ h + c[0] + U[0] @ x_t + b[0])
        z = sigmoid(W[1] @ h + c[1] + U[1] @ x_t + b[1])
        n = np.tanh(U[2] @ x_t + b[2] + r * (W[2] @ h + c[2]))
        h = (1 - z) * n + z * h
        out.append(h)
    return np.array(out)


def momentum_lstm(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    W, U, b, d = p["hidden.weight"], p["input.weight"], p["input.bias"], p["hidden.bias"]
    size = W.shape[1]
    h, c, v, out = np.zeros(size), np.zeros(size), np.zeros(4 * size), []
    for x_t in x:
        v = options.get("momentum", 0.6) * v + options.get("step_size", 0.6) * (U @ x_t + b)
        h, c = lstm_state(W @ h + d + v, c)
        out.append(h)
    return np.array(out)


def srlstm(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    W, U, b, d = p["hidden.weight"], p["input.weight"], p["input.bias"], p["hidden.bias"]
    size = W.shape[1]
    h, c, before, out = np.zeros(size), np.zeros(size), np.zeros(4 * size), []
    for t, x_t in enumerate(x):
        now = W @ h + d - options.get("step_size", 0.9) * (U @ x_t + b)
        k = t % options.get("restart", 40)
        h, c = lstm_state(now + k / (k + 3) * (now - before), c)
        before = now
        out.append(h)
    return np.array(out)


def euler(W: Array, p: Parameters, step: float, x: Array) -> Array:
    h, out = np.zeros(len(W)), []
    for x_t in x:
        h = h + step * np.tanh(W @ h + p["input.weight"] @ x_t + p["input.bias"])
        out.append(h)
    return np.array(out)


def antisymmetric(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    n = len(p["input.bias"])
    W = skew(p["triangle"], n) - options.get("gamma", 0.001) * np.eye(n)
    return euler(W, p, options.get("step_size", 0.01), x)


def neural_ode(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    return euler(p["hidden"], p, options.get("step_size", 0.03), x)


def residual(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    return euler(p["hidden"], p, options.get("step_size", 1.0), x)


def nais(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    kappa, R = options.get("kappa", 0.01), p["root"]
    norm = np.sqrt(((R.T @ R) ** 2).sum())
    if norm > 1 - 2 * kappa:
        R = R * np.sqrt((1 - 2 * kappa) / norm)
    return euler(-R.T @ R - kappa * np.eye(len(R)), p, options.get("step_size", 1.0), x)


def gated(A: Array, W: Array, p: Parameters, step: float, x: Array) -> Array:
    h, out = np.zeros(len(W)), []
    for x_t in x:
        gate = sigmoid(W @ h + p["gate.weight"] @ x_t + p["gate.bias"])
        rate = A @ h + np.tanh(W @ h + p["input.weight"] @ x_t + p["input.bias"])
        h = h + step * gate * rate
        out.append(h)
    return np.array(out)


def antisymmetric_gated(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    n = len(p["input.bias"])
    W = skew(p["triangle"], n) - options.get("gamma", 0.001) * np.eye(n)
    return gated(np.zeros((n, n)), W, p, options.get("step_size", 0.01), x)


def symmetric_skew(M: Array, beta: float = 0.75, gamma: float = 0.001) -> Array:
    return (1 - beta) * (M + M.T) + beta * (M - M.T) - gamma * np.eye(len(M))


def lipschitz_gated(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    A, W = (symmetric_skew(M) for M in p["free"])
    return gated(options.get("alpha", 1.0) * A, W, p, options.get("step_size", 0.03), x)


def irnn(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    W = p["left"] @ p["right"].T if "right" in p else p["left"]
    h, out = np.zeros(len(W)), []
    for x_t in x:
        g = h if options.get("warm_start") else np.zeros(len(W))
        for eta in p["step_sizes"]:
            rate = np.tanh(W @ (g + h) + p["input.weight"] @ x_t + p["input.bias"]) - p["alpha"] * (g + h)
            g = g + eta * rate
        h = g
        out.append(h)
    return np.array(out)


def fastrnn(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    alpha, beta = sigmoid(p["shares"])
    h, out = np.zeros(len(p["hidden"])), []
    for x_t in x:
        h = alpha * np.tanh(p["hidden"] @ h + p["input.weight"] @ x_t + p["input.bias"]) + beta * h
        out.append(h)
    return np.array(out)


def fastgrnn(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    def product(name: str) -> Array:
        first = p[f"{name}_factors.0"]
        return first @ p[f"{name}_factors.1"].T if f"{name}_factors.1" in p else first

    U = p["input_matrix"] if "input_matrix" in p else product("input")
    W = p["hidden"] if "hidden" in p else product("hidden")
    zeta, nu = sigmoid(p["shares"])
    h, out = np.zeros(len(W)), []
    for x_t in x:
        z = sigmoid(W @ h + U @ x_t + p["biases"][0])
        g = np.tanh(W @ h + U @ x_t + p["biases"][1])
        h = (zeta * (1 - z) + nu) * g + z * h
        out.append(h)
    return np.array(out)


def cornn(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    dt, gamma, epsilon = (options.get(*pair) for pair in (("step_size", 0.042), ("gamma", 2.7), ("epsilon", 4.7)))
    W, V = p["hidden"]
    y, z, out = np.zeros(len(W)), np.zeros(len(W)), []
    for x_t in x:
        force = np.tanh(W @ y + V @ z + p["input.weight"] @ x_t + p["input.bias"])
        z = z + dt * (force - gamma * y - epsilon * z)
        y = y + dt * z
        out.append(y)
    return np.array(out)


def lem(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    dt, W = options.get("step_size", 1.0), p["hidden"]
    U, b = np.split(p["input.weight"], 4), np.split(p["input.bias"], 4)
    y, z, out = np.zeros(len(W[0])), np.zeros(len(W[0])), []
    for x_t in x:
        a = dt * sigmoid(W[0] @ y + U[0] @ x_t + b[0])
        d = dt * sigmoid(W[1] @ y + U[1] @ x_t + b[1])
        z = (1 - a) * z + a * np.tanh(W[2] @ y + U[2] @ x_t + b[2])
        y = (1 - d) * y + d * np.tanh(W[3] @ z + U[3] @ x_t + b[3])
        out.append(y)
    return np.array(out)


def gru_d(p: Parameters, options: dict[str, Any], x: Array, times: Array | None = None) -> Array:
    """Che et al. 2018, one value and one hidden entry at a time where the paper does; NaN is missing."""
    U, W, V = (np.split(p[name], 3) for name in ("hidden", "input.weight", "mask.weight"))
    b = np.split(p["input.bias"], 3)
    values, n = V[0].shape[1], U[0].shape[1]
    mean, (w, v) = p["mean"], p["input_decay"]
    h, last, since, out = np.zeros(n), mean.copy(), np.zeros(values), []
    for t, x_t in enumerate(x):
        m = x_t[values:] if options.get("masked") else 1.0 - np.isnan(x_t)
        since = since + (options.get("step_size", 1.0) if times is None else times[t])
        filled = np.zeros(values)
        for d in range(values):
            gamma = np.exp(-max(0.0, w[d] * since[d] + v[d]))
            filled[d] = x_t[d] if m[d] == 1 else gamma * last[d] + (1 - gamma) * mean[d]
        for i in range(n):
            h[i] *= np.exp(-max(0.0, p["hidden_decay.weight"][i] @ since + p["hidden_decay.bias"][i]))
        r = sigmoid(W[0] @ filled + U[0] @ h + V[0] @ m + b[0])
        z = sigmoid(W[1] @ filled + U[1] @ h + V[1] @ m + b[1])
        proposal = np.tanh(W[2] @ filled + U[2] @ (r * h) + V[2] @ m + b[2])
        h = (1 - z) * h + z * proposal
        out.append(h.copy())
        last = np.where(m == 1, x_t[:values], last)
        since = np.where(m == 1, 0.0, since)
    return np.array(out)


def lipschitz(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    A, W = symmetric_skew(p["M_A"]), symmetric_skew(p["M_W"])
    h, out = np.zeros(len(A)), []
    for x_t in x:
        h = h + options.get("step_size", 0.03) * (A @ h + np.tanh(W @ h + p["weight_ih"] @ x_t + p["bias_ih"]))
        out.append(h)
    return np.array(out)


def ren(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    """Neuron after neuron, with the matrices of the paper: Λ v = C₁ h + D₁₁ w, E h⁺ = F h + B₁ w."""
    factor, depth, n = options.get("factor", 0.999), options.get("depth", 1), len(p["rotation"])
    X, Y = p["root"], p["rotation"]
    m = len(X) - 2 * n
    H = X.T @ X + 1e-4 * np.eye(len(X))
    edges = [round(k * m / depth) for k in range(depth + 1)]
    group = np.array([sum(i >= edge for edge in edges[1:]) for i in range(m)])
    H22, Lambda, D11 = H[n : n + m, n : n + m], np.zeros(m), np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            if group[i] == group[j]:
                Lambda[i] += 0.5 * abs(H22[i, j])
            elif group[j] < group[i]:
                D11[i, j] = -H22[i, j]
    E = 0.5 * (H[:n, :n] + H[n + m :, n + m :] / factor**2 + Y - Y.T)
    U, b = p["input.weight"], p["input.bias"]
    h, out = np.zeros(n), []
    for x_t in x:
        drive = U @ x_t + b
        w = np.zeros(m)
        for i in range(m):
            w[i] = np.tanh((-H[n + i, :n] @ h + D11[i] @ w) / Lambda[i] + drive[n + i])
        h = np.linalg.solve(E, H[n + m :, :n] @ h + H[n + m :, n : n + m] @ w) + drive[:n]
        out.append(h)
    return np.array(out)


def lru(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    logarithm = -np.exp(p["decay"]) + 1j * np.exp(p["phase"])
    poles, size, span = np.exp(logarithm), len(logarithm), options.get("step_size", 1.0)
    B = p["input.weight"][:size] + 1j * p["input.weight"][size:]
    C = p["readout"][:, :size] - 1j * p["readout"][:, size:]
    h, out = np.zeros(size, complex), []
    for x_t in x:
        over = np.exp(span * logarithm)
        h = over * h + (1 - over) / (1 - poles) * np.sqrt(1 - np.abs(poles) ** 2) * (B @ x_t)
        y = (C @ h).real + p["skip.weight"] @ x_t + p["skip.bias"]
        out.append(0.5 * y * (1 + np.vectorize(math.erf)(y / np.sqrt(2))))
    return np.array(out)


RECURRENCES = {
    "rnn": rnn,
    "lstm": lstm,
    "gru": gru,
    "rnn-orth": rnn,
    "momentum-lstm": momentum_lstm,
    "srlstm": srlstm,
    "urnn": urnn,
    "full-urnn": full_urnn,
    "eurnn": eurnn,
    "soft-orth": soft_orth,
    "kronecker": kronecker,
    "scornn": scornn,
    "exprnn": exprnn,
    "dtriv": dtriv,
    "nnrnn": nnrnn,
    "antisymmetric": antisymmetric,
    "antisymmetric-gated": antisymmetric_gated,
    "nais": nais,
    "irnn": irnn,
    "neural-ode": neural_ode,
    "residual": residual,
    "fastrnn": fastrnn,
    "fastgrnn": fastgrnn,
    "fastgrnn-lsq": fastgrnn,
    "spectral-rnn": spectral_rnn,
    "lipschitz": lipschitz,
    "lipschitz-gated": lipschitz_gated,
    "cornn": cornn,
    "lem": lem,
    "gru-d": gru_d,
    "lru": lru,
    "ren": ren,
}
