"""The ready entries of a classic queue: levels of priority, paging, and the bytes in memory.

Each priority level has one `Backlog`. Most queues have only one, `backlog`, and `levels` is None. A deep queue pages its
entries out: it keeps only their positions, and reads the entries again in chunks. Paged-out entries are in the log, or are
written to the overflow log first.

The list has no reference to its queue, so that a deleted queue is freed without a garbage collection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from leveret.broker.log import Loaded, RecoveredQueue
from leveret.broker.message import DEFAULT_PRIORITY, ENTRY_OVERHEAD, Entry, Overlay
from leveret.broker.queues.classic.backlog import CHUNK_BYTES, CHUNK_ENTRIES, Backlog, Chunk, PagedRun
from leveret.broker.queues.loading import make_entry

if TYPE_CHECKING:
    from leveret.broker.queues.blocks import Entries
    from leveret.broker.queues.classic.queue import ClassicQueue
    from leveret.broker.vhost import Vhost

# With a head shorter than this, the next chunk is read if the queue's share of memory allows it.
LOW_HEAD: Final = 2048
# Number of young entries at which a push pages them out without waiting for the memory watch.
YOUNG_ENTRIES: Final = 64
# Number of young entries at which a push pages them out even if the queue has memory left in its share. Garbage collections
# examine each entry that lives for more than some milliseconds, and take tens of milliseconds for a share of them.
MAX_YOUNG: Final = 1024
# Entries that are paged out, or written to the overflow log, in one step.
PAGED_AT_ONCE: Final = 1024
STORED_AT_ONCE: Final = 1024
# While pushes page out, one of this many does so, and pages out twice as many. So the work is spread over all pushes.
PUSHES: Final = 16
# The backlog of a queue that has never had an entry. It stays empty: its priority is that of no entry, so `level_of`
# replaces it. Most queues of a large broker are empty, and a backlog takes 1.7 KB.
NO_BACKLOG: Final = Backlog(-2)
# Entries of a chunk that may be added to the head and delivered in one turn. More are delivered from the next turn on.
LOADED_AT_ONCE: Final = 512
# Entries (as a power of two) that are moved or counted in 1 µs.
COUNT_SHIFT: Final = 4
# Units of work to page out an entry.
PAGE_WORK: Final = 2
# Positions, as a power of two, that are recovered in 1 µs.
RECOVER_SHIFT: Final = 2


class Load:
    """Read of a chunk that is being paged in."""

    def __init__(self, queue: ClassicQueue, backlog: Backlog, epoch: int) -> None:
        self.queue = queue
        self.backlog = backlog
        self.epoch = epoch
        self.cancelled = backlog.cancelled

    def done(self, loaded: list[Loaded]) -> None:
        if self.epoch == self.queue.ready.epoch and self.cancelled == self.backlog.cancelled:
            self.queue.ready.chunk_loaded(self.queue, self.backlog, loaded)


class ReadyList:
    """The ready entries of one classic queue.

    backlog          the only level while `levels` is None; NO_BACKLOG before the first entry
    levels           all levels by priority
    memory           bytes of the entries in memory, delayed ones included
    pageable         entries may be paged out
    epoch            number of purges; the result of a load from an earlier epoch is dropped
    delivered_until  sequence number up to which paged-out entries count as delivered before
    refusals         the scopes that have refused a paged-out entry, by its sequence number
    unindexed        recovered entries are still to be added before all others, which are therefore `young`
    """

    def __init__(self, vhost: Vhost, max_priority: int, pageable: bool) -> None:
        self._vhost = vhost
        self.broker = vhost.broker
        self.max_priority = max_priority
        self.pageable = pageable
        self.backlog = NO_BACKLOG
        self.levels: dict[int, Backlog] | None = None
        self.memory = 0
        self.epoch = 0
        self.delivered_until = 0
        self.refusals: dict[int, dict[object, None]] = {}
        self.unindexed = False

    def __len__(self) -> int:
        levels = self.levels
        if levels is None:
            return len(self.backlog)
        return sum(len(level) for level in levels.values())

    @property
    def body_bytes(self) -> int:
        """Bytes of the bodies of the entries, if no delayed ones are counted in `memory`."""
        in_memory = 0
        paged = 0
        for level in self.all_levels():
            in_memory += len(level) - level.paged
            paged += level.paged_bytes
        return self.memory - in_memory * ENTRY_OVERHEAD + paged

    def paged_figures(self) -> tuple[int, int]:
        """Return the number of paged-out entries, and the bytes of their bodies."""
        if self.levels is None:
            return self.backlog.paged, self.backlog.paged_bytes
        levels = self.levels.values()
        return sum(level.paged for level in levels), sum(level.paged_bytes for level in levels)

    @property
    def paged_memory(self) -> int:
        """Bytes that the paged-out entries would use in memory."""
        return sum(level.paged_bytes + level.paged * ENTRY_OVERHEAD for level in self.all_levels())

    # Levels

    def all_levels(self) -> list[Backlog]:
        levels = self.levels
        return [self.backlog] if levels is None else [levels[p] for p in sorted(levels, reverse=True)]

    def priority_of(self, raw: int) -> int:
        """Return the effective level of a raw priority, -1 for none (docs/queues.md)."""
        highest = self.max_priority
        if highest >= 0:
            if highest < 9 and self._vhost.strict:
                # This many of the ten levels, around their middle (1.0, messaging section 3.2.1).
                lowest = 5 - ((highest + 2) >> 1)
                return min(max(DEFAULT_PRIORITY if raw < 0 else raw, lowest), lowest + highest)
            return min(max(raw, 0), highest)
        return DEFAULT_PRIORITY if raw < 0 else min(raw, 9)

    def level_of(self, raw: int) -> Backlog:
        """Return the backlog of a raw priority."""
        levels = self.levels
        backlog = self.backlog
        if levels is None:
            if backlog is NO_BACKLOG:
                backlog = self.backlog = self._new_level(raw)
                return backlog
            if raw == backlog.priority or self.priority_of(raw) == self.priority_of(backlog.priority):
                return backlog
            if not len(backlog) and not backlog.loading:
                backlog.priority = raw
                return backlog
            levels = {self.priority_of(backlog.priority): backlog}
            self.levels = levels
        priority = self.priority_of(raw)
        level = levels.get(priority)
        if level is None:
            level = self._new_level(priority)
            levels[priority] = level
        return level

    def _new_level(self, priority: int) -> Backlog:
        level = Backlog(priority)
        if self.unindexed:
            level.young = deque()
        return level

    # Insertion and removal

    def append(self, queue: ClassicQueue, entry: Entry) -> None:
        """Add the newest entry."""
        message = entry.message
        backlog = self.backlog
        if message.priority != backlog.priority or self.levels is not None:
            backlog = self.level_of(message.priority)
        young = backlog.young
        memory = self.memory + message.size + ENTRY_OVERHEAD
        self.memory = memory
        if young is None:
            backlog.head.append(entry)
            if memory > self.broker.page_above:
                self.page_out(queue, backlog)
        else:
            young.append(entry)
            if len(young) > MAX_YOUNG or memory > self.broker.page_above:
                self.page_out(queue, backlog)

    def append_run(self, queue: ClassicQueue, entries: list[Entry]) -> None:
        """Add the newest entries."""
        backlog = self.backlog
        if backlog.young is None and self.levels is None:
            priority = backlog.priority
            memory = self.memory
            for entry in entries:
                message = entry.message
                if message.priority != priority:
                    break
                memory += message.size + ENTRY_OVERHEAD
            else:
                if memory <= self.broker.page_above:
                    self.memory = memory
                    backlog.head.extend(entries)
                    return
        for entry in entries:
            self.append(queue, entry)

    def insert_new(self, queue: ClassicQueue, entry: Entry) -> None:
        """Add an entry that becomes visible after younger ones, or as the newest one."""
        message = entry.message
        backlog = self.level_of(message.priority)
        self.broker.work += backlog.append_late(entry)
        self.memory += message.size + ENTRY_OVERHEAD
        if self.memory > self.broker.page_above:
            self.page_out(queue, backlog)

    def insert_run(self, queue: ClassicQueue, run: list[Entry]) -> None:
        """Add entries of one level in the order of their sequence numbers."""
        backlog = self.level_of(run[0].message.priority)
        self.broker.work += backlog.merge(run) >> 4
        for entry in run:
            self.memory += entry.message.size + ENTRY_OVERHEAD
        if self.memory > self.broker.page_above:
            self.page_out(queue, backlog)

    def put_back(self, entry: Entry) -> None:
        """Return an entry to its old place."""
        message = entry.message
        work = self.level_of(message.priority).insert(entry)
        if work:
            self.broker.work += work
        self.memory += message.size + ENTRY_OVERHEAD

    def take(self, entry: Entry) -> bool:
        """Remove an entry that is in memory; return False if it is not there."""
        level = self.level_of(entry.message.priority)
        if not level.take(entry):
            return False
        self.count_out(entry)
        self.broker.work += 1 + (len(level) >> 10)
        return True

    def is_arriving(self, entry: Entry) -> bool:
        """Return whether an entry is part of the chunk that is being loaded."""
        level = self.level_of(entry.message.priority)
        return level.loading and level.chunks[0].index_of(entry.seq) >= 0

    def withdraw(self, entry: Entry) -> Entry | None:
        """Remove an entry, or the position of a paged-out one of which `entry` is a copy; None if it is not there.

        Returns the entry to settle.
        """
        level = self.level_of(entry.message.priority)
        self.broker.work += 1 + (len(level) >> 10)
        found = level.find(entry.seq)
        if found is not None:
            level.take(found)
            self.count_out(found)
            return found
        if not level.drop_position(entry.seq):
            return None
        self.refusals.pop(entry.seq, None)
        level.settle_young()
        return entry

    def take_head(self, level: Backlog) -> Entry:
        """Remove the first entry of a level."""
        entry = level.head.popleft()
        self.memory -= entry.message.size + ENTRY_OVERHEAD
        return entry

    def count_in(self, entry: Entry) -> None:
        """Note that an entry in no level is in memory."""
        self.memory += entry.message.size + ENTRY_OVERHEAD

    def count_out(self, entry: Entry) -> None:
        """Note that an entry was removed from its level, or left memory."""
        self.memory -= entry.message.size + ENTRY_OVERHEAD

    def release(self, size: int) -> None:
        """Subtract `size` bytes of entries that were removed from their level."""
        self.memory -= size

    def collapse(self) -> None:
        """Go back to a single level, which is cheaper, if no level has entries."""
        levels = self.levels
        if levels is not None and not any(level.loading or len(level) for level in levels.values()):
            self.levels = None
            self.backlog = NO_BACKLOG

    def reset(self) -> list[Backlog]:
        """Remove all entries. Return the levels with them."""
        levels = self.all_levels()
        self.epoch += 1
        self.levels = None
        self.backlog = NO_BACKLOG
        self.memory = 0
        self.refusals = {}
        return levels

    # Paging

    def page_out(self, queue: ClassicQueue, backlog: Backlog) -> None:
        """Start to page out: from now on entries keep only their position once they are committed."""
        young = backlog.young
        if young is None:
            if not self.pageable:
                return
            backlog.young = deque()
            self.broker.paging.add(queue)
        elif len(young) > YOUNG_ENTRIES:
            if self.unindexed:
                self.broker.paging.add(queue)
            row = young[0].row
            if row is None:
                self._store(islice(young, PAGED_AT_ONCE))
            elif row.batch <= row.log.committed and not young[len(young) - 1].seq % PUSHES:
                self.broker.work += PAGE_WORK * self.page_young(backlog, 2 * PUSHES)
            # Each push stores its own entry, too: of the others, one part is stored per commit, which is less than fast
            # publishers send meanwhile.
            overflow = self.broker.overflow
            if young and overflow is not None:
                newest = young[len(young) - 1]
                if newest.row is None:
                    overflow.store(newest)

    def page_young(self, backlog: Backlog, limit: int) -> int:
        """Replace committed young entries by their positions, oldest first. Return how many, at most `limit`."""
        young = backlog.young
        if young is None or not self.pageable:
            return 0
        overflow = self.broker.overflow
        count = 0
        freed = 0
        run = PagedRun(False)
        while young and count < limit:
            entry = young[0]
            row = entry.row
            if row is None or row.batch > row.log.committed:
                break
            young.popleft()
            count += 1
            if entry.overlay is not None:
                self.note_refusals(entry)
            message = entry.message
            outside = row.log is overflow
            if run.overflow != outside or run.bytes >= CHUNK_BYTES:
                freed += run.bytes
                backlog.page_run(run)
                run = PagedRun(outside)
            run.add(row.id, entry.slot, entry.seq, message.size, message.publisher)
        backlog.page_run(run)
        self.memory -= freed + run.bytes + count * ENTRY_OVERHEAD
        if not young and not backlog.chunks and not backlog.loading and not self.unindexed:
            backlog.young = None
        return count

    def _store(self, entries: Iterable[Entry]) -> None:
        """Write the entries that are in no log to the overflow log."""
        overflow = self.broker.overflow
        if overflow is None:
            return
        for entry in entries:
            if entry.row is None:
                overflow.store(entry)

    def _storing(self, entries: Entries, first: int) -> Iterator[int]:
        """Write the entries from this index that are in no log to the overflow log, in steps."""
        if self.broker.overflow is None:
            return
        while first < len(entries):
            self._store(islice(entries, first, first + STORED_AT_ONCE))
            first += STORED_AT_ONCE
            yield STORED_AT_ONCE

    def note_refusals(self, entry: Entry) -> None:
        """Keep in memory which consumers rejected an entry; the log does not record it."""
        overlay = entry.overlay
        if overlay is not None and overlay.refused:
            self.refusals[entry.seq] = overlay.refused

    def is_paging(self) -> bool:
        """Return whether entries are to be paged out, now or later."""
        return any(backlog.young is not None for backlog in self.all_levels())

    def page_more(self) -> Iterator[int]:
        """Page out young entries that were committed meanwhile, in steps."""
        for backlog in self.all_levels():
            yield from self._paging_young(backlog)

    def _paging_young(self, backlog: Backlog) -> Iterator[int]:
        """Page out the committed young entries of a level; write those in no log, so that they can be paged out later."""
        if not self.pageable:
            return
        epoch = self.epoch
        while True:
            count = self.page_young(backlog, PAGED_AT_ONCE)
            if count < PAGED_AT_ONCE:
                break
            yield PAGE_WORK * count
            if self.epoch != epoch:
                return
        yield 1 + PAGE_WORK * count
        young = backlog.young
        if young and young[0].row is None and self.epoch == epoch:
            yield from self._storing(young, 0)

    def page_down(self, queue: ClassicQueue, share: int) -> Iterator[int]:
        """If the queue has more than `share` bytes in memory, page out the tail of each level, down to half the share.

        In steps; the queue may change in between.
        """
        if not self.pageable:
            return
        epoch = self.epoch
        for backlog in reversed(self.all_levels()):
            yield from self._paging_young(backlog)
            if self.memory <= share or backlog.loading:
                continue
            kept = _kept(backlog.head, share // 2)
            yield 1 + (kept >> COUNT_SHIFT)
            if self.epoch != epoch:
                return  # the entries were purged
            if len(backlog.head) > kept:
                yield from self._paging_tail(queue, backlog, kept)
            if self.epoch != epoch:
                return

    def _paging_tail(self, queue: ClassicQueue, backlog: Backlog, kept: int) -> Iterator[int]:
        """Page out the head, except for its first entries, in steps. Entries in no log are paged out the next time."""
        head = backlog.head
        epoch = self.epoch
        while self.epoch == epoch and len(head) > kept and not backlog.loading:
            last = max(kept, len(head) - PAGED_AT_ONCE)
            if backlog.chunks:
                tail = backlog.page_tail(last, self.broker.overflow)
                for entry in tail:
                    self.memory -= entry.message.size + ENTRY_OVERHEAD
                    self.note_refusals(entry)
                if len(head) > last:
                    yield from self._storing(head, kept)
                    return
                yield 1 + PAGE_WORK * len(tail)
                continue
            young = backlog.young
            if young is None:
                young = backlog.young = deque()
                self.broker.paging.add(queue)
            moved = len(head) - last
            while len(head) > last:
                young.appendleft(head.pop())
            yield 1 + (moved >> COUNT_SHIFT)
        if self.epoch == epoch and (self.broker.overflow is not None or queue.stored):
            yield from self._paging_young(backlog)

    def load_more(self, queue: ClassicQueue, backlog: Backlog) -> None:
        """Read the next chunk if the head is empty, or short and the queue has memory left in its share."""
        length = len(backlog.head)
        if not length or (length < LOW_HEAD and self._has_memory_for(length, backlog.chunks[0])):
            self.load(queue, backlog)

    def _has_memory_for(self, length: int, chunk: Chunk) -> bool:
        """Return whether a chunk may be read behind a head of `length` entries.

        The share may be used up by young entries. So the chunk is read in any case if it is small compared with the share,
        but not behind a head that may be larger.
        """
        share = self.broker.page_above
        if self.memory < share // 2:
            return True
        count = len(chunk.seqs)
        return 2 * length < count and chunk.bytes + count * ENTRY_OVERHEAD < share // 4

    def load(self, queue: ClassicQueue, backlog: Backlog) -> None:
        """Read the next chunk."""
        backlog.loading = True
        chunk = backlog.chunks[0]
        load = Load(queue, backlog, self.epoch)
        log = queue.log
        if chunk.overflow:
            overflow = self.broker.overflow
            assert overflow is not None
            log = overflow
        log.load(chunk.rows, chunk.slots, load.done)

    def chunk_loaded(self, queue: ClassicQueue, backlog: Backlog, loaded: list[Loaded]) -> None:
        """Append a chunk that was read to the head."""
        backlog.loading = False
        chunk = backlog.take_chunk()
        backlog.passed = 0
        entries: list[Entry] = []
        memory = 0
        refusals = self.refusals
        for index, item in enumerate(loaded):
            entry = make_entry(queue, item, chunk.publisher_of(index), self.delivered_until)
            overlay = item.overlay
            if overlay is not None and overlay.visible_at and overlay.visible_at > self.broker.timers.now():
                queue.hold(entry, overlay.visible_at)
                continue
            queue.expiry.note(entry)
            if refusals:
                refused = refusals.pop(item.seq, None)
                if refused is not None:
                    entry.overlay = entry.overlay or Overlay()
                    entry.overlay.refused = refused
            memory += item.message.size + ENTRY_OVERHEAD
            entries.append(entry)
        backlog.add_loaded(entries)
        self.memory += memory
        if queue.vhost.has_other_classes:
            queue.limits.note_droppable()
        if queue.deleted:
            queue.vhost.pending_dead_letters.move(queue)
            self.broker.end_turn()
            return
        if not backlog.chunks:
            backlog.settle_young()
        if queue.limits.is_set:
            queue.limits.enforce()
        queue.dispatcher.notify_waiting()
        if len(entries) > LOADED_AT_ONCE:
            self.broker.jobs.deferred.add(queue)
        else:
            queue.activate()
        self.broker.end_turn()

    def is_loading(self) -> bool:
        """Return whether entries are being loaded."""
        return any(level.loading for level in self.all_levels())

    def is_read_first(self) -> bool:
        """Return whether the next entries are being loaded."""
        if self.levels is None:
            return self.backlog.loading and not self.backlog.head
        return any(level.loading and not level.head for level in self.all_levels())

    def return_chunks(self, priority: int, chunks: list[Chunk]) -> None:
        """Return positions, in the order of their sequence numbers, to their old places in a level."""
        for entry in self.level_of(priority).return_chunks(chunks, self.broker.overflow):
            self.count_out(entry)
            self.note_refusals(entry)

    def mark_delivered(self, seq: int) -> bool:
        """Count paged-out entries up to this sequence number as delivered before. Return whether that is new."""
        if seq <= self.delivered_until:
            return False
        self.delivered_until = seq
        return True

    def recover(self, queue: ClassicQueue, recovered: RecoveredQueue) -> int:
        """Take over the recovered positions of a queue; nothing is read yet. Return the highest sequence number."""
        last_seq = recovered.seqs[-1]
        levels: dict[int, Backlog] = {}
        for _ in self.recovering(recovered, levels):
            pass
        for level in levels.values():
            level.young = deque()
        if len(levels) == 1:
            self.backlog = next(iter(levels.values()))
        else:
            self.levels = levels
        self.broker.paging.add(queue)
        return last_seq

    def recovering(self, recovered: RecoveredQueue, levels: dict[int, Backlog]) -> Iterator[int]:
        """Move the recovered positions to new levels, in steps: the newest first, so that memory is freed in steps, too."""
        while recovered.seqs:
            last = len(recovered.seqs)
            first = max(0, last - CHUNK_ENTRIES)
            priorities = recovered.priorities[first:]
            if priorities.tobytes() == priorities[:1].tobytes() * (last - first):
                self._recovered_level(levels, priorities[0]).recover(recovered, first, last)
                yield (last - first) >> RECOVER_SHIFT
            else:
                self._recover_mixed(recovered, first, levels)
                yield last - first
            recovered.truncate(first)

    def _recover_mixed(self, recovered: RecoveredQueue, first: int, levels: dict[int, Backlog]) -> None:
        """Add the recovered positions from `first`, which have several priorities, to their levels."""
        found: dict[int, list[Chunk]] = {}
        for index in range(first, len(recovered.seqs)):
            chunks = found.setdefault(self.priority_of(recovered.priorities[index]), [])
            if not chunks or chunks[len(chunks) - 1].is_full():
                chunks.append(Chunk(False))
            chunks[len(chunks) - 1].add(
                recovered.rows[index], recovered.slots[index], recovered.seqs[index], recovered.sizes[index], 0
            )
        for priority, chunks in found.items():
            level = self._recovered_level(levels, priority)
            while chunks:
                level.page_first(chunks.pop())

    def _recovered_level(self, levels: dict[int, Backlog], raw: int) -> Backlog:
        priority = self.priority_of(raw)
        level = levels.get(priority)
        if level is None:
            level = levels[priority] = Backlog(raw)
        return level

    def await_index(self) -> None:
        """Keep new entries behind recovered ones, which `end_index` adds later."""
        self.unindexed = True

    def end_index(self, levels: dict[int, Backlog]) -> None:
        """Add the recovered positions in these levels before all other entries."""
        self.unindexed = False
        for level in levels.values():
            self.return_chunks(level.priority, list(level.chunks))

    def read_heads(self, queue: ClassicQueue) -> None:
        """Read the heads of a queue whose entries expire, because the timer is set to their expiry."""
        if queue.expiry.is_set:
            for backlog in self.all_levels():
                if backlog.chunks and not backlog.loading:
                    self.load_more(queue, backlog)


def _kept(head: Entries, keep: int) -> int:
    """Return how many entries have `keep` bytes. At least one: the expiry timer is set to the first entry."""
    kept = 0
    count = 0
    for entry in head:
        kept += entry.message.size + ENTRY_OVERHEAD
        if kept > keep and count:
            break
        count += 1
    return count
