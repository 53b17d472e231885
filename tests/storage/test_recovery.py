"""Recovery of deep and mixed queues, whatever the order of their records on disk."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from leveret.broker.log import Recovery
from leveret.broker.message import Entry
from leveret.storage.checksums import number_sum
from leveret.storage.sqlite import SqliteLog
from tests.storage.harness import FakeQueue, Harness, Loop, message, sqlite_log


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(lambda: sqlite_log(tmp_path / "data"))


def check(harness: Harness, entries: list[Entry]) -> None:
    """Check that a restart recovers exactly these entries, in order, with the right columns."""
    expected: dict[int, list[tuple[int, int, int]]] = {}
    for entry in sorted(entries, key=lambda entry: entry.seq):
        expected.setdefault(entry.queue.id, []).append((entry.seq, entry.message.size, entry.message.priority))
    recovery = harness.reopen()
    found = {id: list(zip(queue.seqs, queue.sizes, queue.priorities, strict=True)) for id, queue in recovery.queues.items()}
    assert found == expected
    for queue_id in recovery.queues:
        harness.load_queue(queue_id)


@pytest.mark.parametrize("queues", [1, 2, 5, 20])
@pytest.mark.parametrize("settled", [0.0, 0.3, 0.97])
def test_mixed_rows(harness: Harness, queues: int, settled: float) -> None:
    chance = random.Random(queues)
    all_queues = [FakeQueue(id) for id in range(1, queues + 1)]
    alive: list[Entry] = []
    for _ in range(12):
        for _ in range(300):
            alive += harness.publish(
                chance.choice(all_queues), bytes(chance.randrange(5)), priority=chance.choice((-1, 0, 9, 255))
            )
        harness.commit()
        for at in range(len(alive) - 1, -1, -1):
            if chance.random() < settled / 3:
                harness.log.settle(alive.pop(at))
    harness.commit()
    check(harness, alive)
    harness.log.close()


def test_entries_out_of_order_on_disk(harness: Harness) -> None:
    """Copies of old entries follow new ones, and overlap with other copies."""
    log: Any = harness.log
    log.trimmer.floor = 0
    chance = random.Random(11)
    queue, other = FakeQueue(1), FakeQueue(2)
    alive: list[Entry] = []
    for _ in range(150):
        alive += harness.publish(queue, *[bytes(chance.randrange(200)) for _ in range(20)])
        alive += harness.publish(other, b"x")
        harness.commit()
        for _ in range(14):
            log.settle(alive.pop(chance.randrange(len(alive))))
        harness.commit()
    assert log.statistics()["copied_bytes"] > 10_000
    check(harness, alive)
    harness.log.close()


def test_a_record_that_is_settled_only_on_disk_stays_settled(harness: Harness) -> None:
    """Settlements survive the copy of their row, and the copy of that copy."""
    log: Any = harness.log
    log.trimmer.floor = 0
    queue, fast = FakeQueue(1), FakeQueue(2)
    deep = harness.publish(queue, *[b"deep" * 100] * 50)
    harness.commit()
    for number in range(40):
        # The settlement of a deep entry is in a row whose other records are soon garbage.
        if number < 10:
            log.settle(deep.pop(0))
        entries = harness.publish(fast, *[b"fast" * 20] * 5)
        harness.commit()
        for entry in entries:
            log.settle(entry)
        harness.commit()
    check(harness, deep)
    harness.log.close()


def test_recovered_fan_outs_can_be_settled(harness: Harness) -> None:
    queues = [FakeQueue(id) for id in range(1, 5)]
    entries: list[Entry] = []
    for number in range(30):
        item = message(b"%d" % number * 100)
        for queue in queues[: number % 4 + 1]:
            entry = queue.entry(item)
            harness.log.store(entry)
            entries.append(entry)
        if number % 7 == 0:
            harness.commit()
    for entry in entries[::3]:
        harness.log.settle(entry)
    entries = [entry for at, entry in enumerate(entries) if at % 3]
    harness.commit()
    for _ in range(3):
        check(harness, entries)
        alive = {}
        for queue in queues:
            for loaded in harness.load_queue(queue.id):
                alive[queue.id, loaded.seq] = loaded
        for at, entry in enumerate(entries):
            back = alive[entry.queue.id, entry.seq]
            entry.row, entry.slot, entry.message = back.row, back.slot, back.message
            if at % 2:
                harness.log.settle(entry)
        entries = entries[::2]
        harness.commit()
    for entry in entries:
        harness.log.settle(entry)
    harness.commit()
    assert not harness.log.statistics()["rows"]
    harness.log.close()


@pytest.fixture
def large(harness: Harness) -> tuple[Harness, FakeQueue, list[int]]:
    """A closed log of more than 4 MiB with settled entries, and the sequence numbers of the others."""
    queue = FakeQueue(1)
    alive: list[Entry] = []
    for _ in range(12):
        alive += harness.publish(queue, *[bytes(4096) for _ in range(100)])
        harness.commit()
        for entry in alive[::3]:
            harness.log.settle(entry)
        del alive[::3]
    harness.commit()
    harness.log.close()
    return harness, queue, [entry.seq for entry in alive]


def seqs_of(recovery: Recovery) -> list[int]:
    return list(recovery.queues[1].seqs)


@pytest.mark.embedded("only SQLite indexes its rows later")
@pytest.mark.parametrize("in_thread", [False, True])
def test_a_large_log_is_indexed_after_it_was_opened(large: tuple[Harness, FakeQueue, list[int]], in_thread: bool) -> None:
    harness, queue, alive = large
    log = harness.log = harness.make()
    recovery = log.open(index_later=True)
    assert recovery.index is not None and not recovery.queues and recovery.last_seq == {1: queue.seq}
    if not in_thread:
        recovery.index.run()
        assert seqs_of(recovery) == alive
    harness.loop = Loop()
    log.start(harness.loop.post)
    new = [entry.seq for entry in harness.publish(queue, *[b"new"] * 50)]
    harness.commit()
    if in_thread:
        done: list[bool] = []
        recovery.index.start(lambda: done.append(True))
        harness.loop.run_until(lambda: bool(done))
        assert recovery.index.progress() == 1
        harness.publish(queue, b"newer")
        for _ in recovery.index.adopting():
            pass
        assert seqs_of(recovery) == alive
        new.append(queue.seq)
    found = recovery.queues[1]
    log.settle_range(1, 0, found.seqs[99], (), found.rows[:100], found.slots[:100])
    harness.commit()
    assert seqs_of(harness.reopen()) == [*alive[100:], *new]
    harness.log.close()


def database(harness: Harness) -> Path:
    """Return the file of the log."""
    assert isinstance(harness.log, SqliteLog)
    return harness.log.file


@pytest.mark.embedded("only SQLite indexes its rows later")
@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_is_closed_while_it_is_indexed_loses_nothing(
    large: tuple[Harness, FakeQueue, list[int]], clean: bool
) -> None:
    harness, queue, alive = large
    if not clean:
        with closing(sqlite3.connect(database(harness), isolation_level=None)) as connection:
            connection.execute("UPDATE state SET value = 0, crc = ? WHERE name = 'clean'", (number_sum("clean", 0),))
        Path(f"{database(harness)}-wal").touch()  # a crash leaves it
    log = harness.log = harness.make()
    recovery = log.open(index_later=True)
    assert recovery.index is not None and recovery.clean == clean
    harness.loop = Loop()
    log.start(harness.loop.post)
    recovery.index.start(lambda: None)
    new = [entry.seq for entry in harness.publish(queue, b"new")]
    again = harness.reopen()
    assert again.clean == clean and seqs_of(again) == [*alive, *new]
    harness.log.close()


@pytest.mark.embedded("only SQLite indexes its rows later")
def test_a_clean_stop_notes_the_queues_with_entries(harness: Harness) -> None:
    harness.log.note_occupied([3, 5])
    assert harness.reopen().occupied == frozenset((3, 5))
    # Not noted this time.
    assert harness.reopen().occupied is None
    harness.log.note_occupied([3])
    harness.log.close()
    # An earlier version has written since, and left the record.
    with closing(sqlite3.connect(database(harness), isolation_level=None)) as connection:
        connection.execute("UPDATE state SET value = 99, crc = ? WHERE name = 'next_row'", (number_sum("next_row", 99),))
    harness.begin()
    assert harness.recovery.occupied is None
    harness.log.close()
