"""A full disk: nothing is lost, nothing is confirmed that is not on disk, and the store recovers by itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leveret.broker.errors import StorageFailed
from leveret.broker.log import FULL, OK
from leveret.broker.message import Entry
from tests.storage.harness import FakeQueue, Harness, Waiter, sqlite_log
from tests.support.polling import wait_until

BODY = bytes(range(256)) * 64  # 16 KiB


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A separate file system of 64 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a file system of a given size can only be mounted by root")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def limit(harness: Harness, pages: int) -> None:
    """Limit the database file to this many more pages."""
    log: Any = harness.log
    connection = log._store._connection
    present = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {present + pages}")


def pump(harness: Harness, condition: Any) -> None:
    """Run the loop until a condition holds that only the worker can cause."""

    def met() -> bool:
        harness.loop.run_pending()
        return bool(condition())

    wait_until(met)


def states_of(harness: Harness) -> list[str]:
    states: list[str] = []
    harness.log.on_state = lambda: states.append(harness.log.state)
    return states


def test_a_commit_that_finds_no_space_is_kept_and_tried_again(tmp_path: Path) -> None:
    harness = Harness(lambda: sqlite_log(tmp_path / "data"))
    log: Any = harness.log
    queue = FakeQueue(1)
    harness.publish(queue, b"first")
    harness.commit()
    log._worker.close()
    limit(harness, 20)
    log.start(harness.loop.post)
    states = states_of(harness)
    bodies = [b"%02d" % number + BODY for number in range(20)]
    harness.publish(queue, *bodies)
    waiter = Waiter(log)
    log.flush()
    pump(harness, lambda: log.state == FULL)
    assert not waiter.batches
    assert "no space is left" in log.reason
    # More records arrive and wait.
    harness.publish(queue, b"later")
    later = Waiter(log)
    log.flush()
    harness.loop.run_pending()
    assert not later.batches
    log._store._connection.execute("PRAGMA max_page_count = 1000000")
    pump(harness, lambda: waiter.batches and later.batches and log.state == OK)
    assert states == [FULL, OK]
    assert log.reason == ""
    harness.reopen()
    assert harness.bodies(1) == [b"first", *bodies, b"later"]
    harness.log.close()


def test_loads_continue_while_a_commit_finds_no_space(tmp_path: Path) -> None:
    harness = Harness(lambda: sqlite_log(tmp_path / "data"))
    log: Any = harness.log
    queue = FakeQueue(1)
    entries = harness.publish(queue, b"one", b"two")
    harness.commit()
    log._worker.close()
    limit(harness, 5)
    log.start(harness.loop.post)
    harness.publish(queue, BODY * 10)
    Waiter(log)
    log.flush()
    pump(harness, lambda: log.state == FULL)
    assert [item.message.body for item in harness.load_entries(entries)] == [b"one", b"two"]
    with pytest.raises(StorageFailed, match="not closed properly"):
        log.close()
    harness.begin()
    assert not harness.recovery.clean
    assert harness.bodies(1) == [b"one", b"two"]
    harness.log.close()


def test_a_real_disk_that_fills_up_drains_and_fills_again(small_disk: Path) -> None:
    reserve = 8 << 20
    harness = Harness(lambda: sqlite_log(small_disk / "data", reserve_bytes=reserve))
    log: Any = harness.log
    # All of them, because the state may be OK again before the test looks: writing accepted messages frees space, too.
    states: list[tuple[str, str]] = []
    log.on_state = lambda: states.append((log.state, log.reason))
    queue = FakeQueue(1)
    confirmed: list[Entry] = []
    for _ in range(2):
        before = len(states)
        waiting: list[tuple[Waiter, list[Entry]]] = []
        while len(states) == before:
            entries = harness.publish(queue, *[b"%08d" % queue.seq + BODY for _ in range(8)])
            waiting.append((Waiter(log), entries))
            log.flush()
            # Publishers are not read while many records are pending.
            pump(harness, lambda: log.pending_bytes < 1 << 20)
            assert queue.seq < 100_000, "the disk does not fill up"
        # The broker stops publishers; accepted messages still reach the disk, thanks to the reserve.
        pump(harness, lambda: all(waiter.batches for waiter, _ in waiting))  # noqa: B023
        for _, entries in waiting:
            confirmed += entries
        state, reason = states[before]
        assert state == FULL
        assert reason
        # Consumers drain: settlements commit although the disk is full, which frees space.
        while len(confirmed) > 100:
            for entry in confirmed[:50]:
                log.settle(entry)
            del confirmed[:50]
            harness.commit()
        pump(harness, lambda: log.state == OK)
    assert len(states) >= 4
    assert [state for state, _ in states] == [FULL, OK] * (len(states) // 2)
    harness.reopen()
    assert harness.bodies(1) == [entry.message.body for entry in confirmed]
    harness.log.close()


def test_a_disk_that_others_fill_stops_publishers_in_time(small_disk: Path) -> None:
    harness = Harness(lambda: sqlite_log(small_disk / "data", reserve_bytes=4 << 20))
    log: Any = harness.log
    queue = FakeQueue(1)
    harness.publish(queue, b"before")
    harness.commit()
    hog = small_disk / "hog"
    with open(hog, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 57 << 20)

    def publish_more() -> bool:
        harness.publish(queue, b"more")
        harness.commit()
        harness.loop.run_pending()
        return bool(log.state == FULL)

    wait_until(publish_more)
    assert "are free on the disk" in log.reason
    assert str(small_disk) in log.reason
    # There is still room for accepted messages.
    harness.publish(queue, BODY)
    harness.commit()
    hog.unlink()
    pump(harness, lambda: log.state == OK)
    harness.reopen()
    bodies = harness.bodies(1)
    assert (bodies[0], set(bodies[1:-1]), bodies[-1]) == (b"before", {b"more"}, BODY)
    harness.log.close()


def test_a_start_on_a_full_disk_reports_it_and_drains(small_disk: Path) -> None:
    harness = Harness(lambda: sqlite_log(small_disk / "data", reserve_bytes=4 << 20))
    queue = FakeQueue(1)
    entries = harness.publish(queue, b"one", b"two")
    harness.commit()
    harness.log.close()
    hog = small_disk / "hog"
    with open(hog, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 61 << 20)
    harness.begin()
    assert harness.log.state == FULL
    loaded = harness.load_queue(1)
    for entry, item in zip(entries, loaded, strict=True):
        entry.row, entry.slot = item.row, item.slot
        harness.log.settle(entry)
    harness.commit()
    hog.unlink()
    pump(harness, lambda: harness.log.state == OK)
    assert not harness.reopen().queues
    harness.log.close()
