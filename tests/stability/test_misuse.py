"""Wrong arguments are named, with what is allowed; nothing is said that was only computed."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import lipschitz_rnn as lr
from lipschitz_rnn.cli import app
from lipschitz_rnn.stability import certify, cohen_grossberg_hopfield, incremental_gain, theorem1, track
from lipschitz_rnn.stability.proof.precision import PRECISIONS, held_input, rounded

A, W = -np.eye(3), 0.5 * np.eye(3)
RNN = lr.LipschitzRNN(2, 3, gamma=2.0, step_size=0.1)


def test_computed_eigenvalues_are_called_computed() -> None:
    """This map has the factor 1 − 10⁻¹⁷, so there is a metric; float64 does not see it."""
    failed = certify((-1e-17 * np.eye(2), np.zeros((2, 2))), step_size=1.0)
    assert not failed.holds
    assert failed.cause == "slopes"
    assert "computed" in failed.reason
    ambitious = certify((A, W), rate=2.0)
    assert ambitious.cause == "rate"
    assert "computed" in ambitious.reason


@pytest.mark.parametrize("wrong", [RNN, {}, {1.0}, object(), None], ids=["module", "dict", "set", "object", "none"])
def test_what_is_no_matrix_is_named(wrong: object) -> None:
    for call in (lambda: certify((wrong, wrong)), lambda: theorem1(wrong, wrong), lambda: certify((A, wrong))):
        with pytest.raises(TypeError, match=rf"\b{type(wrong).__name__}\b.*\(N, N\)"):
            call()


def test_sparse_and_complex_matrices_are_named() -> None:
    with pytest.raises(TypeError, match=r"A is a sparse tensor.*to_dense"):
        certify((torch.eye(2).to_sparse(), torch.eye(2)))
    with pytest.raises(TypeError, match="W is complex"):
        certify((torch.eye(2), 1j * torch.eye(2)))
    certificate = certify((A, W), step_size=0.1)
    for name in ("input_matrix", "output_matrix"):
        for matrix in (1j * np.eye(3), 1j * torch.eye(3)):
            with pytest.raises(TypeError, match=f"{name} is complex"):
                incremental_gain(certificate, **{name: matrix})


def test_wrong_integrators_are_named() -> None:
    with pytest.raises(ValueError, match=r"integrator is \['euler'\]"):
        certify((A, W), step_size=0.1, integrator=["euler"])


def test_wrong_arguments_of_the_gain_are_named() -> None:
    certificate = certify((A, W), step_size=0.1)
    for wrong in (RNN, None, (A, W)):
        with pytest.raises(TypeError, match=f"certificate is a {type(wrong).__name__}"):
            incremental_gain(wrong)
    for wrong in (RNN, (A, W, W), 3):
        with pytest.raises(TypeError, match="pair is a"):
            incremental_gain(certificate, pair=wrong)
    for shapes in ({"input_matrix": np.ones((3, 0))}, {"output_matrix": np.ones((0, 3))}):
        with pytest.raises(ValueError, match="p and q at least 1"):
            incremental_gain(certificate, **shapes)
    gain = incremental_gain(certificate)
    assert np.array_equal(gain.bound(torch.ones(3, requires_grad=True)), gain.bound([1.0] * 3))
    with pytest.raises(ValueError, match="first_state is 'a'"):
        gain.bound([1.0], first_state="a")
    with pytest.raises(TypeError, match="differences is a dict"):
        gain.bound({})


def test_the_gain_counts_the_rounding_of_the_input_matrix() -> None:
    """1 + 3·2⁻⁹ is 1 + 2⁻⁷ in bfloat16; TF32 and bfloat16 products may move an entry either way."""
    U = (1 + 3 * 2.0**-9) * np.eye(3)
    exact = incremental_gain(certify((A, W), step_size=0.125), input_matrix=U)
    half = certify((A, W), step_size=0.125, precision="bfloat16")
    up = incremental_gain(half, input_matrix=U)
    assert up == incremental_gain(half, input_matrix=(1 + 2.0**-7) * np.eye(3))
    assert up.per_step > (1 + 2.0**-10) * exact.per_step
    for name in ("high", "medium"):
        wide = incremental_gain(certify((A, W), step_size=0.125, precision=name), input_matrix=U)
        assert wide.per_step > (1 + PRECISIONS[name].products) * exact.per_step
    for precision in PRECISIONS.values():
        ball = held_input(rounded(U, precision), precision)
        dtype = getattr(torch, precision.name, torch.float64)
        loaded = torch.from_numpy(U).to(dtype).double().numpy()
        assert np.all(np.abs(loaded - ball.mid) <= ball.rad)


def test_wrong_arguments_of_the_theorem_are_named() -> None:
    with pytest.raises(ValueError, match=r"largest entry of A and W is 1e\+200"):
        theorem1(1e200 * A, 1e200 * W)
    with pytest.raises(ValueError, match="largest entry"):
        cohen_grossberg_hopfield(1e200 * A, W)
    for wrong in ("tanh", None, float("nan"), -1.0, 1e90):
        with pytest.raises(ValueError, match="lipschitz is"):
            theorem1(A, W, wrong)
    assert not theorem1(-1e75 * np.ones((3, 3)), 1e75 * np.triu(np.ones((3, 3))), 1e75).proof
    for wrong in ("a", None, -1.0):
        with pytest.raises(ValueError, match="tolerance is"):
            cohen_grossberg_hopfield(A, W, wrong)
    with pytest.raises(TypeError, match="model is a NoneType"):
        track(None)


@pytest.mark.parametrize("missing", ["A", "W"])
def test_a_matrix_without_its_partner_is_refused(missing: str, tmp_path: Path) -> None:
    entries = {"l0.A": A, "l0.W": W, "l1.A": A, "l1.W": W}
    del entries[f"l1.{missing}"]
    np.savez(tmp_path / "pair.npz", **entries)
    with pytest.raises(ValueError, match=rf"without l1\.{missing}"):
        certify(tmp_path / "pair.npz")


def test_a_seed_with_a_file_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "pair.npz", A=A, W=W)
    answer = CliRunner().invoke(app, ["certify", str(tmp_path / "pair.npz"), "--seed", "1"])
    assert answer.exit_code == 2
    assert "seed is 1" in answer.output


@pytest.fixture
def float32_settings() -> Iterator[None]:
    backends = (torch.backends, torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    before = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "none"  # a backend with a setting of its own does not follow the general one
    yield
    for backend, value in zip(backends, before, strict=True):
        backend.fp32_precision = value


@pytest.mark.usefixtures("float32_settings")
@pytest.mark.parametrize(
    ("backend", "value", "expected"),
    [
        (torch.backends.cuda.matmul, "tf32", "high"),
        (torch.backends.mkldnn.matmul, "bf16", "medium"),
        (torch.backends, "tf32", "high"),
    ],
)
def test_a_setting_of_one_backend_is_read(backend: object, value: str, expected: str) -> None:
    before = certify(RNN, rate=1e-3).precision
    backend.fp32_precision = value
    assert before == "float32"
    assert certify(RNN, rate=1e-3).precision == expected
    assert certify(RNN, rate=1e-3, precision="float32").precision == "float32"
