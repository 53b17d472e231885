"""Recovery: rebuilds rows in memory, and compact arrays for each queue, from the log.

Two passes read the rows without their data: first all settlements, then all indices. Plain rows create no objects per
record: columns are sliced out of the packed index and appended whole.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable
from heapq import merge
from itertools import compress
from typing import Final

from leveret.broker.log import Log, RecoveredQueue, Recovery
from leveret.storage.batch import IndexReader, bytes_to_words, decode_settled
from leveret.storage.records import DELIVERY, ENTRY, INDEX_SIZE, KINDS, MESSAGE, NONE, UPDATE
from leveret.storage.rows import (
    BARE,
    DEAD,
    LIVE,
    MOVED,
    SLOT_BITS,
    SLOT_MASK,
    STORED,
    StoredRow,
    element,
    set_element,
)

# Rows with entries of more queues than this are processed record by record.
_FEW_QUEUES: Final = 6
# Seconds between two breaks, and of a break: the shortest time in which a waiting thread wakes up.
_WORK_TIME: Final = 0.0005
_BREAK_TIME: Final = 0.000001


class Breaks:
    """Short breaks of a thread, in which the event loop gets the lock of the interpreter.

    Without them, the loop would wait for up to one switch interval whenever it needs the lock, several times a turn:
    compiled code keeps the lock, and calls of SQLite release it for too short a time.

    Args:
        wanted: Whether there is an event loop.
        report: Called for each piece of work; None for no calls.
    """

    def __init__(self, wanted: bool, report: Callable[[], None] | None = None) -> None:
        self._wanted = wanted
        self._report = report
        self._last = 0.0

    def take(self) -> None:
        """Take a break if the last one was a while ago."""
        if self._report is not None:
            self._report()
        if self._wanted and time.monotonic() - self._last > _WORK_TIME:
            time.sleep(_BREAK_TIME)
            self._last = time.monotonic()


class Rebuilt:
    """The state of a log after recovery.

    stored    the rows on disk, the latest first
    moved     the rows that are no longer on disk, but which others reference
    next_row, next_chunk  the next ids
    orphans   ranges of chunks that no record refers to, first and last
    recovery  the state for the broker
    indexed   whether the rows were read; if not, only `next_row`, `next_chunk` and parts of `recovery` are known
    """

    def __init__(self) -> None:
        self.stored: list[StoredRow] = []
        self.moved: list[StoredRow] = []
        self.next_row = 1
        self.next_chunk = 1
        self.orphans: list[tuple[int, int]] = []
        self.recovery = Recovery()
        self.indexed = True

    def find_orphans(self, chunks: Iterable[int]) -> None:
        """Find the chunks without a message among these ids, which ascend.

        They belong to messages that were not published before the broker stopped, or that were settled.
        """
        used: set[int] = set()
        for row in self.stored:
            if row.links is not None:
                for slot, (first, last) in row.links.chunks.items():
                    if row.slots[slot] != DEAD:
                        used.update(range(first, last + 1))
        for chunk in chunks:
            if chunk in used:
                continue
            if self.orphans and self.orphans[-1][1] == chunk - 1:
                self.orphans[-1] = (self.orphans[-1][0], chunk)
            else:
                self.orphans.append((chunk, chunk))


class _Collector:
    """The entries of a queue as found in the rows. `runs` are the offsets at which the sequence numbers decrease."""

    __slots__ = ("last", "queue", "runs")

    def __init__(self) -> None:
        self.queue = RecoveredQueue()
        self.runs: list[int] = [0]
        self.last = -1

    def extend(self, row_id: int, seqs: array[int], slots: array[int], sizes: array[int], priorities: array[int]) -> None:
        if not seqs:
            return
        found = seqs.tolist()
        ordered = found.copy()
        ordered.sort()
        if ordered != found:
            order = sorted(range(len(seqs)), key=seqs.__getitem__)
            seqs = array("Q", ordered)
            slots = array("I", [slots[at] for at in order])
            sizes = array("I", [sizes[at] for at in order])
            priorities = array("h", [priorities[at] for at in order])
        queue = self.queue
        if seqs[0] <= self.last:
            self.runs.append(len(queue.seqs))
        self.last = seqs[len(seqs) - 1]
        queue.seqs.extend(seqs)
        queue.rows.extend(array("Q", (row_id,)) * len(seqs))
        queue.slots.extend(slots)
        queue.sizes.extend(sizes)
        queue.priorities.extend(priorities)

    def finish(self, breaks: Breaks) -> RecoveredQueue:
        """Return the queue in the order of its sequence numbers."""
        queue = self.queue
        if len(self.runs) == 1:
            return queue
        seqs = queue.seqs
        bounds = [*self.runs, len(seqs)]
        spans = sorted(
            (seqs[bounds[at]], seqs[bounds[at + 1] - 1], bounds[at], bounds[at + 1]) for at in range(len(self.runs))
        )
        result = RecoveredQueue()
        at = 0
        while at < len(spans):
            # Merge overlapping runs; concatenate the others.
            last = spans[at][1]
            end = at + 1
            while end < len(spans) and spans[end][0] < last:
                last = max(last, spans[end][1])
                end += 1
            if end == at + 1:
                self._take_run(result, spans[at][2], spans[at][3])
            else:
                runs = [zip(seqs[begin:stop], range(begin, stop), strict=True) for _, _, begin, stop in spans[at:end]]
                for _, index in merge(*runs):
                    self._take_run(result, index, index + 1)
                    breaks.take()
            at = end
        return result

    def _take_run(self, result: RecoveredQueue, begin: int, end: int) -> None:
        queue = self.queue
        result.seqs.extend(queue.seqs[begin:end])
        result.rows.extend(queue.rows[begin:end])
        result.slots.extend(queue.slots[begin:end])
        result.sizes.extend(queue.sizes[begin:end])
        result.priorities.extend(queue.priorities[begin:end])


class Rebuilder:
    """Processes the rows twice, in ascending order of their ids. Raises `ValueError` if a row is damaged."""

    def __init__(self, log: Log, breaks: Breaks | None = None) -> None:
        self.log = log
        self._breaks = breaks if breaks is not None else Breaks(wanted=False)
        self.rows: dict[int, StoredRow] = {}
        self._holders: list[tuple[StoredRow, array[int]]] = []
        self._dead: dict[int, array[int]] = {}
        self._collectors: dict[int, _Collector] = {}
        self._linked: list[StoredRow] = []
        self._numbers: array[int] = array("I", range(1024))
        self._moved: dict[int, dict[int, int]] = {}
        self._updates: set[int] = set()
        # Places of messages whose bodies are missing, and of live entries without a message.
        self.lost: set[int] = set()
        self.dangling: list[int] = []

    # First pass

    def settled(self, row_id: int, settled: bytes, index_size: int, data_size: int) -> None:
        """First pass: process the settlements of a row, and the sizes of its other columns."""
        row = StoredRow(self.log, row_id, 0, STORED)
        row.restore(len(settled) + index_size + data_size, len(settled))
        self.rows[row_id] = row
        if settled:
            self._holders.append((row, decode_settled(settled)))

    def resolve_settled(self) -> None:
        """End the first pass: apply settlements of rows that are on disk, and pin the rows that contain them."""
        for holder, words in self._holders:
            self._breaks.take()
            at = 0
            while at < len(words):
                row_id = words[at] | words[at + 1] << 32
                end = at + 3 + words[at + 2]
                row = self.rows.get(row_id)
                if row is not None:
                    if end > len(words):
                        raise ValueError("the settlements of a row are truncated")
                    dead = self._dead.get(row_id)
                    if dead is None:
                        self._dead[row_id] = words[at + 3 : end]
                    else:
                        dead.extend(words[at + 3 : end])
                    holder.pin(row)
                at = end
        self._holders = []

    # Second pass

    def index(self, row_id: int, column: bytes, data_size: int) -> None:
        """Second pass: process the index of a row. `data_size` must agree with it."""
        row = self.rows[row_id]
        reader = IndexReader(column)
        entries = reader.entries
        count = reader.count
        numbers = bytes_to_words("I", entries)
        lengths = numbers[4::6]
        total = sum(lengths)
        if total != data_size:
            raise ValueError(f"row {row_id} has {data_size} bytes of data; expected {total} by its index")
        slots = bytearray(b"\x01") * count
        for slot in self._dead.pop(row_id, ()):
            slots[slot] = DEAD
        row.restore_records(slots, lengths)
        kinds = entries[20::INDEX_SIZE]
        queues = numbers[2::6]
        plain = kinds.count(DELIVERY) == count
        few = list(set(queues))
        if plain and len(few) <= _FEW_QUEUES:
            self._take_columns(row, few, queues, entries, numbers)
        else:
            self._take_records(row, kinds, queues, entries, numbers)
        if reader.links or reader.identities or reader.spills or not plain:
            self._take_tables(row, reader)
        if row.links is not None:
            self._linked.append(row)
        row.recount(total)

    def _collector(self, queue_id: int) -> _Collector:
        collector = self._collectors.get(queue_id)
        if collector is None:
            collector = _Collector()
            self._collectors[queue_id] = collector
        return collector

    def _slot_numbers(self, count: int) -> array[int]:
        if len(self._numbers) < count:
            self._numbers = array("I", range(2 * count))
        return self._numbers[:count]

    def _take_columns(
        self, row: StoredRow, few: list[int], queues: array[int], entries: bytes, numbers: array[int]
    ) -> None:
        """Add whole columns of a row that contains only deliveries, to few queues."""
        slots = row.slots
        seqs = bytes_to_words("Q", entries)[0::3]
        sizes = numbers[3::6]
        priorities = bytes_to_words("h", entries)[11::12]
        places = self._slot_numbers(len(slots))
        if len(few) == 1 and DEAD not in slots:
            self._collector(few[0]).extend(row.id, seqs, places, sizes, priorities)
            return
        for queue_id in few:
            wanted = slots
            if len(few) > 1:
                wanted = bytearray([live if queue == queue_id else 0 for queue, live in zip(queues, slots, strict=True)])
            self._collector(queue_id).extend(
                row.id,
                array("Q", compress(seqs, wanted)),
                array("I", compress(places, wanted)),
                array("I", compress(sizes, wanted)),
                array("h", compress(priorities, wanted)),
            )

    def _take_records(self, row: StoredRow, kinds: bytes, queues: array[int], entries: bytes, numbers: array[int]) -> None:
        """Add the records of a row one by one."""
        slots = row.slots
        seqs = bytes_to_words("Q", entries)[0::3]
        sizes = numbers[3::6]
        priorities = bytes_to_words("h", entries)[11::12]
        for slot in range(len(slots)):
            kind = kinds[slot]
            if kind == NONE:
                slots[slot] = DEAD
            elif kind == MESSAGE:
                slots[slot] = DEAD  # until an entry that references it is found
            elif kind in (DELIVERY, ENTRY):
                if not slots[slot]:
                    continue
                self._collector(queues[slot]).extend(
                    row.id, seqs[slot : slot + 1], array("I", (slot,)), sizes[slot : slot + 1], priorities[slot : slot + 1]
                )
            elif kind == UPDATE:
                self._updates.add(row.id << SLOT_BITS | slot)
            else:
                names = {known.type_byte: known.name for known in KINDS}
                raise ValueError(
                    f"row {row.id} has a record of kind {names.get(kind, kind)}, which this version of"
                    " leveret does not support"
                )

    def _take_tables(self, row: StoredRow, reader: IndexReader) -> None:
        links = row.need_foreign_links()
        links.targets = reader.links
        for at in range(0, len(reader.identities), 2):
            slot = reader.identities[at]
            identity = reader.identities[at + 1]
            set_element(links.identities, slot, identity)
            moved = self._moved.setdefault(identity >> SLOT_BITS, {})
            moved[identity & SLOT_MASK] = row.id << SLOT_BITS | slot
        for at in range(0, len(reader.spills), 2):
            first = reader.spills[at + 1]
            links.chunks[reader.spills[at] >> 32] = (first, first + (reader.spills[at] & 0xFFFFFFFF) - 1)

    # The end

    def _find(self, identity: int) -> int:
        """Return the place of a record by its identity; 0 if it is not on disk."""
        row_id = identity >> SLOT_BITS
        row = self.rows.get(row_id)
        if row is not None:
            return identity if (identity & SLOT_MASK) < len(row.slots) else 0
        moved = self._moved.get(row_id)
        return moved.get(identity & SLOT_MASK, 0) if moved is not None else 0

    def finish(self, rebuilt: Rebuilt) -> None:
        """End the second pass: resolve references, and fill in the result."""
        changed: dict[int, StoredRow] = {}
        updates: list[tuple[int, int]] = []
        for row in self._linked:
            self._breaks.take()
            for slot, target in enumerate(row.need_links().targets):
                if not target or not row.slots[slot]:
                    continue
                place = self._find(target)
                if row.id << SLOT_BITS | slot in self._updates:
                    updates.append((row.id << SLOT_BITS | slot, place))
                    continue
                if not place or place in self.lost:
                    self.dangling.append(row.id << SLOT_BITS | slot)
                    continue
                holder = self.rows[place >> SLOT_BITS]
                message = place & SLOT_MASK
                refs = holder.need_foreign_links().refs
                set_element(refs, message, element(refs, message) + 1)
                if holder.slots[message] == DEAD:
                    holder.slots[message] = BARE
                    changed[holder.id] = holder
        self._apply_updates(updates, changed)
        for row in changed.values():
            row.recount()
        self._rebuild_moved(rebuilt)
        # One by one: to free a large dict at once takes longer than a turn.
        while self.rows:
            rebuilt.stored.append(self.rows.popitem()[1])
            self._breaks.take()
        recovery = rebuilt.recovery
        for queue_id, collector in self._collectors.items():
            queue = collector.finish(self._breaks)
            if queue.seqs:
                recovery.queues[queue_id] = queue

    def _apply_updates(self, updates: list[tuple[int, int]], changed: dict[int, StoredRow]) -> None:
        """Apply the last update of each entry; the others, and those of settled entries, are garbage."""
        updates.sort()
        for place, target in updates:
            self._breaks.take()
            row = self.rows[place >> SLOT_BITS]
            entry_row = self.rows[target >> SLOT_BITS] if target else None
            entry_slot = target & SLOT_MASK
            if entry_row is None or entry_row.slots[entry_slot] != LIVE:
                row.slots[place & SLOT_MASK] = DEAD
                changed[row.id] = row
                continue
            latest = entry_row.need_foreign_links().updates
            earlier = element(latest, entry_slot)
            if earlier:
                row = self.rows[earlier >> SLOT_BITS]
                row.slots[earlier & SLOT_MASK] = DEAD
                changed[row.id] = row
            set_element(latest, entry_slot, place)

    def _rebuild_moved(self, rebuilt: Rebuilt) -> None:
        """Rebuild rows that are no longer on disk but whose records are referenced by their old places."""
        for row_id, moved in self._moved.items():
            if row_id in self.rows:
                continue
            row = StoredRow(self.log, row_id, 0, MOVED)
            ordered = sorted(moved.items())
            row.restore_moved(
                array("I", [slot for slot, _ in ordered]),
                array("Q", [place for _, place in ordered]),
                [self.rows[target_id] for target_id in {place >> SLOT_BITS for _, place in ordered}],
            )
            rebuilt.moved.append(row)
