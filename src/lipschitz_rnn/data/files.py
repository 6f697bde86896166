"""`FileTask`: the task of `lipschitz-rnn train FILE`, built from plain options that a run folder records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from lipschitz_rnn.data.errors import SeriesError
from lipschitz_rnn.data.fitting import Missing, Scaling, TimeUse
from lipschitz_rnn.data.reading import read
from lipschitz_rnn.data.splits import DEFAULT, WARMUP
from lipschitz_rnn.data.target import Kind
from lipschitz_rnn.data.task import SeriesTask, SplitBy
from lipschitz_rnn.tasks.base import check_count


class FileTask(SeriesTask):
    """Series of a file. The same options and the same file give the same splits and the same preprocessing."""

    info = replace(SeriesTask.info, name="file", summary="series of your own file: lipschitz-rnn train FILE")

    def __init__(
        self,
        root: str | None = None,
        *,
        path: str = "",
        target: str | Sequence[str] | None = None,
        series: str | None = None,
        time: str | None = None,
        features: Sequence[str] | None = None,
        split: str | None = None,
        categories: Sequence[str] = (),
        sort: bool = False,
        kind: Kind | None = None,
        fractions: Sequence[float] = DEFAULT,
        split_seed: int = 0,
        split_by: SplitBy = "auto",
        scaling: Scaling = "standard",
        missing: Missing = "auto",
        times: TimeUse = "auto",
        step_size: float | None = None,
        longest_gap: float = 10.0,
        class_weights: Literal["none", "balanced"] = "none",
        window: int = 100,
        warmup: int = WARMUP,
        horizon: int = 20,
        like: Mapping[str, Any] | None = None,
    ) -> None:
        """The options of `read`, of `SeriesTask`, and of `Preprocessing.fit`. A forecast's `target` names the columns
        to forecast, which are inputs as well; `horizon` is how many samples ahead free runs go. A file that is not at
        `path` may lie in the folder `root`."""
        options = {name: value for name, value in locals().items() if name not in ("self", "root", "like", "__class__")}
        check_count("horizon", horizon)
        if not path:
            raise ValueError("the task 'file' needs a path; give the file itself: lipschitz-rnn train FILE")
        place = _find(path, root)
        goals = [target] if isinstance(target, str) else list(target or ())
        columns: dict[str, Any] = {"series": series, "time": time, "split": split, "categories": tuple(categories)}
        if kind == "forecast":
            wanted = None if features is None else list(dict.fromkeys([*features, *goals]))
            found = read(place, features=wanted, sort=sort, **columns)
        else:
            found = read(place, target=goals if len(goals) > 1 else target, features=features, sort=sort, **columns)
            if found.targets is None and kind is not None:
                raise SeriesError(f"{kind} needs a target; name its column in {Path(path).name} with --target")
        self.horizon, self._fingerprint = horizon, found.fingerprint()
        self.reading = {"target": goals, "features": list(found.columns), **columns, "categories": list(categories)}
        super().__init__(
            found,
            kind,
            fractions=fractions,
            split_seed=split_seed,
            split_by=split_by,
            forecast=goals or None,
            scaling=scaling,
            missing=missing,
            times=times,
            step_size=step_size,
            longest_gap=longest_gap,
            class_weights=class_weights,
            window=window,
            warmup=warmup,
            like=like,
        )
        self.options = options

    def record(self) -> dict[str, Any]:
        """Also how the file was read, so that other files are read the same way, what was in it, as a checksum, and how
        far forecasts go."""
        more: dict[str, Any] = {"reading": {**self.reading, "clock": self.series.clock.kind}}
        more["fingerprint"] = self._fingerprint
        return super().record() | more | ({"horizon": self.horizon} if self.kind == "forecast" else {})


def _find(path: str, root: str | None) -> Path:
    """The file at `path`, or the one of that name in the folder `root` if it was moved."""
    places = [Path(path)] if root is None else [Path(path), Path(root).expanduser() / Path(path).name]
    for place in places:
        if place.exists():
            return place
    raise SeriesError(
        f"there is no file {' and no '.join(map(str, places))}; check the path, or name the folder that holds "
        f"{Path(path).name} now with --data-dir (data_dir= in Python)"
    )
