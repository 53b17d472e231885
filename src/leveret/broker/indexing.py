"""Queues whose recovered entries are indexed while the broker serves.

A large log is opened without its rows. Each durable queue that may have entries in them is then *unindexed*: it delivers
nothing, because older entries go first, and accepts messages, which follow the recovered ones. Whatever depends on its
entries waits for them (`check_indexed`, `Queue.paging`). A thread of the log indexes the rows; then the queues take over
their entries in steps, small queues first, and each serves as soon as it has them.

Some recovered objects refer to entries by their sequence numbers, such as prepared transactions, leases, links of AMQP 1.0
and streams. If the log has one of them, everything is indexed before the start.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker import metadata
from leveret.broker.arguments import CLASSIC
from leveret.broker.errors import NotIndexed
from leveret.broker.jobs import logged
from leveret.broker.log import RecoveredQueue, Recovery
from leveret.broker.timers import Timed

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.queues.classic.queue import ClassicQueue
    from leveret.broker.queues.queue import Queue

logger = logging.getLogger("leveret.broker")

# Kinds of records that refer to entries.
_REFERRING: Final = frozenset(
    (
        metadata.BRANCH,
        metadata.LEASE,
        metadata.LEASE_BATCH,
        metadata.LINK_STATE,
        metadata.PENDING_DEAD_LETTERS,
        metadata.SINK_TRANSACTION,
        metadata.TERMINUS,
    )
)
# Milliseconds between lines in the log about the progress.
REPORT_INTERVAL: Final = 5000
# Queues with at most this many entries take them over before the others.
_LIMITS: Final = (0, 10_000, sys.maxsize)
_NOTHING: Final = RecoveredQueue()
# Units of work to release a queue without entries, and of a callback.
RELEASE_WORK: Final = 5
CALL_WORK: Final = 50


def check_indexed(queue: Queue) -> None:
    """Raise `NotIndexed` while the recovered entries of a queue are unknown."""
    if queue.is_unindexed():
        raise NotIndexed(queue)


class _Report(Timed):
    """Timer of the lines in the log about the progress."""

    def __init__(self, indexing: Indexing) -> None:
        super().__init__()
        self.indexing = indexing

    def fire(self, now: int) -> None:
        self.indexing.report(now)


class Indexing:
    """The unindexed queues of a broker.

    recovery  the recovery whose rows are still to be indexed; None if everything is indexed
    queues    the unindexed queues by their ids
    given_up  the broker stops, or its log has failed, before everything is indexed
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.recovery: Recovery | None = None
        self.given_up = False
        self.queues: dict[int, ClassicQueue] = {}
        # The others, which were empty when the log was closed.
        self._empty: dict[int, ClassicQueue] = {}
        self._waiting: deque[Callable[[], None]] = deque()
        self._began = 0.0
        self._report = _Report(self)

    def begin(self, recovery: Recovery, types: frozenset[str]) -> None:
        """Prepare to index the rows after the start; or index them now if the recovery of some object needs them.

        Called before anything is recovered. `types` are the queue types whose queues may be unindexed.

        Raises:
            StorageFailed: The rows are damaged.
        """
        index = recovery.index
        if index is None:
            return
        if _needs_entries(recovery, types):
            index.run()
            recovery.index = None
        else:
            self.recovery = recovery

    def is_active(self) -> bool:
        """Return whether rows are still to be indexed."""
        return self.recovery is not None

    def progress(self) -> float:
        """Return the part of the rows that was read, from 0 to 1."""
        recovery = self.recovery
        return 1.0 if recovery is None or recovery.index is None else recovery.index.progress()

    def add(self, queue: ClassicQueue) -> bool:
        """Add a recovered queue. Return False if it was empty when the log was closed, so that it may serve at once."""
        recovery = self.recovery
        assert recovery is not None
        if recovery.occupied is not None and queue.id not in recovery.occupied:
            self._empty[queue.id] = queue
            return False
        self.queues[queue.id] = queue
        return True

    def discard(self, queue: ClassicQueue) -> None:
        """Remove a queue, which has taken over its entries."""
        self.queues.pop(queue.id, None)

    def delete(self, queue: ClassicQueue) -> None:
        """Remove a queue that was deleted: its entries are removed when they are known."""
        self.discard(queue)
        self._broker.log.put(metadata.REMOVAL, self._broker.leftovers.add(queue.vhost.name, queue.id), b"")

    def after(self, callback: Callable[[], None]) -> None:
        """Call back when everything is indexed or the broker stops, in the order of the calls."""
        self._waiting.append(callback)

    def give_up(self) -> None:
        """Call back those that wait: the broker stops, or its log has failed."""
        if self.recovery is None:
            return
        self.given_up = True
        self._broker.timers.cancel(self._report)
        while self._waiting:
            self._call(self._waiting.popleft())

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:  # the others must be called, too
            logger.exception("a callback after the end of the indexing failed")

    # After the start

    def start(self) -> None:
        """Index the rows in a thread."""
        recovery = self.recovery
        if recovery is not None and recovery.index is not None:
            self._began = time.monotonic()
            logger.info("indexing the messages of %d queues, which deliver nothing until then", len(self.queues))
            self._broker.timers.at(self._broker.timers.now() + REPORT_INTERVAL, self._report)
            recovery.index.start(self._read)

    def report(self, now: int) -> None:
        """Log the progress, and set the timer again."""
        logger.info("indexed %.0f %% of the messages; %d queues wait for theirs", 100 * self.progress(), len(self.queues))
        self._broker.timers.at(now + REPORT_INTERVAL, self._report)

    def _read(self) -> None:
        """Continue after all rows were read."""
        if self._broker.jobs.run_steps(self._taking_over(), self._done, self._failed):
            self._done()

    def _taking_over(self) -> Iterator[int]:
        """Have the queues take over their entries, and remove those of deleted queues."""
        recovery = self.recovery
        assert recovery is not None and recovery.index is not None
        yield from recovery.index.adopting()
        found = recovery.queues
        for limit in _LIMITS:
            for queue_id in list(self.queues):
                queue = self.queues.get(queue_id)
                if queue is None:
                    continue  # deleted meanwhile
                entries = found.get(queue_id, _NOTHING)
                if len(entries.seqs) <= limit:
                    yield from logged(queue.taking_over(entries, recovery.clean))
                    if not queue.deleted:
                        found.pop(queue_id, None)
                    yield RELEASE_WORK
                else:
                    yield 1
        self._broker.remove_leftovers()
        for queue_id in list(found):
            unexpected = self._empty.get(queue_id)
            if unexpected is not None and not unexpected.deleted:
                # They were on their way to another queue when the broker stopped.
                logger.warning("%s has %d messages although it was empty", unexpected, len(found[queue_id].seqs))
                yield from logged(unexpected.taking_over(found.pop(queue_id), recovery.clean))
        self._empty = {}
        while self._waiting:
            self._call(self._waiting.popleft())
            yield CALL_WORK

    def _done(self) -> None:
        logger.info("indexed all messages in %.2f s", time.monotonic() - self._began)
        self._broker.timers.cancel(self._report)
        self.recovery = None

    def _failed(self) -> None:
        self._broker.log.fail("the recovered messages could not be added to their queues")


def _needs_entries(recovery: Recovery, types: frozenset[str]) -> bool:
    """Return whether the recovery of some object needs the entries."""
    for (kind, _), value in recovery.metadata.items():
        if kind in _REFERRING:
            return True
        if (
            kind == metadata.QUEUE
            and b"x-queue-type" in value
            and metadata.unpack(value)["arguments"].get("x-queue-type", CLASSIC) not in types
        ):
            return True
    return False
