"""Changed bytes anywhere in the log are detected, reported and never delivered; the operator decides to drop them."""

from __future__ import annotations

import sqlite3
from array import array
from pathlib import Path
from typing import Any

import pytest

from leveret.broker import metadata
from leveret.broker.errors import StorageFailed
from leveret.broker.log import FAILED
from leveret.broker.message import Entry
from leveret.node.checking import DirectoryCheck
from leveret.storage.batch import CHUNK_BYTES, RowImage, index_head
from leveret.storage.checksums import chunk_sum, row_columns
from leveret.storage.located import LogReader
from leveret.storage.row_sources import SqliteRows
from leveret.storage.salvage import Salvage
from leveret.storage.verification import LogCheck
from leveret.storage.worker import StoreBroken
from tests.storage.harness import FakeQueue, Harness, sqlite_log
from tests.support.polling import wait_until

pytestmark = pytest.mark.embedded("damages the database file")

DROPPING = Salvage(drop_damaged=True)
BODY = b"a body that is long enough to be changed somewhere " * 20


def harness_of(path: Path, salvage: Salvage | None = None) -> Harness:
    return Harness(lambda: sqlite_log(path, salvage=salvage) if salvage is not None else sqlite_log(path))


def queue_named(harness: Harness, id: int, name: str) -> FakeQueue:
    """Return a queue whose definition is in the log."""
    harness.log.put(metadata.QUEUE, metadata.make_key("/", name), metadata.pack({"id": id}))
    return FakeQueue(id)


def filled(path: Path, rows: int = 3) -> list[bytes]:
    """Create a log with one message of the queue `orders` in each row. Returns the bodies."""
    harness = harness_of(path)
    queue = queue_named(harness, 1, "orders")
    bodies = [b"%d " % number + BODY for number in range(rows)]
    for body in bodies:
        harness.publish(queue, body)
        harness.commit()
    harness.log.close()
    return bodies


def change(path: Path, statement: str, *values: Any) -> None:
    with sqlite3.connect(path / "log-0.sqlite") as connection:
        assert connection.execute(statement, values).rowcount == 1
    connection.close()


def flip(path: Path, column: str, key: int, at: int, table: str = "log") -> None:
    """Change 16 bytes of a column of a row."""
    with sqlite3.connect(path / "log-0.sqlite") as connection:
        value = bytearray(connection.execute(f"SELECT {column} FROM {table} WHERE id = ?", (key,)).fetchone()[0])
        at %= len(value)
        value[at : at + 16] = bytes(octet ^ 0x55 for octet in value[at : at + 16])
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE id = ?", (bytes(value), key))
    connection.close()


def refusal(path: Path) -> str:
    with pytest.raises(StorageFailed) as caught:
        sqlite_log(path).open()
    return str(caught.value)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE metadata SET key = CAST(x'ff' || key AS TEXT) WHERE kind = 'queue'",
        "UPDATE metadata SET key = CAST(key AS TEXT) WHERE kind = 'queue'",
        "UPDATE metadata SET value = CAST(value AS TEXT) WHERE kind = 'queue'",
        "UPDATE metadata SET value = NULL WHERE kind = 'queue'",
        "UPDATE metadata SET kind = CAST(x'ff' AS TEXT) WHERE kind = 'queue'",
        "UPDATE metadata SET kind = CAST(kind AS BLOB) WHERE kind = 'queue'",
        "UPDATE log SET data = CAST(x'ff' || data AS TEXT) WHERE id = 2",
        "UPDATE log SET data = CAST(data AS TEXT) WHERE id = 2",
        "UPDATE log SET data = NULL WHERE id = 2",
        "UPDATE log SET entries = CAST(x'ff' || entries AS TEXT) WHERE id = 2",
        "UPDATE log SET settled = CAST(x'ff' AS TEXT) WHERE id = 2",
        "UPDATE mark SET seq = CAST(x'ff' AS TEXT)",
        "UPDATE state SET value = CAST(x'ff' AS TEXT) WHERE name = 'next_row'",
        "UPDATE state SET name = CAST(x'ff' AS TEXT) WHERE name = 'next_row'",
        "DELETE FROM state WHERE name = 'clean'",
    ],
)
def test_values_of_another_type_are_damage_that_can_be_dropped(tmp_path: Path, statement: str) -> None:
    bodies = filled(tmp_path)
    harness = harness_of(tmp_path)
    harness.log.put(metadata.VHOST, "kept", b"kept")
    harness.commit()
    harness.log.close()
    change(tmp_path, statement)
    found = DirectoryCheck(tmp_path)
    found.run()
    assert len(found.damaged) >= 1
    harness = harness_of(tmp_path, DROPPING)
    assert harness.recovery.metadata[metadata.VHOST, "kept"] == b"kept"
    left = harness.bodies(1)
    assert left == (bodies if " log " not in statement else [bodies[0], bodies[2]])
    harness.log.close()
    again = DirectoryCheck(tmp_path)
    again.run()
    assert again.damaged == []
    harness_of(tmp_path).log.close()


def test_a_definition_that_is_out_of_order_is_dropped(tmp_path: Path) -> None:
    """A statement for another kind does not find it."""
    filled(tmp_path)
    file = tmp_path / "log-0.sqlite"
    octets = file.read_bytes()
    assert octets.count(b'queue["/", "orders"]') == 1
    file.write_bytes(octets.replace(b'queue["/", "orders"]', b'\xffueue["/", "orders"]'))
    harness = harness_of(tmp_path, DROPPING)
    assert harness.recovery.dropped == [("\udcffueue", '["/", "orders"]')]
    salvaged = {(metadata.SALVAGED, place): metadata.pack({}) for place in ("segments", "staged")}
    assert harness.recovery.metadata == salvaged
    harness.log.close()
    assert sqlite_log(tmp_path).open().metadata == salvaged


def test_a_damaged_structure_cannot_be_dropped(tmp_path: Path) -> None:
    filled(tmp_path)
    file = tmp_path / "log-0.sqlite"
    with sqlite3.connect(file) as connection:
        page = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'mark'").fetchone()[0]
    connection.close()
    with open(file, "r+b") as opened:
        opened.seek((page - 1) * 4096)
        opened.write(b"\x0d\xff\xff\x00\x05")
    with pytest.raises(StorageFailed) as caught:
        sqlite_log(tmp_path, salvage=DROPPING).open()
    assert "--drop-damaged cannot help" in str(caught.value)
    assert "start once with --drop-damaged" not in str(caught.value)


@pytest.mark.parametrize("value", ["CAST(data AS TEXT)", "CAST(x'ff' || substr(data, 2) AS TEXT)", "NULL"])
def test_a_row_that_cannot_be_read_makes_the_next_start_check_everything(tmp_path: Path, value: str) -> None:
    filled(tmp_path)
    log: Any = sqlite_log(tmp_path)
    log.open()
    store = log._store
    store._connection.execute(f"UPDATE log SET data = {value} WHERE id = 2")
    store._connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBroken, match="row 2 of the log is damaged"):
        store.read_row(2)
    log.close()
    assert "row 2 of the log is damaged" in refusal(tmp_path)


def test_an_error_of_sqlite_makes_the_next_start_check_everything(tmp_path: Path) -> None:
    filled(tmp_path)
    log: Any = sqlite_log(tmp_path)
    log.open()
    store = log._store
    store._connection.execute("ALTER TABLE log RENAME COLUMN data TO other")
    with pytest.raises(StoreBroken, match="no such column"):
        store.read_row(2)
    assert store._connection.execute("SELECT value FROM state WHERE name = 'damaged'").fetchone() == (2,)
    log.close()


@pytest.mark.parametrize("at", [0, 30, 500, 1000])
def test_a_changed_body_is_not_delivered(tmp_path: Path, at: int) -> None:
    filled(tmp_path)
    flip(tmp_path, "data", 2, at)
    harness = harness_of(tmp_path)
    recovered = harness.recovery.queues[1]
    harness.log.load(recovered.rows, recovered.slots, lambda loaded: pytest.fail("a damaged row was read"))

    def failed() -> bool:
        harness.loop.run_pending()
        return harness.log.state == FAILED

    wait_until(failed)
    assert "row 2 of the log is damaged: the checksum of its data is wrong" in harness.log.reason
    assert "it contained 1 message of queue 'orders' in vhost '/' (sequence 2 to 2)" in harness.log.reason
    with pytest.raises(StorageFailed):
        harness.log.close()
    # The damage is recorded: the next start is refused, even if it would not read the body.
    message = refusal(tmp_path)
    assert "row 2 of the log is damaged: the checksum of its data is wrong" in message
    assert "--drop-damaged" in message and f"leveret check {tmp_path}" in message


def test_a_changed_body_is_found_after_an_unclean_stop(tmp_path: Path) -> None:
    filled(tmp_path)
    flip(tmp_path, "data", 2, 100)
    log = sqlite_log(tmp_path)
    log.open()
    log._release()  # like a kill
    assert "queue 'orders' in vhost '/' (sequence 2 to 2)" in refusal(tmp_path)


@pytest.mark.parametrize(("column", "at"), [("entries", 4), ("entries", 30), ("entries", -16), ("settled", 4)])
def test_a_changed_index_is_refused_at_the_start(tmp_path: Path, column: str, at: int) -> None:
    harness = harness_of(tmp_path)
    queue = FakeQueue(1)
    entries = harness.publish(queue, b"one", b"two")
    harness.commit()
    harness.log.settle(entries[0])
    harness.publish(queue, b"three")
    harness.commit()
    harness.log.close()
    flip(tmp_path, column, 2, at)
    assert "row 2 of the log is damaged" in refusal(tmp_path)


def test_a_row_in_the_place_of_another_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    change(tmp_path, "UPDATE log SET (entries, data) = (SELECT entries, data FROM log WHERE id = 1) WHERE id = 2")
    assert "row 2 of the log is damaged: the checksum of its index is wrong" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE metadata SET value = x'00' WHERE kind = 'queue'", 'the definition of queue ["/", "orders"] is damaged'),
        ("UPDATE metadata SET key = x'5b5d' WHERE kind = 'queue'", "the definition of queue [] is damaged"),
        ("UPDATE mark SET seq = 1", "the highest sequence number of queue 1 is damaged"),
        ("UPDATE state SET value = 99 WHERE name = 'next_row'", "the fact next_row is damaged"),
        ("DELETE FROM state WHERE name = 'first_row'", "the fact first_row is damaged: it is missing"),
    ],
)
def test_changed_definitions_are_refused_by_name(tmp_path: Path, statement: str, named: str) -> None:
    filled(tmp_path)
    change(tmp_path, statement)
    assert named in refusal(tmp_path)
    harness = harness_of(tmp_path, DROPPING)
    assert len(harness.bodies(1)) == 3
    harness.log.close()
    assert sqlite_log(tmp_path).open().clean


def test_dropping_logs_the_losses_and_keeps_the_rest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bodies = filled(tmp_path)
    flip(tmp_path, "data", 2, 100)
    harness = harness_of(tmp_path, DROPPING)
    assert {key for kind, key in harness.recovery.metadata if kind == metadata.SALVAGED} == {"segments", "staged"}
    assert "dropped: row 2 of the log is damaged" in caplog.text
    assert "it contained 1 message of queue 'orders' in vhost '/' (sequence 2 to 2)" in caplog.text
    assert harness.bodies(1) == [bodies[0], bodies[2]]
    assert harness.recovery.last_seq[1] >= 3
    assert harness.reopen().clean
    assert harness.bodies(1) == [bodies[0], bodies[2]]
    harness.log.close()


def test_settlements_in_a_dropped_row_stay(tmp_path: Path) -> None:
    harness = harness_of(tmp_path)
    queue = FakeQueue(1)
    entries = harness.publish(queue, b"settled", b"kept")
    harness.commit()
    harness.log.settle(entries[0])
    harness.publish(queue, b"lost")
    harness.commit()
    harness.log.close()
    flip(tmp_path, "data", 2, 0)
    harness = harness_of(tmp_path, DROPPING)
    assert harness.bodies(1) == [b"kept"]
    harness.log.close()


def test_entries_of_a_dropped_message_are_dropped(tmp_path: Path) -> None:
    """If the message of a fan-out is lost, no queue keeps its entry."""
    harness = harness_of(tmp_path)
    left, right = FakeQueue(1), FakeQueue(2)
    shared = harness.publish(left, b"shared" * 10)[0]
    harness.commit()
    other = Entry(right.queue, shared.message, 1)
    harness.log.store(other)
    harness.commit()
    right.seq = 1
    harness.publish(right, b"own")
    harness.commit()
    harness.log.close()
    flip(tmp_path, "data", 1, 20)
    harness = harness_of(tmp_path, DROPPING)
    assert harness.bodies(1) == []
    assert harness.bodies(2) == [b"own"]
    harness.reopen()
    assert harness.bodies(2) == [b"own"]
    harness.log.close()


def test_a_changed_chunk_of_a_large_body(tmp_path: Path) -> None:
    harness = harness_of(tmp_path)
    queue = FakeQueue(1)
    harness.publish(queue, bytes(2 * CHUNK_BYTES))
    harness.publish(queue, b"small")
    harness.commit()
    harness.log.close()
    flip(tmp_path, "data", 2, 5000, "chunk")
    log: Any = sqlite_log(tmp_path)
    log.open()
    with pytest.raises(Exception, match="chunk 2 of a large body is damaged: its checksum is wrong"):
        log._store.read_chunks(1, 2)
    log._release()
    assert "chunk 2 is damaged" in refusal(tmp_path)
    harness = harness_of(tmp_path, DROPPING)
    assert harness.bodies(1) == [b"small"]
    harness.log.close()


def test_the_sealer_refuses_a_changed_row(tmp_path: Path) -> None:
    harness = harness_of(tmp_path)
    entries = harness.publish(FakeQueue(1), b"one" * 50)
    harness.commit()
    located = harness.log.locate(*_positions(entries))
    assert located is not None
    flip(tmp_path, "data", 1, 20)
    reader = LogReader(SqliteRows(tmp_path / "log-0.sqlite"))
    with pytest.raises(ValueError, match="row 1 of the log is damaged: the checksum of its data is wrong"):
        reader.read(located.runs)
    harness.log.close()


def _positions(entries: list[Entry]) -> Any:
    return array("Q", [entry.row.id for entry in entries if entry.row is not None]), array("I", [0] * len(entries))


def test_a_damaged_row_is_not_copied(tmp_path: Path) -> None:
    """Copying survivors must not give a damaged row a good checksum."""
    filled(tmp_path)
    flip(tmp_path, "data", 2, 100)
    log: Any = sqlite_log(tmp_path)
    log.open()
    with pytest.raises(StoreBroken, match="row 2 of the log is damaged"):
        log._store._fetch_row(2)
    log._release()


def test_every_row_that_is_written_has_checksums(tmp_path: Path) -> None:
    harness = harness_of(tmp_path)
    queue = FakeQueue(1)
    entries = harness.publish(queue, *[b"%d" % number for number in range(20)])
    harness.commit()
    for entry in entries[::2]:
        harness.log.settle(entry)
    harness.commit()
    harness.log.close()
    connection = sqlite3.connect(tmp_path / "log-0.sqlite")
    check = LogCheck(connection)
    assert check.run() == []
    assert check.counts["rows"] == 2 and check.counts["rows_without_checksum"] == 0
    connection.close()


def test_columns_end_with_their_checksums() -> None:
    first = row_columns(RowImage(1, b"", index_head(0, 0, 0, 0), [b"data"]))
    second = row_columns(RowImage(2, b"", index_head(0, 0, 0, 0), [b"data"]))
    assert first[2] == second[2] == b"data"
    assert first[1][:-4] == second[1][:-4]  # the checksum of the data is the same
    assert first[1][-4:] != second[1][-4:]  # the index entry has the position


def test_the_content_of_another_row_or_chunk_is_damage_too() -> None:
    assert chunk_sum(1, b"content") != chunk_sum(2, b"content")
    columns = [row_columns(RowImage(id, b"settlements", index_head(0, 0, 0, 0), [])) for id in (1, 2)]
    assert columns[0][0] != columns[1][0]
