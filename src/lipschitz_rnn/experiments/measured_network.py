"""One network of the robustness study, and the file with its measurements.

Every network has its own file, so several processes can measure at once and in any order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lipschitz_rnn.experiments.paper import ROBUSTNESS
from lipschitz_rnn.experiments.runner import load_task
from lipschitz_rnn.experiments.target_loss import Taken, load_taken
from lipschitz_rnn.robustness.measuring import Method, measure
from lipschitz_rnn.training import RunError, Settings
from lipschitz_rnn.training.checkpoint import atomic_write
from lipschitz_rnn.training.parallel import choose_device
from lipschitz_rnn.training.processes import Watch
from lipschitz_rnn.training.reading import read_json


@dataclass(frozen=True)
class MeasuredNetwork:
    """The network at `index` in a finished run, with the weights of the epoch selected for the comparison."""

    name: str
    folder: Path
    settings: Settings
    index: int
    taken: Taken | None  # None if it diverged in its first epoch
    method: Method

    @property
    def file(self) -> Path:
        return self.folder / "measures" / f"network-{self.index}.json"

    def about(self) -> dict[str, Any]:
        """The seed and the selected epoch, for the record."""
        return {"seed": self.settings.members[self.index].seed, **(asdict(self.taken) if self.taken else {})}

    def read(self) -> dict[str, Any] | None:
        """The stored measurements, if they were made by the same method."""
        if self.taken is None or not self.file.exists():
            return None
        stored = read_json(self.file, fix="delete it to measure the network again")
        measured = stored.get("measured")
        return measured if stored.get("of") == self._depends_on(self.taken) and isinstance(measured, dict) else None

    def complete(self, watch: Watch) -> None:
        """Measure the network and write the file."""
        if self.taken is None:
            raise RunError("the network diverged in its first epoch; lower the learning rate")
        watch(self.name).note("measuring")
        started = time.monotonic()
        device = choose_device(self.settings.device)
        network, task = load_taken(self.folder, self.index, self.taken).to(device), load_task(self.settings).to(device)
        try:
            measured = measure(network, task, self.method, noise_only=self.settings.unit not in ROBUSTNESS)
        except ValueError as error:  # caused by its weights, not by the command: the other networks are still measured
            raise RunError(str(error)) from error
        self.file.parent.mkdir(exist_ok=True)
        kept = {"of": self._depends_on(self.taken), "measured": measured}
        atomic_write(self.file, (json.dumps(kept, indent=1) + "\n").encode())
        watch(self.name).note(f"measured in {time.monotonic() - started:.0f} s")

    def _depends_on(self, taken: Taken) -> Mapping[str, Any]:
        """What the measurements depend on. Another target loss that selects the same epoch changes nothing."""
        method = {name: value for name, value in asdict(self.method).items() if name != "target_loss"}
        return {"epoch": taken.epoch, "method": method}
