"""Downloads against a server on 127.0.0.1: resumed, checked, from the next mirror, one good file for two processes."""

import errno
import multiprocessing
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from small_data import dataset, sha256

from lipschitz_rnn.tasks import DataError
from lipschitz_rnn.tasks.download import fetch
from lipschitz_rnn.tasks.files import read_dataset
from lipschitz_rnn.tasks.sources import Dataset, Download

BODY = np.random.default_rng(0).bytes(1_000_000)


class Mirror(BaseHTTPRequestHandler):
    """/good/x: the file, with ranges. /whole/x: without ranges. /broken/x: each answer ends after 300,000 bytes.
    /wrong/x: other bytes of the same length. /gone/x: 404. /failing/x: 503."""

    def do_GET(self) -> None:
        kind = self.path.split("/")[1]
        start = 0
        if (asked := self.headers.get("Range")) and kind != "whole":
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
        self.server.requests.append((kind, start))  # type: ignore[attr-defined]
        body = BODY[::-1] if kind == "wrong" else BODY
        if kind in ("gone", "failing"):
            self.send_error(404 if kind == "gone" else 503)
        elif start >= len(body):
            self.send_error(416)
        else:
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            self.wfile.write(body[start : start + 300_000] if kind == "broken" else body[start:])

    def log_message(self, *arguments: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Mirror) as mirror:
        mirror.requests = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=mirror.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield mirror
        mirror.shutdown()
        thread.join()


def original(server: ThreadingHTTPServer, *kinds: str) -> Download:
    host = f"http://127.0.0.1:{server.server_port}"
    return Download("x.bin", tuple(f"{host}/{kind}/x.bin" for kind in kinds), f"sha256:{sha256(BODY)}")


def assert_only_the_file(folder: Path) -> None:
    assert (folder / "x.bin").read_bytes() == BODY
    assert sorted(path.name for path in folder.iterdir()) == [".x.bin.lock", "x.bin"]


def test_a_file_is_fetched_once(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    for _ in range(2):
        assert fetch(original(server, "good"), tmp_path / "deep" / "folder") == tmp_path / "deep" / "folder" / "x.bin"
    assert_only_the_file(tmp_path / "deep" / "folder")
    assert server.requests == [("good", 0)]  # type: ignore[attr-defined]


def test_a_part_is_resumed(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    (tmp_path / "x.bin.part").write_bytes(BODY[:400_000])
    fetch(original(server, "good"), tmp_path)
    assert_only_the_file(tmp_path)
    assert server.requests == [("good", 400_000)]  # type: ignore[attr-defined]


def test_a_complete_part_needs_no_bytes(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    (tmp_path / "x.bin.part").write_bytes(BODY)
    fetch(original(server, "good"), tmp_path)
    assert_only_the_file(tmp_path)


def test_a_server_without_ranges_starts_again(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    (tmp_path / "x.bin.part").write_bytes(BODY[:400_000])
    fetch(original(server, "whole"), tmp_path)
    assert_only_the_file(tmp_path)


def test_a_broken_connection_goes_on_where_it_stopped(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    fetch(original(server, "broken", "good"), tmp_path)
    assert_only_the_file(tmp_path)
    starts = [("broken", 0), ("broken", 300_000), ("broken", 600_000), ("good", 900_000)]
    assert server.requests == starts  # type: ignore[attr-defined]


def test_a_corrupted_mirror_is_left_for_the_next(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    fetch(original(server, "gone", "failing", "wrong", "good"), tmp_path)
    assert_only_the_file(tmp_path)
    kinds = [kind for kind, _ in server.requests]  # type: ignore[attr-defined]
    assert kinds == ["gone", "failing", "wrong", "good"]


def test_a_wrong_beginning_is_thrown_away(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    (tmp_path / "x.bin.part").write_bytes(b"from another file")
    fetch(original(server, "good"), tmp_path)
    assert_only_the_file(tmp_path)
    assert server.requests == [("good", 17), ("good", 0)]  # type: ignore[attr-defined]


def test_no_good_mirror_leaves_no_file_and_says_why(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        fetch(original(server, "wrong", "gone"), tmp_path)
    message = str(caught.value)
    assert f"expected {sha256(BODY)}" in message
    assert "Not Found" in message
    assert f"put the file into {tmp_path}/" in message
    assert [path.name for path in tmp_path.iterdir()] == [".x.bin.lock"]


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"(?s)x\.bin.*http://127\.0\.0\.1:9/x: .*refused"):
        fetch(Download("x.bin", ("http://127.0.0.1:9/x",), None), tmp_path)


def test_a_check_of_the_contents_decides_where_no_checksum_is_known(
    server: ThreadingHTTPServer, tmp_path: Path
) -> None:
    def check(path: Path) -> None:
        if path.read_bytes() != BODY:
            raise DataError("other contents")

    download = original(server, "wrong", "good")
    fetch(Download(download.name, download.urls, None), tmp_path, check)
    assert_only_the_file(tmp_path)


def test_a_cache_that_cannot_be_written(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot be written: .*XDG_CACHE_HOME"):
        fetch(original(server, "good"), tmp_path / "file")


def test_a_bar_is_shown_on_a_terminal_only(
    server: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch(original(server, "good"), tmp_path / "quiet")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    fetch(original(server, "good"), tmp_path / "shown")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "x.bin" in shown.err
    assert_only_the_file(tmp_path / "shown")


def test_a_full_disk(server: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("lipschitz_rnn.tasks.download.os.fsync", full)
    with pytest.raises(DataError, match=r"x\.bin.*No space left on device"):
        fetch(original(server, "good"), tmp_path)
    assert not (tmp_path / "x.bin").exists()
    monkeypatch.undo()
    fetch(original(server, "good"), tmp_path)
    assert_only_the_file(tmp_path)


def tiny(server: ThreadingHTTPServer) -> Dataset:
    return Dataset("tiny", "tiny", {"x.bin": sha256(BODY)}, {"x.bin": original(server, "wrong", "good")})


def test_a_data_set_is_downloaded_into_the_cache(server: ThreadingHTTPServer, own_cache: Path) -> None:
    assert read_dataset(tiny(server), None, offline=False) == {"x.bin": BODY}
    assert_only_the_file(own_cache / "tiny")


def test_offline_never_tries(server: ThreadingHTTPServer) -> None:
    with pytest.raises(DataError, match=r"x.bin was not found"):
        read_dataset(tiny(server), None, offline=True)
    assert server.requests == []  # type: ignore[attr-defined]


def test_nothing_is_downloaded_over_a_damaged_file(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"damaged")
    with pytest.raises(DataError, match="is not the original"):
        read_dataset(dataset({"x.bin": BODY}, "tiny"), tmp_path, offline=False)
    assert (tmp_path / "x.bin").read_bytes() == b"damaged"


def _fetch_into(download: Download, folder: Path, barrier: "multiprocessing.synchronize.Barrier") -> None:
    barrier.wait(120)
    fetch(download, folder)


@pytest.mark.full
def test_two_processes_end_with_one_good_file(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    arguments = (original(server, "broken", "good"), tmp_path, barrier)
    workers = [context.Process(target=_fetch_into, args=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert_only_the_file(tmp_path)
    assert len(server.requests) == 4  # one process transferred, the other waited  # type: ignore[attr-defined]
