"""Files of a run that are truncated, swapped, empty or of another kind: a RunError or CheckpointError names them."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from tiny_tasks import SignTask, tiny_settings

from lipschitz_rnn.experiments.pretrained import export_pretrained
from lipschitz_rnn.experiments.report import write_report
from lipschitz_rnn.training import CheckpointError, RunError, Watcher, fit
from lipschitz_rnn.training.checkpoint import atomic_write, read_checkpoint, write_checkpoint
from lipschitz_rnn.training.history import read_run
from lipschitz_rnn.training.runs import load_run

SETTINGS = tiny_settings(epochs=2, seeds=(0, 1))
OTHER_KINDS: dict[str, bytes] = {
    "empty": b"", "zip": b"PK\x03\x04" + bytes(40), "gzip": b"\x1f\x8b" + bytes(40), "pickle": b"\x80\x04." + bytes(40),
    "list": b"[]", "number": b"7", "null": b"null", "text": b"hello", "not utf-8": b"\xff\xfe{}",
    "deep": b"[" * 200_000, "object": b"{}", "large header": b"\xff" * 8 + b"{}", "nul": bytes(64),
}  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    fit(SETTINGS, SignTask(), folder / "run")
    fit(tiny_settings(epochs=2, seeds=(0, 1), hidden_size=7), SignTask(), folder / "larger")
    fit(tiny_settings(epochs=2, seeds=(3, 4)), SignTask(), folder / "others")
    return folder


@pytest.fixture
def runs(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "runs"))


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def readers(run: Path) -> dict[str, list[Any]]:
    """Who reads which file."""
    weights = [lambda: load_run(run).networks]
    return {
        "config.json": [*weights, lambda: read_run(run), lambda: fit(SETTINGS, SignTask(), run, resume=True)],
        "task.json": weights,
        "environment.json": [lambda: read_run(run)],
        "result.json": [lambda: read_run(run), lambda: export_pretrained(run, run.parent / "x.safetensors")],
        "metrics.jsonl": [lambda: read_run(run)],
        "checkpoints/best.safetensors": weights,
    }


@pytest.mark.parametrize("name", list(readers(Path())))
@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_content_of_another_kind(runs: Path, name: str, kind: str) -> None:
    file = runs / "run" / name
    # A line of metrics that is not complete may be in the making: it is left out, as is an empty file.
    file.write_bytes(OTHER_KINDS[kind] + (b"\n" if name == "metrics.jsonl" and kind != "empty" else b""))
    harmless = (name == "environment.json" and kind == "object") or (name == "metrics.jsonl" and kind == "empty")
    before = everything(runs)
    for read in readers(runs / "run")[name]:
        if harmless:
            read()
            continue
        with pytest.raises((RunError, CheckpointError), match=re.escape(file.name)):
            read()
    assert everything(runs) == before


@pytest.mark.parametrize("name", list(readers(Path())))
def test_a_folder_in_place_of_a_file_and_a_file_that_is_gone(runs: Path, name: str) -> None:
    file = runs / "run" / name
    file.unlink()
    file.mkdir()
    for read in readers(runs / "run")[name]:
        with pytest.raises((RunError, CheckpointError), match=re.escape(file.name)):
            read()
    file.rmdir()
    optional = name in ("environment.json", "metrics.jsonl", "result.json")
    for read in readers(runs / "run")[name][: 0 if name == "config.json" else 1]:
        if optional:
            read()  # a run that is not complete
        else:
            with pytest.raises((RunError, CheckpointError)):
                read()


@pytest.mark.parametrize("name", list(readers(Path())))
def test_a_file_cut_off_anywhere(runs: Path, name: str) -> None:
    file = runs / "run" / name
    whole = file.read_bytes()
    for share in (0.0, 0.1, 0.5, 0.9):
        file.write_bytes(whole[: int(share * len(whole))])
        for read in readers(runs / "run")[name]:
            told = file.name if name == "metrics.jsonl" else ""  # its last line may be in the making
            try:
                read()
            except (RunError, CheckpointError) as error:
                told = str(error)
            assert file.name in told


WRONG_VALUES: list[tuple[str, dict[str, Any]]] = [
    ("config.json", {"hidden_size": "5"}),
    ("config.json", {"unknown": 1}),
    ("task.json", {"input_size": -1}),
    ("task.json", {"input_size": "2"}),
    ("task.json", {"readout": "first"}),
    ("task.json", {"vocabulary": 0}),
    ("task.json", {"options": []}),
    ("task.json", {"input_size": 3}),  # the weights do not fit it
    ("result.json", {"seeds": []}),
    ("result.json", {"seeds": [{}, {}]}),
    ("result.json", {"parameters": "many"}),
    ("result.json", {"seconds": None}),
]


@pytest.mark.parametrize(("name", "changes"), WRONG_VALUES)
def test_wrong_values_in_json(runs: Path, name: str, changes: dict[str, Any]) -> None:
    file = runs / "run" / name
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    for read in readers(runs / "run")[name]:
        with pytest.raises((RunError, CheckpointError)):
            read()


@pytest.mark.parametrize(
    "line",
    [{}, {"kind": 3}, {"kind": "train"}, {"kind": "train", "epoch": 0, "step": 1}, {"kind": "train", "epoch": "0"},
     {"kind": "train", "epoch": 0, "step": 1, "loss": [1.0]}, {"kind": "probe", "epoch": 0, "step": 1, "A": ["x", 1]},
     {"kind": "validation", "epoch": 0, "step": True, "loss": [1.0, 1.0]},
     {"kind": "train", "epoch": 0, "step": 1, "loss": [1.0, 1.0], "seconds": "long"}],
    ids=str,
)  # fmt: skip
def test_wrong_lines_of_metrics(runs: Path, line: dict[str, Any]) -> None:
    metrics = runs / "run" / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes() + json.dumps(line).encode() + b"\n")
    before = everything(runs)
    with pytest.raises(RunError, match=r"line \d+ of .*metrics.jsonl .*resume the run"):
        write_report([runs / "run"], runs / "report")
    assert everything(runs) == before


def test_checkpoints_of_another_run_are_refused(runs: Path) -> None:
    """Of other shapes, and of equal shapes but other seeds."""
    for other, name in (("larger", "best.safetensors"), ("others", "best.safetensors")):
        shutil.copy(runs / other / "checkpoints" / name, runs / "run" / "checkpoints" / name)
        with pytest.raises(CheckpointError, match=r"best\.safetensors belongs to another run"):
            load_run(runs / "run").checkpoint()
    newest = sorted((runs / "run" / "checkpoints").glob("step-*"))
    for path in newest:
        shutil.copy(runs / "others" / "checkpoints" / path.name, path)
    with pytest.raises(RunError, match=r"no checkpoint in .* can be read"):
        load_run(runs / "run").checkpoint("last")
    with pytest.raises(RunError, match=r"no checkpoint in .* can be read"):
        fit(SETTINGS, SignTask(), runs / "run", resume=True)


class Notes(Watcher):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def test_a_renamed_checkpoint_is_not_taken_for_a_later_one(runs: Path) -> None:
    older, newer = sorted((runs / "run" / "checkpoints").glob("step-*"))
    shutil.copy(older, newer)
    (runs / "run" / "checkpoints" / "step-notes.safetensors").write_text("not ours")
    notes = Notes()
    result = fit(SETTINGS, SignTask(), runs / "run", resume=True, watcher=notes)
    assert any("was renamed" in note for note in notes.notes)
    assert result.steps == 8


def test_shortened_metrics_are_not_filled_with_nothing(runs: Path) -> None:
    """Cutting back to the checkpoint's length would lengthen them, by zeros."""
    metrics = runs / "run" / "metrics.jsonl"
    content = metrics.read_bytes()
    metrics.write_bytes(content[: content.index(b"\n") + 10])
    notes = Notes()
    fit(SETTINGS, SignTask(), runs / "run", resume=True, watcher=notes)
    assert any("metrics.jsonl has" in note and "lost" in note for note in notes.notes)
    assert b"\0" not in metrics.read_bytes()
    read_run(runs / "run")


def test_a_checkpoint_with_a_valid_checksum_and_a_wrong_state(tmp_path: Path) -> None:
    from lipschitz_rnn.storage import checksum

    path = tmp_path / "x.safetensors"
    for text in ("", "[]", "{", "[" * 100_000):
        tensors = {"a": torch.zeros(2)}
        path.write_bytes(save(tensors, metadata={"state": text, "sha256": checksum(tensors, text)}))
        with pytest.raises(CheckpointError, match=r"x.safetensors cannot be read: its state"):
            read_checkpoint(path)
    path.write_bytes(save(tensors))
    with pytest.raises(CheckpointError, match="does not match the checksum"):
        read_checkpoint(path)


def test_a_write_never_follows_a_planted_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").write_text("mine")
    monkeypatch.setattr("os.getpid", lambda: 7)
    (tmp_path / ".x.7.tmp").symlink_to(tmp_path / "mine")
    atomic_write(tmp_path / "x", b"new")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "x").read_bytes() == b"new"


def test_a_write_that_breaks_off_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.safetensors"
    write_checkpoint(path, {"a": torch.ones(3)}, {"epoch": 1})

    def broken(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="No space"):
        write_checkpoint(path, {"a": torch.zeros(3)}, {"epoch": 2})
    monkeypatch.undo()
    assert read_checkpoint(path)[1] == {"epoch": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["x.safetensors"]


def test_a_folder_of_runs_names_them(runs: Path, tmp_path: Path) -> None:
    """As of `quickstart`, which trains two."""
    names = ", ".join(str(runs / name) for name in ("larger", "others", "run"))
    with pytest.raises(RunError, match=re.escape(names)):
        load_run(runs)
    for path, part in (
        (tmp_path / "none", "it does not exist"),
        (runs / "run" / "config.json", "but a file"),
        (runs / "run" / "checkpoints", "it has no config.json"),
        (Path("x" * 5000), "does not exist"),
        (Path("a\0b"), "does not exist"),
        (Path("ünï/研究"), "does not exist"),
    ):
        with pytest.raises(RunError, match=f"is not a run folder.*{part}"):
            load_run(path)


def test_an_empty_name_is_no_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="empty"):
        fit(SETTINGS, SignTask(), "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["EINVAL", "ENOTSUP", "EIO"])
def test_a_file_system_that_syncs_files_only_takes_a_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, sync = getattr(errno, name), os.fsync

    def files_only(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", files_only)
    if name == "EIO":  # a fault of the disk
        with pytest.raises(RunError, match=os.strerror(number)):
            fit(SETTINGS, SignTask(), tmp_path / "run")
    else:
        fit(SETTINGS, SignTask(), tmp_path / "run")
        assert len(load_run(tmp_path / "run").networks) == 2
