"""Another process reads the same records from the rows of a log as the log itself, even if they were moved."""

from __future__ import annotations

from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from leveret.broker.errors import StorageFailed
from leveret.broker.log import Loaded
from leveret.broker.message import AT_ONCE, FORMAT_AMQP1, Entry, Overlay, make_address
from leveret.storage.batched import BatchedLog
from leveret.storage.located import Columns, LogReader, RowMoved, rebuild
from leveret.storage.records import decode_overlay
from leveret.storage.row_sources import RowSource, SourceFailed, open_source
from tests.storage.harness import FakeQueue, Harness, content, log_at, message
from tests.support.polling import wait_until
from tests.support.postgres import execute, require_postgres, shared_server


@pytest.fixture(params=["sqlite", "postgresql"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    place: Path | str = tmp_path
    if request.param == "postgresql":
        require_postgres()
        place = shared_server().database()
    harness = Harness(lambda: log_at(place))
    yield harness
    harness.log.close()


def source(harness: Harness) -> RowSource:
    """Return the rows of the log as another process reads them."""
    address = harness.log.rows_address()
    assert address is not None
    return open_source(address)


def positions(entries: list[Entry]) -> tuple[array[int], array[int]]:
    """Return the rows and slots of entries."""
    rows: array[int] = array("Q", [entry.row.id for entry in entries if entry.row is not None])
    return rows, array("I", [entry.slot for entry in entries])


def read(harness: Harness, entries: list[Entry]) -> Columns:
    """Return the messages that a reader finds once everything is on disk."""
    rows, slots = positions(entries)
    located = harness.log.locate(rows, slots)
    while located is None:
        harness.commit()
        located = harness.log.locate(rows, slots)
    assert located.count == len(entries)
    rows_of_log = source(harness)
    try:
        return LogReader(rows_of_log).read(located.runs)
    finally:
        rows_of_log.close()
        located.release()


def shown(item: Loaded) -> tuple[Any, ...]:
    """Return all parts of a message that a reader of the stream may see."""
    found = item.message
    overlay = item.overlay
    return (
        item.seq,
        found.address,
        found.header,
        content(found),
        found.size,
        found.format,
        None if overlay is None else (overlay.address, overlay.headers, overlay.drop_expiration, overlay.visible_at),
    )


def compared(harness: Harness, entries: list[Entry]) -> None:
    columns = read(harness, entries)
    loaded = harness.load_entries(entries)
    packed = [
        (
            entry.seq - 1,
            7,
            columns.formats[at],
            columns.addresses[at],
            columns.headers[at],
            -1,
            columns.bodies[at],
            columns.overlays[at] or None,
            item.message.priority,
            item.message.persistent,
        )
        for at, (entry, item) in enumerate(zip(entries, loaded, strict=True))
    ]
    again = rebuild(packed, None)
    assert [shown(item) for item in again] == [shown(item) for item in loaded]
    assert [item.message.expires_at for item in again if item.overlay is None] == [
        item.message.expires_at for item in loaded if item.overlay is None
    ]
    assert {item.time for item in again} == {7}


@pytest.mark.embedded("reads the database file")
def test_plain_messages_of_several_commits(harness: Harness) -> None:
    queue, other = FakeQueue(1), FakeQueue(2)
    entries: list[Entry] = []
    for number in range(5):
        entries += harness.publish(queue, *(b"%d-%d" % (number, at) for at in range(number + 1)))
        harness.publish(other, b"of another queue")
        entries += harness.publish(queue, b"after it")
        harness.commit()
    compared(harness, entries)
    compared(harness, entries[3:9])


@pytest.mark.embedded("reads the database file")
def test_messages_with_every_kind_of_overlay(harness: Harness) -> None:
    queue = FakeQueue(1)
    transient = message(b"transient")
    transient.persistent = False
    kinds = [
        message(b"plain"),
        message(b""),
        transient,
        message(b"first", priority=9),
        message(b"expires", expires_at=12345),
        message(b"at once", expires_at=AT_ONCE),
        message(b"headers", headers_at=4),
        message(b"1.0", format=FORMAT_AMQP1),
        message(b"elsewhere", address=make_address("e", "k\xfc")),
        message(b"large" * 300_000),
        message([b"in ", b"pieces"]),
    ]
    entries = []
    for kind in kinds:
        for overlay in (None, Overlay(make_address("dlx", "dead"), {"x-death": [{"count": 3}], "gone": None}, True)):
            assert isinstance(kind.body, (bytes, list))
            copy = message(
                kind.body,
                address=kind.address,
                priority=kind.priority,
                expires_at=kind.expires_at,
                headers_at=kind.headers_at,
                format=kind.format,
            )
            copy.persistent = kind.persistent
            entry = queue.entry(copy)
            entry.overlay = overlay
            harness.log.store(entry)
            entries.append(entry)
    harness.commit()
    compared(harness, entries)


@pytest.mark.embedded("reads the database file")
def test_entries_stored_separately_from_their_messages(harness: Harness) -> None:
    """In a fan-out, the first queue's changes to its entry do not affect the second queue's."""
    first, second = FakeQueue(1), FakeQueue(2)
    mine: list[Entry] = []
    for number in range(6):
        shared = message(b"shared %d" % number, expires_at=99 if number % 2 else 0)
        entry = first.entry(shared)
        if number % 3 == 0:
            entry.overlay = Overlay(None, {"of": "the first"})
        harness.log.store(entry)
        if number == 4:
            harness.commit()
        entry = second.entry(shared)
        if number % 3 == 1:
            entry.overlay = Overlay(None, {"of": "the second"})
        harness.log.store(entry)
        mine.append(entry)
    harness.commit()
    compared(harness, mine)
    overlays = read(harness, mine).overlays
    assert [decode_overlay(octets).headers if octets else None for octets in overlays] == [
        None,
        {"of": "the second"},
        None,
        {},
        {"of": "the second"},
        {},
    ]


@pytest.mark.embedded("reads the database file")
def test_located_rows_are_not_moved(harness: Harness) -> None:
    """Rows that are mostly garbage are copied elsewhere, except while they are being read."""
    assert isinstance(harness.log, BatchedLog)
    harness.log.trimmer.floor = 0
    stream, queue = FakeQueue(1), FakeQueue(2)
    kept: list[Entry] = []
    garbage: list[Entry] = []
    for _ in range(10):
        kept += harness.publish(stream, b"kept")
        garbage += harness.publish(queue, *([b"garbage" * 100] * 20))
        harness.commit()
    rows: array[int] = array("Q", [entry.row.id for entry in kept if entry.row is not None])
    slots: array[int] = array("I", [entry.slot for entry in kept])
    located = harness.log.locate(rows, slots)
    assert located is not None
    for entry in garbage:
        harness.log.settle(entry)
    for _ in range(3):
        harness.commit()
    rows_of_log = source(harness)
    assert LogReader(rows_of_log).read(located.runs).bodies == [b"kept"] * 10
    located.release()
    for _ in range(5):
        harness.publish(queue, b"more")
        harness.commit()
    with pytest.raises(RowMoved):
        LogReader(rows_of_log).read(located.runs)
    compared(harness, kept)
    rows_of_log.close()


@pytest.mark.embedded("reads the database file")
def test_rows_being_copied_cannot_be_located(harness: Harness) -> None:
    assert isinstance(harness.log, BatchedLog)
    harness.log.trimmer.floor = 0
    stream, queue = FakeQueue(1), FakeQueue(2)
    kept = harness.publish(stream, b"kept")
    garbage = harness.publish(queue, *([b"garbage" * 100] * 20))
    harness.commit()
    for entry in garbage:
        harness.log.settle(entry)
    harness.log.flush()  # in progress, including the copy
    row = kept[0].row
    assert row is not None
    assert harness.log.locate(array("Q", (row.id,)), array("I", (kept[0].slot,))) is None
    harness.commit()
    compared(harness, kept)


@pytest.fixture
def dsn() -> str:
    require_postgres()
    return shared_server().database()


def test_the_rows_of_a_shard_are_read_only_for_its_owner(dsn: str) -> None:
    harness = Harness(lambda: log_at(dsn))
    entries = harness.publish(FakeQueue(1), b"mine", bytes(3_000_000))
    harness.commit()
    located = harness.log.locate(*positions(entries))
    assert located is not None
    rows = source(harness)
    assert LogReader(rows).read(located.runs).bodies == [b"mine", bytes(3_000_000)]
    # Between reads, the connection keeps no snapshot that the server has to keep dead rows for.
    assert execute(dsn, "SELECT state, backend_xmin FROM pg_stat_activity WHERE application_name = 'leveret sealer'") == [
        ("idle", None)
    ]
    session = rows._connected()  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="read-only transaction"):
        session.execute("UPDATE leveret.owner SET epoch = 0")
    # The server closes the connection: the next read opens another one.
    execute(dsn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'leveret sealer'")
    rows.check_owner()
    # Another broker claims the shard.
    execute(dsn, "UPDATE leveret.owner SET epoch = epoch + 1")
    for read in (rows.check_owner, lambda: rows.read_row(1), lambda: rows.read_chunks(1, 1)):
        with pytest.raises(SourceFailed, match="another broker owns shard 0, of which this one had epoch 1"):
            read()
    rows.close()
    with pytest.raises(StorageFailed, match="has taken over shard 0"):
        harness.log.close()


def test_an_owner_is_one_only_if_a_standby_answers(dsn: str) -> None:
    """An old primary, whose standby was promoted, still has the epoch of the last owner there."""
    harness = Harness(lambda: log_at(dsn))
    rows = source(harness)
    server = shared_server()
    waits = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'leveret sealer'"
    with ThreadPoolExecutor(1) as thread:
        checked = thread.submit(rows.check_owner)

        def waits_for_a_standby() -> bool:
            nonlocal checked
            if checked.done():
                checked = thread.submit(rows.check_owner)
            return server.execute(f"SELECT count(*) {waits}") == [(1,)]

        server.reload(synchronous_standby_names="missing")
        try:
            wait_until(waits_for_a_standby)
            server.execute(f"SELECT pg_cancel_backend(pid) {waits}")
            with pytest.raises(SourceFailed, match=r"the wait for a standby .* the owner of shard 0 is unknown"):
                checked.result()
            # Rows are read nevertheless.
            assert rows.read_row(1_000_000) is None
        finally:
            server.reload(synchronous_standby_names="")
    rows.check_owner()
    rows.close()
    harness.log.close()


def test_a_server_that_is_away_is_named(dsn: str) -> None:
    harness = Harness(lambda: log_at(dsn))
    address = harness.log.rows_address()
    assert address is not None
    address.fields["dsn"] = "postgresql://leveret:secret@127.0.0.1:1/nothing"
    with pytest.raises(SourceFailed, match=r"cannot be opened: .*port 1") as caught:
        open_source(address).check_owner()
    assert "secret" not in str(caught.value)
    harness.log.close()
