"""Checkpoint rounds concurrent with commits: no round may begin on a log that the next commit resets."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leveret.storage.checkpointer import FEW_PAGES, Checkpointer
from tests.support.polling import wait_until

PAGES = 10 * FEW_PAGES


class SlowConnection:
    """Blocks each checkpoint until it is released; counts them."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.go = threading.Semaphore(0)
        self.begun = 0

    def execute(self, statement: str) -> Any:
        self.begun += 1
        self.go.acquire()
        return self.connection.execute(statement)

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[tuple[sqlite3.Connection, SlowConnection, Checkpointer]]:
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "log.sqlite", isolation_level=None, check_same_thread=False)

    writer = connect()
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("PRAGMA wal_autocheckpoint = 0")
    writer.execute("CREATE TABLE log(x)")
    slow = SlowConnection(connect())
    checkpointer = Checkpointer(slow)  # type: ignore[arg-type]
    yield writer, slow, checkpointer
    slow.go.release(100)
    checkpointer.close()
    writer.close()


def test_a_round_begins_only_after_a_complete_commit(
    database: tuple[sqlite3.Connection, SlowConnection, Checkpointer],
) -> None:
    writer, slow, checkpointer = database

    def commit() -> None:
        checkpointer.committing()
        writer.execute("INSERT INTO log VALUES (1)")

    def end_round() -> None:
        slow.go.release()
        checkpointer.wait()

    commit()
    assert not checkpointer.advance(PAGES) and checkpointer.busy
    # The round ends while a commit runs, so it is unknown whether it has the pages of that commit.
    checkpointer.committing()
    end_round()
    writer.execute("INSERT INTO log VALUES (2)")
    assert not checkpointer.advance(2 * PAGES) and not checkpointer.busy
    wait_until(lambda: slow.begun == 1)
    # The next round begins and ends after the commit.
    commit()
    assert not checkpointer.advance(3 * PAGES) and checkpointer.busy
    end_round()
    assert slow.begun == 2
    # The round copied everything, and there was no commit since: the next commit resets the log.
    assert not checkpointer.advance(4 * PAGES) and not checkpointer.busy
    assert slow.begun == 2
    commit()
    assert not checkpointer.advance(5 * PAGES) and checkpointer.busy
    end_round()


def test_the_foreground_still_finishes(database: tuple[sqlite3.Connection, SlowConnection, Checkpointer]) -> None:
    writer, slow, checkpointer = database
    slow.go.release(10)
    checkpointer.committing()
    writer.execute("INSERT INTO log VALUES (1)")
    assert not checkpointer.advance(PAGES)
    checkpointer.wait()
    checkpointer.committing()
    writer.execute("INSERT INTO log VALUES (1)")
    assert checkpointer.advance(PAGES + FEW_PAGES)
    checkpointer.restart()
    assert checkpointer.rounds == 0
