"""A failing disk: the log stops, confirms nothing more, retries nothing, and a new log recovers the confirmed messages."""

from __future__ import annotations

import errno
import os
import sqlite3
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leveret.broker.errors import StorageFailed
from leveret.broker.log import FAILED, FULL, OK
from leveret.broker.message import Entry
from tests.storage.harness import FakeQueue, Harness, Waiter, sqlite_log

pytestmark = pytest.mark.embedded("makes SQLite fail")


class FailingConnection:
    """A connection whose statements fail when `fails` returns true."""

    def __init__(self, connection: sqlite3.Connection, fails: Callable[[str], int]) -> None:
        self.connection = connection
        self.fails = fails
        self.failed: list[str] = []
        self.after_failure: list[str] = []

    @property
    def in_transaction(self) -> bool:
        return self.connection.in_transaction

    def execute(self, statement: str, parameters: Any = ()) -> Any:
        if self.failed:
            self.after_failure.append(statement)
        code = self.fails(statement)
        if code:
            self.failed.append(statement)
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = code
            error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
            raise error
        return self.connection.execute(statement, parameters)

    def executescript(self, script: str) -> Any:
        return self.connection.executescript(script)

    def close(self) -> None:
        self.connection.close()


def failing(path: Path, fails: Callable[[str], int]) -> tuple[Harness, FailingConnection]:
    """A log with two confirmed messages, whose disk starts to fail."""
    harness = Harness(lambda: sqlite_log(path))
    log: Any = harness.log
    queue = FakeQueue(1)
    harness.publish(queue, b"one", b"two")
    harness.commit()
    log._worker.close()
    connection = FailingConnection(log._store._connection, fails)
    log._store._connection = connection
    log.start(harness.loop.post)
    return harness, connection


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("INSERT INTO log", sqlite3.SQLITE_IOERR_FSYNC),
        ("INSERT INTO log", sqlite3.SQLITE_IOERR_WRITE),
        ("INSERT INTO log", sqlite3.SQLITE_CORRUPT),
        ("INSERT INTO log", sqlite3.SQLITE_READONLY),
        ("BEGIN", sqlite3.SQLITE_BUSY),
        ("COMMIT", sqlite3.SQLITE_IOERR_FSYNC),
        ("INSERT OR REPLACE INTO metadata", sqlite3.SQLITE_IOERR_WRITE),
    ],
)
def test_an_error_stops_the_log_for_good(tmp_path: Path, what: str, code: int) -> None:
    harness, connection = failing(tmp_path / "data", lambda statement: code if statement.startswith(what) else 0)
    log = harness.log
    states: list[str] = []
    log.on_state = lambda: states.append(log.state)
    queue = FakeQueue(1)
    harness.publish(queue, b"three")
    if "INTO log" not in what:
        log.put("kind", "key", b"value")
    waiter = Waiter(log)
    log.flush()
    harness.publish(queue, b"four")
    later = Waiter(log)
    harness.loop.run_until(lambda: log.state != OK)
    assert states == [FAILED]
    assert "disk I/O error" in log.reason
    log.flush()
    harness.loop.run_pending()
    assert not waiter.batches
    assert not later.batches
    # Nothing was retried: a second fsync would report success.
    assert len(connection.failed) == 1
    assert connection.after_failure in ([], ["ROLLBACK"])
    with pytest.raises(StorageFailed, match="not closed properly"):
        log.close()
    # A new log continues from the confirmed state.
    harness.begin()
    assert not harness.recovery.clean
    assert harness.bodies(1) == [b"one", b"two"]
    harness.log.close()


@pytest.mark.parametrize("beside", [True, False])
def test_a_failed_checkpoint_stops_the_log_too(tmp_path: Path, beside: bool) -> None:
    def fails(statement: str) -> int:
        return sqlite3.SQLITE_IOERR_FSYNC if "wal_checkpoint" in statement else 0

    harness, _ = failing(tmp_path / "data", (lambda statement: 0) if beside else fails)
    log: Any = harness.log
    if beside:
        checkpointer = log._store.checkpointer
        checkpointer.connection = FailingConnection(checkpointer.connection, fails)
    queue = FakeQueue(2)
    confirmed: list[Entry] = []
    while log.state == OK:
        entries = harness.publish(queue, b"x" * 1_000_000)
        waiter = Waiter(log)
        log.flush()
        harness.loop.run_until(lambda: bool(waiter.batches or log.state == FAILED))  # noqa: B023
        if waiter.batches:
            confirmed += entries
        assert queue.seq < 200, "no checkpoint is made"
    assert "disk I/O error" in log.reason
    assert len(confirmed) > 10
    with pytest.raises(StorageFailed):
        harness.log.close()
    harness.begin()
    # The last commit may have been on disk, but was not confirmed.
    assert harness.bodies(2)[: len(confirmed)] == [entry.message.body for entry in confirmed]
    harness.log.close()


def test_a_row_that_cannot_be_read_stops_the_log(tmp_path: Path) -> None:
    harness, _ = failing(
        tmp_path / "data", lambda statement: sqlite3.SQLITE_IOERR_READ if "SELECT settled" in statement else 0
    )
    queue = FakeQueue(3)
    entries = harness.publish(queue, b"a")
    harness.commit()
    loaded: list[Any] = []
    harness.log.load(array("Q", [entries[0].row.id if entries[0].row else 0]), array("I", [entries[0].slot]), loaded.append)
    harness.loop.run_until(lambda: harness.log.state == FAILED)
    assert not loaded
    with pytest.raises(StorageFailed):
        harness.log.close()


def test_an_error_while_closing_is_reported(tmp_path: Path) -> None:
    harness, _ = failing(
        tmp_path / "data", lambda statement: sqlite3.SQLITE_IOERR_FSYNC if "INTO state" in statement else 0
    )
    with pytest.raises(StorageFailed, match="disk I/O error"):
        harness.log.close()
    # The directory is unlocked nevertheless, and the stop counts as unclean.
    harness.begin()
    assert not harness.recovery.clean
    assert harness.bodies(1) == [b"one", b"two"]
    harness.log.close()


class Quota:
    """An exhausted quota: SQLite reports EDQUOT as a failed write."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.used_up = False
        write = os.write

        def refused(descriptor: int, data: bytes) -> int:
            if self.used_up:
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
            return write(descriptor, data)

        patch.setattr(os, "write", refused)

    def fails(self, statement: str) -> int:
        return sqlite3.SQLITE_IOERR_WRITE if self.used_up and statement.startswith(("INSERT INTO log", "COMMIT")) else 0


@pytest.mark.parametrize("definition", [False, True])
def test_a_quota_that_is_used_up_is_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, definition: bool) -> None:
    quota = Quota(monkeypatch)
    harness, connection = failing(tmp_path / "data", quota.fails)
    quota.used_up = True
    log: Any = harness.log
    states: list[str] = []
    log.on_state = lambda: states.append(log.state)
    harness.publish(FakeQueue(1), b"three")
    if definition:
        log.put("kind", "key", b"value")
    waiter = Waiter(log)
    log.flush()
    harness.loop.run_until(lambda: log.state != OK)
    assert log.state == FULL and "the disk quota is used up" in log.reason
    assert not waiter.batches
    quota.used_up = False
    harness.loop.run_until(lambda: bool(waiter.batches) and log.state == OK)
    assert states == [FULL, OK] and connection.failed
    monkeypatch.undo()
    assert not list((tmp_path / "data").glob(".space-*"))
    log._store._connection = connection.connection
    assert harness.reopen().clean
    assert sorted(harness.bodies(1)) == [b"one", b"three", b"two"]
    log = harness.log
    log.close()


def test_a_sync_that_fails_is_an_error_even_without_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quota = Quota(monkeypatch)
    harness, _ = failing(
        tmp_path / "data", lambda statement: sqlite3.SQLITE_IOERR_FSYNC if statement.startswith("INSERT INTO log") else 0
    )
    quota.used_up = True
    harness.publish(FakeQueue(1), b"three")
    Waiter(harness.log)
    harness.log.flush()
    harness.loop.run_until(lambda: harness.log.state != OK)
    assert harness.log.state == FAILED
    with pytest.raises(StorageFailed):
        harness.log.close()
