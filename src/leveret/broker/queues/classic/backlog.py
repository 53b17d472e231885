"""The ready entries of one priority level of a queue, oldest first, paged when the queue is deep.

    head    entries in memory, which consumers get next
    chunks  paged-out entries: positions in compact arrays, tens of bytes each
            (usually in order; entries for selective consumers may be read first)
    young   entries newer than the chunks, in memory until they are committed; None while nothing is paged out
    passed  no consumer wants the entries of the head up to this sequence number; 0 if unknown (selective consumers only)

The oldest chunk stays in its place while it is `loading`, so counts are right and a purge finds its entries.

Entries are paged in by chunks of at most CHUNK_ENTRIES entries and about CHUNK_BYTES bytes.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import islice
from operator import attrgetter
from typing import Final, TypeAlias

from leveret.broker import settlement
from leveret.broker.log import Log, RecoveredQueue
from leveret.broker.message import Entry, is_for
from leveret.broker.queues.blocks import Entries

CHUNK_ENTRIES: Final = 2048
CHUNK_BYTES: Final = 1 << 20
# Units of work to settle an entry in memory, and to release it.
ENTRY_WORK: Final = 2
# Entries that are settled between two checks of the budget.
PIECE: Final = 512
# Entries (as powers of two) that are moved in 1 µs to insert one between them, and that are passed to find its place.
MOVED_SHIFT: Final = 10
PASSED_SHIFT: Final = 4
# Entries (as a power of two) that are skipped in 1 µs.
SKIP_SHIFT: Final = 6

# Index of the low half of a number in memory.
_LOW: Final = 0 if sys.byteorder == "little" else 1

# Sort key of backlogs.
SEQ: Final = attrgetter("seq")

# A part of a backlog, and the audience and scope of a `get`.
SearchKey: TypeAlias = tuple[int, int, object]
# Number of these for which a backlog notes how far they were searched.
MAX_SEARCHES: Final = 1000
# This many entries at the end are checked one by one: usually only the last one is new.
FEW: Final = 8


def first_above(entries: Entries, seq: int) -> int:
    """Return the index of the first entry above a sequence number."""
    if not seq:
        return 0
    position = len(entries)
    for _ in range(FEW):
        if position == 0 or entries[position - 1].seq <= seq:
            return position
        position -= 1
    return bisect_right(entries, seq, key=SEQ)


def entries_from(entries: Entries, position: int) -> Iterator[Entry]:
    """Return the entries from an index on. The work is that of `skip_work`."""
    count = len(entries) - position
    if count < position:
        return reversed(list(islice(reversed(entries), count)))
    return islice(entries, position, None)


def skip_work(entries: Entries, position: int) -> int:
    """Return the units of work to begin at an index, which is passed from the nearer end."""
    return min(position, len(entries) - position) >> SKIP_SHIFT


def _merge(group: Entries, entries: list[Entry]) -> int:
    """Merge sorted entries into a sorted group. Returns how many entries of the group were moved."""
    if not entries:
        return 0
    first = entries[0].seq
    moved: list[Entry] = []
    while group and group[len(group) - 1].seq > first:
        moved.append(group.pop())
    if moved:
        entries = sorted([*reversed(moved), *entries], key=SEQ)
    group.extend(entries)
    return len(moved)


class Chunk:
    """Positions of consecutive entries: sequence numbers, row ids, slots and body sizes in parallel arrays.

    wide        whether the arrays hold numbers of 64, 64, 32 and 32 bits; half of that is enough for most chunks
    publisher   the publisher of all entries, 0 for recovered ones, whose connections no longer exist
    publishers  the publisher of each entry if there are several, 64 bits if `wide`, otherwise 32
    """

    __slots__ = ("bytes", "overflow", "publisher", "publishers", "rows", "seqs", "sizes", "slots", "wide")

    def __init__(self, overflow: bool, publisher: int = 0) -> None:
        self.overflow = overflow
        self.publisher = publisher
        self.publishers: array[int] | None = None
        self.wide = False
        self.seqs: array[int] = array("I")
        self.rows: array[int] = array("I")
        self.slots: array[int] = array("H")
        self.sizes: array[int] = array("H")
        self.bytes = 0

    def _widen(self) -> None:
        self.wide = True
        self.seqs = array("Q", self.seqs)
        self.rows = array("Q", self.rows)
        self.slots = array("I", self.slots)
        self.sizes = array("I", self.sizes)
        if self.publishers is not None:
            self.publishers = array("Q", self.publishers)

    def add(self, row_id: int, slot: int, seq: int, size: int, publisher: int) -> None:
        """Add a position at the end."""
        if not self.wide and ((seq | row_id | publisher | self.publisher) >> 32 or (slot | size) >> 16):
            self._widen()
        publishers = self.publishers
        if publishers is not None:
            publishers.append(publisher)
        elif publisher != self.publisher:
            publishers = array("Q" if self.wide else "I", (self.publisher,)) * len(self.seqs)
            publishers.append(publisher)
            self.publishers = publishers
        self.seqs.append(seq)
        self.rows.append(row_id)
        self.slots.append(slot)
        self.sizes.append(size)
        self.bytes += size

    def add_run(self, run: PagedRun, begin: int, end: int) -> None:
        """Add the positions of a run from index `begin` to `end` (exclusive) at the end."""
        if not self.wide and ((run.long_bits | self.publisher) >> 32 or run.short_bits >> 16):
            self._widen()
        count = end - begin
        added = run.publishers if count == len(run.publishers) else run.publishers[begin:end]
        publishers = self.publishers
        if publishers is None and added.count(self.publisher) < count:
            publishers = self.publishers = array("Q" if self.wide else "I", (self.publisher,)) * len(self.seqs)
        if publishers is not None:
            publishers.fromlist(added)
        if count == len(run.seqs):
            self.seqs.fromlist(run.seqs)
            self.rows.fromlist(run.rows)
            self.slots.fromlist(run.slots)
            self.sizes.fromlist(run.sizes)
            self.bytes += run.bytes
            return
        self.seqs.fromlist(run.seqs[begin:end])
        self.rows.fromlist(run.rows[begin:end])
        self.slots.fromlist(run.slots[begin:end])
        sizes = run.sizes[begin:end]
        self.sizes.fromlist(sizes)
        self.bytes += sum(sizes)

    def extend(self, other: Chunk) -> None:
        """Add the positions of another chunk at the end."""
        if (
            self.publishers is not None
            or other.publishers is not None
            or self.publisher != other.publisher
            or self.wide != other.wide
        ):
            for index in range(len(other.seqs)):
                self.add(
                    other.rows[index], other.slots[index], other.seqs[index], other.sizes[index], other.publisher_of(index)
                )
            return
        self.seqs.extend(other.seqs)
        self.rows.extend(other.rows)
        self.slots.extend(other.slots)
        self.sizes.extend(other.sizes)
        self.bytes += other.bytes

    def part(self, begin: int, end: int) -> Chunk:
        """Return a copy of the positions from index `begin` to `end` (exclusive)."""
        part = Chunk(self.overflow, self.publisher)
        publishers = self.publishers
        if publishers is not None:
            part.publishers = publishers[begin:end]
        part.wide = self.wide
        part.seqs = self.seqs[begin:end]
        part.rows = self.rows[begin:end]
        part.slots = self.slots[begin:end]
        part.sizes = self.sizes[begin:end]
        part.bytes = self.bytes if len(part.seqs) == len(self.seqs) else sum(part.sizes)
        return part

    def index_of(self, seq: int) -> int:
        """Return the index of a sequence number, -1 if it is not there."""
        index = bisect_left(self.seqs, seq)
        return index if index < len(self.seqs) and self.seqs[index] == seq else -1

    def is_full(self) -> bool:
        return len(self.seqs) >= CHUNK_ENTRIES or self.bytes >= CHUNK_BYTES

    def publisher_of(self, index: int) -> int:
        publishers = self.publishers
        return self.publisher if publishers is None else publishers[index]

    def positions_for(self, audience: int) -> list[int]:
        """Return the indices of the messages for an audience, 0 for all."""
        publishers = self.publishers
        if publishers is None or not audience:
            return list(range(len(self.seqs))) if not audience or is_for(self.publisher, audience) else []
        return [index for index, publisher in enumerate(publishers) if is_for(publisher, audience)]


class PagedRun:
    """Entries that are paged out together: their positions as parallel lists, which are faster to fill than arrays.

    long_bits, short_bits  the bits in use of any sequence number, row id or publisher, and of any slot or size
    """

    __slots__ = ("bytes", "long_bits", "overflow", "publishers", "rows", "seqs", "short_bits", "sizes", "slots")

    def __init__(self, overflow: bool) -> None:
        self.overflow = overflow
        self.seqs: list[int] = []
        self.rows: list[int] = []
        self.slots: list[int] = []
        self.sizes: list[int] = []
        self.publishers: list[int] = []
        self.long_bits = 0
        self.short_bits = 0
        self.bytes = 0

    def add(self, row_id: int, slot: int, seq: int, size: int, publisher: int) -> None:
        """Add a position at the end."""
        self.rows.append(row_id)
        self.slots.append(slot)
        self.seqs.append(seq)
        self.sizes.append(size)
        self.publishers.append(publisher)
        self.long_bits |= seq | row_id | publisher
        self.short_bits |= slot | size
        self.bytes += size


def _halved(typecode: str, values: array[int]) -> array[int] | None:
    """Return numbers as an array of this type, of half the size; None if they do not fit."""
    halves: array[int] = array(typecode)
    halves.frombytes(values.tobytes())
    low = halves[_LOW::2]
    high = halves[1 - _LOW :: 2]
    return None if high.tobytes().strip(b"\0") else low


def recovered_chunk(recovered: RecoveredQueue, first: int, last: int) -> Chunk:
    """Return the positions from `first` to `last` (exclusive) of a recovered queue."""
    chunk = Chunk(False)
    all_sizes = recovered.sizes[first:last]
    seqs = _halved("I", recovered.seqs[first:last])
    rows = _halved("I", recovered.rows[first:last])
    slots = _halved("H", recovered.slots[first:last])
    sizes = _halved("H", all_sizes)
    if seqs is None or rows is None or slots is None or sizes is None:
        chunk.wide = True
        chunk.seqs = recovered.seqs[first:last]
        chunk.rows = recovered.rows[first:last]
        chunk.slots = recovered.slots[first:last]
        chunk.sizes = all_sizes
    else:
        chunk.seqs = seqs
        chunk.rows = rows
        chunk.slots = slots
        chunk.sizes = sizes
    chunk.bytes = sum(all_sizes)
    return chunk


class Backlog:
    """Ready entries of one priority level.

    paged          number of entries in chunks, and `paged_bytes` their bytes
    cancelled      number of loads whose result is ignored
    searched       sequence numbers up to which a part has no entry that a `get` may return; None before the first search.
                   `max_searched` is not below any of them.
    not_droppable  sequence number below which no entry in memory has the rule DROP_FIRST, so overflow skips them
    never_dropped  sequence number below which all entries in memory have the rule DROP_NEVER
    """

    __slots__ = (
        "cancelled",
        "chunks",
        "head",
        "loading",
        "max_searched",
        "never_dropped",
        "not_droppable",
        "paged",
        "paged_bytes",
        "passed",
        "priority",
        "searched",
        "young",
    )

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.head: Entries = deque()
        self.chunks: deque[Chunk] = deque()
        self.young: deque[Entry] | None = None
        self.paged = 0
        self.paged_bytes = 0
        self.loading = False
        self.cancelled = 0
        self.passed = 0
        self.searched: dict[SearchKey, int] | None = None
        self.max_searched = 0
        self.not_droppable = 0
        self.never_dropped = 0

    def __len__(self) -> int:
        young = self.young
        return len(self.head) + self.paged + (0 if young is None else len(young))

    def append(self, entry: Entry) -> None:
        young = self.young
        if young is None:
            self.head.append(entry)
        else:
            young.append(entry)

    def insert(self, entry: Entry) -> int:
        """Return an entry to its old place: before the first younger entry of the head. Return the units of work."""
        head = self.head
        seq = entry.seq
        work = self.reopen(seq)
        if not head or head[0].seq > seq:
            head.appendleft(entry)
            return work
        if head[len(head) - 1].seq < seq:
            # Behind the head, before any chunks: only entries newer than the chunks go to `young`.
            young = self.young
            if young is not None and self.last_paged() < seq:
                index = len(young)
                while index > 0 and young[index - 1].seq > seq:
                    index -= 1
                moved = len(young) - index
                young.insert(index, entry)
                return work + (moved >> PASSED_SHIFT)
            head.append(entry)
            return work
        index = bisect_left(head, seq, key=SEQ)
        moved = min(index, len(head) - index)
        head.insert(index, entry)
        return work + (moved >> MOVED_SHIFT)

    def take(self, entry: Entry) -> bool:
        """Remove an entry from memory. Returns False if it is not in memory."""
        for entries in (self.head, self.young):
            if entries:
                index = bisect_left(entries, entry.seq, key=SEQ)
                if index < len(entries) and entries[index] is entry:
                    del entries[index]
                    return True
        return False

    def find(self, seq: int) -> Entry | None:
        """Return the entry in memory with a sequence number."""
        for entries in (self.head, self.young):
            if entries:
                index = bisect_left(entries, seq, key=SEQ)
                if index < len(entries) and entries[index].seq == seq:
                    return entries[index]
        return None

    def drop_position(self, seq: int) -> bool:
        """Remove the position of a paged-out entry that is not being loaded. Return False if it is not there.

        The chunk is replaced: browsers and walks may be reading the old one.
        """
        for index, chunk in enumerate(self.chunks):
            at = chunk.index_of(seq)
            if at < 0 or (self.loading and not index):
                continue
            self.paged -= 1
            self.paged_bytes -= chunk.sizes[at]
            if len(chunk.seqs) == 1:
                del self.chunks[index]
                return True
            rest = chunk.part(0, at)
            rest.extend(chunk.part(at + 1, len(chunk.seqs)))
            self.chunks[index] = rest
            return True
        return False

    def merge(self, entries: list[Entry]) -> int:
        """Insert entries, sorted by sequence number, in their places. Returns how many other entries were moved."""
        head = self.head
        young = self.young
        self.reopen(entries[0].seq)
        last = head[len(head) - 1].seq if head else 0
        if young is None:
            return _merge(head, entries)
        # Behind the head, before any chunks: only entries newer than the chunks go to `young`.
        chunked = self.last_paged()
        count = 0
        for entry in entries:
            seq = entry.seq
            if seq > last and seq > chunked:
                break
            count += 1
        return _merge(head, entries[:count]) + _merge(young, entries[count:])

    def last_paged(self) -> int:
        """Return the highest sequence number of a paged-out entry, 0 if there is none."""
        chunks = self.chunks
        # Only the first one may be out of order, if it is read ahead.
        return max(chunks[0].seqs[-1], chunks[len(chunks) - 1].seqs[-1]) if chunks else 0

    def append_late(self, entry: Entry) -> int:
        """Add an entry that becomes visible, perhaps after younger ones. Return the units of work."""
        seq = entry.seq
        head, young = self.head, self.young
        if young:
            last = young[len(young) - 1].seq
        else:
            last = max(self.last_paged(), head[len(head) - 1].seq if head else 0)
        if seq < last:
            return self.insert(entry)
        self.append(entry)
        return self.reopen(seq)

    def reopen(self, seq: int) -> int:
        """Note that an entry with this sequence number, and perhaps younger ones, are in memory again, or only now.

        Returns:
            The units of work.
        """
        if seq <= self.passed:
            self.passed = 0
        self.not_droppable = min(self.not_droppable, seq)
        self.never_dropped = min(self.never_dropped, seq)
        searched = self.searched
        if searched is None or seq > self.max_searched:
            return 0
        self.max_searched = seq - 1
        for key, until in searched.items():
            if seq <= until:
                searched[key] = seq - 1
        return len(searched) >> PASSED_SHIFT

    def searched_until(self, key: SearchKey) -> int:
        """Return the sequence number up to which a part was searched."""
        searched = self.searched
        return 0 if searched is None else searched.get(key, 0)

    def note_searched(self, key: SearchKey, seq: int) -> None:
        """Note the sequence number up to which a part was searched."""
        searched = self.searched
        if searched is None:
            searched = self.searched = {}
        elif len(searched) >= MAX_SEARCHES and key not in searched:
            del searched[next(iter(searched))]
        searched[key] = seq
        self.max_searched = max(self.max_searched, seq)

    def page(self, row_id: int, slot: int, seq: int, size: int, overflow: bool, publisher: int) -> None:
        """Add a position at the end of the chunks."""
        chunks = self.chunks
        chunk: Chunk | None = chunks[len(chunks) - 1] if chunks else None
        # Nothing is appended to a chunk that is being loaded: the load does not include it.
        if chunk is None or chunk.overflow != overflow or chunk.is_full() or (self.loading and len(chunks) == 1):
            chunk = Chunk(overflow, publisher)
            chunks.append(chunk)
        chunk.add(row_id, slot, seq, size, publisher)
        self.paged += 1
        self.paged_bytes += size

    def page_run(self, run: PagedRun) -> None:
        """Add the positions of a run at the end of the chunks."""
        chunks = self.chunks
        count = len(run.seqs)
        begin = 0
        while begin < count:
            chunk: Chunk | None = chunks[len(chunks) - 1] if chunks else None
            if (
                chunk is None
                or chunk.overflow != run.overflow
                or len(chunk.seqs) >= CHUNK_ENTRIES
                or chunk.bytes + run.bytes > CHUNK_BYTES
                or (self.loading and len(chunks) == 1)
            ):
                chunk = Chunk(run.overflow, run.publishers[begin])
                chunks.append(chunk)
            end = min(begin + CHUNK_ENTRIES - len(chunk.seqs), count)
            chunk.add_run(run, begin, end)
            begin = end
        self.paged += count
        self.paged_bytes += run.bytes

    def page_tail(self, keep: int, overflow: Log | None) -> list[Entry]:
        """Page out the committed entries at the end of the head, except for the first `keep` entries. Returns the entries.

        Must not be called while a chunk is loading, because that chunk follows the head.
        """
        head = self.head
        tail: list[Entry] = []
        while len(head) > keep:
            row = head[len(head) - 1].row
            if row is None or row.batch > row.log.committed:
                break
            tail.append(head.pop())
        tail.reverse()
        self.chunks.extendleft(reversed(self._positions_of(tail, overflow)))
        return tail

    def _positions_of(self, entries: list[Entry], overflow: Log | None) -> list[Chunk]:
        """Return chunks of committed entries, and count these as paged."""
        chunks: list[Chunk] = []
        chunk = Chunk(False)
        for entry in entries:
            row = entry.row
            assert row is not None
            message = entry.message
            outside = row.log is overflow
            if not chunks or chunk.overflow != outside or chunk.is_full():
                chunk = Chunk(outside, message.publisher)
                chunks.append(chunk)
            chunk.add(row.id, entry.slot, entry.seq, message.size, message.publisher)
            self.paged_bytes += message.size
        self.paged += len(entries)
        return chunks

    def take_out(self, index: int, wanted: list[int]) -> None:
        """Move positions of a chunk, given by ascending indices, into a new chunk, which is read next."""
        chunk = self.chunks[index]
        picked = Chunk(chunk.overflow, chunk.publisher_of(wanted[0]))
        rest: Chunk | None = None
        at = 0
        for position, seq in enumerate(chunk.seqs):
            publisher = chunk.publisher_of(position)
            if at < len(wanted) and wanted[at] == position:
                at += 1
                target = picked
            else:
                if rest is None:
                    rest = Chunk(chunk.overflow, publisher)
                target = rest
            target.add(chunk.rows[position], chunk.slots[position], seq, chunk.sizes[position], publisher)
        if rest is None:
            del self.chunks[index]
        else:
            self.chunks[index] = rest
        self.chunks.appendleft(picked)

    def add_loaded(self, entries: list[Entry]) -> None:
        """Add loaded entries behind the head; those that were read ahead go to their places."""
        head = self.head
        if entries:
            self.reopen(entries[0].seq)
        if head and entries and head[len(head) - 1].seq > entries[0].seq:
            merged = sorted([*head, *entries], key=SEQ)
            head.clear()
            head.extend(merged)
        else:
            head.extend(entries)

    def take_chunk(self) -> Chunk:
        """Remove and return the oldest chunk, whose entries are in memory again."""
        chunk = self.chunks.popleft()
        self.paged -= len(chunk.seqs)
        self.paged_bytes -= chunk.bytes
        return chunk

    def cancel_load(self) -> None:
        """Cancel the load of the oldest chunk, which may then be moved or preceded by others."""
        if self.loading:
            self.loading = False
            self.cancelled += 1

    def take_positions(self, max_count: int, max_bytes: int) -> Chunk:
        """Remove positions from the oldest chunk, which is not loading.

        Removes at least one, and otherwise at most `max_count` with bodies of at most `max_bytes` in total.
        """
        chunk = self.chunks[0]
        count = len(chunk.seqs)
        if count <= max_count and chunk.bytes <= max_bytes:
            return self.take_chunk()
        end = 0
        total = 0
        while end < count and end < max_count and (not end or total + chunk.sizes[end] <= max_bytes):
            total += chunk.sizes[end]
            end += 1
        taken = chunk.part(0, end)
        if end == count:
            self.chunks.popleft()
        else:
            self.chunks[0] = chunk.part(end, count)
        self.paged -= end
        self.paged_bytes -= total
        return taken

    def return_chunks(self, back: list[Chunk], overflow: Log | None) -> list[Entry]:
        """Return positions to their old places, in the order of their sequence numbers.

        Younger entries are paged out or moved behind the chunks if possible; uncommitted ones stay in the head. Returns
        the entries that were paged out.
        """
        self.cancel_load()
        head = self.head
        first = back[0].seqs[0]
        self.reopen(first)
        last = back[len(back) - 1].seqs[-1]
        if not self.chunks:
            later: deque[Entry] = deque()
            while head and head[len(head) - 1].seq > last:
                later.appendleft(head.pop())
            if later or self.young is None:
                if self.young is not None:
                    later.extend(self.young)
                self.young = later
        paged: list[Entry] = []
        if head and head[len(head) - 1].seq > first:
            paged = self.page_tail(bisect_left(head, first, key=SEQ), overflow)
        young = self.young
        older: list[Entry] = []
        while young and young[0].seq < last:
            row = young[0].row
            if row is None or row.batch > row.log.committed:
                break
            older.append(young.popleft())
        if older:
            self.chunks = merged(self.chunks, deque(self._positions_of(older, overflow)))
            paged.extend(older)
        for chunk in back:
            self.paged += len(chunk.seqs)
            self.paged_bytes += chunk.bytes
        self.chunks = merged(deque(back), self.chunks)
        return paged

    def settle_young(self) -> None:
        """Append the young entries to the head, because nothing is paged out any more."""
        young = self.young
        if young is not None and not self.chunks and not self.loading:
            self.head.extend(young)
            self.young = None

    def settling(self, queue_id: int, log: Log, overflow: Log | None) -> Iterator[int]:
        """Settle all entries of a backlog that its queue has dropped, and release their memory, in steps."""
        for group in (self.head, self.young or deque()):
            while group:
                rows: array[int] = array("Q")
                slots: array[int] = array("I")
                taken = 0
                highest = 0
                while group and taken < PIECE:
                    entry = group.popleft()
                    taken += 1
                    settlement.archive(entry)
                    row = entry.row
                    if row is None:
                        continue
                    if row.log is overflow:
                        overflow.settle(entry)
                    else:
                        rows.append(row.id)
                        slots.append(entry.slot)
                        highest = max(highest, entry.seq)
                if rows:
                    log.settle_range(queue_id, 0, highest, (), rows, slots)
                yield ENTRY_WORK * taken
        while self.chunks:
            chunk = self.chunks.popleft()
            if not chunk.overflow:
                log.settle_range(queue_id, 0, chunk.seqs[-1], (), chunk.rows, chunk.slots)
            elif overflow is not None:
                overflow.settle_range(queue_id, chunk.seqs[0], chunk.seqs[-1], (), chunk.rows, chunk.slots)
            yield len(chunk.seqs)

    def recover(self, recovered: RecoveredQueue, first: int, last: int) -> None:
        """Add the positions from `first` to `last` (exclusive) of a recovered queue before all others, in slices."""
        while first < last:
            begin = max(first, last - CHUNK_ENTRIES)
            n_bytes = sum(recovered.sizes[begin:last])
            while n_bytes > 4 * CHUNK_BYTES and last - begin > 1:
                begin = last - (last - begin) // 2
                n_bytes = sum(recovered.sizes[begin:last])
            self.page_first(recovered_chunk(recovered, begin, last))
            last = begin

    def page_first(self, chunk: Chunk) -> None:
        """Add positions before all others."""
        self.chunks.appendleft(chunk)
        self.paged += len(chunk.seqs)
        self.paged_bytes += chunk.bytes


def merged(some: deque[Chunk], others: deque[Chunk]) -> deque[Chunk]:
    """Merge two lists of chunks by sequence number. Overlapping chunks are split."""
    merged: deque[Chunk] = deque()
    while some and others:
        if some[0].seqs[0] > others[0].seqs[0]:
            some, others = others, some
        chunk = some.popleft()
        bound = others[0].seqs[0]
        if chunk.seqs[-1] > bound:
            cut = bisect_left(chunk.seqs, bound)
            some.appendleft(chunk.part(cut, len(chunk.seqs)))
            chunk = chunk.part(0, cut)
        merged.append(chunk)
    merged.extend(some)
    merged.extend(others)
    return merged


def in_order(pieces: list[Chunk]) -> list[Chunk]:
    """Sort chunks by sequence numbers, and split them where they overlap."""
    ordered: deque[Chunk] = deque()
    for piece in sorted(pieces, key=_first_of):
        if ordered and ordered[-1].seqs[-1] > piece.seqs[0]:
            ordered = merged(ordered, deque((piece,)))
        else:
            ordered.append(piece)
    return list(ordered)


def _first_of(piece: Chunk) -> int:
    return piece.seqs[0]
