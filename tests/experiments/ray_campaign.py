"""A sweep on a Ray cluster of three nodes on this machine, disturbed while it runs; started in a process of its own.

`python ray_campaign.py OUT RUNS EPOCHS` kills a node once a third of the runs have ended, and kills or terminates the
process of a run every few seconds, but not before another run has ended: on a slow machine, nothing would ever end.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])  # for the nodes' processes
# A lost node is noticed within seconds.
os.environ.update({"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "3"})

import ray
from ray.cluster_utils import Cluster
from tiny_sweeps import tiny_sweep

from lipschitz_rnn.experiments.engines.base import Ended
from lipschitz_rnn.experiments.engines.cluster import RayEngine
from lipschitz_rnn.experiments.sweeps import run_sweep


def runs_of(raylets: list[int]) -> list[int]:
    """Processes that these nodes have started and that are in a run now."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            title = (path / "cmdline").read_bytes()
        except (OSError, IndexError):
            continue
        if parent in raylets and title.startswith(b"ray::_run"):
            found.append(int(path.name))
    return found


def raylets(cluster: Cluster) -> list[int]:
    return [info[0].process.pid for node in cluster.list_all_nodes() for name, info in node.all_processes.items()
            if name == "raylet"]  # fmt: skip


class Disturbed(RayEngine):
    """Counts what ends; the killer reads it."""

    done = 0

    def wait(self, seconds: float) -> list[Ended]:
        ended = super().wait(seconds)
        self.done += len(ended)
        return ended


def main(out: str, runs: int, epochs: int) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)]
    cluster.wait_for_nodes()
    killed = {"nodes": 0, "SIGKILL": 0, "SIGTERM": 0}
    over = threading.Event()
    draw = random.Random(0)

    def disturb(engine: Disturbed) -> None:
        last, ended = time.monotonic(), 0
        while not over.wait(0.2):
            if not killed["nodes"] and engine.done >= runs // 3:
                cluster.remove_node(nodes[0], allow_graceful=False)
                killed["nodes"] += 1
            due = time.monotonic() - last > draw.uniform(3.0, 7.0) and engine.done > ended
            if due and (found := runs_of(raylets(cluster))):
                kind = "SIGTERM" if killed["SIGTERM"] < killed["SIGKILL"] else "SIGKILL"  # in turn
                try:
                    os.kill(draw.choice(found), getattr(signal, kind))
                    killed[kind] += 1
                except ProcessLookupError:
                    pass
                last, ended = time.monotonic(), engine.done

    space = {"learning_rate": [0.001 * (number + 1) for number in range(runs)]}
    with Disturbed(cluster.address) as engine:
        thread = threading.Thread(target=disturb, args=(engine,))
        thread.start()
        try:
            outcome = run_sweep(tiny_sweep(space, epochs=epochs), out, engine=engine, threads=1)
        finally:
            over.set()
            thread.join()
    states = [each.state for each in outcome.trials]
    print(json.dumps({"states": states, "ended": engine.done, **killed}))
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
