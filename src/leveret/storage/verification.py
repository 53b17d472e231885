"""Verification and repair of a whole log.

`LogCheck` reads all rows, chunks, definitions and marks, verifies their checksums, and follows references. `Repair`
removes the damage that it found, if the operator accepts the loss.
"""

from __future__ import annotations

import contextlib
import sqlite3
import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import msgspec

from leveret.broker import metadata
from leveret.broker.kept_files import PLACES
from leveret.storage.batch import IndexReader, RowImage, bytes_to_words, decode_settled, encode_settled, index_head
from leveret.storage.checksums import (
    Checksums,
    blob,
    decode_text,
    definition_sum,
    number_sum,
    row_columns,
    type_fault,
)
from leveret.storage.memory import MemoryLog
from leveret.storage.records import INDEX, INDEX_SIZE
from leveret.storage.recovery import Rebuilder, Rebuilt
from leveret.storage.rows import DEAD, SLOT_BITS, SLOT_MASK

# The facts that the table `state` of each log contains.
STATE: Final = ("clean", "next_row", "first_row", "first_chunk")
# The facts that format 1 contains.
_STATE_1: Final = ("clean", "next_row")
_MALFORMED: Final = (ValueError, IndexError, KeyError, TypeError, struct.error)

ROW: Final = "row"
CHUNK: Final = "chunk"
DEFINITION: Final = "definition"
MARK: Final = "mark"
FACT: Final = "fact"
ENTRY: Final = "entry"

# Number of row ids and sequence numbers that may have been used without a record of it.
_GAP: Final = 1_000_000


class Connection(Protocol):
    """A connection to the database of a log, of any engine. Parameters are written as `?`."""

    def execute(self, query: str, parameters: Sequence[Any] = (), /) -> Any:
        """Return a cursor over the rows that a query finds."""


def read_state(connection: sqlite3.Connection) -> Iterator[tuple[str, int]]:
    """Yield the facts about a log. Raises `ValueError` for one that is damaged or missing."""
    missing = set(STATE)
    for name, value, found in connection.execute("SELECT name, value, crc FROM state"):
        fault = _number_fault(name, value, found)
        if fault:
            raise ValueError(f"the fact '{name}' is damaged: {fault}")
        missing.discard(name)
        yield name, value
    if missing:
        raise ValueError(f"the fact '{min(missing)}' is missing")


def read_metadata(connection: Connection) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield kind, key and value of each definition. Raises `ValueError` for one that is damaged."""
    for kind, key, value, found in connection.execute("SELECT kind, key, value, crc FROM metadata"):
        fault = _definition_fault(kind, key, value, found)
        if fault:
            raise ValueError(f"the definition of {kind} {_shown(key)} is damaged: {fault}")
        yield kind, key, value


def read_marks(connection: Connection) -> Iterator[tuple[int, int]]:
    """Yield pairs of queue id and highest sequence number. Raises `ValueError` for one that is damaged."""
    for queue, seq, found in connection.execute("SELECT queue, seq, crc FROM mark"):
        fault = _number_fault(f"mark {queue}", seq, found)
        if fault:
            raise ValueError(f"the highest sequence number of queue {queue} is damaged: {fault}")
        yield queue, seq


def number_type_fault(name: object, value: object) -> str:
    """Describe the wrong types of a mark or a fact. Returns "" if they are right."""
    return type_fault("name", name, str) or type_fault("value", value, int)


def _number_fault(name: object, value: object, found: object) -> str:
    """Describe the damage of a mark or a fact. Returns "" if it is intact.

    Values of different types may have the same text, so types are checked, too.
    """
    fault = number_type_fault(name, value)
    if not fault:
        assert isinstance(name, str) and isinstance(value, int)
        with contextlib.suppress(UnicodeEncodeError):
            if found == number_sum(name, value):
                return ""
    return fault or "its checksum is wrong"


def definition_type_fault(kind: object, key: object, value: object) -> str:
    """Describe the wrong types of a definition. Returns "" if they are right."""
    return type_fault("kind", kind, str) or type_fault("key", key, bytes) or type_fault("value", value, bytes)


def _definition_fault(kind: object, key: object, value: object, found: object) -> str:
    """Describe the damage of a definition. Returns "" if it is intact."""
    fault = definition_type_fault(kind, key, value)
    if not fault:
        assert isinstance(kind, str) and isinstance(key, bytes) and isinstance(value, bytes)
        if found == definition_sum(kind, key, value):
            return ""
    return fault or "its checksum is wrong"


def _shown(key: object) -> str:
    return key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else ascii(key)


class Finding:
    """Something damaged. `kind` and `key` identify it; `lost` is the known part of its content."""

    def __init__(self, kind: str, key: int | str | tuple[str, bytes], why: str, lost: str = "") -> None:
        self.kind = kind
        self.key = key
        self.why = why
        self.lost = lost

    def __str__(self) -> str:
        if self.kind == DEFINITION and isinstance(self.key, tuple):
            kind = self.key[0]
            shown = kind if isinstance(kind, str) and kind.isprintable() else ascii(kind)
            name = f"the definition of {shown} {_shown(self.key[1])}"
        elif self.kind == ENTRY and isinstance(self.key, int):
            name = f"record {self.key & SLOT_MASK} of row {self.key >> SLOT_BITS}"
        elif self.kind == MARK:
            name = f"the highest sequence number of queue {self.key}"
        else:
            name = f"{'the ' if self.kind == FACT else ''}{self.kind} {self.key}{' of the log' if self.kind == ROW else ''}"
        return f"{name} is damaged: {self.why}" + (f"; {self.lost}" if self.lost else "")


def _count(messages: int) -> str:
    return "1 message" if messages == 1 else f"{messages} messages"


class LogCheck:
    """Reads a whole log. Afterwards `counts` has the number of items of each kind, and of rows without checksums."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.findings: list[Finding] = []
        self.counts = {"rows": 0, "rows_without_checksum": 0, "messages": 0, "chunks": 0, "definitions": 0}
        self._names: dict[int, str] | None = None
        # Format 1 has no checksums.
        self._summed = connection.execute("PRAGMA user_version").fetchone()[0] > 1
        self._checksums = Checksums(0, 0)

    def run(self) -> list[Finding]:
        """Return all damage. Raises `sqlite3.Error` if the file cannot be read."""
        self.run_definitions()
        good = self._check_rows()
        chunks = self._check_chunks()
        self._check_references(good, chunks)
        return self.findings

    def run_checksums(self) -> list[Finding]:
        """Return all damage that checksums show. References are not followed, which needs memory for each message."""
        self.run_definitions()
        self._check_rows()
        self._check_chunks()
        return self.findings

    def run_definitions(self) -> list[Finding]:
        """Return the damage of definitions, marks and facts."""
        self._check_state()
        self._check_definitions()
        return self.findings

    def definitions(self) -> list[tuple[str, bytes, bytes]]:
        """Return kind, key and value of each intact definition."""
        return [
            (kind, key, value)
            for kind, key, value, found in self._columns("kind, key, value", "metadata")
            if not self._definition_fault(kind, key, value, found)
        ]

    def _columns(self, names: str, table: str) -> sqlite3.Cursor:
        """Select columns of a table, and the checksum, None in format 1."""
        return self.connection.execute(f"SELECT {names}, {'crc' if self._summed else 'NULL'} FROM {table}")

    def _definition_fault(self, kind: object, key: object, value: object, found: object) -> str:
        if self._summed:
            return _definition_fault(kind, key, value, found)
        return definition_type_fault(kind, key, value)

    def _number_fault(self, name: object, value: object, found: object) -> str:
        return _number_fault(name, value, found) if self._summed else number_type_fault(name, value)

    def finding_of(self, row_id: int, error: Exception) -> Finding:
        """Describe a damaged row as precisely as possible."""
        (index,) = self.connection.execute("SELECT entries FROM log WHERE id = ?", (row_id,)).fetchone()
        try:
            contents = self._contents(index)
        except _MALFORMED:
            contents = "its contents are unknown"
        return Finding(ROW, row_id, str(error), contents)

    def _check_state(self) -> None:
        facts: dict[str, int] = {}
        for name, value, found in self._columns("name, value", "state"):
            fault = self._number_fault(name, value, found)
            if fault:
                self.findings.append(Finding(FACT, name if name in STATE else ascii(name), fault))
            else:
                facts[name] = value
        damaged = {str(finding.key) for finding in self.findings}
        for name in set(STATE if self._summed else _STATE_1) - facts.keys() - damaged:
            self.findings.append(Finding(FACT, name, "it is missing"))
        # Without these, the rows that must have a checksum are unknown; only existing checksums are verified.
        self._checksums = Checksums(facts.get("first_row", 1 << 62), facts.get("first_chunk", 1 << 62))

    def _check_definitions(self) -> None:
        for kind, key, value, found in self._columns("kind, key, value", "metadata"):
            self.counts["definitions"] += 1
            fault = self._definition_fault(kind, key, value, found)
            if fault:
                self.findings.append(Finding(DEFINITION, (kind, key), fault))
        for queue, seq, found in self._columns("queue, seq", "mark"):
            fault = self._number_fault(f"mark {queue}", seq, found)
            if fault:
                self.findings.append(Finding(MARK, queue, fault))

    def _check_rows(self) -> set[int]:
        """Return the ids of the intact rows."""
        good: set[int] = set()
        checksums = self._checksums
        for row_id, settled, index, data in self.connection.execute(
            "SELECT id, settled, entries, data FROM log ORDER BY id"
        ):
            self.counts["rows"] += 1
            try:
                blob("settled column", settled)
                checksums.check_index(row_id, len(settled), index, len(data))
                reader = IndexReader(index)
                length = sum(bytes_to_words("I", reader.entries)[4::6])
                if length != len(data):
                    raise ValueError(f"it has {len(data)} bytes of data; expected {length} by its index")
            except _MALFORMED as error:
                why = type_fault("data", data, bytes) or str(error)
                self.findings.append(Finding(ROW, row_id, why, "its contents are unknown"))
                continue
            try:
                checksums.check_data(row_id, index, data)
                checksums.check_settled(row_id, settled)
                decode_settled(settled)
            except _MALFORMED as error:
                self.findings.append(Finding(ROW, row_id, str(error), self._contents(index)))
                continue
            good.add(row_id)
            self.counts["messages"] += reader.count
            if not checksums.covers(row_id, index):
                self.counts["rows_without_checksum"] += 1
        return good

    def _check_chunks(self) -> set[int]:
        """Return the ids of the intact chunks."""
        good: set[int] = set()
        for chunk_id, data, found in self._columns("id, data", "chunk"):
            self.counts["chunks"] += 1
            try:
                self._checksums.check_chunk(chunk_id, data, found)
                good.add(chunk_id)
            except _MALFORMED as error:
                self.findings.append(Finding(CHUNK, chunk_id, str(error), "a piece of a large body"))
        return good

    def _check_references(self, good: set[int], chunks: set[int]) -> None:
        """Find entries whose messages, and messages whose bodies, are missing or damaged."""
        rebuilder = Rebuilder(MemoryLog())
        for row_id, settled, index_size, data_size in self.connection.execute(
            "SELECT id, settled, length(entries), length(data) FROM log ORDER BY id"
        ):
            if row_id in good:
                rebuilder.settled(row_id, settled, index_size, data_size)
            else:
                with contextlib.suppress(*_MALFORMED):
                    self._checksums.check_settled(row_id, settled)
                    decode_settled(settled)
                    rebuilder.settled(row_id, settled, index_size, data_size)
        rebuilder.resolve_settled()
        try:
            for row_id, index, data_size in self.connection.execute(
                "SELECT id, entries, length(data) FROM log ORDER BY id"
            ):
                if row_id in good:
                    rebuilder.index(row_id, index, data_size)
            dangling = self._bodiless(rebuilder, chunks)
            rebuilder.finish(Rebuilt())
        except _MALFORMED as error:
            self.findings.append(Finding(FACT, "index", str(error)))
            return
        for place in sorted({*dangling, *rebuilder.dangling}):
            (index,) = self.connection.execute("SELECT entries FROM log WHERE id = ?", (place >> SLOT_BITS,)).fetchone()
            fields = INDEX.unpack_from(IndexReader(index).entries, INDEX_SIZE * (place & SLOT_MASK))
            self.findings.append(
                Finding(
                    ENTRY, place, "its message is missing or damaged", f"message {fields[0]} of {self._queue(fields[1])}"
                )
            )

    def _bodiless(self, rebuilder: Rebuilder, chunks: set[int]) -> list[int]:
        """Return the live deliveries whose body is damaged. All such messages count as lost."""
        dangling: list[int] = []
        for row_id, row in rebuilder.rows.items():
            if row.links is None:
                continue
            for slot, (first, last) in row.links.chunks.items():
                if not chunks.issuperset(range(first, last + 1)):
                    rebuilder.lost.add(row_id << SLOT_BITS | slot)
                    if row.slots[slot] != DEAD:
                        dangling.append(row_id << SLOT_BITS | slot)
        return dangling

    def _contents(self, index: bytes) -> str:
        """Describe the messages of a row by its index."""
        reader = IndexReader(index)
        seqs = bytes_to_words("Q", reader.entries)[0::3]
        found: dict[int, list[int]] = {}
        for queue, seq in zip(bytes_to_words("I", reader.entries)[2::6], seqs, strict=True):
            if queue:
                found.setdefault(queue, []).append(seq)
        if not found:
            return "it contained no message"
        return "it contained " + ", ".join(
            f"{_count(len(seqs))} of {self._queue(queue)} (sequence {min(seqs)} to {max(seqs)})"
            for queue, seqs in sorted(found.items())
        )

    def _queue(self, queue_id: int) -> str:
        """Return the name of a queue for messages."""
        if self._names is None:
            self._names = {}
            for key, value in self.connection.execute("SELECT key, value FROM metadata WHERE kind = ?", (metadata.QUEUE,)):
                with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, msgspec.MsgspecError):
                    vhost, name = metadata.split_key(key.decode("utf-8", "surrogateescape"))
                    self._names[metadata.unpack(value)["id"]] = f"queue '{name}' in vhost '{vhost}'"
        return self._names.get(queue_id, f"queue {queue_id}")


def _text(value: object) -> str:
    """Return a kind or a key of a definition as text, whatever its type after damage."""
    if isinstance(value, bytes):
        return decode_text(value)
    return value if isinstance(value, str) else ""


def mark_salvaged(connection: sqlite3.Connection) -> None:
    """Record that parts of the log were lost, so that the broker keeps files without a definition.

    The caller begins and ends the transaction.
    """
    value = metadata.pack({})
    connection.executemany(
        "INSERT OR REPLACE INTO metadata VALUES (?, ?, ?, ?)",
        [
            (metadata.SALVAGED, key, value, definition_sum(metadata.SALVAGED, key, value))
            for key in (place.encode() for place in PLACES)
        ],
    )


class Repair:
    """Removes the damage that a `LogCheck` found. The caller begins and ends the transaction."""

    def __init__(self, connection: sqlite3.Connection, findings: list[Finding]) -> None:
        self.connection = connection
        self.findings = findings
        self.dropped: list[tuple[str, str]] = []

    def run(self) -> list[tuple[str, str]]:
        """Remove the damage. Returns kinds and keys of the removed definitions."""
        next_row = self._next_row()
        lost: dict[int, list[int]] = {}
        for finding in self.findings:
            key = finding.key
            if finding.kind == ROW and isinstance(key, int):
                self._drop_row(key)
            elif finding.kind == CHUNK:
                self.connection.execute("DELETE FROM chunk WHERE id = ?", (key,))
            elif finding.kind == DEFINITION and isinstance(key, tuple):
                self.dropped.append((_text(key[0]), _text(key[1])))
            elif finding.kind == ENTRY and isinstance(key, int):
                lost.setdefault(key >> SLOT_BITS, []).append(key & SLOT_MASK)
            elif finding.kind == MARK and isinstance(key, int):
                self._raise_mark(key)
        if self.dropped:
            self._rewrite_definitions()
        if lost:
            words: array[int] = array("I")
            for row_id, slots in lost.items():
                words.extend((row_id & 0xFFFFFFFF, row_id >> 32, len(slots), *slots))
            self._insert(RowImage(next_row, encode_settled(words), index_head(0, 0, 0, 0), []))
            next_row += 1
        if self.findings:
            mark_salvaged(self.connection)
        facts = {"clean": 0, "next_row": next_row}
        if any(finding.kind == FACT for finding in self.findings):
            # The rows that must have a checksum are unknown now, so no existing row needs one.
            facts |= {"first_row": next_row, "first_chunk": self._next_chunk()}
        self._rewrite_facts(facts)
        return self.dropped

    def _rewrite_definitions(self) -> None:
        """Rewrite all intact definitions: a statement may not find one whose kind or key was damaged."""
        rows = self.connection.execute("SELECT kind, key, value, crc FROM metadata")
        whole = [row for row in rows if not _definition_fault(*row)]
        self.connection.execute("DELETE FROM metadata")
        self.connection.executemany("INSERT OR REPLACE INTO metadata VALUES (?, ?, ?, ?)", whole)

    def _rewrite_facts(self, changed: dict[str, int]) -> None:
        """Rewrite the facts with these values, without the fact 'damaged'."""
        facts = {
            name: value
            for name, value, found in self.connection.execute("SELECT name, value, crc FROM state")
            if not _number_fault(name, value, found) and name in STATE
        }
        self.connection.execute("DELETE FROM state")
        self.connection.executemany(
            "INSERT INTO state VALUES (?, ?, ?)",
            [(name, value, number_sum(name, value)) for name, value in (facts | changed).items()],
        )

    def _next_row(self) -> int:
        """Return a row id that is neither used nor referenced.

        Otherwise settlements of an old row would settle records of a new one.
        """
        highest = 0
        for row_id, settled in self.connection.execute("SELECT id, settled FROM log"):
            highest = max(highest, row_id)
            with contextlib.suppress(*_MALFORMED):
                words = decode_settled(settled)
                at = 0
                while at < len(words):
                    highest = max(highest, words[at] | words[at + 1] << 32)
                    at += 3 + words[at + 2]
        reserved = dict(self.connection.execute("SELECT name, value FROM state")).get("next_row", 0)
        damaged = any(finding.kind == FACT for finding in self.findings)
        return highest + _GAP if damaged else max(highest + 1, reserved)

    def _next_chunk(self) -> int:
        highest: int = self.connection.execute("SELECT max(id) FROM chunk").fetchone()[0] or 0
        return highest + 1

    def _drop_row(self, row_id: int) -> None:
        """Drop a row but keep its settlements if they are intact.

        Otherwise the messages that they settle would reappear.
        """
        (settled,) = self.connection.execute("SELECT settled FROM log WHERE id = ?", (row_id,)).fetchone() or (b"",)
        self.connection.execute("DELETE FROM log WHERE id = ?", (row_id,))
        with contextlib.suppress(*_MALFORMED):
            Checksums(0, 0).check_settled(row_id, settled)
            words = decode_settled(settled)
            if words:
                self._insert(RowImage(row_id, encode_settled(words), index_head(0, 0, 0, 0), []))

    def _raise_mark(self, queue: int) -> None:
        """Set the mark of a queue to the highest sequence number that may have been used. Its value may be damaged."""
        (seq,) = self.connection.execute("SELECT seq FROM mark WHERE queue = ?", (queue,)).fetchone() or (0,)
        highest = 0
        for (index,) in self.connection.execute("SELECT entries FROM log"):
            with contextlib.suppress(*_MALFORMED):
                reader = IndexReader(index)
                seqs = bytes_to_words("Q", reader.entries)[0::3]
                queues = bytes_to_words("I", reader.entries)[2::6]
                for number, found in zip(seqs, queues, strict=True):
                    if found == queue:
                        highest = max(highest, number)
        if not isinstance(seq, int) or not highest <= seq <= highest + (1 << 48):
            seq = highest + _GAP
        self.connection.execute(
            "INSERT OR REPLACE INTO mark VALUES (?, ?, ?)", (queue, seq, number_sum(f"mark {queue}", seq))
        )

    def _insert(self, image: RowImage) -> None:
        self.connection.execute("INSERT INTO log VALUES (?, ?, ?, ?)", (image.id, *row_columns(image)))
