"""A batch on its way to disk: the row being filled, and the encoding of its columns.

The hot path appends to the lists of a `Draft`; `seal` encodes them as columns once per batch. The engine thread joins the
data column, so the event loop copies no bodies unless it is idle.
"""

from __future__ import annotations

import sys
from array import array
from itertools import compress
from typing import Final, Union

from leveret.broker.bodies import StoredBody
from leveret.storage.records import INDEX, INDEX_SIZE, MESSAGE
from leveret.storage.rows import BARE, DEAD, LIVE, Draft, Links, element, set_element

# Rows are read and copied whole, so a row that exceeds this size is closed and another one begun.
ROW_BYTES: Final = 1 << 20
# A header and body larger than this in total are stored as chunk rows of this size.
CHUNK_BYTES: Final = 1 << 20
# Maximum size of the settlements in one row, in 4-byte words.
SETTLED_WORDS: Final = 1 << 18

# Version of the columns. Version 1 had no checksums.
ROW_VERSION: Final = 2
FIRST_VERSION: Final = 1
# Bytes of the trailing checksums of the settled column and the index, appended when the row is written.
SETTLED_SUM: Final = 4
INDEX_SUMS: Final = 8
_LITTLE: Final = sys.byteorder == "little"


class BodyPart:
    """A part of a body that is not in memory."""

    __slots__ = ("at", "body", "length")

    def __init__(self, body: StoredBody, at: int, length: int) -> None:
        self.body = body
        self.at = at
        self.length = length

    def read(self) -> bytes:
        """Read the bytes, on the engine thread. Raises `OSError` if they cannot be read."""
        data = self.body.read(self.at, self.length)
        if len(data) != self.length:
            raise OSError("a large body is shorter than its recorded size")
        return data


# The parts of a chunk row.
ChunkPart = Union[memoryview, BodyPart]


class RowImage:
    """A row to be written: its three columns, the data in pieces.

    last     maps queues to their last sequence numbers
    columns  the columns as written, if they are encoded already
    """

    __slots__ = ("columns", "id", "index", "last", "pieces", "settled")

    def __init__(self, id: int, settled: bytes, index: bytes, pieces: list[bytes]) -> None:
        self.id = id
        self.settled = settled
        self.index = index
        self.pieces = pieces
        self.last: dict[int, int] = {}
        self.columns: tuple[bytes, bytes, bytes] | None = None


class CopySource:
    """The records to copy from one row.

    slots       slots of the surviving records ('I')
    bare        slots of messages that are copied without their settled entry
    identities  (slot, identity) of records that other records reference
    settled_of  rows whose settlements are copied too
    """

    __slots__ = ("bare", "id", "identities", "settled_of", "slots")

    def __init__(self, id: int, slots: array[int]) -> None:
        self.id = id
        self.slots = slots
        self.bare: set[int] = set()
        self.identities: list[tuple[int, int]] = []
        self.settled_of: set[int] = set()


class CopyPlan:
    """A row that receives the surviving records of other rows."""

    __slots__ = ("id", "sources")

    def __init__(self, id: int) -> None:
        self.id = id
        self.sources: list[CopySource] = []


class Commit:
    """One transaction of the engine.

    number       batch number
    images       rows to write
    copies       rows to build from the records of other rows
    deletes      ids of rows to delete after copying
    chunks       (id, pieces) of large bodies
    dead_chunks  (first, last) id of chunks to delete
    puts         metadata to set, or to delete if the value is None
    marks        (queue id, upper bound of its sequence numbers)
    next_row     first row id to use after a restart, 0 to keep the current one
    pending_bytes  bytes that are no longer pending once the commit returns; `spooled`: the part in the spool
    written      whether it is on disk
    """

    __slots__ = (
        "chunks",
        "copies",
        "dead_chunks",
        "deletes",
        "images",
        "marks",
        "next_row",
        "number",
        "pending_bytes",
        "puts",
        "spooled",
        "written",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.images: list[RowImage] = []
        self.copies: list[CopyPlan] = []
        self.deletes: list[int] = []
        self.chunks: list[tuple[int, list[ChunkPart]]] = []
        self.dead_chunks: list[tuple[int, int]] = []
        self.puts: dict[tuple[str, str], bytes | None] = {}
        self.marks: dict[int, int] = {}
        self.next_row = 0
        self.pending_bytes = 0
        self.spooled = 0
        self.written = False

    def finish(self) -> None:
        """Note that it is on disk, and release the metadata.

        The engine thread has just used thousands of small objects, and releases them ten times as fast as the event loop.
        """
        self.written = True
        self.puts = {}

    def empty(self) -> bool:
        """Return whether there was nothing to write."""
        return not (
            self.written
            or self.images
            or self.copies
            or self.deletes
            or self.chunks
            or self.dead_chunks
            or self.puts
            or self.marks
            or self.next_row
        )


def words_to_bytes(words: array[int]) -> bytes:
    """Encode an array as little-endian bytes."""
    if _LITTLE:
        return words.tobytes()
    swapped = words[:]
    swapped.byteswap()
    return swapped.tobytes()


def bytes_to_words(typecode: str, data: bytes) -> array[int]:
    """Decode little-endian bytes. Raises `ValueError` if they are not a whole number of words."""
    words: array[int] = array(typecode)
    words.frombytes(data)
    if not _LITTLE:
        words.byteswap()
    return words


def index_head(count: int, links: int, identities: int, spills: int) -> bytes:
    """Encode the head of an index column.

    It has the version and the numbers of index entries, link words, identity pairs and spill pairs that follow.
    """
    return words_to_bytes(array("I", (ROW_VERSION, count, links, identities, spills, 0)))


def encode_index(entries: bytes, links: Links | None, slots: bytearray) -> bytes:
    """Encode an index column: head, entries, then tables of 64-bit numbers.

    Links are parallel to the slots and may be shorter; identities and spills are pairs, slot first.
    """
    count = len(slots)
    if links is None:
        return index_head(count, 0, 0, 0) + entries
    pairs: array[int] = array("Q")
    identities = 0
    for slot, identity in enumerate(links.identities):
        if identity and slots[slot]:
            identities += 1
            pairs.append(slot)
            pairs.append(identity)
    for slot, (first, last) in links.chunks.items():
        pairs.append(slot << 32 | (last - first + 1))
        pairs.append(first)
    return b"".join(
        (
            index_head(count, len(links.targets), identities, len(links.chunks)),
            entries,
            words_to_bytes(links.targets),
            words_to_bytes(pairs),
        )
    )


def seal(draft: Draft, settled: bytes) -> RowImage:
    """Close a draft: set the counters of its row and return its columns."""
    row = draft.row
    entries = b"".join(draft.index)
    count = len(draft.index)
    slots = bytearray(b"\x01") * count
    live = count
    for slot in draft.settled:
        slots[slot] = DEAD
        live -= 1
    for slot in draft.bare:
        if slots[slot] == LIVE:
            slots[slot] = BARE
    index = encode_index(entries, row.links, slots)
    settled_bytes = len(settled) + SETTLED_SUM if settled else 0
    row.seal(
        slots,
        live,
        bytes_to_words("I", entries)[4::6],
        draft.size - INDEX_SIZE * (count - live),
        settled_bytes,
        settled_bytes + len(index) + INDEX_SUMS + draft.size - INDEX_SIZE * count,
    )
    image = RowImage(row.id, settled, index, draft.pieces)
    if live:
        image.last = last_sequences(entries)
    return image


def last_sequences(entries: bytes) -> dict[int, int]:
    """Return the highest sequence number of each queue in a column of index entries. Queue 0 means no entry."""
    queues = bytes_to_words("I", entries)[2::6]
    sequences = bytes_to_words("Q", entries)[0::3]
    data = queues.tobytes()
    if queues[0] and data == data[:4] * len(queues):
        return {queues[0]: max(sequences)}
    last: dict[int, int] = {}
    for queue_id, seq in zip(queues, sequences, strict=True):
        if queue_id and seq > last.get(queue_id, 0):
            last[queue_id] = seq
    return last


def encode_settled(words: array[int]) -> bytes:
    """Encode the settled column: the version, then for each row its id (low, high), the number of slots, and the slots."""
    return words_to_bytes(array("I", (ROW_VERSION,))) + words_to_bytes(words)


def decode_settled(column: bytes) -> array[int]:
    """Return the words of a settled column without version and checksum. Raises `ValueError` if it is damaged."""
    words = bytes_to_words("I", column)
    if words:
        version = words.pop(0)
        if version == ROW_VERSION and words:
            words.pop()  # the checksum
        elif version != FIRST_VERSION:
            raise ValueError("the settled column of a row has an unknown version")
    return words


class IndexReader:
    """The decoded index column of a row. Raises `ValueError` if it is damaged.

    entries      the index entries
    links        the target of each slot, possibly shorter than the slots; identities and spills are pairs
    """

    __slots__ = ("count", "entries", "identities", "links", "spills")

    def __init__(self, column: bytes) -> None:
        self.count = 0
        self.entries = b""
        if not column:
            self.links: array[int] = array("Q")
            self.identities: array[int] = array("Q")
            self.spills: array[int] = array("Q")
            return
        head = bytes_to_words("I", column[:24])
        if len(head) != 6 or not FIRST_VERSION <= head[0] <= ROW_VERSION:
            raise ValueError("the index of a row has an unknown version")
        stop = len(column) - INDEX_SUMS if head[0] == ROW_VERSION else len(column)
        count = head[1]
        end = 24 + INDEX_SIZE * count
        tables = bytes_to_words("Q", column[end:stop])
        links = head[2]
        identities = links + 2 * head[3]
        if links > count or len(tables) != identities + 2 * head[4]:
            raise ValueError("the index of a row has the wrong length")
        self.count = count
        self.entries = column[24:end]
        self.links = tables[:links]
        self.identities = tables[links:identities]
        self.spills = tables[identities:]


def copy_rows(plan: CopyPlan, columns: list[tuple[bytes, bytes, bytes]]) -> RowImage:
    """Build the row of a plan from the columns of its sources, in the same order."""
    entries: list[bytes] = []
    pieces: list[bytes] = []
    links: array[int] = array("Q")
    identities: array[int] = array("Q")
    spills: array[int] = array("Q")
    words: array[int] = array("I")
    base = 0
    for source, (settled, column, data) in zip(plan.sources, columns, strict=True):
        reader = IndexReader(column)
        _copy_records(source, reader, data, entries, pieces)
        new = {slot: base + index for index, slot in enumerate(source.slots)}
        for slot in source.slots:
            target = element(reader.links, slot)
            if target:
                set_element(links, new[slot], target)
        for slot, identity in source.identities:
            identities.append(new[slot])
            identities.append(identity)
        for index in range(0, len(reader.spills), 2):
            slot = reader.spills[index] >> 32
            if slot in new:
                spills.append(new[slot] << 32 | (reader.spills[index] & 0xFFFFFFFF))
                spills.append(reader.spills[index + 1])
        if source.settled_of:
            _copy_settled(source, decode_settled(settled), words)
        base += len(source.slots)
    head = index_head(base, len(links), len(identities) // 2, len(spills) // 2)
    index_column = b"".join((head, *entries, words_to_bytes(links), words_to_bytes(identities), words_to_bytes(spills)))
    return RowImage(plan.id, encode_settled(words) if words else b"", index_column, pieces)


def _copy_records(source: CopySource, reader: IndexReader, data: bytes, entries: list[bytes], pieces: list[bytes]) -> None:
    lengths = bytes_to_words("I", reader.entries)[4::6]
    at = 0
    past = 0
    view = reader.entries
    for slot in source.slots:
        at += sum(lengths[past:slot])
        past = slot + 1
        entry = view[INDEX_SIZE * slot : INDEX_SIZE * past]
        if slot in source.bare:
            fields: tuple[int, int, int, int, int, int] = INDEX.unpack(entry)
            entry = INDEX.pack(0, 0, fields[2], fields[3], MESSAGE | (fields[4] & 0xFF00), fields[5])
        entries.append(entry)
        pieces.append(data[at : at + lengths[slot]])
        at += lengths[slot]


def _copy_settled(source: CopySource, old: array[int], words: array[int]) -> None:
    at = 0
    while at < len(old):
        end = at + 3 + old[at + 2]
        if old[at] | old[at + 1] << 32 in source.settled_of:
            words.extend(old[at:end])
        at = end


def survivors(slots: bytearray) -> array[int]:
    """Return the slots of the live records."""
    return array("I", compress(range(len(slots)), slots))
