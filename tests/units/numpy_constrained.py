"""The units with orthogonal, unitary or otherwise constrained matrices, for `numpy_recurrences`."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import expm

Parameters = dict[str, np.ndarray]
Array = np.ndarray


def sigmoid(z: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-z))


def skew(triangle: Array, size: int) -> Array:
    matrix, k = np.zeros((size, size)), 0
    for i in range(size):
        for j in range(i):
            matrix[i, j], matrix[j, i] = triangle[k], -triangle[k]
            k += 1
    return matrix


def mod_relu(z: Array, b: Array) -> Array:
    out = np.zeros_like(z)
    for i, value in enumerate(z):
        modulus = abs(value)
        radius = max(modulus + b[i], 0.0)
        if np.iscomplexobj(z):
            out[i] = value * radius / (modulus + 1e-5)
        elif modulus > 0:
            out[i] = value / modulus * radius
    return out


def constrained(
    W: Array, p: Parameters, x: Array, nonlinearity: Callable[[Array], Array] | None = None, start: Array | None = None
) -> Array:
    """h⁺ = σ(W h + U x + b), or modReLU(W h + U x) with bias b on the modulus; a complex h is given as (Re, Im)."""
    U, b = p["input.weight"], p["bias"]
    if np.iscomplexobj(W):
        U = U[: len(W)] + 1j * U[len(W) :]
    h, out = np.zeros(len(W), dtype=W.dtype) if start is None else start, []
    for x_t in x:
        z = W @ h + U @ x_t
        h = mod_relu(z, b) if nonlinearity is None else nonlinearity(z + b)
        out.append(np.concatenate([h.real, h.imag]) if np.iscomplexobj(W) else h)
    return np.array(out)


def learned_start(p: Parameters) -> Array:
    return p["start"][0] + 1j * p["start"][1]


def urnn(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    n = p["angles"].shape[1]
    D = [np.diag(np.exp(1j * angle)) for angle in p["angles"]]
    R = []
    for real, imaginary in p["reflections"]:
        v = real + 1j * imaginary
        R.append(np.eye(n) - 2 * np.outer(v, v.conj()) / np.vdot(v, v).real)
    fourier = np.array([[np.exp(-2j * np.pi * i * j / n) / np.sqrt(n) for j in range(n)] for i in range(n)])
    permute = np.eye(n)[p["permutation"]]
    W = D[2] @ R[1] @ fourier.conj().T @ D[1] @ permute @ R[0] @ fourier @ D[0]
    return constrained(W, p, x, start=learned_start(p))


def full_urnn(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    n = len(p["base"])
    t = n * (n - 1) // 2
    S = skew(p["logarithm"][:t], n).astype(complex)
    k = t
    for i in range(n):
        for j in range(i + 1):
            S[i, j] += 1j * p["logarithm"][k]
            S[j, i] += 1j * p["logarithm"][k]
            k += 1
    W = (p["base"][..., 0] + 1j * p["base"][..., 1]) @ expm(S)
    return constrained(W, p, x, start=learned_start(p))


def eurnn(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    n = len(p["angles"])
    W = np.diag(np.exp(1j * p["angles"]))
    layers = n.bit_length() - 1 if options.get("fft") else options.get("capacity", 2)
    for layer in range(layers):
        if options.get("fft"):
            pairs = [(i, i + 2**layer) for i in range(n) if (i // 2**layer) % 2 == 0]
        else:
            pairs = [(i, i + 1) for i in range(layer % 2, n - 1, 2)]
        theta, phi = p[f"rotations.{layer}"]
        for k, (i, j) in enumerate(pairs):
            G = np.eye(n, dtype=complex)
            G[i, i], G[i, j] = np.exp(1j * phi[k]) * np.cos(theta[k]), -np.exp(1j * phi[k]) * np.sin(theta[k])
            G[j, i], G[j, j] = np.sin(theta[k]), np.cos(theta[k])
            W = G @ W
    return constrained(W, p, x, start=learned_start(p))


def kronecker(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    W, k = np.ones((1, 1)), 0
    while f"factors.{k}" in p:
        W = np.kron(W, p[f"factors.{k}"][..., 0] + 1j * p[f"factors.{k}"][..., 1])
        k += 1
    return constrained(W, p, x)


def exprnn(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    return constrained(expm(skew(p["triangle"], len(p["bias"]))), p, x)


def dtriv(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    return constrained(p["base"] @ expm(skew(p["triangle"], len(p["bias"]))), p, x)


def scornn(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    n = len(p["bias"])
    K = skew(p["triangle"], n)
    D = np.diag([-1.0 if i < round(options.get("negative_ones", 0.5) * n) else 1.0 for i in range(n)])
    return constrained(np.linalg.inv(np.eye(n) + K) @ (np.eye(n) - K) @ D, p, x)


def singular(p: Parameters, margin: float) -> Array:
    return np.diag(2 * margin * (sigmoid(p["free_values"]) - 0.5) + 1)


def soft_orth(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    P, Q = (base @ expm(skew(t, len(p["bias"]))) for base, t in zip(p["bases"], p["triangles"], strict=True))
    return constrained(P @ singular(p, options.get("margin", 0.1)) @ Q.T, p, x, np.tanh)


def spectral_rnn(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    n = len(p["bias"])
    m = options.get("reflectors") or n // 4
    factors = []
    for entries in p["entries"]:
        product, k = np.eye(n), 0
        for row in range(m):
            v = np.zeros(n)
            v[row:] = entries[k : k + n - row]
            k += n - row
            product = product @ (np.eye(n) - 2 * np.outer(v, v) / (v @ v))
        factors.append(product)
    W = factors[0] @ singular(p, options.get("margin", 0.01)) @ factors[1].T
    return constrained(W, p, x, lambda z: np.maximum(z, 0))


def nnrnn(p: Parameters, options: dict[str, Any], x: Array) -> Array:
    n = len(p["bias"])
    P, schur, k = expm(skew(p["triangle"], n)), np.zeros((n, n)), 0
    for i in range(0, n, 2):
        for j in range(i + 2, n, 2):
            schur[i : i + 2, j : j + 2] = p["upper"][k]
            k += 1
    for plane, angle in enumerate(p["angles"]):
        gamma, i = p["modulus"][plane] if "modulus" in p else 1.0, 2 * plane
        schur[i : i + 2, i : i + 2] = [
            [gamma * np.cos(angle), -gamma * np.sin(angle)],
            [gamma * np.sin(angle), gamma * np.cos(angle)],
        ]
    return constrained(P @ schur @ P.T, p, x)
