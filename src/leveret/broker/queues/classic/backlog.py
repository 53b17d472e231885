"""The ready entries of one priority level of a queue, oldest first, paged when the queue is deep.

    head    entries in memory, what consumers get next
    chunks  entries that are on disk only: positions in compact arrays, tens of bytes each
            (usually in order; what selective consumers look for may be read first)
    young   entries newer than the chunks, in memory until they are committed; None while nothing is paged out
    passed  entries of the head up to this sequence number were offered to all consumers, and none of them wants one;
            0 while that is not known (selective consumers only)

The oldest chunk stays where it is while it is `loading`, so that counts are right and a purge finds its entries.

A chunk is the unit of reading back: at most CHUNK_ENTRIES entries and about CHUNK_BYTES bytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from operator import attrgetter
from typing import Final

from leveret.broker.log import Log, RecoveredQueue
from leveret.broker.message import Entry, is_for

CHUNK_ENTRIES: Final = 4096
CHUNK_BYTES: Final = 1 << 20

# What backlogs are sorted by.
SEQ: Final = attrgetter("seq")


def _merge(group: deque[Entry], entries: list[Entry]) -> int:
    """Merge sorted entries into sorted ones. Returns how many of these were moved."""
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

    publisher, publishers  who published all of them; where that is not one connection, `publishers` says it one by one.
                           0 for what a start found: no connection of before exists any more
    """

    __slots__ = ("bytes", "overflow", "publisher", "publishers", "rows", "seqs", "sizes", "slots")

    def __init__(self, overflow: bool, publisher: int = 0) -> None:
        self.overflow = overflow
        self.publisher = publisher
        self.publishers: array[int] | None = None
        self.seqs: array[int] = array("Q")
        self.rows: array[int] = array("Q")
        self.slots: array[int] = array("I")
        self.sizes: array[int] = array("I")
        self.bytes = 0

    def add(self, row_id: int, slot: int, seq: int, size: int, publisher: int) -> None:
        """Add a position at the end."""
        publishers = self.publishers
        if publishers is not None:
            publishers.append(publisher)
        elif publisher != self.publisher:
            publishers = array("Q", (self.publisher,)) * len(self.seqs)
            publishers.append(publisher)
            self.publishers = publishers
        self.seqs.append(seq)
        self.rows.append(row_id)
        self.slots.append(slot)
        self.sizes.append(size)
        self.bytes += size

    def extend(self, other: Chunk) -> None:
        """Add the positions of another chunk at the end."""
        if self.publishers is not None or other.publishers is not None or self.publisher != other.publisher:
            for index in range(len(other.seqs)):
                self.add(other.rows[index], other.slots[index], other.seqs[index], other.sizes[index],
                         other.publisher_of(index))
            return
        self.seqs.extend(other.seqs)
        self.rows.extend(other.rows)
        self.slots.extend(other.slots)
        self.sizes.extend(other.sizes)
        self.bytes += other.bytes

    def part(self, begin: int, end: int) -> Chunk:
        """A copy of the positions from index begin to end (exclusive)."""
        part = Chunk(self.overflow, self.publisher)
        publishers = self.publishers
        if publishers is not None:
            part.publishers = publishers[begin:end]
        part.seqs = self.seqs[begin:end]
        part.rows = self.rows[begin:end]
        part.slots = self.slots[begin:end]
        part.sizes = self.sizes[begin:end]
        part.bytes = self.bytes if len(part.seqs) == len(self.seqs) else sum(part.sizes)
        return part

    def is_full(self) -> bool:
        return len(self.seqs) >= CHUNK_ENTRIES or self.bytes >= CHUNK_BYTES

    def publisher_of(self, index: int) -> int:
        publishers = self.publishers
        return self.publisher if publishers is None else publishers[index]


class Backlog:
    """Ready entries of one priority level. `paged` counts the entries in chunks, `paged_bytes` their bytes; `cancelled`
    those loads that nobody waits for any more. `not_droppable` is a sequence number below which nothing in memory has
    the rule DROP_FIRST, so that overflow need not look there again."""

    __slots__ = ("cancelled", "chunks", "head", "loading", "not_droppable", "paged", "paged_bytes", "passed", "priority",
                 "young")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.head: deque[Entry] = deque()
        self.chunks: deque[Chunk] = deque()
        self.young: deque[Entry] | None = None
        self.paged = 0
        self.paged_bytes = 0
        self.loading = False
        self.cancelled = 0
        self.passed = 0
        self.not_droppable = 0

    def __len__(self) -> int:
        young = self.young
        return len(self.head) + self.paged + (0 if young is None else len(young))

    def append(self, entry: Entry) -> None:
        young = self.young
        if young is None:
            self.head.append(entry)
        else:
            young.append(entry)

    def insert(self, entry: Entry) -> None:
        """Put an entry back to its old place: before the first entry of the head that is younger."""
        head = self.head
        seq = entry.seq
        self.passed = 0
        self.not_droppable = min(self.not_droppable, seq)
        if not head or head[0].seq > seq:
            head.appendleft(entry)
            return
        if head[len(head) - 1].seq < seq:
            # Behind the head, where the chunks (if any) follow: only what came after the chunks goes to `young`.
            young = self.young
            if young is not None and (not self.chunks or self.chunks[len(self.chunks) - 1].seqs[-1] < seq):
                index = len(young)
                while index > 0 and young[index - 1].seq > seq:
                    index -= 1
                young.insert(index, entry)
            else:
                head.append(entry)
            return
        head.insert(bisect_left(head, seq, key=SEQ), entry)

    def take(self, entry: Entry) -> bool:
        """Remove an entry that is in memory; False if it is not there."""
        for entries in (self.head, self.young):
            if entries:
                index = bisect_left(entries, entry.seq, key=SEQ)
                if index < len(entries) and entries[index] is entry:
                    del entries[index]
                    return True
        return False

    def merge(self, entries: list[Entry]) -> int:
        """Put several entries to their places by sequence number, in which order they come. Returns how many that are there
        already had to be moved for it."""
        head = self.head
        young = self.young
        self.passed = 0
        self.not_droppable = min(self.not_droppable, entries[0].seq)
        last = head[len(head) - 1].seq if head else 0
        # Behind the head, where the chunks (if any) follow: only what came after the chunks goes to `young`.
        chunked = self.chunks[len(self.chunks) - 1].seqs[-1] if self.chunks else 0
        if young is None:
            return _merge(head, entries)
        count = 0
        for entry in entries:
            seq = entry.seq
            if seq > last and seq > chunked:
                break
            count += 1
        return _merge(head, entries[:count]) + _merge(young, entries[count:])

    def take_of(self, audience: int) -> Entry | None:
        """Take the first entry whose message is for an audience, None where it is not in memory: then it is the
        next to be read, if there is one."""
        for entry in self.head:
            if is_for(entry.message.publisher, audience):
                self.head.remove(entry)
                return entry
        if self.loading:
            return None
        for index, chunk in enumerate(self.chunks):
            wanted = [position for position in range(len(chunk.seqs)) if is_for(chunk.publisher_of(position), audience)]
            if wanted:
                self.take_out(index, wanted)
                return None
        young = self.young
        if young is not None:
            for entry in young:
                if is_for(entry.message.publisher, audience):
                    young.remove(entry)
                    return entry
        return None

    def next_is_for(self, audience: int) -> bool:
        """Whether the next chunk begins with a message for a content class."""
        return bool(self.chunks) and is_for(self.chunks[0].publisher_of(0), audience)

    def page(self, row_id: int, slot: int, seq: int, size: int, overflow: bool, publisher: int) -> None:
        """Add a position at the end of the chunks."""
        chunks = self.chunks
        chunk: Chunk | None = chunks[len(chunks) - 1] if chunks else None
        # A chunk that is being loaded is not appended to: the load has seen only what was in it before.
        if (chunk is None or chunk.overflow != overflow or chunk.is_full()
                or (self.loading and len(chunks) == 1)):
            chunk = Chunk(overflow, publisher)
            chunks.append(chunk)
        chunk.add(row_id, slot, seq, size, publisher)
        self.paged += 1
        self.paged_bytes += size

    def page_tail(self, keep: int, overflow: Log | None) -> list[Entry]:
        """Turn the end of the head, beyond the first `keep` entries, into positions before the chunks, as far as it is
        committed from the end on. Returns the entries. Not while a chunk is loading: it belongs right behind the head."""
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
        """Chunks of entries, which are committed, counted as paged."""
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
        """Put some positions of a chunk, by ascending indices, into a chunk of their own, which is the next to be read."""
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
        """Add what was read back: it follows the head, but for entries that were read ahead of their turn."""
        head = self.head
        if entries:
            self.not_droppable = min(self.not_droppable, entries[0].seq)
        if head and entries and head[len(head) - 1].seq > entries[0].seq:
            merged = sorted([*head, *entries], key=SEQ)
            head.clear()
            head.extend(merged)
        else:
            head.extend(entries)

    def take_chunk(self) -> Chunk:
        """Remove the oldest chunk, whose entries are back in memory."""
        chunk = self.chunks.popleft()
        self.paged -= len(chunk.seqs)
        self.paged_bytes -= chunk.bytes
        return chunk

    def cancel_load(self) -> None:
        """The oldest chunk is not read back after all: it may go elsewhere, or others may come before it."""
        if self.loading:
            self.loading = False
            self.cancelled += 1

    def take_positions(self, most: int, max_bytes: int) -> Chunk:
        """Remove positions from the oldest chunk, which is not loading: at most so many, with bodies of so many bytes
        together, but at least one."""
        chunk = self.chunks[0]
        count = len(chunk.seqs)
        if count <= most and chunk.bytes <= max_bytes:
            return self.take_chunk()
        end = 0
        total = 0
        while end < count and end < most and (not end or total + chunk.sizes[end] <= max_bytes):
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
        self.passed = 0
        head = self.head
        first = back[0].seqs[0]
        last = back[len(back) - 1].seqs[-1]
        if not self.chunks:
            later: deque[Entry] = deque()
            while head and head[len(head) - 1].seq > last:
                later.appendleft(head.pop())
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
        """Nothing is paged out any more: what is young follows the head directly."""
        young = self.young
        if young is not None and not self.chunks and not self.loading:
            self.head.extend(young)
            self.young = None

    def recover(self, recovered: RecoveredQueue, first: int, last: int) -> None:
        """Page the positions first..last (exclusive) of a recovered queue, by slices rather than one by one."""
        while first < last:
            until = min(first + CHUNK_ENTRIES, last)
            sizes = recovered.sizes[first:until]
            n_bytes = sum(sizes)
            while n_bytes > 4 * CHUNK_BYTES and until - first > 1:
                until = first + (until - first) // 2
                sizes = recovered.sizes[first:until]
                n_bytes = sum(sizes)
            chunk = Chunk(False)
            chunk.seqs = recovered.seqs[first:until]
            chunk.rows = recovered.rows[first:until]
            chunk.slots = recovered.slots[first:until]
            chunk.sizes = sizes
            chunk.bytes = n_bytes
            self.chunks.append(chunk)
            self.paged += until - first
            self.paged_bytes += n_bytes
            first = until


def merged(some: deque[Chunk], others: deque[Chunk]) -> deque[Chunk]:
    """Both in the order of their sequence numbers, cut where they overlap."""
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
