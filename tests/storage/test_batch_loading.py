"""Record batches read from the log have the same rows as those of loaded messages."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest

from leveret.broker.bodies import whole
from leveret.broker.message import FORMAT_AMQP1, Entry, Overlay, make_address
from leveret.broker.queues.record_batches import MAX_BODY_BYTES, MAX_ENTRIES, RecordBatch
from leveret.storage.sqlite import SqliteLog
from tests.storage.harness import FakeQueue, Harness, message, sqlite_log

TIME = 1_790_000_000_000


@pytest.fixture
def harness(tmp_path: Path) -> Any:
    harness = Harness(lambda: sqlite_log(tmp_path))
    yield harness
    harness.log.close()


def positions(entries: list[Entry]) -> tuple[array[int], array[int]]:
    rows = array("Q", [entry.row.id for entry in entries if entry.row is not None])
    return rows, array("I", [entry.slot for entry in entries])


def read(harness: Harness, entries: list[Entry]) -> list[RecordBatch] | None:
    """Return the record batches of consecutive entries; None if they can only be loaded."""
    found: list[list[RecordBatch]] = []
    if not harness.log.load_record_batches(*positions(entries), entries[0].seq, TIME, found.append):
        return None
    harness.loop.run_until(lambda: bool(found))
    return found[0]


def encoded(batches: list[RecordBatch]) -> list[bytes]:
    return [whole(batch.message("s", 0, 0).body) for batch in batches]


def loaded(harness: Harness, entries: list[Entry]) -> list[bytes]:
    """Return the record batches that loaded messages make."""
    batches = [RecordBatch()]
    for item in harness.load_entries(entries):
        if not batches[-1].has_room(item.message.size):
            batches.append(RecordBatch())
        batches[-1].add(item.message, item.seq - 1, TIME, item.overlay)
    return encoded(batches)


def compare(harness: Harness, entries: list[Entry]) -> None:
    found = read(harness, entries)
    assert found
    assert encoded(found) == loaded(harness, entries)


def test_messages_of_every_kind(harness: Harness) -> None:
    queue = FakeQueue(1)
    entries = []
    for number in range(40):
        entries += harness.publish(
            queue,
            b"x" * number,
            address=make_address("e", f"key.{number // 10}"),
            header=b"header" + bytes((number % 4,)) * (number % 3),
            priority=number % 3 - 1,
            expires_at=number % 5 * 1000,
            headers_at=4 if number % 7 == 0 else -1,
            format=FORMAT_AMQP1 if number % 11 == 0 else 0,
        )
    harness.commit()
    compare(harness, entries)
    compare(harness, entries[13:29])
    compare(harness, entries[39:])


def test_messages_of_several_commits(harness: Harness) -> None:
    queue = FakeQueue(1)
    entries = []
    for number in range(12):
        entries += harness.publish(queue, *[b"%d" % number] * (number + 8))
        harness.commit()
    compare(harness, entries)


def test_limits_of_a_record_batch(harness: Harness) -> None:
    queue = FakeQueue(1)
    large = bytes(MAX_BODY_BYTES // 5 * 2)
    entries = harness.publish(queue, *[b""] * (MAX_ENTRIES + 2), large, large, large, b"", large * 2)
    harness.commit()
    compare(harness, entries)


def test_entries_between_those_of_other_queues(harness: Harness) -> None:
    queue, other = FakeQueue(1), FakeQueue(2)
    entries = []
    for _ in range(20):
        entries += harness.publish(queue, *[b"body"] * 10)
        harness.publish(other, b"other")
    harness.commit()
    compare(harness, entries)
    scattered = []
    for _ in range(20):
        scattered += harness.publish(queue, b"body")
        harness.publish(other, b"other")
    harness.commit()
    assert read(harness, scattered) is None


def test_messages_that_have_to_be_loaded(harness: Harness) -> None:
    queue, other = FakeQueue(1), FakeQueue(2)
    plain = harness.publish(queue, b"plain")
    dead = queue.entry(message(b"dead"))
    dead.overlay = Overlay(headers={"x-death": []})
    harness.log.store(dead)
    harness.commit()
    assert read(harness, [*plain, dead]) == []
    # Too large for a row of the log.
    large = harness.publish(queue, bytes(2 << 20))
    harness.commit()
    assert not read(harness, large)
    # The message is stored with the entry of another queue.
    shared = message(b"shared")
    entries = [other.entry(shared), queue.entry(shared)]
    for entry in entries:
        harness.log.store(entry)
    harness.commit()
    assert read(harness, entries[1:]) is None


def test_other_entries_are_not_read(harness: Harness) -> None:
    queue, other = FakeQueue(1), FakeQueue(2)
    harness.publish(other, b"earlier")
    harness.commit()
    entries = harness.publish(queue, b"one") + harness.publish(other, b"of another queue") + harness.publish(queue, b"two")
    harness.commit()
    assert [entry.seq for entry in entries] == [1, 2, 2]
    assert read(harness, entries[:2]) == []
    assert read(harness, entries[1:]) == []
    assert read(harness, entries[2:])


@pytest.mark.embedded("reads the database file")
def test_messages_that_were_moved(harness: Harness) -> None:
    assert isinstance(harness.log, SqliteLog)
    harness.log.trimmer.floor = 0
    queue, other = FakeQueue(1), FakeQueue(2)
    entries = harness.publish(queue, *[b"body"] * 10)
    garbage = harness.publish(other, *[bytes(10_000)] * 30)
    harness.commit()
    compare(harness, entries)
    for entry in garbage:
        harness.log.settle(entry)
    for _ in range(5):
        harness.publish(other, b"more")
        harness.commit()
    assert [item.message.body for item in harness.load_entries(entries)] == [b"body"] * 10
    assert read(harness, entries) is None
