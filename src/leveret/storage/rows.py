"""Rows of the log in memory: their live records, the rows that pin them, and the places of moved records.

The states of a row:

FILLING  part of the batch that is being filled: a record that is settled now is never written
STORED   submitted, or on disk
MOVED    no longer on disk: its surviving records were copied, and its positions resolve to the copies
REMOVED  no longer on disk, and without live records
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final

from leveret.broker.log import Log, Row
from leveret.storage.records import EMPTY_INDEX, INDEX, MESSAGE

STORED: Final = 0
FILLING: Final = 1
MOVED: Final = 2
REMOVED: Final = 3

# A record's place as one number: row id, then slot.
SLOT_BITS: Final = 20
SLOT_MASK: Final = (1 << SLOT_BITS) - 1

# A list that stays empty.
NOTHING: Final[list[int]] = []

# Values of `Row.slots`.
DEAD: Final = 0
LIVE: Final = 1
BARE: Final = 2  # the entry is settled, but entries of other queues reference the message


class Links:
    """References between records of a row and others. Only rows with fan-outs, updates or spilled bodies have them.

    Each array is parallel to the slots but may be shorter; zero, or no element, means none.

    targets     'Q': identity of the message of an ENTRY, or of the entry of an UPDATE
    refs        'I': number of live ENTRY records that reference this message
    updates     'Q': place of the latest UPDATE of this entry
    identities  'Q': identity of this record if it is a copy; otherwise the identity is its place
    chunks      slot to (first, last) chunk of a spilled body
    foreign     whether any of these reference other rows or chunks; if not, a row without a live entry is dead
    """

    __slots__ = ("chunks", "foreign", "identities", "refs", "targets", "updates")

    def __init__(self) -> None:
        self.targets: array[int] = array("Q")
        self.refs: array[int] = array("I")
        self.updates: array[int] = array("Q")
        self.identities: array[int] = array("Q")
        self.chunks: dict[int, tuple[int, int]] = {}
        self.foreign = False


def element(values: array[int], slot: int) -> int:
    """Return the element for a slot, zero beyond the end of the array."""
    return values[slot] if slot < len(values) else 0


def set_element(values: array[int], slot: int, value: int) -> None:
    """Set the element for a slot, growing the array as needed."""
    length = len(values)
    if slot < length:
        values[slot] = value
        return
    if slot > length:
        values.frombytes(bytes((slot - length) * values.itemsize))
    values.append(value)


class Draft:
    """The row being filled.

    index    the index entries
    pieces   three per record: prefix and address, header, body
    size     bytes of the data, and of the index entries
    settled  slots of records that were settled before they were written
    bare     slots of messages whose own entry was settled, but which other entries reference
    """

    __slots__ = ("bare", "index", "pieces", "row", "settled", "size")

    def __init__(self, row: StoredRow) -> None:
        self.row = row
        self.index: list[bytes] = []
        self.pieces: list[bytes] = []
        self.size = 0
        self.settled: set[int] = set()
        self.bare: set[int] = set()

    def elide(self, slot: int) -> None:
        """Drop a record from the row before it is written."""
        length: int = INDEX.unpack(self.index[slot])[3]
        self.index[slot] = EMPTY_INDEX
        at = 3 * slot
        self.pieces[at] = b""
        self.pieces[at + 1] = b""
        self.pieces[at + 2] = b""
        self.settled.add(slot)
        self.size -= length

    def strip(self, slot: int) -> None:
        """Write only the message of a delivery, not the entry."""
        fields: tuple[int, int, int, int, int, int] = INDEX.unpack(self.index[slot])
        flags = fields[4] & 0xFF00
        self.index[slot] = INDEX.pack(0, 0, fields[2], fields[3], MESSAGE | flags, fields[5])
        self.bare.add(slot)


class StoredRow(Row):
    """A row of a log on disk.

    state        FILLING, STORED, MOVED or REMOVED
    draft        the columns to write, while FILLING
    lengths      bytes of each record's data
    live_bytes   bytes of the live records, including index entries
    touched      the batch that last touched it; `dead` are the slots that this batch settles
    links        see `Links`; None for a row of deliveries only
    pins         number of rows on disk whose settlements this row contains; `pinned` lists them (some may be removed),
                 `pins_at_first` is the initial number, `settled_bytes` the size of the settlements;
                 for a moved row, the rows that it resolves to
    holders      the rows that contain settlements of this row
    readers      number of loads in progress
    moved        slots ('I') of the copied records, ascending; `places` ('Q') are the places of the copies
    origins      the moved rows that resolve to this one
    merged       number of small rows merged into this one
    """

    __slots__ = (
        "dead",
        "draft",
        "holders",
        "lengths",
        "links",
        "live_bytes",
        "merged",
        "moved",
        "origins",
        "pinned",
        "pins",
        "pins_at_first",
        "places",
        "readers",
        "settled_bytes",
        "state",
        "touched",
    )

    def __init__(self, log: Log, id: int, batch: int, state: int) -> None:
        super().__init__(log, id, batch)
        self.state = state
        self.draft: Draft | None = None
        self.lengths: array[int] = array("I")
        self.live_bytes = 0
        self.touched = 0
        self.dead = NOTHING
        self.links: Links | None = None
        self.pins = 0
        self.pins_at_first = 0
        self.settled_bytes = 0
        self.pinned: list[StoredRow] | None = None
        self.holders: list[StoredRow] | None = None
        self.readers = 0
        self.moved: array[int] | None = None
        self.places: array[int] | None = None
        self.origins: list[StoredRow] | None = None
        self.merged = 0

    def need_links(self) -> Links:
        links = self.links
        if links is None:
            links = Links()
            self.links = links
        return links

    def place_of(self, slot: int) -> int:
        """Return the current place of a record of a moved row as one number; 0 if it was dead when the row moved."""
        moved = self.moved
        places = self.places
        if moved is None or places is None:
            return 0
        index = bisect_left(moved, slot)
        if index == len(moved) or moved[index] != slot:
            return 0
        return places[index]

    def useful_bytes(self) -> int:
        """Return the bytes of the row worth keeping: live records, and settlements that are still needed."""
        if not self.pins:
            return self.live_bytes
        return self.live_bytes + self.settled_bytes * self.pins // self.pins_at_first


def pin(holder: StoredRow, row: StoredRow) -> None:
    """Keep `holder` on disk as long as `row`, because it contains settlements of it."""
    holder.pins += 1
    holder.pins_at_first += 1
    pinned = holder.pinned
    if pinned is None:
        holder.pinned = [row]
    else:
        pinned.append(row)
    holders = row.holders
    if holders is None:
        row.holders = [holder]
    else:
        holders.append(holder)
