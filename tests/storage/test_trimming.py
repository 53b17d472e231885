"""Trimming of the SQLite engine: records removed from disk, the time of their removal, and its cost."""

from __future__ import annotations

import random
import shutil
import sqlite3
from array import array
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from leveret.broker.message import Entry
from leveret.storage.batched import MAX_PARTLY_DEAD, MAX_TOUCHED
from leveret.storage.data_directory import Reserve
from leveret.storage.rows import MOVED, StoredRow
from leveret.storage.sqlite_store import KEPT_WAL_BYTES
from tests.storage.harness import FakeQueue, Harness, content, message, sqlite_log
from tests.support.polling import wait_until


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(lambda: sqlite_log(tmp_path / "data"))


def on_disk(harness: Harness) -> dict[str, Any]:
    """Close the log. Returns the ids of the rows and chunks on disk."""
    log: Any = harness.log
    log.close()
    connection = sqlite3.connect(log.file)
    found = {
        table: [row[0] for row in connection.execute(f"SELECT id FROM {table} ORDER BY id")] for table in ("log", "chunk")
    }
    connection.close()
    return found


def settle(harness: Harness, *entries: Entry) -> None:
    for entry in entries:
        harness.log.settle(entry)


@pytest.mark.embedded("reads the database file")
def test_an_empty_row_is_deleted_wherever_it_is(harness: Harness) -> None:
    queue = FakeQueue(1)
    rows = []
    for number in range(5):
        rows.append(harness.publish(queue, b"%d" % number, b"x"))
        harness.commit()
    settle(harness, *rows[2])
    harness.commit()
    ids = [entries[0].row.id for entries in rows if entries[0].row is not None]
    assert on_disk(harness)["log"] == ids[:2] + ids[3:]


@pytest.mark.embedded("reads the database file")
def test_settlements_are_deleted_with_the_rows_that_they_settle(harness: Harness) -> None:
    queue = FakeQueue(1)
    entries = harness.publish(queue, b"a", b"b", b"c")
    harness.commit()
    for entry in entries[:2]:
        settle(harness, entry)
        harness.commit()
    assert harness.log.statistics()["rows"] == 3
    settle(harness, entries[2])
    harness.commit()
    assert on_disk(harness) == {"log": [], "chunk": []}


def test_a_row_with_settlements_outlives_its_own_records(harness: Harness) -> None:
    queue = FakeQueue(1)
    old = harness.publish(queue, b"a", b"b")
    harness.commit()
    settle(harness, old[0])
    young = harness.publish(queue, b"c")
    harness.commit()
    settle(harness, *young)
    harness.commit()
    assert harness.log.statistics()["rows"] >= 2
    harness.reopen()
    assert harness.bodies(1) == [b"b"]
    harness.log.close()


@pytest.mark.embedded("reads the database file")
def test_records_settled_in_their_own_batch_are_never_written(harness: Harness) -> None:
    queue, other = FakeQueue(1), FakeQueue(2)
    entries = harness.publish(queue, b"a" * 100_000, b"b", b"c" * 2_000_000)
    fan = message(b"d" * 50_000)
    pair = [queue.entry(fan), other.entry(fan)]
    for entry in pair:
        harness.log.store(entry)
    settle(harness, entries[0], entries[2], *pair)
    harness.commit()
    assert harness.log.statistics()["bytes"] < 1000
    settle(harness, entries[1])
    harness.commit()
    harness.publish(queue, b"e")
    settle(harness, *harness.publish(queue, b"f"))
    harness.commit()
    found = on_disk(harness)
    assert len(found["log"]) == 1
    assert not found["chunk"]


def test_a_batch_without_records_needs_no_commit(harness: Harness) -> None:
    queue = FakeQueue(1)
    harness.publish(queue, b"warm up")
    harness.commit()
    commits = harness.log.statistics()["commits"]
    settle(harness, *harness.publish(queue, b"a", b"b"))
    harness.commit()
    assert harness.log.statistics()["commits"] == commits
    assert harness.log.committed == harness.log.filling - 1
    harness.log.close()


@pytest.mark.embedded("reads the database file")
def test_a_fan_out_keeps_one_body_until_the_last_settlement(harness: Harness) -> None:
    queues = [FakeQueue(id) for id in range(1, 11)]
    item = message(b"z" * 20_000)
    entries = [queue.entry(item) for queue in queues]
    for entry in entries[:7]:
        harness.log.store(entry)
    harness.commit()
    for entry in entries[7:]:
        harness.log.store(entry)
    harness.commit()
    assert harness.log.statistics()["bytes"] < 22_000
    for entry in entries[:9]:
        settle(harness, entry)
        harness.commit()
    harness.reopen()
    assert harness.bodies(10) == [b"z" * 20_000]
    assert list(harness.recovery.queues) == [10]
    assert harness.log.statistics()["live_bytes"] > 20_000
    last = harness.load_queue(10)[0]
    entry = queues[9].entry(last.message)
    entry.row, entry.slot = last.row, last.slot
    settle(harness, entry)
    harness.commit()
    assert on_disk(harness) == {"log": [], "chunk": []}


@pytest.mark.embedded("reads the database file")
def test_chunks_of_large_bodies_are_deleted_with_the_message(harness: Harness) -> None:
    queue, other = FakeQueue(1), FakeQueue(2)
    body = bytes(range(256)) * 4 * 1024 * 3 + b"tail"
    item = message([body[:5], body[5:2_000_000], body[2_000_000:]], header=b"h" * 1000)
    first, second = queue.entry(item), other.entry(item)
    harness.log.store(first)
    harness.log.store(second)
    harness.publish(queue, b"small")
    harness.commit()
    assert harness.log.statistics()["bytes"] < 1000
    settle(harness, first)
    harness.commit()
    harness.reopen()
    loaded = harness.load_queue(2)
    assert content(loaded[0].message) == body
    assert loaded[0].message.header == b"h" * 1000
    assert isinstance(loaded[0].message.body, list)
    entry = other.entry(loaded[0].message)
    entry.row, entry.slot = loaded[0].row, loaded[0].slot
    settle(harness, entry)
    harness.commit()
    found = on_disk(harness)
    assert not found["chunk"]
    assert found["log"]


@pytest.mark.embedded("reads the database file")
@pytest.mark.parametrize("others", [(), (b"small",)], ids=["alone", "with another message"])
def test_chunks_are_deleted_in_a_commit_of_at_most_one_row(harness: Harness, others: tuple[bytes, ...]) -> None:
    """Such a commit is a single statement unless it deletes chunks."""
    queue = FakeQueue(1)
    large = harness.publish(queue, b"x" * 2_000_000)
    harness.commit()
    settle(harness, *large)
    harness.publish(queue, *others)
    harness.commit()
    assert not on_disk(harness)["chunk"]


def test_a_large_header_is_spilled_too(harness: Harness) -> None:
    header = bytes(range(256)) * 10_000
    harness.publish(FakeQueue(1), b"body", header=header)
    harness.commit()
    harness.reopen()
    loaded = harness.load_queue(1)[0].message
    assert (loaded.header, content(loaded)) == (header, b"body")
    harness.log.close()


@pytest.mark.embedded("reads the database file")
def test_a_large_batch_is_one_commit_of_several_rows(harness: Harness) -> None:
    queue = FakeQueue(1)
    bodies = [bytes([number]) * 300_000 for number in range(30)]
    harness.publish(queue, *bodies)
    harness.commit()
    assert harness.log.statistics()["commits"] == 1
    log: Any = harness.log
    log.close()
    connection = sqlite3.connect(log.file)
    largest = connection.execute("SELECT max(length(entries) + length(data)) FROM log").fetchone()[0]
    connection.close()
    assert largest < 8 << 20
    harness.begin()
    assert harness.bodies(1) == bodies
    harness.log.close()


@pytest.mark.embedded("reads the database file")
def test_many_settlements_at_once_stay_in_rows_of_bounded_size(harness: Harness) -> None:
    """A purge of one of two interleaved queues removes no row, so every row needs its settlements recorded."""
    left, right = FakeQueue(1), FakeQueue(2)
    entries = []
    for _ in range(330_000):
        entry = left.entry(message(b""))
        harness.log.store(entry)
        entries.append(entry)
        if entry.seq % 1000 == 0:
            harness.publish(right, b"stays")
    harness.commit()
    harness.log.settle_range(
        1, 1, left.seq, [], [entry.row.id for entry in entries if entry.row], [entry.slot for entry in entries]
    )
    harness.commit()
    log: Any = harness.log
    log._worker.close()
    connection = log._store._connection
    assert connection.execute("SELECT max(length(settled)) FROM log").fetchone()[0] < 2 << 20
    harness.reopen()
    assert list(harness.recovery.queues) == [2]
    assert len(harness.recovery.queues[2].seqs) == 330
    harness.log.close()


def fast_beside_idle(harness: Harness, batches: int, floor: int) -> tuple[list[Entry], int]:
    """Create a deep queue without consumers beside a fast one, in the same batches.

    Returns the idle entries and the published bytes.
    """
    idle, fast = FakeQueue(1), FakeQueue(2)
    log: Any = harness.log
    log.trimmer.floor = floor
    kept: list[Entry] = []
    flying: deque[list[Entry]] = deque()
    published = 0
    for number in range(batches):
        for _ in range(4):
            kept += harness.publish(idle, b"idle %05d" % number * 30)
            published += 30 * 10 + 50
        flying.append(harness.publish(fast, *[b"fast %05d" % number * 50] * 16))
        published += 16 * (50 * 10 + 50)
        if len(flying) > 3:
            settle(harness, *flying.popleft())
        harness.commit()
    for entries in flying:
        settle(harness, *entries)
    harness.commit()
    return kept, published


def test_write_amplification_of_a_deep_idle_queue_beside_a_fast_one(harness: Harness) -> None:
    kept, published = fast_beside_idle(harness, 600, 100_000)
    figures = harness.log.statistics()
    assert figures["copied_bytes"] > 0
    assert published + figures["copied_bytes"] <= 2 * published
    # Garbage is limited by the live records.
    assert figures["bytes"] <= 2 * figures["live_bytes"] + 100_000 + (1 << 20)
    # Every position that the broker has is still valid, by object and by number.
    loaded = harness.load(
        array("Q", [entry.row.id for entry in kept if entry.row is not None]), array("I", [entry.slot for entry in kept])
    )
    assert [item.seq for item in loaded] == [entry.seq for entry in kept]
    assert [content(item.message) for item in loaded] == [entry.message.body for entry in kept]
    harness.reopen()
    assert harness.bodies(1) == [entry.message.body for entry in kept]
    assert 2 not in harness.recovery.queues
    harness.log.close()


@pytest.mark.embedded("reads the database file")
def test_moved_rows_are_forgotten_with_their_last_copy(harness: Harness) -> None:
    kept, _ = fast_beside_idle(harness, 300, 0)
    rows = harness.log.rows.values()
    assert any(isinstance(row, StoredRow) and row.state == MOVED for row in rows)
    random.Random(5).shuffle(kept)
    settle(harness, *kept)
    harness.commit()
    # Only the current row remains.
    assert len(rows) == 1
    assert on_disk(harness) == {"log": [], "chunk": []}


@pytest.mark.embedded("reads the database file")
def test_moved_rows_that_settled_others_are_forgotten(harness: Harness) -> None:
    log: Any = harness.log
    log.trimmer.floor = 0
    queue = FakeQueue(1)
    old = harness.publish(queue, b"a", b"b" * 5000)
    harness.commit()
    settle(harness, old[0])
    young = harness.publish(queue, b"c" * 9000, b"d")
    row = young[0].row
    harness.commit()
    settle(harness, young[0])
    harness.commit()
    harness.commit()
    assert isinstance(row, StoredRow)
    assert row.state == MOVED
    settle(harness, old[1])
    harness.commit()
    settle(harness, young[1])
    harness.commit()
    assert row.id not in log.rows
    assert on_disk(harness)["log"] == []


def test_random_settlements_leave_little_garbage(harness: Harness) -> None:
    queue = FakeQueue(1)
    log: Any = harness.log
    log.trimmer.floor = 50_000
    alive: list[Entry] = []
    chance = random.Random(7)
    published = 0
    for _ in range(400):
        alive += harness.publish(queue, *[b"r" * chance.choice((10, 200, 2000)) for _ in range(20)])
        published = sum(entry.message.size for entry in alive)
        for _ in range(20 if len(alive) > 1500 else 10):
            settle(harness, alive.pop(chance.randrange(len(alive))))
        harness.commit()
    figures = log.statistics()
    assert published > 0
    assert figures["bytes"] <= 2 * figures["live_bytes"] + 50_000 + (1 << 20)
    expected = {entry.seq: entry.message.size for entry in alive}
    harness.reopen()
    assert {item.seq: item.message.size for item in harness.load_queue(1)} == expected
    harness.log.close()


@pytest.mark.embedded("reads the database file")
def test_the_file_shrinks_after_a_drain(harness: Harness) -> None:
    queue = FakeQueue(1)
    log: Any = harness.log
    entries: list[Entry] = []
    for _ in range(40):
        entries += harness.publish(queue, *[b"s" * 100_000] * 10)
        harness.commit()
    assert log.statistics()["file_bytes"] + log.statistics()["wal_bytes"] > 38_000_000
    settle(harness, *entries)
    harness.commit()
    wait_until(lambda: log.statistics()["file_bytes"] < 12_000_000)
    wait_until(lambda: log.statistics()["wal_bytes"] <= KEPT_WAL_BYTES)
    harness.reopen()
    assert not harness.recovery.queues
    harness.log.close()


@pytest.mark.embedded("reads the database file")
def test_an_idle_store_keeps_little_of_its_log_on_a_disk_that_is_almost_full(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reserve, "free", lambda reserve: 8_000_000)
    queue = FakeQueue(1)
    log: Any = harness.log
    for _ in range(4):
        harness.publish(queue, b"s" * 1_000_000)
        harness.commit()
    assert log.statistics()["file_bytes"] + log.statistics()["wal_bytes"] > 4_000_000
    wait_until(lambda: log.statistics()["wal_bytes"] <= 1_000_000)
    log.close()


def test_row_ids_are_never_reused(harness: Harness, tmp_path: Path) -> None:
    queue = FakeQueue(1)
    entries = harness.publish(queue, b"a")
    harness.commit()
    highest = entries[0].row.id if entries[0].row is not None else 0
    settle(harness, *entries)
    harness.commit()
    harness.reopen()
    entries = harness.publish(queue, b"b")
    harness.commit()
    assert entries[0].row is not None
    assert entries[0].row.id > highest
    harness.log.close()


def test_sequence_numbers_are_remembered_when_the_queue_is_empty(harness: Harness) -> None:
    queue = FakeQueue(1)
    settle(harness, *harness.publish(queue, b"a", b"b"))
    entries = harness.publish(queue, b"c")
    harness.commit()
    settle(harness, *entries)
    harness.commit()
    assert harness.reopen().last_seq == {1: 3}
    harness.log.forget(1)
    harness.commit()
    assert harness.reopen().last_seq == {}
    harness.log.close()


def test_short_lived_queues_leave_no_marks(harness: Harness) -> None:
    log: Any = harness.log
    for number in range(1, 20):
        queue = FakeQueue(number)
        settle(harness, *harness.publish(queue, b"a"))
        entries = harness.publish(queue, b"b")
        harness.commit()
        settle(harness, *entries)
        harness.log.forget(number)
    assert log._marks == log._last == {}
    harness.commit()
    harness.log.forget(100)  # a queue that never had a message
    assert not log.pending()
    assert harness.reopen().last_seq == {}
    harness.log.close()


def test_rows_of_single_messages_are_merged(harness: Harness) -> None:
    queue = FakeQueue(1)
    log: Any = harness.log
    log.trimmer.merges.limit = 100
    entries: list[Entry] = []
    for number in range(1000):
        entries += harness.publish(queue, b"%d" % number)
        harness.commit()
    # 100 small rows, and the merged rows of 900 others.
    assert log.statistics()["rows"] <= 120
    assert len(log.rows) <= 130
    positions = [(entry.row.id, entry.slot) for entry in entries if entry.row is not None]
    assert [content(item.message) for item in harness.load_entries(entries)] == [b"%d" % at for at in range(1000)]
    # By object and by number; some were moved twice.
    log.trimmer.floor = 0
    settle(harness, *entries[::2])
    harness.commit()
    harness.log.settle_range(
        1, 1, 1000, [], [position[0] for position in positions[1::4]], [position[1] for position in positions[1::4]]
    )
    for _ in range(10):
        harness.publish(queue, b"more")
        harness.commit()
    left = [b"%d" % at for at in range(3, 1000, 4)]
    assert [content(item.message) for item in harness.load_entries(entries[3::4])] == left
    harness.reopen()
    assert harness.bodies(1) == left + [b"more"] * 10
    harness.log.close()


@pytest.mark.embedded("reads the database file")
def test_merged_rows_are_forgotten(harness: Harness) -> None:
    queue = FakeQueue(1)
    log: Any = harness.log
    log.trimmer.merges.limit = 10
    for _ in range(3):
        entries: list[Entry] = []
        for _ in range(5000):
            entries += harness.publish(queue, b"x")
            log.flush()
            harness.loop.run_until(lambda: not log.is_committing())
        assert len(log.trimmer.merges._ids) > 4000
        settle(harness, *entries)
        harness.commit()
    harness.commit()
    assert len(log.trimmer.merges._ids) < 5000
    assert len(log.rows) == 1
    assert on_disk(harness) == {"log": [], "chunk": []}


def settle_at(harness: Harness, entries: list[Entry]) -> None:
    """Settle entries of a queue by their positions, as a purge does."""
    harness.log.settle_range(
        entries[0].queue.id,
        entries[0].seq,
        entries[-1].seq,
        (),
        [entry.row.id for entry in entries if entry.row is not None],
        [entry.slot for entry in entries],
    )


def interleaved(harness: Harness, count: int) -> tuple[list[Entry], list[Entry]]:
    """Publish to two queues in turn, so that their entries share rows."""
    purged, other = FakeQueue(1), FakeQueue(2)
    pairs = [harness.publish(purged, b"%d" % at) + harness.publish(other, b"%d" % at) for at in range(count)]
    harness.commit()
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def test_removals_wait_after_many_entries_in_rows_that_keep_others(harness: Harness) -> None:
    count = MAX_PARTLY_DEAD + 4096
    purged, _ = interleaved(harness, count)
    behind = []
    for at in range(0, count, 2048):
        settle_at(harness, purged[at : at + 2048])
        behind.append(harness.log.is_behind())
    allowed = MAX_PARTLY_DEAD // 2048
    assert behind == [False] * allowed + [True] * (len(behind) - allowed)
    harness.commit()
    assert not harness.log.is_behind()
    harness.reopen()
    assert not harness.bodies(1) and harness.bodies(2) == [b"%d" % at for at in range(count)]
    harness.log.close()


@pytest.mark.embedded("reads the database file")
def test_removals_do_not_wait_after_many_entries_in_rows_of_their_own(harness: Harness) -> None:
    entries = harness.publish(FakeQueue(1), *[b""] * (MAX_PARTLY_DEAD + 4096))
    harness.commit()
    for at in range(0, len(entries), 2048):
        settle_at(harness, entries[at : at + 2048])
    assert not harness.log.is_behind()
    harness.commit()
    assert on_disk(harness)["log"] == []


def test_removals_wait_after_entries_of_many_rows(harness: Harness) -> None:
    queue = FakeQueue(1)
    entries: list[Entry] = []
    log: Any = harness.log
    log.trimmer.merges.limit = 2 * MAX_TOUCHED
    for _ in range(MAX_TOUCHED + 1):
        entries += harness.publish(queue, b"")
        harness.commit()
    settle_at(harness, entries[:MAX_TOUCHED])
    assert not harness.log.is_behind()
    settle_at(harness, entries[MAX_TOUCHED:])
    assert harness.log.is_behind()
    harness.commit()
    assert not harness.log.is_behind()
    harness.log.close()


@pytest.mark.embedded("reads the database file")
def test_entries_are_settled_one_by_one_and_by_position_in_a_batch(harness: Harness, tmp_path: Path) -> None:
    """A kill between two batches of a removal leaves what the first one has not settled."""
    purged, other = interleaved(harness, 100)
    settle(harness, purged[0], purged[50])
    settle_at(harness, purged[1:20])
    settle_at(harness, purged[20:50])
    settle(harness, other[0])
    harness.commit()
    shutil.copytree(tmp_path / "data", tmp_path / "killed")
    settle_at(harness, purged[51:])
    settle(harness, *other[1:90])
    harness.commit()
    killed = Harness(lambda: sqlite_log(tmp_path / "killed"))
    assert killed.bodies(1) == [b"%d" % at for at in range(51, 100)]
    assert killed.bodies(2) == [b"%d" % at for at in range(1, 100)]
    killed.log.close()
    harness.reopen()
    assert not harness.bodies(1) and harness.bodies(2) == [b"%d" % at for at in range(90, 100)]
    harness.log.close()


def test_a_row_gets_references_after_entries_were_settled_by_position(harness: Harness) -> None:
    purged, other = interleaved(harness, 10)
    settle_at(harness, purged[:9])
    copied = FakeQueue(3).entry(other[0].message)  # refers to the message in the same row
    harness.log.store(copied)
    settle(harness, purged[9], other[0])
    harness.commit()
    harness.reopen()
    assert not harness.bodies(1)
    assert harness.bodies(2) == [b"%d" % at for at in range(1, 10)] and harness.bodies(3) == [b"0"]
    harness.log.close()
