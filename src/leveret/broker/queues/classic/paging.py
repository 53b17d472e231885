"""Paging of deep queues: page out entries, keep their positions, and page them in a chunk at a time.

Entries that are paged out are in the log already, or are written to the overflow log first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

from leveret.broker.log import Loaded, RecoveredQueue
from leveret.broker.message import ENTRY_OVERHEAD, Entry, Overlay
from leveret.broker.queues import pending_dead_letters
from leveret.broker.queues.classic import delayed, expiry, limits
from leveret.broker.queues.classic.backlog import Backlog

if TYPE_CHECKING:
    from leveret.broker.queues.classic.queue import ClassicQueue

# A head shorter than this reads the next chunk if the queue's share of memory allows it.
LOW_HEAD: Final = 2048
# Number of young entries at which a push pages them out, not only the watch.
YOUNG_ENTRIES: Final = 64


class Load:
    """Read of a chunk that is being paged in."""

    def __init__(self, queue: ClassicQueue, backlog: Backlog, epoch: int) -> None:
        self.queue = queue
        self.backlog = backlog
        self.epoch = epoch
        self.cancelled = backlog.cancelled

    def done(self, loaded: list[Loaded]) -> None:
        if self.epoch == self.queue.epoch and self.cancelled == self.backlog.cancelled:
            chunk_loaded(self.queue, self.backlog, loaded)


def page_out(queue: ClassicQueue, backlog: Backlog) -> None:
    """Start to page out: from now on entries keep only their position once they are committed."""
    broker = queue.broker
    if backlog.young is None:
        if not queue.pageable:
            return
        backlog.young = deque()
        broker.paging[queue.id] = queue
    elif len(backlog.young) > YOUNG_ENTRIES:
        page_young(queue, backlog)


def page_young(queue: ClassicQueue, backlog: Backlog) -> None:
    """Replace committed young entries by their positions, oldest first."""
    young = backlog.young
    if young is None or not queue.pageable:
        return
    overflow = queue.broker.overflow
    while young:
        entry = young[0]
        row = entry.row
        if row is None:
            _store(queue, young)
            break
        if row.batch > row.log.committed:
            break
        young.popleft()
        message = entry.message
        size = message.size
        queue.memory -= size + ENTRY_OVERHEAD
        if entry.overlay is not None:
            note_refusals(queue, entry)
        backlog.page(row.id, entry.slot, entry.seq, size, row.log is overflow, message.publisher)
    if not young and not backlog.chunks and not backlog.loading:
        backlog.young = None


def _store(queue: ClassicQueue, entries: Iterable[Entry]) -> None:
    """Write the entries that are in no log to the overflow log."""
    overflow = queue.broker.overflow
    if overflow is None:
        return
    for entry in entries:
        if entry.row is None:
            overflow.store(entry)


def note_refusals(queue: ClassicQueue, entry: Entry) -> None:
    """Keep in memory which consumers rejected an entry; the log does not record it."""
    overlay = entry.overlay
    if overlay is not None and overlay.refused:
        queue.refusals[entry.seq] = overlay.refused


def page_more(queue: ClassicQueue) -> bool:
    """Page out entries that were committed meanwhile; return False once there is nothing left to page out."""
    paging = False
    for backlog in queue.all_levels():
        if backlog.young is not None:
            page_young(queue, backlog)
            paging = paging or backlog.young is not None
    delays = queue.delays
    if delays is not None and not delays.page():
        paging = True
    return paging


def page_down(queue: ClassicQueue, share: int) -> None:
    """Page out the tail of each level of a queue that has more than `share` bytes in memory, down to half of it."""
    if not queue.pageable:
        return
    keep = share // 2
    overflow = queue.broker.overflow
    if queue.delays is not None:
        queue.delays.page()
    for backlog in reversed(queue.all_levels()):
        page_young(queue, backlog)
        if queue.memory <= share:
            continue
        head = backlog.head
        kept = 0
        count = 0
        for entry in head:
            kept += entry.message.size + ENTRY_OVERHEAD
            if kept > keep and count:
                break  # the first entry stays: the timer is set to its expiry
            count += 1
        if count >= len(head) or backlog.loading:
            continue
        if backlog.chunks or backlog.young:
            for entry in backlog.page_tail(count, overflow):
                queue.memory -= entry.message.size + ENTRY_OVERHEAD
                note_refusals(queue, entry)
            if len(head) > count:
                _store(queue, islice(head, count, None))  # entries in no log are paged out next time
        else:
            young: deque[Entry] = deque()
            while len(head) > count:
                young.appendleft(head.pop())
            backlog.young = young
            queue.broker.paging[queue.id] = queue
            if overflow is not None or queue.stored:
                page_young(queue, backlog)


def load_more(queue: ClassicQueue, backlog: Backlog) -> None:
    """Read the next chunk if the head is empty, or short and the queue has memory left in its share."""
    length = len(backlog.head)
    if not length or (length < LOW_HEAD and queue.memory < queue.broker.page_above // 2):
        load(queue, backlog)


def load(queue: ClassicQueue, backlog: Backlog) -> None:
    """Read the next chunk."""
    backlog.loading = True
    chunk = backlog.chunks[0]
    load = Load(queue, backlog, queue.epoch)
    log = queue.log
    if chunk.overflow:
        overflow = queue.broker.overflow
        assert overflow is not None
        log = overflow
    log.load(chunk.rows, chunk.slots, load.done)


def chunk_loaded(queue: ClassicQueue, backlog: Backlog, loaded: list[Loaded]) -> None:
    """Append a chunk that was read to the head."""
    backlog.loading = False
    chunk = backlog.take_chunk()
    backlog.passed = 0
    entries: list[Entry] = []
    memory = 0
    refusals = queue.refusals
    for index, item in enumerate(loaded):
        entry = queue.make_entry(item, chunk.publisher_of(index), queue.delivered_until)
        overlay = item.overlay
        if overlay is not None and overlay.visible_at and overlay.visible_at > queue.broker.timers.now():
            delayed.hold(queue, entry, overlay.visible_at)
            continue
        if item.message.expires_at or item.overlay is not None:
            queue.expiring = True
        if refusals:
            refused = refusals.pop(item.seq, None)
            if refused is not None:
                entry.overlay = entry.overlay or Overlay()
                entry.overlay.refused = refused
        memory += item.message.size + ENTRY_OVERHEAD
        entries.append(entry)
    backlog.add_loaded(entries)
    queue.memory += memory
    if queue.vhost.mixed:
        queue.droppable = True
    if queue.deleted:
        pending_dead_letters.move(queue)
        queue.broker.end_turn()
        return
    if not backlog.chunks:
        backlog.settle_young()
    if queue.max_length >= 0 or queue.max_bytes >= 0:
        limits.shorten(queue)
    notify_waiting(queue)
    queue.activate()
    queue.broker.end_turn()


def notify_waiting(queue: ClassicQueue) -> None:
    """Notify the callbacks that wait for the head: it is in memory, or removed."""
    waiting = queue.waiting
    if waiting:
        queue.waiting = []
        for waiter in waiting:
            waiter.loaded()



def recover(queue: ClassicQueue, recovered: RecoveredQueue, all_redelivered: bool) -> None:
    """Take over the recovered positions of a queue; nothing is read yet.

    With `all_redelivered` every entry counts as redelivered, because after an unclean stop the deliveries are unknown.
    """
    seqs = recovered.seqs
    if not seqs:
        return
    priorities = recovered.priorities
    count = len(seqs)
    if priorities.count(priorities[0]) == count:
        queue.backlog.priority = priorities[0]
        queue.backlog.recover(recovered, 0, count)
    else:
        levels: dict[int, Backlog] = {}
        for index in range(count):
            priority = queue.priority_of(priorities[index])
            level = levels.get(priority)
            if level is None:
                level = Backlog(priority)
                levels[priority] = level
            level.page(recovered.rows[index], recovered.slots[index], seqs[index], recovered.sizes[index], False, 0)
        queue.levels = levels
    for level in queue.all_levels():
        if level.chunks:
            level.young = deque()
    queue.broker.paging[queue.id] = queue
    queue.next_seq = max(queue.next_seq, seqs[count - 1] + 1)
    if all_redelivered:
        queue.delivered_until = queue.next_seq - 1


def start(queue: ClassicQueue) -> None:
    """Start a recovered queue: set its expiry timer, and read its head if entries expire."""
    expiry.touch(queue)
    read_heads(queue)


def read_heads(queue: ClassicQueue) -> None:
    """Read the heads of a queue whose entries expire, because the timer is set to their expiry."""
    if queue.message_ttl >= 0 or queue.has_expiring:
        for backlog in queue.all_levels():
            if backlog.chunks and not backlog.loading:
                load_more(queue, backlog)
