"""A classic queue that reads a header of each message, and so keeps all of them in memory.

Decoding many headers takes longer than a turn, so entries that arrive together may become visible in steps. After a
start the queue delivers nothing until it has read all of its entries.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Final

from leveret.broker import settlement
from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import AVAILABLE, Entry
from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.broker.queues.frozen import thaw
from leveret.broker.queues.loading import Waiting

if TYPE_CHECKING:
    from leveret.broker.leases.recovery import Restoring
    from leveret.broker.log import Recovery
    from leveret.broker.metadata import Record
    from leveret.broker.queues.definition import QueueDefinition
    from leveret.broker.streams.recovery import StreamRecords

logger = logging.getLogger("leveret.broker")

# Units of work to deliver from a queue again after messages were inserted in steps.
SERVE_WORK: Final = 5


class _Reading(Waiting):
    """Waits for entries that a start found."""

    def __init__(self, queue: IndexedQueue) -> None:
        self.queue = queue

    def loaded(self) -> None:
        self.queue.read_next()


class IndexedQueue(ClassicQueue):
    """A queue of one vhost that finds its entries by a header.

    coming   entries that become visible in steps, because indexing them would take too long in one turn
    """

    pageable: ClassVar[bool] = False

    def __init__(self, definition: QueueDefinition) -> None:
        super().__init__(definition)
        self.coming: deque[Entry] = deque()

    def _has_guards(self) -> bool:
        return True

    @abstractmethod
    def index(self, entry: Entry) -> None:
        """Add a ready entry to the index."""

    # Publishing

    def insert_new(self, entry: Entry) -> None:
        if not self.coming and self.broker.work < STEP_WORK:
            self.insert_now(entry)
            return
        self.hidden.add(entry.seq, entry.message.size)
        self.coming.append(entry)
        if len(self.coming) == 1:
            # Nothing is delivered before the last one is inserted.
            self.dispatcher.freeze()
            self.broker.jobs.removals.add(self._insert_coming())

    def _insert_coming(self) -> Iterator[int]:
        """Insert the coming entries in steps."""
        while self.coming:
            entry = self.coming.popleft()
            self.hidden.discard(entry.seq)
            try:
                self.insert_now(entry)
            except Exception:  # the other entries must become visible
                logger.exception("cannot insert a message into queue '%s'", self.name)
            yield 0
        thaw(self)
        yield SERVE_WORK

    def insert_now(self, entry: Entry) -> None:
        """Make a prepared entry visible in this turn."""
        super().insert_new(entry)

    def insert_many(self, entries: list[Entry]) -> None:
        for entry in entries:
            self.insert_new(entry)

    @property
    def ready_count(self) -> int:
        return len(self.ready) + len(self.coming)

    def discard(self) -> int:
        count = super().discard()
        coming = self.coming
        if coming:
            self.coming = deque()
            self.counters.count_published(len(coming))
            self.broker.jobs.removals.add(self._dropping(coming))
        return count

    def _dropping(self, coming: deque[Entry]) -> Iterator[int]:
        """Settle coming entries that were purged, in steps."""
        while coming:
            entry = coming.popleft()
            self.hidden.discard(entry.seq)
            settlement.settle(entry)
            yield 1

    # Recovery

    def recover(self, record: Record, recovery: Recovery, leases: Restoring, streams: StreamRecords) -> None:
        super().recover(record, recovery, leases, streams)
        self.dispatcher.freeze()

    def start(self) -> None:
        super().start()
        self.read_next()

    def read_next(self) -> None:
        """Read the next entries that the start found; when all are read, index them."""
        for level in self.ready.all_levels():
            if level.chunks:
                if not level.loading:
                    self.ready.load(self, level)
                self.paging.wait_loaded(_Reading(self))
                return
        self.broker.jobs.run_steps(self._index_all())

    def _index_all(self) -> Iterator[int]:
        try:
            for level in self.ready.all_levels():
                level.settle_young()
                for entry in list(level.head):
                    if entry.state == AVAILABLE:
                        self.index(entry)
                    yield 2
        finally:
            thaw(self)
