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
from itertools import compress
from typing import Final

from leveret.broker.log import Log, Row
from leveret.storage.records import EMPTY_INDEX, INDEX, INDEX_SIZE, MESSAGE

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
    touched      the batch that last touched it; `dead` and `dead_ranges` are the slots that this batch settles, one by
                 one and many at a time; `dead_ranges` is None if there are none
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
        "dead_ranges",
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
        self.dead_ranges: array[int] | None = None
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

    # Records

    def need_links(self) -> Links:
        links = self.links
        if links is None:
            links = Links()
            self.links = links
        return links

    def need_foreign_links(self) -> Links:
        """Return its links, which from now on reference other rows or chunks."""
        links = self.need_links()
        links.foreign = True
        return links

    def touch(self, batch: int) -> bool:
        """Begin the list of slots that a batch settles. Return False if the batch has begun it before."""
        if self.touched == batch:
            return False
        self.touched = batch
        self.dead = []
        return True

    def settle(self, slot: int) -> None:
        """Note that the batch that touches the row settles an entry."""
        self.live -= 1
        self.dead.append(slot)

    def settle_many(self, slots: array[int]) -> int:
        """Note that the batch that touches the row settles some of its entries. It keeps the array.

        Returns by how much the number of entries grows that the commit must mark as dead one by one. There are none once
        no entry of the row is live.
        """
        count = len(slots)
        ranges = self.dead_ranges
        before = 0
        if ranges is None:
            self.dead_ranges = slots
        else:
            before = len(ranges)
            ranges.extend(slots)
        self.live -= count
        return count if self.live else -before

    def has_dead(self) -> bool:
        """Return whether the batch settles entries of the row."""
        return bool(self.dead) or self.dead_ranges is not None

    def list_dead(self) -> list[int]:
        """Return the slots that the batch settles, and count their entries as live again, to `kill` them one by one."""
        ranges = self.dead_ranges
        dead = self.dead if ranges is None else [*self.dead, *ranges]
        self.live += len(dead)
        return dead

    def kill(self, slot: int) -> int:
        """Mark a live record as dead, and return its bytes."""
        size = self.lengths[slot] + INDEX_SIZE
        self.slots[slot] = DEAD
        self.live -= 1
        self.live_bytes -= size
        return size

    def kill_settled(self) -> int:
        """Mark the entries that the batch settles, already counted, as dead in a row without links. Return their bytes."""
        slots = self.slots
        lengths = self.lengths
        size = 0
        for slot in self.dead:
            slots[slot] = DEAD
            size += lengths[slot] + INDEX_SIZE
        ranges = self.dead_ranges
        if ranges is not None:
            for slot in ranges:
                slots[slot] = DEAD
                size += lengths[slot] + INDEX_SIZE
        self.live_bytes -= size
        return size

    def kill_all(self) -> int:
        """Mark all records as dead, in a row that has no live entry and references nothing. Return their bytes."""
        size = self.live_bytes
        self.links = None
        self.slots = bytearray(len(self.slots))
        self.live_bytes = 0
        return size

    def take_dead(self) -> array[int]:
        """Return the slots that the batch settles, and forget them."""
        ranges = self.dead_ranges
        dead: array[int] = array("I") if ranges is None else ranges
        dead.fromlist(self.dead)
        self.forget_dead()
        return dead

    def forget_dead(self) -> None:
        """Forget the slots that the batch settles."""
        self.dead = NOTHING
        self.dead_ranges = None

    def recount(self, total: int = -1) -> None:
        """Count the live records from the slots. `total` is the size of the data of all records, -1 if unknown."""
        slots = self.slots
        live = len(slots) - slots.count(DEAD)
        self.live = live
        if live == len(slots):
            self.live_bytes = (sum(self.lengths) if total < 0 else total) + INDEX_SIZE * live
        else:
            self.live_bytes = sum(compress(self.lengths, slots)) + INDEX_SIZE * live

    # States

    def begin_draft(self) -> Draft:
        """Begin to fill the row."""
        draft = Draft(self)
        self.draft = draft
        return draft

    def postpone(self, batch: int) -> None:
        """Write the row, which is still empty, with this batch instead."""
        self.batch = batch

    def seal(
        self, slots: bytearray, live: int, lengths: array[int], live_bytes: int, settled_bytes: int, size: int
    ) -> None:
        """Close the row that was being filled: it is about to be written."""
        self.draft = None
        self.state = STORED
        self.slots = slots
        self.live = live
        self.lengths = lengths
        self.live_bytes = live_bytes
        self.settled_bytes = settled_bytes
        self.size = size

    def restore(self, size: int, settled_bytes: int) -> None:
        """Set the sizes of a row that recovery has found."""
        self.size = size
        self.settled_bytes = settled_bytes

    def restore_records(self, slots: bytearray, lengths: array[int]) -> None:
        """Set the records of a row that recovery has found."""
        self.slots = slots
        self.lengths = lengths

    def restore_moved(self, moved: array[int], places: array[int], targets: list[StoredRow]) -> None:
        """Set the places of the records of a moved row, which are in the rows `targets`."""
        self.moved = moved
        self.places = places
        self.pins = len(targets)
        for target in targets:
            target.add_origin(self)

    def complete_copy(self) -> None:
        """Close a row that was filled with copies: it is about to be written."""
        self.state = STORED

    def move_to(self, target: StoredRow, base: int, moved: array[int]) -> None:
        """Leave the disk: the records of the slots `moved` were copied to consecutive slots of `target` from `base` on."""
        self.drop_records()
        self.state = MOVED
        self.pins = 1
        first = target.id << SLOT_BITS | base
        self.moved = moved
        self.places = array("Q", range(first, first + len(moved)))
        target.add_origin(self)

    def merge(self) -> None:
        """Leave the disk: all records were copied, and `Merges` resolves their positions."""
        self.drop_records()
        self.state = MOVED

    def remove(self) -> None:
        """Leave the disk, or no longer resolve positions, without live records."""
        self.state = REMOVED
        self.moved = None
        self.places = None

    def drop_records(self) -> None:
        """Release the memory of records that are no longer on disk here."""
        self.slots = bytearray()
        self.lengths = array("I")
        self.links = None
        self.pins = 0

    # Copies

    def copy_survivors(self, row: StoredRow, count: int) -> None:
        """Append the live records of another row, `count` of them."""
        self.lengths.extend(array("I", compress(row.lengths, row.slots)))
        self.slots.extend(compress(row.slots, row.slots))
        self._count_copies(row, count)

    def copy_all(self, row: StoredRow) -> None:
        """Append the records of a row whose records are all live."""
        self.lengths.extend(row.lengths)
        self.slots.extend(row.slots)
        self._count_copies(row, row.live)
        self.merged += 1

    def _count_copies(self, row: StoredRow, count: int) -> None:
        self.live += count
        self.live_bytes += row.live_bytes
        self.size += row.live_bytes

    def copy_settlements(self, row: StoredRow) -> None:
        """Count the settlements that are copied from another row."""
        self.settled_bytes += row.settled_bytes
        self.size += row.settled_bytes

    def add_origin(self, row: StoredRow) -> None:
        """Note that a moved row resolves to this one."""
        if self.origins is None:
            self.origins = [row]
        else:
            self.origins.append(row)

    def take_origins(self) -> list[StoredRow] | None:
        """Return the moved rows that resolve to this one, and forget them."""
        origins = self.origins
        self.origins = None
        return origins

    # Pins and readers, which keep the row on disk

    def pin(self, row: StoredRow) -> None:
        """Stay on disk as long as `row`, because this row contains settlements of it."""
        self.pins += 1
        self.pins_at_first += 1
        if self.pinned is None:
            self.pinned = [row]
        else:
            self.pinned.append(row)
        if row.holders is None:
            row.holders = [self]
        else:
            row.holders.append(self)

    def unpin(self) -> int:
        """Drop one pin. Return the number of remaining ones."""
        self.pins -= 1
        return self.pins

    def forget_pinned(self) -> None:
        """Forget the rows that its settlements belong to: it leaves the disk."""
        self.pinned = None

    def take_holders(self) -> list[StoredRow] | None:
        """Return the rows that contain settlements of this one, and forget them."""
        holders = self.holders
        self.holders = None
        return holders

    def begin_reading(self) -> None:
        """Stay on disk until `end_reading`."""
        self.readers += 1

    def end_reading(self) -> None:
        self.readers -= 1

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
