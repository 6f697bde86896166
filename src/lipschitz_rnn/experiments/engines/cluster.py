"""Ray as it is: its scheduler, resources, retries and autoscaling. A run that loses its node starts again elsewhere.

The run folder must be on a path that all nodes share: a run that starts again goes on from its last checkpoint there.
"""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

import torch

from lipschitz_rnn.experiments.engines.base import Call, Ended, Engine, error_of
from lipschitz_rnn.plugins import import_modules, imported_modules
from lipschitz_rnn.training import Interrupted
from lipschitz_rnn.training.interrupts import Interrupts

_RETRIES = 20  # of a function whose process or node dies
_ANSWER_SECONDS = 10.0
_SAVING_SECONDS = 30.0


class ClusterError(ValueError):
    """The cluster cannot be used: a wrong command, found before anything runs."""


class RayEngine(Engine):
    """Every function is a Ray task with `threads` CPUs and `gpus` GPUs."""

    def __init__(
        self, address: str | None = None, jobs: int | None = None, threads: int = 1, gpus: float | None = None
    ) -> None:
        self._ray = ray = import_ray()
        self._started = not ray.is_initialized()
        if self._started:
            _join(ray, address)
        total = ray.cluster_resources()
        if gpus is None:
            gpus = 1.0 if total.get("GPU", 0) >= 1 else 0.0
        if total.get("CPU", 0) < threads or total.get("GPU", 0) < gpus:
            has = f"{total.get('CPU', 0):g} CPUs and {total.get('GPU', 0):g} GPUs"
            self.close()
            raise ClusterError(
                f"a run asks for {threads} CPUs and {gpus:g} GPUs, but the cluster has {has}; ask for less"
            )
        room = min(total["CPU"] / threads, total["GPU"] / gpus if gpus else float("inf"))
        # With more in the queue than fit, Ray's autoscaler sees that more nodes are needed.
        self.slots = jobs or max(1, 2 * int(room))
        self._room = jobs or max(1, int(room))
        options = {"num_cpus": threads, "num_gpus": gpus, "max_retries": _RETRIES, "retry_exceptions": False}
        self._run = ray.remote(**options)(_run)
        self._threads, self._modules = threads, imported_modules()
        self._pending: dict[Any, str] = {}
        self._interrupts = Interrupts()
        self._interrupts.__enter__()

    @property
    def at_once(self) -> int:
        return self._room

    def submit(self, name: str, call: Call) -> None:
        self._pending[self._run.remote(call, self._threads, self._modules)] = name

    def wait(self, seconds: float) -> list[Ended]:
        done, _ = self._ray.wait(list(self._pending), timeout=seconds) if self._pending else ([], [])
        if self._interrupts.number:
            number = self._interrupts.number
            self.close()
            raise Interrupted(number)
        return [self._ended(reference) for reference in done]

    def _ended(self, reference: Any) -> Ended:
        name = self._pending.pop(reference)
        try:
            return Ended(name, self._ray.get(reference))
        except self._ray.exceptions.RayError as error:  # its processes died more often than is allowed
            return Ended(name, str(error))

    def close(self) -> None:
        """Cancel what runs: a cancelled task gets a signal, and its run saves."""
        pending = list(getattr(self, "_pending", {}))
        for reference in pending:
            self._ray.cancel(reference, force=False)
        if pending:
            self._ray.wait(pending, num_returns=len(pending), timeout=_SAVING_SECONDS)
        if hasattr(self, "_interrupts"):
            self._interrupts.__exit__()
        self._pending = {}
        if self._started and self._ray.is_initialized():
            self._ray.shutdown()


def _run(call: Call, threads: int, modules: tuple[str, ...]) -> str | None:
    """What a task does; the error is a value, because only a lost process is a reason to try again."""
    torch.set_num_threads(threads)
    import_modules(modules)
    try:
        return error_of(call)
    except Interrupted as interrupted:
        if interrupted.number != signal.SIGINT:  # its machine is going away: Ray runs it again elsewhere
            os._exit(128 + interrupted.number)
        return str(interrupted)  # cancelled by `close`


def import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ClusterError(
            'the engine ray is not installed; install it by: pip install "lipschitz-rnn[ray]", or use --engine local'
        ) from error
    return ray


def _join(ray: Any, address: str | None) -> None:
    """Connect to a cluster, or start one on this machine. A wrong address is found at once, not after minutes."""
    address = address or os.environ.get("RAY_ADDRESS") or "local"  # which never joins a cluster that happens to be here
    if address not in ("auto", "local"):
        _require_answer(address)
    options: dict[str, Any] = {"log_to_driver": False, "include_dashboard": False, "logging_level": "ERROR"}
    if address == "local":
        options |= {"num_cpus": os.cpu_count()}
    else:
        options.pop("include_dashboard")
    try:
        ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        where = "on this machine" if address == "local" else f"at {address}"
        reason = str(error).partition("\n")[0]
        token = "" if os.environ.get("RAY_AUTH_MODE") else "; if the cluster asks for a token, set RAY_AUTH_MODE=token"
        raise ClusterError(
            f"no Ray cluster answers {where}: {reason}; start one with `ray start --head`{token}"
        ) from error


def _require_answer(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ClusterError(f"the address is {address!r}; give host:port, ray://host:port or auto")
    try:
        with socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") in ("0", ""):
                _greet(connection)
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"no Ray cluster answers at {address}: {error}; start one with `ray start --head`, or check the address"
        ) from error


def _greet(connection: socket.socket) -> None:
    """Begin to speak gRPC, as Ray does: its server answers at once with a frame of settings.

    If something else listens there, or nothing answers, Ray itself would try again for minutes.
    """
    settings = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"  # HTTP/2: no bytes, type 4, no flags, stream 0
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
    answer = b""
    while len(answer) < len(settings):
        received = connection.recv(len(settings) - len(answer))
        if not received:
            break
        answer += received
    if answer[3:4] != b"\x04":
        raise OSError("what listens there is not Ray")
