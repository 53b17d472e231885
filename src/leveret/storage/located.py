"""Positions of entries on disk, for a process that reads the rows itself. The event loop computes them."""

from __future__ import annotations

import contextlib
import struct
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Union

from leveret.broker.bodies import Body, Spool
from leveret.broker.errors import ContentTooLarge
from leveret.broker.log import Loaded, Located, Row
from leveret.broker.message import Message, Overlay
from leveret.storage.checksums import RowDamaged
from leveret.storage.loading import SPOOLED_BYTES, RowReader
from leveret.storage.memory import MemoryLog
from leveret.storage.records import (
    DELIVERY,
    ENTRY,
    FORMAT_SHIFT,
    MESSAGE,
    PREFIXED,
    SPILL,
    SPILLED,
    Prefix,
    decode_overlay,
    encode_overlay,
)
from leveret.storage.rows import REMOVED, SLOT_BITS, SLOT_MASK, STORED, StoredRow, element

if TYPE_CHECKING:
    from leveret.storage.row_sources import RowSource
    from leveret.storage.trimming import Trimmer

# Words per run.
RUN: Final = 5
# The log of rebuilt messages, which are only in a segment.
_NO_LOG: Final = MemoryLog()
# Number of decoded rows to cache.
_CACHED_ROWS: Final = 4


class LocatedRows(Located):
    """Located entries of a log on disk. Their rows stay in place until `release`."""

    def __init__(self, runs: array[int], count: int, rows: list[StoredRow], trimmer: Trimmer) -> None:
        super().__init__(runs, count)
        self.rows = rows
        self.trimmer = trimmer
        for row in rows:
            row.begin_reading()

    def release(self) -> None:
        for row in self.rows:
            row.end_reading()
            if not row.readers and row.state == STORED and row.useful_bytes() * 2 <= row.size:
                self.trimmer.touch(row)  # trimming skipped it meanwhile
        self.rows = []


def locate(trimmer: Trimmer, committed: int, rows: array[int], slots: array[int]) -> LocatedRows | None:
    """Return the positions of entries, or None if a commit is about to copy some of them."""
    runs: array[int] = array("Q")
    kept: dict[int, StoredRow] = {}
    last_place = last_message = -1
    for index, row_id in enumerate(rows):
        place = trimmer.find(row_id << SLOT_BITS | slots[index])
        assert place, "a settled entry was requested"
        row = trimmer.row_of(place)
        kept[row.id] = row
        message = 0
        if row.links is not None:
            message = trimmer.find(element(row.links.targets, place & SLOT_MASK))
            if message:
                holder = trimmer.row_of(message)
                kept[holder.id] = holder
        if place == last_place + 1 and message == (last_message + 1 if last_message else 0):
            runs[len(runs) - 3] += 1
        else:
            runs.extend((row.id, place & SLOT_MASK, 1, message >> SLOT_BITS, message & SLOT_MASK))
        last_place = place
        last_message = message
    for row in kept.values():
        if row.batch > committed or row.state != STORED:
            return None
    return LocatedRows(runs, len(rows), list(kept.values()), trimmer)


class Columns:
    """Messages as parallel lists, in the encoding of the log.

    formats    `Message.format`; addresses, headers and bodies are fields of the message, too
    overlays   encoded, including the expiry of the message; b"" for none
    """

    __slots__ = ("addresses", "bodies", "formats", "headers", "overlays")

    def __init__(self) -> None:
        self.formats: list[int] = []
        self.addresses: list[bytes] = []
        self.headers: list[bytes] = []
        self.bodies: list[bytes] = []
        self.overlays: list[bytes] = []


class RowMoved(Exception):
    """The records of a row have moved to another row."""


class LogReader:
    """Reads located entries of a log that another process has open.

    Raises `SourceFailed` if the rows cannot be read, and ValueError, IndexError or struct.error if a row is damaged.
    """

    def __init__(self, source: RowSource) -> None:
        self._source = source
        self._readers: dict[int, RowReader] = {}

    def read(self, runs: array[int]) -> Columns:
        """Return the messages of located entries. Raises `RowMoved`."""
        columns = Columns()
        for at in range(0, len(runs), RUN):
            row_id, slot, count, message_row, message_slot = runs[at : at + RUN]
            own = self._reader(row_id)
            if message_row:
                extract(columns, own, slot, self._reader(message_row), message_slot, count, self._chunks)
            else:
                extract(columns, own, slot, own, slot, count, self._chunks)
        return columns

    def _reader(self, row_id: int) -> RowReader:
        reader = self._readers.get(row_id)
        if reader is None:
            row = self._source.read_row(row_id)
            if row is None:
                raise RowMoved(f"row {row_id} of the log has moved")
            settled_size, index, data = row
            try:
                self._source.checksums.check_index(row_id, settled_size, index, len(data))
                self._source.checksums.check_data(row_id, index, data)
            except (RowDamaged, TypeError, struct.error) as error:
                raise ValueError(f"row {row_id} of the log is damaged: {error}") from None
            reader = RowReader(StoredRow(_NO_LOG, row_id, 0, REMOVED), index, data, self._chunks, None)
            if len(self._readers) >= _CACHED_ROWS:
                del self._readers[next(iter(self._readers))]
            self._readers[row_id] = reader
        return reader

    def _chunks(self, first: int, count: int) -> list[bytes]:
        rows = self._source.read_chunks(first, first + count - 1)
        if len(rows) != count:
            raise RowMoved(f"chunks {first} to {first + count - 1} of the log have moved")
        for chunk_id, data, found in rows:
            try:
                self._source.checksums.check_chunk(chunk_id, data, found)
            except (RowDamaged, TypeError, struct.error) as error:
                raise ValueError(f"chunk {chunk_id} of the log is damaged: {error}") from None
        return [data for _, data, _ in rows]


def extract(
    columns: Columns,
    entries: RowReader,
    entry_slot: int,
    messages: RowReader,
    slot: int,
    count: int,
    chunks: Callable[[int, int], list[bytes]],
) -> None:
    """Append `count` messages from a slot on, with the overlays of their entries, to the columns."""
    data = messages.data
    offsets = messages.offsets
    formats = columns.formats
    addresses = columns.addresses
    headers = columns.headers
    bodies = columns.bodies
    overlays = columns.overlays
    apart = entries is not messages or entry_slot != slot
    for number in range(slot, slot + count):
        fields = messages.fields(number)
        size = fields[2]
        kind = fields[4] & 0xFF
        flags = fields[4] >> 8
        if kind != DELIVERY and (kind != MESSAGE or not apart):
            raise ValueError(f"record {number} of row {messages.row.id} is not a message")
        at = offsets[number]
        end = offsets[number + 1]
        prefix: Prefix | None = None
        begin = at
        if flags & PREFIXED:
            prefix = Prefix(data, at)
            begin = prefix.end
        middle = begin + 1 + data[begin]
        header = middle + 1 + data[middle]
        formats.append(flags >> FORMAT_SHIFT & 3)
        addresses.append(data[begin:header])
        if flags & SPILLED:
            first, pieces, header_size = SPILL.unpack_from(data, header)
            whole = b"".join(chunks(first, pieces))
            headers.append(whole[:header_size])
            bodies.append(whole[header_size:])
        else:
            headers.append(data[header : end - size])
            bodies.append(data[end - size : end])
        if prefix is None and not apart:
            overlays.append(b"")
            continue
        own = prefix
        if apart:
            entry = entry_slot + number - slot
            if entries.fields(entry)[4] & 0xFF not in (ENTRY, DELIVERY):
                raise ValueError(f"record {entry} of row {entries.row.id} is not an entry")
            own = entries.prefix(entry)
        overlay = own.overlay if own is not None else None
        if prefix is not None and prefix.expires_at and (overlay is None or overlay.expires_at < 0):
            overlay = Overlay() if overlay is None else overlay
            overlay.expires_at = prefix.expires_at
        overlays.append(encode_overlay(overlay) if overlay is not None else b"")


Packed = tuple[int, int, int, bytes, bytes, int, bytes, Union[bytes, None], int, bool]


def rebuild(packed: list[Packed], spool: Spool | None) -> list[Loaded]:
    """Rebuild the messages of a stream as they were published from their fields in a segment.

    The fields are offset, append time (ms), format, address, header, headers_at, body, encoded overlay, priority (-1
    for none) and persistent. Large bodies go to the spool.
    """
    nowhere = Row(_NO_LOG, 0, 0)
    loaded: list[Loaded] = []
    for offset, time, format, address, header, headers_at, data, encoded, priority, persistent in packed:
        size = len(data)
        body: Body = data
        if spool is not None and size > SPOOLED_BYTES:
            with contextlib.suppress(ContentTooLarge):  # no disk space: keep the body in memory
                stored = spool.begin(size, False)
                stored.append(data)
                body = stored
        message = Message(address, header, body, size, persistent, priority, 0, headers_at, 0, format)
        overlay: Overlay | None = None
        if encoded:
            overlay = decode_overlay(encoded)
            if overlay.expires_at > 0 and not (
                overlay.address or overlay.headers or overlay.drop_expiration or overlay.visible_at
            ):
                message.expires_at = overlay.expires_at
                overlay = None
        item = Loaded(offset + 1, nowhere, 0, message, overlay, 0, 0)
        item.time = time
        loaded.append(item)
    return loaded
