"""Loading of paged-out entries. Reads are planned on the event loop; the engine's thread decodes the rows."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Callable
from itertools import accumulate
from typing import Final

from leveret.broker.bodies import Body, Spool
from leveret.broker.errors import ContentTooLarge
from leveret.broker.log import Loaded
from leveret.broker.message import Message, Overlay
from leveret.storage.batch import IndexReader, bytes_to_words
from leveret.storage.records import (
    DELIVERY,
    ENTRY,
    FORMAT_SHIFT,
    INDEX,
    INDEX_SIZE,
    MESSAGE,
    PREFIXED,
    SPILL,
    SPILLED,
    TRANSIENT,
    UPDATE,
    Prefix,
)
from leveret.storage.rows import SLOT_BITS, SLOT_MASK, Links, StoredRow, element
from leveret.storage.trimming import Trimmer

# Bits of the kind of a plain delivery, whose data are address, header and body: its flags TRANSIENT and format.
PLAIN_BITS: Final = (TRANSIENT | 3 << FORMAT_SHIFT) << 8

# Larger bodies go to the spool when they are loaded; smaller ones stay in memory.
SPOOLED_BYTES: Final = 512 << 10


class Piece:
    """The entries to load from one row: their slots, and their indices in the result.

    messages  by index: the row and slot of a message that is stored separately from its entry
    updates   by index: the row and slot of the latest update
    pending   by index: the bytes of an update that is not on disk yet
    """

    __slots__ = ("indices", "messages", "pending", "row", "slots", "updates")

    def __init__(self, row: StoredRow) -> None:
        self.row = row
        self.slots: list[int] = []
        self.indices: list[int] = []
        self.messages: dict[int, tuple[StoredRow, int]] = {}
        self.updates: dict[int, tuple[StoredRow, int]] = {}
        self.pending: dict[int, bytes] = {}


class ReadPlan:
    """Reads from some rows, in steps of one row. The rows stay on disk until all steps are finished.

    steps  their number; `read` counts the finished ones
    """

    __slots__ = ("read", "rows", "steps")

    def __init__(self) -> None:
        self.rows: dict[int, StoredRow] = {}
        self.steps = 0
        self.read = 0

    @abstractmethod
    def read_next(self, reader_of: Callable[[StoredRow], RowReader]) -> None:
        """Do the next step, on the engine's thread. Raises `KeyError` if a row is not on disk."""

    @abstractmethod
    def finish(self) -> None:
        """Pass the results on, on the event loop."""

    def keep(self, row: StoredRow) -> None:
        """Keep a row on disk until the load is done."""
        if row.id not in self.rows:
            self.rows[row.id] = row
            row.begin_reading()


class LoadPlan(ReadPlan):
    """One call to `load`, with a step for each piece."""

    __slots__ = ("done", "pieces", "results")

    def __init__(self, count: int, done: Callable[[list[Loaded]], None]) -> None:
        super().__init__()
        self.done = done
        self.pieces: list[Piece] = []
        self.results: list[Loaded | None] = [None] * count

    def read_next(self, reader_of: Callable[[StoredRow], RowReader]) -> None:
        read_piece(self, self.pieces[self.read], reader_of)

    def finish(self) -> None:
        self.done([item for item in self.results if item is not None])


def plan_load(trimmer: Trimmer, rows: array[int], slots: array[int], done: Callable[[list[Loaded]], None]) -> LoadPlan:
    """Plan the reads for the entries at these positions, one piece per row. The rows stay on disk until it is done."""
    plan = LoadPlan(len(rows), done)
    pieces: dict[int, Piece] = {}
    for index, row_id in enumerate(rows):
        place = trimmer.find(row_id << SLOT_BITS | slots[index])
        assert place, "a settled entry was requested"
        row = trimmer.row_of(place)
        slot = place & SLOT_MASK
        piece = pieces.get(row.id)
        if piece is None:
            piece = Piece(row)
            pieces[row.id] = piece
            plan.pieces.append(piece)
            plan.keep(row)
        piece.slots.append(slot)
        piece.indices.append(index)
        if row.links is not None:
            _plan_links(trimmer, plan, piece, row.links, slot, index)
    plan.steps = len(plan.pieces)
    return plan


def _plan_links(trimmer: Trimmer, plan: LoadPlan, piece: Piece, links: Links, slot: int, index: int) -> None:
    """Plan the reads of the separately stored parts of an entry: its message and its latest update."""
    target = trimmer.find(element(links.targets, slot))
    if target:
        row = trimmer.row_of(target)
        plan.keep(row)
        piece.messages[index] = (row, target & SLOT_MASK)
    update = trimmer.find(element(links.updates, slot))
    if update:
        row = trimmer.row_of(update)
        draft = row.draft
        if draft is not None:
            piece.pending[index] = draft.pieces[3 * (update & SLOT_MASK)]
        else:
            plan.keep(row)
            piece.updates[index] = (row, update & SLOT_MASK)


class RowReader:
    """The records of one row. Raises ValueError, IndexError or struct.error if the row is damaged.

    chunks  reads chunk rows, given the first id and their number
    spool   receives large bodies; None keeps them in memory
    """

    __slots__ = ("chunks", "data", "entries", "offsets", "row", "spool")

    def __init__(
        self, row: StoredRow, index: bytes, data: bytes, chunks: Callable[[int, int], list[bytes]], spool: Spool | None
    ) -> None:
        self.row = row
        self.entries = IndexReader(index).entries
        self.data = data
        self.chunks = chunks
        self.spool = spool
        lengths = bytes_to_words("I", self.entries)[4::6]
        self.offsets = array("Q", accumulate(lengths, initial=0))

    def fields(self, slot: int) -> tuple[int, int, int, int, int, int]:
        """Return the index entry of a slot; see `records.INDEX`."""
        fields: tuple[int, int, int, int, int, int] = INDEX.unpack_from(self.entries, INDEX_SIZE * slot)
        return fields

    def prefix(self, slot: int) -> Prefix | None:
        if self.fields(slot)[4] >> 8 & PREFIXED:
            return Prefix(self.data, self.offsets[slot])
        return None

    def message(self, slot: int) -> Message:
        fields = self.fields(slot)
        size = fields[2]
        kind = fields[4] & 0xFF
        flags = fields[4] >> 8
        if kind != DELIVERY and kind != MESSAGE:
            raise ValueError(f"record {slot} of row {self.row.id} is not a message")
        data = self.data
        at = self.offsets[slot]
        end = self.offsets[slot + 1]
        expires_at = 0
        headers_at = -1
        if flags & PREFIXED:
            prefix = Prefix(data, at)
            expires_at = prefix.expires_at
            headers_at = prefix.headers_at
            at = prefix.end
        middle = at + 1 + data[at]
        begin = middle + 1 + data[middle]
        address = data[at:begin]
        persistent = not flags & TRANSIENT
        if flags & SPILLED:
            first, count, header_size = SPILL.unpack_from(data, begin)
            header, body = self._spilled(first, count, header_size, size)
            message = Message(address, header, body, size, persistent)
        else:
            message = Message(address, data[begin : end - size], data[end - size : end], size, persistent)
        message.priority = fields[5]
        message.expires_at = expires_at
        message.headers_at = headers_at
        message.format = flags >> FORMAT_SHIFT & 3
        message.row = self.row
        message.slot = slot
        return message

    def plain_message(self, slot: int, fields: tuple[int, int, int, int, int, int], latest: bytes) -> Message:
        """Return the message of a plain delivery. If its address is `latest`, that of another message, they share it."""
        data = self.data
        at = self.offsets[slot]
        end = self.offsets[slot + 1]
        body = end - fields[2]
        if not latest or not data.startswith(latest, at):
            middle = at + 1 + data[at]
            latest = data[at : middle + 1 + data[middle]]
        flags = fields[4] >> 8
        message = Message(
            latest,
            data[at + len(latest) : body],
            data[body:end],
            fields[2],
            not flags & TRANSIENT,
            fields[5],
            0,
            -1,
            0,
            flags >> FORMAT_SHIFT & 3,
        )
        message.row = self.row
        message.slot = slot
        return message

    def _spilled(self, first: int, count: int, header_size: int, size: int) -> tuple[bytes, Body]:
        """Read header and body from chunk rows. If possible, the body goes to the spool chunk by chunk."""
        if self.spool is not None and size > SPOOLED_BYTES:
            try:
                return self._spooled(self.spool, first, count, header_size, size)
            except ContentTooLarge:
                pass  # no disk space: keep the body in memory
        chunks = self.chunks(first, count)
        header = b""
        while len(header) < header_size:
            chunk = chunks[0]
            missing = header_size - len(header)
            header += chunk[:missing]
            if missing < len(chunk):
                chunks[0] = chunk[missing:]
            else:
                del chunks[0]
        return header, chunks

    def _spooled(self, spool: Spool, first: int, count: int, header_size: int, size: int) -> tuple[bytes, Body]:
        header = b""
        body = spool.begin(size, False)
        for number in range(first, first + count):
            chunk = self.chunks(number, 1)[0]
            missing = header_size - len(header)
            if missing:
                header += chunk[:missing]
                chunk = chunk[missing:]
            body.append(chunk)
        return header, body


def read_piece(plan: LoadPlan, piece: Piece, reader_of: Callable[[StoredRow], RowReader]) -> None:
    """Fill in the results of a piece. Raises `KeyError` if a row is not on disk."""
    own = reader_of(piece.row)
    results = plan.results
    entries = own.entries
    own_row = piece.row
    plain = not piece.updates and not piece.pending
    address = b""
    for slot, index in zip(piece.slots, piece.indices, strict=True):
        fields: tuple[int, int, int, int, int, int] = INDEX.unpack_from(entries, INDEX_SIZE * slot)
        if plain and fields[4] & ~PLAIN_BITS == DELIVERY:
            message = own.plain_message(slot, fields, address)
            address = message.address
            results[index] = Loaded(fields[0], own_row, slot, message, None, 0, 0)
            continue
        kind = fields[4] & 0xFF
        acquired_count = 0
        delivery_count = 0
        overlay: Overlay | None = None
        prefix = own.prefix(slot)
        if kind == ENTRY:
            row, message_slot = piece.messages[index]
            message = reader_of(row).message(message_slot)
        elif kind == DELIVERY:
            message = own.message(slot)
        else:
            raise ValueError(f"record {slot} of row {piece.row.id} is not an entry")
        if index in piece.pending:
            prefix = Prefix(piece.pending[index], 0)
        elif index in piece.updates:
            row, update_slot = piece.updates[index]
            reader = reader_of(row)
            if reader.fields(update_slot)[4] & 0xFF != UPDATE:
                raise ValueError(f"record {update_slot} of row {row.id} is not an update")
            prefix = reader.prefix(update_slot)
        if prefix is not None:
            acquired_count = prefix.acquired_count
            delivery_count = prefix.delivery_count
            overlay = prefix.overlay
        plan.results[index] = Loaded(fields[0], piece.row, slot, message, overlay, acquired_count, delivery_count)
