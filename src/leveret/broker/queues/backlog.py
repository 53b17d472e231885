"""The ready entries of one priority level of a queue, oldest first, paged when the queue is deep.

    head    entries in memory, what consumers get next
    chunks  entries that are on disk only: positions in compact arrays, tens of octets each
    young   entries newer than the chunks, in memory until they are committed; None while nothing is paged out
    passed  entries of the head up to this sequence number were offered to all consumers, and none of them wants one;
            0 while that is not known (selective consumers only)

The oldest chunk stays where it is while it is `loading`, so that counts are right and a purge finds its entries.

A chunk is the unit of reading back: at most CHUNK_ENTRIES entries and about CHUNK_BYTES octets.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from operator import attrgetter
from typing import Final

from leveret.broker.log import RecoveredQueue
from leveret.broker.message import Entry

CHUNK_ENTRIES: Final = 4096
CHUNK_BYTES: Final = 1 << 20

_SEQ: Final = attrgetter("seq")


class Chunk:
    """Positions of consecutive entries: sequence numbers, row ids, slots and body sizes in parallel arrays."""

    __slots__ = ("bytes", "overflow", "rows", "seqs", "sizes", "slots")

    def __init__(self, overflow: bool) -> None:
        self.overflow = overflow
        self.seqs: array[int] = array("Q")
        self.rows: array[int] = array("Q")
        self.slots: array[int] = array("I")
        self.sizes: array[int] = array("I")
        self.bytes = 0


class Backlog:
    """Ready entries of one priority level. `paged` counts the entries in chunks, `paged_bytes` their octets."""

    __slots__ = ("chunks", "head", "loading", "paged", "paged_bytes", "passed", "priority", "young")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.head: deque[Entry] = deque()
        self.chunks: deque[Chunk] = deque()
        self.young: deque[Entry] | None = None
        self.paged = 0
        self.paged_bytes = 0
        self.loading = False
        self.passed = 0

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
        head.insert(bisect_left(head, seq, key=_SEQ), entry)

    def page(self, row_id: int, slot: int, seq: int, size: int, overflow: bool) -> None:
        """Add a position at the end of the chunks."""
        chunks = self.chunks
        chunk: Chunk | None = chunks[len(chunks) - 1] if chunks else None
        # A chunk that is being loaded is not appended to: the load has seen only what was in it before.
        if (chunk is None or chunk.overflow != overflow or len(chunk.seqs) >= CHUNK_ENTRIES
                or chunk.bytes >= CHUNK_BYTES or (self.loading and len(chunks) == 1)):
            chunk = Chunk(overflow)
            chunks.append(chunk)
        chunk.seqs.append(seq)
        chunk.rows.append(row_id)
        chunk.slots.append(slot)
        chunk.sizes.append(size)
        chunk.bytes += size
        self.paged += 1
        self.paged_bytes += size

    def take_chunk(self) -> Chunk:
        """Remove the oldest chunk, whose entries are back in memory."""
        chunk = self.chunks.popleft()
        self.paged -= len(chunk.seqs)
        self.paged_bytes -= chunk.bytes
        return chunk

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
            octets = sum(sizes)
            while octets > 4 * CHUNK_BYTES and until - first > 1:
                until = first + (until - first) // 2
                sizes = recovered.sizes[first:until]
                octets = sum(sizes)
            chunk = Chunk(False)
            chunk.seqs = recovered.seqs[first:until]
            chunk.rows = recovered.rows[first:until]
            chunk.slots = recovered.slots[first:until]
            chunk.sizes = sizes
            chunk.bytes = octets
            self.chunks.append(chunk)
            self.paged += until - first
            self.paged_bytes += octets
            first = until
