"""Copies of the log for backups: what they have, commits meanwhile, and copies that end early."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leveret.broker.log import LogCopy
from leveret.node.checking import DirectoryCheck
from leveret.storage import copying, disk
from tests.storage.harness import FakeQueue, Harness, content, sqlite_log
from tests.support.polling import wait_until

SIZE = 20_000


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    """A log of about 6 MB: several slices and syncs."""
    harness = Harness(lambda: sqlite_log(tmp_path / "data"))
    queue = FakeQueue(1)
    for number in range(300):
        harness.publish(queue, body(number))
        if number % 10 == 9:
            harness.commit()
    yield harness
    harness.log.close()


def body(number: int) -> bytes:
    return b"%06d" % number + b"x" * SIZE


def recovered(copy: Path, tmp_path: Path) -> list[bytes]:
    """Return the bodies of queue 1 in a copy."""
    directory = tmp_path / "restored"
    directory.mkdir()
    shutil.copy(copy, directory / "log-0.sqlite")
    (directory / "log-0.sqlite-wal").touch()
    check = DirectoryCheck(directory)
    check.run()
    assert check.damaged == []
    harness = Harness(lambda: sqlite_log(directory))
    try:
        queue = harness.recovery.queues[1]
        return [content(loaded.message) for loaded in harness.load(queue.rows, queue.slots)]
    finally:
        harness.log.close()


def ended(copy: LogCopy) -> bool:
    return copy.is_complete or bool(copy.problem)


class Gate:
    """Holds up the syncs of copies until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        self._sync = disk.sync_file
        monkeypatch.setattr(disk, "sync_file", self)

    def __call__(self, path: str | Path) -> None:
        self.reached.set()
        assert self.open.wait(60)
        self._sync(path)


def test_commits_meanwhile_are_in_the_copy(harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    copy = harness.log.copy_to(str(tmp_path / "copy"), 0)
    assert gate.reached.wait(60)
    queue = FakeQueue(1)
    queue.seq = 300
    # More than what a sync of the copy leaves to do, in pages before and after the slices that are written already.
    for number in range(300, 340):
        harness.publish(queue, body(number))
        harness.commit()
    entries = [entry for number in range(2) for entry in harness.publish(queue, body(340 + number))]
    harness.commit()
    harness.log.settle(entries[0])
    harness.commit()
    assert not ended(copy)
    assert 0 < copy.copied < copy.total
    gate.open.set()
    wait_until(lambda: ended(copy), "the copy did not end")
    assert copy.problem == ""
    assert copy.copied == copy.total == (tmp_path / "copy").stat().st_size
    assert recovered(tmp_path / "copy", tmp_path) == [body(number) for number in [*range(340), 341]]


def test_messages_are_loaded_meanwhile(harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    entries = harness.publish(FakeQueue(2), b"loaded")
    harness.commit()
    copy = harness.log.copy_to(str(tmp_path / "copy"), 0)
    assert gate.reached.wait(60)
    assert [content(loaded.message) for loaded in harness.load_entries(entries)] == [b"loaded"]
    assert not ended(copy)
    gate.open.set()
    wait_until(lambda: copy.is_complete, "the copy did not end")


@pytest.mark.parametrize(("commit", "expected"), [(0, 24), (100_000, 24), (1 << 20, 6), (4 << 20, 2), (64 << 20, 2)])
def test_large_commits_do_not_outrun_the_copy(harness: Harness, tmp_path: Path, commit: int, expected: int) -> None:
    """Between two commits of this size, the copy continues for as many bytes, up to 4 MiB."""
    calls = []

    def interleave(wait: float = 0.0) -> int:
        if not wait:
            calls.append(commit)
        return commit

    copy = copying.DatabaseCopy(tmp_path / "copy", 0)
    with contextlib.closing(sqlite3.connect(tmp_path / "data" / "log-0.sqlite")) as connection:
        copy.write(connection, interleave)
    wait_until(lambda: ended(copy), "the copy did not end")
    assert copy.is_complete and abs(len(calls) - expected) <= 2


@pytest.mark.parametrize("how", ["cancelled", "closed", "low disk", "existing file", "no directory"])
def test_a_copy_that_ends_early(harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """The reason is known, no part of the copy remains, and the log continues."""
    gate = Gate(monkeypatch)
    target = tmp_path / ("missing/copy" if how == "no directory" else "copy")
    if how == "existing file":
        target.write_bytes(b"something else")
    copy = harness.log.copy_to(str(target), 1 << 60 if how == "low disk" else 0)
    if how in ("cancelled", "closed"):
        assert gate.reached.wait(60)
    if how == "cancelled":
        copy.cancel()
    if how == "closed":
        harness.reopen()
    gate.open.set()
    wait_until(lambda: ended(copy), "the copy did not end")
    assert not copy.is_complete
    expected = {
        "cancelled": "it was cancelled",
        "closed": "the broker stops",
        "low disk": "limits.disk_free",
        "existing file": "the file exists",
        "no directory": "No such file or directory",
    }
    assert expected[how] in copy.problem
    assert (target.read_bytes() == b"something else") if how == "existing file" else not target.exists()
    harness.publish(FakeQueue(3), b"after")
    harness.commit()


def test_a_full_disk_of_the_copy(harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the copy fails: the log does not take the error for its own."""
    target = tmp_path / "copy"
    connect = sqlite3.connect

    def on_full_disk(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.execute("PRAGMA max_page_count = 200")
        return connection

    # The log is open already: only the copy connects.
    monkeypatch.setattr(sqlite3, "connect", on_full_disk)
    copy = harness.log.copy_to(str(target), 0)
    wait_until(lambda: ended(copy), "the copy did not end")
    assert "full" in copy.problem and not target.exists()
    harness.publish(FakeQueue(3), b"after")
    harness.commit()
    assert harness.log.state == "ok"
