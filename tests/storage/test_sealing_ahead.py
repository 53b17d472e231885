"""Batches that are sealed while the commit before them is written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.harness import FakeQueue, Harness, Waiter, sqlite_log
from tests.storage.test_trimming import settle
from tests.support.polling import wait_until


@pytest.fixture
def idle() -> list[Callable[[], None]]:
    """The callbacks of the log for an idle event loop."""
    return []


@pytest.fixture
def harness(tmp_path: Path, idle: list[Callable[[], None]]) -> Harness:
    return Harness(lambda: sqlite_log(tmp_path / "data"), idle.append)


def begin(harness: Harness, queue: FakeQueue, body: bytes) -> Waiter:
    """Publish a message, end the turn, and return its waiter."""
    harness.publish(queue, body)
    waiter = Waiter(harness.log)
    harness.log.flush()
    return waiter


def next_commit(harness: Harness) -> None:
    harness.loop.posted.get(timeout=60)()


def test_an_idle_loop_seals_the_next_batch(harness: Harness, idle: list[Callable[[], None]]) -> None:
    queue = FakeQueue(1)
    first, second = begin(harness, queue, b"1"), begin(harness, queue, b"2")
    assert len(idle) == 1
    idle.pop()()
    third = begin(harness, queue, b"3")
    assert not idle
    next_commit(harness)
    assert (len(first.batches), len(second.batches), len(third.batches)) == (1, 0, 0)
    next_commit(harness)
    assert (len(second.batches), len(third.batches)) == (1, 0)
    harness.loop.run_until(lambda: bool(third.batches))
    assert first.batches + second.batches + third.batches == sorted({*first.batches, *second.batches, *third.batches})
    assert harness.log.pending_bytes == 0
    harness.reopen()
    assert harness.bodies(1) == [b"1", b"2", b"3"]


def test_a_busy_loop_gathers_a_larger_batch(harness: Harness, idle: list[Callable[[], None]]) -> None:
    queue = FakeQueue(1)
    begin(harness, queue, b"1")
    second, third = begin(harness, queue, b"2"), begin(harness, queue, b"3")
    assert len(idle) == 1
    next_commit(harness)
    idle.pop()()  # too late: the batch is being written
    next_commit(harness)
    assert second.batches == third.batches != []


def test_a_sealed_batch_without_records(harness: Harness, idle: list[Callable[[], None]]) -> None:
    queue = FakeQueue(1)
    begin(harness, queue, b"1")
    settle(harness, *harness.publish(queue, b"2"))
    waiter = Waiter(harness.log)
    harness.log.flush()
    idle.pop()()
    next_commit(harness)
    assert waiter.batches == [harness.log.committed]
    assert not harness.log.has_pending()


def test_a_sealed_batch_is_written_when_the_log_closes(harness: Harness, idle: list[Callable[[], None]]) -> None:
    queue = FakeQueue(1)
    begin(harness, queue, b"1")
    begin(harness, queue, b"2")
    idle.pop()()
    harness.publish(queue, b"3")
    harness.reopen()
    assert harness.recovery.clean
    assert harness.bodies(1) == [b"1", b"2", b"3"]


def test_entries_are_settled_in_the_batch_after_their_own(harness: Harness, idle: list[Callable[[], None]]) -> None:
    """Their row is deleted by the sealed batch while it is being written."""
    queue = FakeQueue(1)
    entries = harness.publish(queue, b"1", b"2")
    begin(harness, queue, b"kept")
    settle(harness, *entries)
    begin(harness, queue, b"next")
    idle.pop()()
    harness.commit()
    harness.reopen()
    assert harness.bodies(1) == [b"kept", b"next"]


def test_a_batch_that_is_written_early_is_not_complete_before_its_turn(
    harness: Harness, idle: list[Callable[[], None]]
) -> None:
    """Only the metadata changes, which the worker releases when they are on disk."""

    def change(value: bytes) -> Waiter:
        harness.log.put("user", "ana", value)
        waiter = Waiter(harness.log)
        harness.log.flush()
        return waiter

    waiters = [change(b"1"), change(b"2")]
    idle.pop()()
    wait_until(lambda: harness.loop.posted.qsize() == 2)
    waiters.append(change(b"3"))
    for complete in range(1, 4):
        next_commit(harness)
        assert [len(waiter.batches) for waiter in waiters] == [1] * complete + [0] * (3 - complete)
    assert harness.reopen().metadata["user", "ana"] == b"3"


def test_the_worker_releases_changes_of_the_metadata(harness: Harness) -> None:
    """The event loop would take ten times as long, because the worker has used the objects on another processor."""
    threads: list[str] = []

    class Value(bytes):
        def __del__(self) -> None:
            threads.append(threading.current_thread().name)

    harness.log.put("user", "ana", Value(b"1"))
    harness.commit()
    assert threads == ["leveret-log-0"]
