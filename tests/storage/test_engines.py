"""The behaviour that the broker expects of every engine."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from leveret.broker.errors import StorageFailed
from leveret.broker.log import OK
from leveret.broker.message import Overlay
from leveret.storage.batched import MAX_PUTS
from leveret.storage.registry import make_logs
from tests.storage.harness import (
    FakeQueue,
    Harness,
    Waiter,
    content,
    entry_of,
    memory_log,
    message,
    postgres_log,
    sqlite_log,
)
from tests.support.postgres import require_postgres, shared_server


@pytest.fixture(params=["sqlite", "memory", "overflow", "postgresql"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Harness:
    if request.param == "postgresql":
        require_postgres()
        dsn = shared_server().database()
        return Harness(lambda: postgres_log(dsn))
    if request.param == "memory":
        return Harness(lambda: memory_log(tmp_path))
    return Harness(lambda: sqlite_log(tmp_path, durable=request.param == "sqlite"))


def test_registry_knows_the_engines(tmp_path: Path) -> None:
    log, overflow = make_logs("memory", tmp_path)
    assert log.state == OK
    assert overflow is None
    with pytest.raises(
        StorageFailed, match="storage engine 'parquet' does not exist; expected one of memory, postgresql, sqlite"
    ):
        make_logs("parquet", tmp_path)


def test_waiters_are_notified_in_the_order_of_their_batches(harness: Harness) -> None:
    queue = FakeQueue(1)
    log = harness.log
    harness.publish(queue, b"one")
    first = Waiter(log)
    log.flush()
    harness.publish(queue, b"two")
    second, third = Waiter(log), Waiter(log)
    log.flush()
    harness.loop.run_until(lambda: bool(second.batches and third.batches))
    assert first.batches[0] < second.batches[0] == third.batches[0]
    assert log.committed == second.batches[0]
    assert log.filling == log.committed + 1
    log.close()


def test_nothing_is_confirmed_before_flush(harness: Harness) -> None:
    harness.publish(FakeQueue(1), b"one")
    waiter = Waiter(harness.log)
    harness.loop.run_pending()
    assert not waiter.batches
    harness.log.close()


def test_close_commits_pending_records(harness: Harness) -> None:
    harness.publish(FakeQueue(1), b"one")
    waiter = Waiter(harness.log)
    harness.log.close()
    assert len(waiter.batches) == 1


def test_loaded_entries_equal_stored_ones(harness: Harness) -> None:
    queue = FakeQueue(3)
    plain = queue.entry(message(b"plain", priority=255))
    empty = queue.entry(message(b"", header=b""))
    chunked = queue.entry(message([b"ab", b"", b"cd"], expires_at=1 << 50, headers_at=14, format=1))
    overlaid = queue.entry(message(b"overlaid"))
    overlaid.acquired_count = 2
    overlaid.delivery_count = 1
    overlaid.overlay = Overlay(b"\0\x01k", {"x-death": [{"count": 1}], "BCC": None}, True, 77)
    overlaid.overlay.visible_at = 1 << 41
    entries = [plain, empty, chunked, overlaid]
    for entry in entries:
        harness.log.store(entry)
    harness.commit()
    loaded = harness.load_entries(entries)
    assert [item.seq for item in loaded] == [1, 2, 3, 4]
    assert [content(item.message) for item in loaded] == [b"plain", b"", b"abcd", b"overlaid"]
    assert loaded[0].message.priority == 255
    assert loaded[1].message.header == b""
    assert (loaded[2].message.expires_at, loaded[2].message.headers_at, loaded[2].message.format) == (1 << 50, 14, 1)
    assert all(item.message.persistent for item in loaded)
    assert (loaded[3].acquired_count, loaded[3].delivery_count) == (2, 1)
    overlay = loaded[3].overlay
    assert overlay is not None
    assert overlay.address == b"\0\x01k"
    assert overlay.headers == {"x-death": [{"count": 1}], "BCC": None}
    assert overlay.drop_expiration
    assert overlay.expires_at == 77
    assert overlay.visible_at == 1 << 41
    assert loaded[0].overlay is None
    for item, entry in zip(loaded, entries, strict=True):
        assert (item.row, item.slot) == (entry.row, entry.slot)
        harness.log.settle(entry_of(queue, item))
    harness.commit()
    assert not harness.log.statistics()["live_bytes"]
    harness.log.close()


def test_load_keeps_the_requested_order(harness: Harness) -> None:
    queue = FakeQueue(1)
    entries = []
    for number in range(5):
        entries += harness.publish(queue, b"%d-a" % number, b"%d-b" % number)
        harness.commit()
    wanted = [entries[at] for at in (9, 0, 5, 1, 8, 8)]
    assert [content(item.message) for item in harness.load_entries(wanted)] == [
        b"4-b",
        b"0-a",
        b"2-b",
        b"0-b",
        b"4-a",
        b"4-a",
    ]
    assert harness.load(array("Q"), array("I")) == []
    harness.log.close()


def test_an_entry_that_is_settled_during_a_load_is_still_returned(harness: Harness) -> None:
    queue = FakeQueue(1)
    entries = harness.publish(queue, b"a", b"b")
    harness.commit()
    result: list[bytes] = []
    harness.log.load(
        array("Q", [entry.row.id for entry in entries if entry.row]),
        array("I", [entry.slot for entry in entries]),
        lambda items: result.extend(content(item.message) for item in items),
    )
    for entry in entries:
        harness.log.settle(entry)
    harness.log.flush()
    harness.loop.run_until(lambda: bool(result))
    assert result == [b"a", b"b"]
    harness.commit()
    assert not harness.log.statistics()["live_bytes"]
    assert not harness.log.statistics()["rows"]
    harness.log.close()


def test_the_last_update_counts(harness: Harness) -> None:
    queue = FakeQueue(1)
    entry, other = harness.publish(queue, b"a", b"b")
    harness.commit()
    for count in (1, 2, 3):
        entry.acquired_count = count
        entry.overlay = Overlay(headers={"attempt": count})
        harness.log.update(entry)
        if count == 2:
            harness.commit()
    harness.commit()
    loaded = harness.load_entries([entry, other])
    assert loaded[0].acquired_count == 3
    assert loaded[0].overlay is not None
    assert loaded[0].overlay.headers == {"attempt": 3}
    assert loaded[1].acquired_count == 0
    harness.log.close()


def test_a_range_is_settled_at_once(harness: Harness) -> None:
    queue, other = FakeQueue(1), FakeQueue(2)
    entries = harness.publish(queue, b"1", b"2", b"3")
    strangers = harness.publish(other, b"x")
    harness.commit()
    entries += harness.publish(queue, b"4")
    gone = [entry for entry in entries if entry.seq != 2]
    harness.log.settle_range(1, 1, 4, [2], [entry.row.id for entry in gone if entry.row], [entry.slot for entry in gone])
    harness.commit()
    assert [content(item.message) for item in harness.load_entries([entries[1], *strangers])] == [b"2", b"x"]
    for entry in (entries[1], *strangers):
        harness.log.settle(entry)
    harness.commit()
    assert not harness.log.statistics()["rows"]
    harness.log.close()


def test_pending_bytes_return_to_zero(harness: Harness) -> None:
    queue = FakeQueue(1)
    entries = harness.publish(queue, b"a" * 1000, b"b" * 2_000_000)
    harness.log.settle(entries[0])
    harness.commit()
    assert harness.log.pending_bytes == 0
    harness.log.settle(entries[1])
    harness.commit()
    assert harness.log.pending_bytes == 0
    harness.log.close()


def test_a_log_is_behind_while_many_changes_of_the_metadata_wait_for_a_commit(tmp_path: Path) -> None:
    harness = Harness(lambda: sqlite_log(tmp_path))
    log = harness.log
    for number in range(MAX_PUTS):
        log.put("binding", str(number), None)
    assert not log.is_behind()
    log.put("binding", "another", None)
    assert log.is_behind()
    waiter = Waiter(log)
    log.flush()
    harness.loop.run_until(lambda: bool(waiter.batches))
    assert not log.is_behind()
    log.close()
