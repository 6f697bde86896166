"""What runs the runs: GPUs as slots of the local engine, and an address at which there is no Ray cluster."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from lipschitz_rnn.experiments.engines import Ended, InProcess, cluster, make_engine
from lipschitz_rnn.experiments.engines.base import slots_here
from lipschitz_rnn.experiments.engines.cluster import ClusterError, _join, _require_answer
from lipschitz_rnn.experiments.engines.workers import Workers, visible_gpus


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many GPUs as PyTorch would count."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)


@pytest.mark.usefixtures("three_gpus")
def test_gpus_are_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """One run per GPU by default; a device that is named is the same for all runs."""
    assert visible_gpus() == ("0", "1", "2")
    assert [slots_here(None, device) for device in ("auto", "cuda", "cuda:1", "cpu")] == [3, 3, 1, 1]
    assert slots_here(5) == 5
    assert isinstance(make_engine("local", device="cuda:1"), InProcess)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-7a, GPU-2b,GPU-9c")  # as a scheduler names them
    assert visible_gpus() == ("GPU-7a", "GPU-2b", "GPU-9c")
    with make_engine("local") as engine:
        assert (type(engine), engine.slots) == (Workers, 3)


def tell_gpu(folder: Path, name: str) -> None:
    """Write the GPU that this process sees, and wait until all others have done so."""
    (folder / name).write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
    end = time.monotonic() + 120
    while len(list(folder.iterdir())) < 3 and time.monotonic() < end:
        time.sleep(0.05)


@pytest.mark.full
@pytest.mark.usefixtures("three_gpus")
def test_every_process_sees_a_gpu_of_its_own(tmp_path: Path) -> None:
    with make_engine("local") as engine:
        for name in ("a", "b", "c"):
            engine.submit(name, partial(tell_gpu, tmp_path, name))
        ended: list[Ended] = []
        end = time.monotonic() + 180
        while len(ended) < 3 and time.monotonic() < end:
            ended += engine.wait(1.0)
    assert [each.error for each in ended] == [None] * 3
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == ["0", "1", "2"]


def test_ray_hands_out_gpus_itself() -> None:
    with pytest.raises(ValueError, match=r"device is 'cuda:1', but Ray gives every run GPUs of its own"):
        make_engine("ray", device="cuda:1")


def test_a_cluster_that_happens_to_run_here_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only an address joins one; without it, Ray would take whatever it finds on the machine."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    calls: list[dict[str, object]] = []
    ray = SimpleNamespace(init=lambda **options: calls.append(options))
    _join(ray, None)
    _join(ray, "auto")
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    _join(ray, None)
    assert [call["address"] for call in calls] == ["local", "auto", "auto"]
    assert ["num_cpus" in call for call in calls] == [True, False, False]


def test_a_refused_token_is_hinted_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)

    def refuse(**_: object) -> None:
        raise ConnectionError("Failed to connect")

    with pytest.raises(ClusterError, match="if the cluster asks for a token, set RAY_AUTH_MODE=token"):
        _join(SimpleNamespace(init=refuse), "auto")


@contextmanager
def listening(answer: bytes | None) -> Iterator[str]:
    """The address of a server that answers a first message with these bytes, or never."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                if answer is not None:
                    connection.sendall(answer)
                    return
                connection.recv(100)  # until the other side gives up

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    ("answer", "message"),
    [(None, "timed out"), (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not Ray"), (b"", "not Ray"), (b"SSH", "not Ray")],
    ids=["silent", "web server", "closed", "short"],
)
def test_what_is_not_ray_is_found_at_once(answer: bytes | None, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself would try such an address for minutes."""
    monkeypatch.setattr(cluster, "_ANSWER_SECONDS", 0.2)
    for scheme in ("", "ray://"):
        with listening(answer) as address, pytest.raises(ClusterError, match=message):
            _require_answer(scheme + address)


def test_a_frame_of_settings_is_ray() -> None:
    with listening(b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x3f\xff\xff") as address:
        _require_answer(address)
